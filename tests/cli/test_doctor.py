"""`jqueue doctor` finds each fault of an incorrect store, calls a correct store safe, and leaves nothing behind."""

import json
import signal

import pytest

from jqueue.domain.errors import StorageFatalError
from tests.cli import stores
from tests.cli.commands import refused, run, text

LIES = {
    stores.IgnoresConditions: "create_only",
    stores.IgnoresIfNoneMatch: "create_only",
    stores.IgnoresIfMatch: "conditional_writes",
    stores.MatchesNothing: "conditional_writes",
    stores.MakesEtagsWeak: "conditional_writes",
    stores.WritesInTwoSteps: "racing_increments",
    stores.ChangesBytes: "round_trip",
    stores.AlwaysUnchanged: "conditional_read",
    stores.ListsNothing: "listing",
}
"""The check that fails on each incorrect store."""

NOTES = {
    stores.Honest: {},
    stores.LivesInThePast: {"clock": "600 s ahead"},
    stores.Throttles: {"racing_increments": "none lost: the store is slow"},
    stores.FailsNowAndThen: {},
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
    assert [LIES[kind]] == [*outcomes(result, "failed")]
    assert (1, 1, False) == (result.exit_code, verdict["status"], verdict["safe"])
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


@pytest.mark.parametrize(("kind", "advice"), [(stores.MakesEtagsWeak, "proxy"), (stores.Throttles, "BrokerQueue")])
def test_the_table_fits_into_80_columns_and_ends_with_a_verdict_and_advice(examine, kind, advice):
    lines = examine(kind()).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    verdict = next(number for number, line in enumerate(lines) if line.startswith(("Safe.", "Not safe.")))
    assert all(line.startswith((" ", "─")) or not line for line in lines[1 : verdict - 1])
    assert advice in " ".join(" ".join(lines[verdict:]).split())


def test_the_reason_why_a_store_cannot_be_used_is_shown_and_escaped(url_of, virtual):
    storage = stores.RefusesWrites()
    said = refused("doctor", url_of(storage))
    assert said.startswith("could not find out whether this store is safe: ")
    assert r"to write, s3:PutObject is needed\x1b[2J\r\nSafe." in said
    assert (set(), [True]) == (storage.left, storage.released)


def test_the_doctor_gives_up_on_a_store_that_never_answers(url_of, virtual):
    storage = stores.NeverAnswers()
    assert "could not find out whether this store is safe" in refused("doctor", url_of(storage))
    assert max(storage.times) < LONGEST


def press_ctrl_c():
    signal.raise_signal(signal.SIGINT)


def refuse():
    raise StorageFatalError("the credentials have expired")


@pytest.mark.parametrize("number", [2, 60])
@pytest.mark.parametrize(("happen", "status"), [(press_ctrl_c, 130), (refuse, 2)])
def test_an_end_amid_any_check_leaves_nothing(examine, number, happen, status):
    storage = stores.DoesAtCall(number, happen)
    result = examine(storage)
    assert (status, set(), [True]) == (result.exit_code, storage.left, storage.released)
    assert "left behind" not in result.stderr


def test_objects_that_cannot_be_removed_are_named_and_the_verdict_stands(examine):
    storage = stores.KeepsAll()
    result = examine(storage)
    assert (0, True) == (result.exit_code, "Safe." in result.stdout)
    assert storage.left
    assert all(name in result.stderr for name in storage.left)
    assert "s3:DeleteObject is needed" in result.stderr


def test_a_file_is_safe_and_nothing_is_left_beside_it(path):
    path.write_bytes(stores.USERS)
    assert "Safe. " in text("doctor", path)
    assert ([path], stores.USERS) == ([*path.parent.iterdir()], path.read_bytes())


def test_a_path_without_a_queue_is_told(path):
    said = text("doctor", path)
    assert "There is no queue here. Safe. " in said
    assert "the name may be misspelt" in said
    assert not path.exists()
