"""A selection chooses jobs by phase, entrypoint, age, holder, key, error and id; a duration has a unit."""

from datetime import UTC, datetime, timedelta

import pytest

from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.domain.selection import Phase, Selection, phase_of, since

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def ago(seconds):
    return NOW - timedelta(seconds=seconds)


def job(job_id, **fields):
    return Job(id=job_id, **{"entrypoint": "mail", "payload": b"", "created_at": ago(1000), **fields})


EVERY = [
    job("ready", entrypoint="report", unique_key="u", headers={"x": "y"}),
    job("scheduled", run_at=ago(-60), concurrency_key="c"),
    job("expired", expires_at=ago(1)),
    job("running", status=JobStatus.IN_PROGRESS, claimed_at=ago(50), holder="mailer@Host-1:77", attempt=2),
    job("dead", status=JobStatus.DEAD, dead_at=ago(500), error="SMTPError: 451 try Later", failures=3),
    job("completed", status=JobStatus.COMPLETED, finished_at=ago(5)),
]


@pytest.mark.parametrize("each", EVERY, ids=lambda each: each.id)
def test_a_phase_is_the_status_with_queued_jobs_told_apart_by_time(each):
    phase = Phase(each.id.replace("running", "in_progress"))
    selection = Selection(phases=frozenset({phase}))
    assert phase is phase_of(each, NOW)
    assert [each] == [other for other in EVERY if selection.matches(other, NOW)]
    assert each.status in selection.statuses


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {each.id for each in EVERY}),
        ({"older_than": 50}, {"ready", "expired", "dead"}),
        ({"newer_than": 50}, {"scheduled", "running", "completed"}),
        ({"older_than": 50, "newer_than": 999}, {"dead"}),
        ({"entrypoints": frozenset({"report", "absent"})}, {"ready"}),
        ({"holder": "@host-1"}, {"running"}),
        ({"key": "u"}, {"ready"}),
        ({"key": "c"}, {"scheduled"}),
        ({"error": "later"}, {"dead"}),
        ({"id_prefix": "re"}, {"ready"}),
        ({"text": "LATER"}, {"dead"}),
        ({"text": "host-1"}, {"running"}),
        ({"text": "expire"}, {"expired"}),
        ({"phases": frozenset({Phase.DEAD, Phase.READY}), "entrypoints": frozenset({"mail"})}, {"dead"}),
    ],
)
def test_a_job_must_fit_every_field(fields, expected):
    selection = Selection(**fields)
    assert expected == {each.id for each in EVERY if selection.matches(each, NOW)}
    assert bool(fields) == bool(selection)


def test_the_age_counts_from_the_beginning_of_the_phase_or_the_return():
    assert [1000, -60, 1000, 50, 500, 5] == [(NOW - since(each)).total_seconds() for each in EVERY]
    assert ago(7) == since(job("a", queued_at=ago(7)))
    assert ago(3) == since(job("a", queued_at=ago(7), run_at=ago(3)))
