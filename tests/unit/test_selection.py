"""A selection chooses jobs by phase, entrypoint, age, holder, key, error and id; a prefix names one job."""

from datetime import UTC, datetime, timedelta

import pytest

from jqueue.domain.durations import parse_duration
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.selection import Phase, Selection, phase_of, since

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def ago(seconds):
    return NOW - timedelta(seconds=seconds)


def job(job_id="a", **fields):
    return Job(id=job_id, **{"entrypoint": "mail", "payload": b"", "created_at": ago(1000), **fields})


READY = job("ready", entrypoint="report", unique_key="u", headers={"x": "y"})
SCHEDULED = job("scheduled", run_at=ago(-60), concurrency_key="c")
EXPIRED = job("expired", expires_at=ago(1))
RUNNING = job("running", status=JobStatus.IN_PROGRESS, claimed_at=ago(50), holder="mailer@Host-1:77", attempt=2)
DEAD = job("dead", status=JobStatus.DEAD, dead_at=ago(500), error="SMTPError: 451 try Later", failures=3)
COMPLETED = job("completed", status=JobStatus.COMPLETED, finished_at=ago(5))
EVERY = [READY, SCHEDULED, EXPIRED, RUNNING, DEAD, COMPLETED]


def chosen(**fields):
    return {each.id for each in EVERY if Selection(**fields).matches(each, NOW)}


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.id)
def test_a_phase_is_the_status_with_queued_jobs_told_apart_by_time(each):
    phase = Phase(each.id.replace("running", "in_progress"))
    assert phase is phase_of(each, NOW)
    assert {each.id} == chosen(phases=frozenset({phase}))


def test_an_empty_selection_chooses_every_job_and_is_false():
    assert not Selection()
    assert Selection(error="x")
    assert {each.id for each in EVERY} == chosen()


def test_the_age_counts_from_the_beginning_of_the_phase():
    assert [1000, -60, 1000, 50, 500, 5] == [(NOW - since(each)).total_seconds() for each in EVERY]
    assert {"ready", "expired", "dead"} == chosen(older_than=50)
    assert {"scheduled", "running", "completed"} == chosen(newer_than=50)
    assert {"dead"} == chosen(older_than=50, newer_than=999)


def test_a_job_given_back_counts_from_its_return():
    assert ago(7) == since(job(queued_at=ago(7)))
    assert ago(3) == since(job(queued_at=ago(7), run_at=ago(3)))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"entrypoints": frozenset({"report", "absent"})}, {"ready"}),
        ({"holder": "@host-1"}, {"running"}),
        ({"key": "u"}, {"ready"}),
        ({"key": "c"}, {"scheduled"}),
        ({"error": "later"}, {"dead"}),
        ({"id_prefix": "re"}, {"ready"}),
        ({"phases": frozenset({Phase.DEAD, Phase.READY}), "entrypoints": frozenset({"mail"})}, {"dead"}),
    ],
)
def test_a_job_must_fit_every_field(fields, expected):
    assert expected == chosen(**fields)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), (" 1.5 h ", 5400), ("30d", 30 * 86400), ("2w", 14 * 86400), ("0s", 0)],
)
def test_a_duration_is_written_as_a_number_with_a_unit(text, seconds):
    assert seconds == parse_duration(text)


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1y", "9999w", f"{'9' * 400}d", "1h30m", "nan s"])
def test_other_texts_are_no_durations(text):
    assert parse_duration(text) is None


def test_the_statuses_of_a_selection_leave_out_no_chosen_job():
    for phase in Phase:
        selection = Selection(phases=frozenset({phase}))
        assert all(each.status in selection.statuses for each in EVERY if selection.matches(each, NOW))
    assert () == Selection(error="x").statuses
