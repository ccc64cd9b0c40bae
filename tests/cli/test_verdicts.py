"""The doctor finds each fault of an incorrect store, and calls a correct store safe."""

import json

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.cli.checks import CHECKS
from jqueue.testing.virtual_time import VirtualClock
from tests.cli import stores

NAMES = [check.name for check in CHECKS]

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
"""The checks that fail on each incorrect store."""

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
"""The notes on each safe store, by check."""


def _named(kind):
    return kind.__name__


def _outcomes(result, outcome):
    return {
        check["name"]: check["detail"] for check in json.loads(result.stdout)["checks"] if check["outcome"] == outcome
    }


LONGEST = 100.0
"""Longest run of the doctor in seconds, including the removal of its objects."""


def nothing_is_left(storage):
    return {"queue.json": (b"the user's", "0")} == storage.objects


@pytest.mark.parametrize("kind", LIES, ids=_named)
def test_an_incorrect_store_is_not_safe(doctor, kind):
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
def test_a_correct_store_is_safe_even_with_notes(doctor, kind):
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


def test_every_check_finds_a_fault_in_some_store(doctor):
    quoting = doctor(stores.Quoted(), "--json")
    assert [name for name in NAMES if name != "segments"] == [
        check["name"] for check in json.loads(quoting.stdout)["checks"]
    ]
    never_seen = stores.Quoted()
    never_seen.etag_style = None
    assert {"etag_quoting"} == _outcomes(doctor(never_seen, "--json"), "noted").keys()
    found = {name for names in (*LIES.values(), *NOTES.values()) for name in names}
    assert set(NAMES) - {"etag_quoting", "segments"} == found


def test_the_etag_quoting_of_a_store_without_an_etag_style_is_not_checked(doctor):
    names = [check["name"] for check in json.loads(doctor(stores.Honest(), "--json").stdout)["checks"]]
    assert [name for name in NAMES if name not in ("etag_quoting", "segments")] == names


def test_the_etag_style_is_shown(doctor):
    assert "with quotes" in doctor(stores.Quoted()).stdout
    assert "without quotes" in doctor(stores.Unquoted()).stdout


def test_the_measured_rate_of_a_throttling_store_is_close_to_its_limit(doctor):
    rate = _outcomes(doctor(stores.Throttles(), "--json"), "noted")["write_rate"]
    assert 0.6 <= float(rate.partition(";")[0]) <= 1.1


def test_the_rate_follows_from_the_time_of_a_write(doctor):
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
def test_the_reason_why_a_store_cannot_be_used_is_shown(doctor, kind, said, option):
    storage = kind()
    result = doctor(storage, *option)
    assert 2 == result.exit_code
    assert said in (json.loads(result.stdout)["error"] if option else result.stderr)
    assert "safe" not in result.stdout.lower() or option
    assert nothing_is_left(storage)
    assert storage.released
    assert max(storage.times) < LONGEST


@pytest.mark.parametrize("kind", [stores.Fails, stores.NeverAnswers], ids=_named)
def test_the_doctor_gives_up_on_a_store_that_always_fails_or_never_answers(doctor, kind):
    storage = kind()
    result = doctor(storage)
    assert 2 == result.exit_code
    assert max(storage.times) < LONGEST
    assert "could not find out whether this store is safe" in result.stderr
    assert "may be left behind" in result.stderr, "a write without an answer may have landed"
    assert ".doctor-" in result.stderr


def test_a_storage_without_scratch_objects_is_not_touched(doctor):
    result = doctor(stores.NoScratch())
    assert 2 == result.exit_code
    assert "cannot be checked without touching the queue" in result.stderr


def test_the_queue_itself_is_neither_read_nor_written(doctor):
    storage = stores.Honest()
    doctor(storage)
    assert storage.calls
    assert "queue.json" not in {name for _, name in storage.calls}


def test_the_advice_depends_on_the_fault_of_the_store(doctor):
    def advice(kind):
        return " ".join(json.loads(doctor(kind(), "--json").stdout)["advice"])

    assert "ignore the conditions of writes" in advice(stores.IgnoresConditions)
    assert "another write can come between" in advice(stores.WritesInTwoSteps)
    assert "proxy" in advice(stores.MakesEtagsWeak)
    assert "BrokerQueue" in advice(stores.Throttles)
    assert "Set the clock" in advice(stores.LivesInThePast)


def test_memory_is_safe_with_a_note_that_it_belongs_to_one_process(doctor):
    result = doctor(InMemoryStorage(clock=VirtualClock()))
    assert 0 == result.exit_code
    assert "An in-memory queue belongs to one process" in result.stdout


@pytest.mark.parametrize("kind", [stores.IgnoresConditions, stores.Throttles, stores.KeepsAll], ids=_named)
def test_the_output_fits_into_80_columns_and_ends_with_a_verdict(doctor, kind):
    lines = doctor(kind()).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    verdict = next(number for number, line in enumerate(lines) if line.startswith(("Safe.", "Not safe.")))
    assert all(line.startswith((" ", "─")) or not line for line in lines[1 : verdict - 1])
