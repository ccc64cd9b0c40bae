"""`jqueue doctor` finds each fault of an incorrect store, calls a correct store safe, and leaves nothing behind."""

import json
import signal

import pytest

from jqueue.domain.errors import StorageFatalError
from tests.cli import stores
from tests.cli.commands import run, text

LIES = {
    stores.IgnoresConditions: {"create_only", "stale_etag", "absent_object", "racing_increments"},
    stores.IgnoresIfNoneMatch: {"create_only", "racing_increments"},
    stores.IgnoresIfMatch: {"stale_etag", "absent_object", "racing_increments"},
    stores.MatchesNothing: {"absent_object"},
    stores.MakesEtagsWeak: {"right_etag"},
    stores.WritesInTwoSteps: {"racing_increments"},
    stores.ChangesBytes: {"round_trip"},
    stores.AlwaysUnchanged: {"conditional_read"},
}
"""The checks that fail on each incorrect store."""

NOTES = {
    stores.Honest: {},
    stores.LivesInThePast: {"clock": "600 s ahead"},
    stores.Throttles: {"racing_increments": "throttled requests"},
    stores.FailsNowAndThen: {"racing_increments": "counted twice"},
}
"""The notes on each safe store, by check."""

LONGEST = 100.0
"""Longest run of the doctor in seconds of virtual time, including the removal of its objects."""


@pytest.fixture
def examine(url_of, virtual):
    """`examine(storage)`: the result of the command in virtual time."""
    return lambda storage, *options: run("doctor", url_of(storage), *options)


def outcomes(result, outcome):
    checks = json.loads(result.stdout)["checks"]
    return {check["name"]: check["detail"] for check in checks if check["outcome"] == outcome}


@pytest.mark.parametrize("kind", LIES, ids=lambda kind: kind.__name__)
def test_an_incorrect_store_is_not_safe(examine, kind):
    storage = kind()
    result = examine(storage, "--json")
    verdict = json.loads(result.stdout)
    assert LIES[kind] == outcomes(result, "failed").keys()
    assert (1, 1, False) == (result.exit_code, verdict["status"], verdict["safe"])
    assert verdict["harm"]
    assert verdict["advice"]
    assert (set(), [True]) == (storage.left, storage.released)
    assert max(storage.times) < LONGEST


@pytest.mark.parametrize("kind", NOTES, ids=lambda kind: kind.__name__)
def test_a_correct_store_is_safe_even_with_notes(examine, kind):
    storage = kind()
    result = examine(storage, "--json")
    notes = outcomes(result, "noted")
    assert (0, {}, NOTES[kind].keys()) == (result.exit_code, outcomes(result, "failed"), notes.keys())
    assert all(words in notes[name] for name, words in NOTES[kind].items())
    assert (set(), [True]) == (storage.left, storage.released)
    assert {"read"} == {verb for verb, name in storage.calls if name == "queue.json"}, "the queue is not written"
    assert max(storage.times) < LONGEST


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (stores.IgnoresConditions, "ignore the conditions of writes"),
        (stores.MakesEtagsWeak, "proxy"),
        (stores.Throttles, "BrokerQueue"),
    ],
)
def test_the_table_fits_into_80_columns_and_ends_with_a_verdict_and_advice(examine, kind, advice):
    lines = examine(kind()).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    verdict = next(number for number, line in enumerate(lines) if line.startswith(("Safe.", "Not safe.")))
    assert all(line.startswith((" ", "─")) or not line for line in lines[1 : verdict - 1])
    assert advice in " ".join(" ".join(lines[verdict:]).split())


def test_the_reason_why_a_store_cannot_be_used_is_shown_and_escaped(examine):
    storage = stores.RefusesWrites()
    result = examine(storage)
    assert (2, "") == (result.exit_code, result.stdout)
    assert r"to write, s3:PutObject is needed\x1b[2J\r\nSafe." in result.stderr
    assert "left behind" not in result.stderr
    assert (set(), [True]) == (storage.left, storage.released)
    assert "s3:PutObject" in json.loads(examine(stores.RefusesWrites(), "--json").stdout)["error"]


def test_the_doctor_gives_up_on_a_store_that_never_answers(examine):
    storage = stores.NeverAnswers()
    result = examine(storage)
    assert 2 == result.exit_code
    assert max(storage.times) < LONGEST
    assert "could not find out whether this store is safe" in result.stderr
    assert "may be left behind" in result.stderr, "a write without an answer may have landed"
    assert ".doctor-" in result.stderr


def press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


def refuse():
    raise StorageFatalError("the credentials have expired")


@pytest.mark.parametrize("number", [1, 60])
@pytest.mark.parametrize(("happen", "status"), [(press_ctrl_c, 130), (refuse, 2)])
def test_an_end_amid_any_check_leaves_nothing(examine, number, happen, status):
    storage = stores.DoesAtCall(number, happen)
    result = examine(storage)
    assert (status, set(), [True]) == (result.exit_code, storage.left, storage.released)
    assert "left behind" not in result.stderr


def test_a_write_that_lands_after_the_end_of_the_checks_leaves_nothing(examine):
    storage = stores.LandsLate()
    result = examine(storage)
    assert (2, set(), 4) == (result.exit_code, storage.left, storage.writes[0])
    assert "left behind" not in result.stderr


def test_the_end_waits_for_a_write_that_cannot_be_cancelled(examine):
    storage = stores.CannotBeCancelled(1, press_ctrl_c)
    result = examine(storage)
    assert (130, set(), 1) == (result.exit_code, storage.left, storage.writes[0])
    assert "left behind" not in result.stderr


def test_a_second_ctrl_c_ends_the_doctor_at_once_with_a_list_of_left_objects(examine):
    class Interrupted(stores.DoesAtCall):
        async def remove(self):
            press_ctrl_c()

    storage = Interrupted(20, press_ctrl_c)
    result = examine(storage)
    assert 130 == result.exit_code
    assert "may be left behind" in result.stderr
    assert storage.left
    assert all(name in result.stderr for name in storage.left)


def test_objects_that_cannot_be_removed_are_named_and_the_verdict_stands(examine):
    storage = stores.KeepsAll()
    result = examine(storage)
    assert (0, True) == (result.exit_code, "Safe." in result.stdout)
    assert storage.left
    assert all(name in result.stderr for name in storage.left)
    assert 1 == result.stderr.count("s3:DeleteObject is needed")


def test_a_file_is_safe_and_nothing_is_left_beside_it(path):
    path.write_bytes(stores.USERS)
    assert "Safe. " in text("doctor", path)
    assert ([path], stores.USERS) == ([*path.parent.iterdir()], path.read_bytes())


def test_a_path_without_a_queue_is_told(path):
    said = text("doctor", path)
    assert "There is no queue here. Safe. " in said
    assert "the name may be misspelt" in said
    assert not path.exists()


def test_an_unreachable_store_cannot_be_used():
    url = "s3://key:hunter2@bucket/queue.json?endpoint_url=http://127.0.0.1:1&region_name=us-east-1"
    result = run("doctor", url)
    assert 2 == result.exit_code
    assert "s3://bucket/queue.json.doctor-" in result.stderr
    assert "127.0.0.1:1 did not answer (EndpointConnectionError: Connection refused)" in result.stderr
