"""Stale claims, clock by clock: claims watched standing still, claims judged by age, and time that never counts."""

from datetime import UTC, datetime, timedelta

import pytest

from jqueue.core.staleness import StaleWatch
from jqueue.domain.draft import Draft
from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job, record_of

START = datetime(2026, 1, 1, tzinfo=UTC)
FAILED = "failed"
"""A read of the store that failed."""


def beat(heartbeat, *, attempt=1, timeout=30.0):
    """Return the claim, confirmed at a time in seconds."""
    heartbeat_at = None if heartbeat is None else START + timedelta(seconds=heartbeat)
    job = Job(id="a", entrypoint="t", payload=b"", created_at=START, status=JobStatus.IN_PROGRESS, sequence=1)
    return job.evolve(attempt=attempt, heartbeat_at=heartbeat_at, claim_timeout=timeout)


def look(monotonic, store=None, *, stood_still=0.0):
    """Return a look at the queue: the two clocks, and the seconds for which the process has stood still by then."""
    return (monotonic, store, stood_still)


TIMELINES = {
    "watched standing still for its timeout": ([beat(0), look(0), look(29), look(30)], "..S"),
    "a heartbeat starts the watch anew": ([beat(0), look(0), beat(25), look(29), look(58), look(59)], "...S"),
    "another attempt is another claim": ([beat(0), look(0), beat(0, attempt=2), look(29), look(58), look(59)], "...S"),
    "its own timeout counts": ([beat(0, timeout=1000.0), look(0), look(999), look(1000)], "..S"),
    "without one the watcher's": ([beat(0, timeout=None), look(0), look(299), look(300)], "..S"),
    "failed reads do not count": ([beat(0), look(0), FAILED, look(1000), look(1029), look(1030)], "...S"),
    "a fresh process waits 10 s": ([beat(0), look(0, 91), look(9.9, 101), look(10, 101)], "..S"),
    "or a third of the timeout": ([beat(0, timeout=6.0), look(0, 67), look(1.9, 69), look(2, 69)], "..S"),
    "and no longer than 10 s": ([beat(0, timeout=300.0), look(0, 361), look(9.9, 371), look(10, 371)], "..S"),
    "without a heartbeat it is old": ([beat(None), look(0, 5), look(10, 15)], ".S"),
    "clocks may disagree by 60 s": ([beat(0), look(0, 70), look(19.9, 89.9), look(20, 90)], "..S"),
    "without a store's clock only watched": ([beat(-100_000), look(0), look(29), look(30)], "..S"),
    "one seen to move is not judged by age": ([beat(0), look(0, 0), beat(-50_000), look(20, 20), look(50, 50)], "..S"),
    "age counts again after a long absence": ([beat(0), look(0, 0), beat(100, attempt=2), look(3600, 3600)], ".S"),
    "a process that stood still has watched nothing": (
        [beat(0), look(0), look(20), look(3620, stood_still=3600), look(3629), look(3630)],
        "....S",
    ),
    "a claim from just before it gets its whole timeout": (
        [look(0, 0), beat(1), look(3602, 3602, stood_still=3600), look(3631.9, 3631.9), look(3632, 3632)],
        "...S",
    ),
    "an old one from a long absence before it gets the time of a fresh process": (
        [look(0, 0), beat(1), look(3700, 3700, stood_still=3600), look(3709.9, 3709.9), look(3710, 3710)],
        "...S",
    ),
    "in a suspended machine the own clock stands still, too": (
        [look(0, 0), beat(1), look(2, 3602, stood_still=3600), look(31.9, 3631.9), look(32, 3632)],
        "...S",
    ),
    "once revoked it is not watched": (
        [beat(0), look(0), look(30), beat(None).evolve(status=JobStatus.QUEUED), look(60)],
        ".S.",
    ),
}


@pytest.mark.parametrize(("timeline", "expected"), TIMELINES.values(), ids=TIMELINES)
def test_a_claim_is_stale_from_the_moment_at_which_it_must_be(timeline, expected):
    draft, watch, seen, still = Draft(), StaleWatch(300.0), "", 0.0
    for event in timeline:
        if isinstance(event, Job):
            draft.load([record_of(event)])
        elif event is FAILED:
            watch.failed()
        else:
            monotonic, store, stood_still = event
            still += stood_still
            watch.observed(draft, monotonic, None if store is None else START + timedelta(seconds=store), still)
            seen += "S" if list(watch.suspects()) else "."
    assert expected == seen
