"""The doctor on stores that lie: each lie is found, and what is honest is called safe."""

import json

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli.checks import CHECKS
from jqueue.testing.virtual_time import VirtualClock
from tests.cli import stores

LIES = {
    stores.IgnoresConditions: {
        "create_only",
        "stale_etag",
        "absent_object",
        "racing_creators",
        "racing_increments",
    },
    stores.CreatesOver: {"create_only", "racing_creators", "racing_increments"},
    stores.CreatesNothing: {"create_only", "absent_object", "racing_creators"},
    stores.IgnoresMatches: {"stale_etag", "racing_increments"},
    stores.RefusesAndWrites: {"create_only", "stale_etag", "absent_object", "racing_creators"},
    stores.MatchesNothing: {"absent_object"},
    stores.RefusesMatches: {"right_etag"},
    stores.MakesEtagsWeak: {"right_etag"},
    stores.Forgets: {"right_etag"},
    stores.CreatesInTwoSteps: {"racing_creators", "racing_increments"},
    stores.WritesInTwoSteps: {"racing_increments"},
    stores.ChangesBytes: {"round_trip"},
    stores.AlwaysUnchanged: {"conditional_read"},
}
"""What fails on each."""

NOTES = {
    stores.Honest: {},
    stores.ChangesEtags: {"round_trip": "another etag"},
    stores.NeverUnchanged: {"conditional_read": "is sent whole"},
    stores.TellsNoTime: {"clock": "does not report"},
    stores.LivesInThePast: {"clock": "600 s ahead"},
    stores.Quoted: {},
    stores.Unquoted: {},
    stores.MostlyConflicts: {"racing_increments": "conflicts with other writers"},
    stores.Throttles: {
        "racing_increments": "none lost: the store throttled",
        "write_rate": "the store throttles faster writes",
    },
    stores.FailsNowAndThen: {"racing_increments": "counted twice"},
    stores.SendsAgain: {"racing_increments": "counted twice"},
}
"""What is noted on each that is safe."""


def _named(kind):
    return kind.__name__


def _outcomes(result, outcome):
    return {
        check["name"]: check["detail"] for check in json.loads(result.stdout)["checks"] if check["outcome"] == outcome
    }


LONGEST = 100.0
"""Seconds, the removal included."""


def nothing_is_left(storage):
    return {"queue.json": (b"the user's", "0")} == storage.objects


@pytest.mark.parametrize("kind", LIES, ids=_named)
def test_a_store_that_lies_is_not_safe(doctor, kind):
    storage = kind()
    result = doctor(storage, "--json")
    assert LIES[kind] == _outcomes(result, "failed").keys()
    assert 1 == result.exit_code
    found = json.loads(result.stdout)
    assert (False, 1) == (found["safe"], found["status"])
    assert found["harm"]
    assert found["advice"]
    assert nothing_is_left(storage)
    assert storage.released
    assert max(storage.times) < LONGEST


@pytest.mark.parametrize("kind", NOTES, ids=_named)
def test_a_store_that_is_honest_is_safe_whatever_is_noted(doctor, kind):
    storage = kind()
    result = doctor(storage, "--json")
    assert {} == _outcomes(result, "failed")
    notes = _outcomes(result, "noted")
    assert NOTES[kind].keys() == notes.keys()
    assert all(words in notes[name] for name, words in NOTES[kind].items())
    assert 0 == result.exit_code
    assert nothing_is_left(storage)
    assert storage.released
    assert max(storage.times) < LONGEST


def test_every_check_can_find_something(doctor):
    quoting = doctor(stores.Quoted(), "--json")
    assert [check.name for check in CHECKS] == [check["name"] for check in json.loads(quoting.stdout)["checks"]]
    never_seen = stores.Quoted()
    never_seen.etag_style = None
    assert {"etag_quoting"} == _outcomes(doctor(never_seen, "--json"), "noted").keys()
    found = {name for names in (*LIES.values(), *NOTES.values()) for name in names}
    assert {check.name for check in CHECKS} - {"etag_quoting"} == found


def test_what_a_store_does_not_have_is_not_checked(doctor):
    names = [check["name"] for check in json.loads(doctor(stores.Honest(), "--json").stdout)["checks"]]
    assert [check.name for check in CHECKS if check.name != "etag_quoting"] == names


def test_an_etag_style_is_told(doctor):
    assert "with quotes" in doctor(stores.Quoted()).stdout
    assert "without quotes" in doctor(stores.Unquoted()).stdout


def test_the_rate_of_a_store_that_throttles_is_nearly_what_it_allows(doctor):
    rate = _outcomes(doctor(stores.Throttles(), "--json"), "noted")["write_rate"]
    assert 0.6 <= float(rate.partition(";")[0]) <= 1.1


def test_the_rate_is_how_long_writes_take(doctor):
    assert "50, one after the other" == _outcomes(doctor(stores.Honest(), "--json"), "passed")["write_rate"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (stores.NeverStopsThrottling, "429: slow down"),
        (stores.Refuses, "access to the bucket 'jobs' was refused: to write, s3:PutObject is needed"),
        (stores.RefusesAfterAWhile, "the credentials have expired: renew them"),
        (stores.AnswersLate, "the credentials have expired: renew them"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("option", [[], ["--json"]], ids=["text", "json"])
def test_a_store_that_cannot_be_used_says_why(doctor, kind, said, option):
    storage = kind()
    result = doctor(storage, *option)
    assert 2 == result.exit_code
    assert said in (json.loads(result.stdout)["error"] if option else result.stderr)
    assert "safe" not in result.stdout.lower() or option
    assert nothing_is_left(storage)
    assert storage.released
    assert max(storage.times) < LONGEST


@pytest.mark.parametrize("kind", [stores.Fails, stores.NeverAnswers], ids=_named)
def test_a_store_that_fails_each_time_or_never_answers_is_given_up(doctor, kind):
    storage = kind()
    result = doctor(storage)
    assert 2 == result.exit_code
    assert max(storage.times) < LONGEST
    assert "could not find out whether this store is safe" in result.stderr
    assert "may be left behind" in result.stderr, "a write without an answer may have landed"
    assert ".doctor-" in result.stderr


def test_a_storage_that_gives_no_scratch_object_is_not_touched(doctor):
    result = doctor(stores.NoScratch())
    assert 2 == result.exit_code
    assert "cannot be checked without touching the queue" in result.stderr


def test_the_queue_itself_is_neither_read_nor_written(doctor):
    storage = stores.Honest()
    doctor(storage)
    assert storage.calls
    assert "queue.json" not in {name for _, name in storage.calls}


def test_stores_differ_in_what_to_do(doctor):
    def advice(kind):
        return " ".join(json.loads(doctor(kind(), "--json").stdout)["advice"])

    assert "ignore the conditions of writes" in advice(stores.IgnoresConditions)
    assert "another write can come between" in advice(stores.WritesInTwoSteps)
    assert "proxy" in advice(stores.MakesEtagsWeak)
    assert "BrokerQueue" in advice(stores.Throttles)
    assert "Set the clock" in advice(stores.LivesInThePast)


def test_memory_is_safe_and_said_to_end_with_the_process(doctor):
    result = doctor(InMemoryStorage(clock=VirtualClock()))
    assert 0 == result.exit_code
    assert "An in-memory queue belongs to one process" in result.stdout


@pytest.mark.parametrize("kind", [stores.IgnoresConditions, stores.Throttles, stores.KeepsAll], ids=_named)
def test_what_is_printed_fits_into_80_columns_and_ends_in_a_verdict(doctor, kind):
    lines = doctor(kind()).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    verdict = next(number for number, line in enumerate(lines) if line.startswith(("Safe.", "Not safe.")))
    assert all(line.startswith((" ", "─")) or not line for line in lines[1 : verdict - 1])
