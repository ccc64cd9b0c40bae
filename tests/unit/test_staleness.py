"""Stale claims, clock by clock: claims watched standing still, claims judged by age, and time that never counts."""

from datetime import UTC, datetime, timedelta

import pytest

from jqueue.core.engine.staleness import StaleWatch
from jqueue.domain.draft import Draft
from jqueue.domain.models import Job, JobStatus

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds):
    return START + timedelta(seconds=seconds)


class Queue:
    """One claim, and one process that watches it."""

    def __init__(self, *, timeout=30.0, heartbeat=0.0, default=300.0):
        self.draft = Draft()
        self.watch = StaleWatch(default)
        self.beat(heartbeat, timeout=timeout)

    def beat(self, heartbeat, *, attempt=1, timeout=30.0):
        job = Job(
            id="a",
            entrypoint="t",
            payload=b"",
            status=JobStatus.IN_PROGRESS,
            attempt=attempt,
            sequence=1,
            heartbeat_at=None if heartbeat is None else at(heartbeat),
            claim_timeout=timeout,
            created_at=START,
        )
        self.draft.load([job])

    def stale(self, monotonic, store=None):
        """Look at the claim, and return the ids of stale jobs."""
        self.watch.observed(self.draft, monotonic, None if store is None else at(store))
        return [claim.job_id for claim, _ in self.watch.suspects()]


def test_a_claim_is_stale_when_it_was_watched_standing_still_for_its_timeout():
    queue = Queue()
    assert [[], [], ["a"]] == [queue.stale(0), queue.stale(29), queue.stale(30)]


def test_a_heartbeat_starts_the_watch_anew():
    queue = Queue()
    assert [] == queue.stale(0)
    queue.beat(25)
    assert [[], [], ["a"]] == [queue.stale(29), queue.stale(58), queue.stale(59)]


def test_another_attempt_is_another_claim():
    queue = Queue()
    assert [] == queue.stale(0)
    queue.beat(0, attempt=2)
    assert [[], ["a"]] == [queue.stale(29), queue.stale(59)]


def test_the_claims_own_timeout_counts_and_not_the_watchers():
    queue = Queue(timeout=1000.0, default=1.0)
    assert [[], [], ["a"]] == [queue.stale(0), queue.stale(999), queue.stale(1000)]


def test_a_claim_without_a_timeout_of_its_own_gets_the_watchers():
    queue = Queue(timeout=None, default=7.0)
    assert [[], [], ["a"]] == [queue.stale(0), queue.stale(6), queue.stale(7)]


def test_time_in_which_reads_failed_does_not_count():
    queue = Queue()
    assert [] == queue.stale(0)
    queue.watch.failed()
    assert [[], [], ["a"]] == [queue.stale(1000), queue.stale(1029), queue.stale(1030)]


@pytest.mark.parametrize(("timeout", "grace"), [(30.0, 10.0), (6.0, 2.0), (300.0, 10.0)])
def test_a_fresh_process_goes_by_age_but_not_in_its_first_moments(timeout, grace):
    queue = Queue(timeout=timeout)
    late = timeout + 61
    assert [] == queue.stale(0, store=late)
    assert [] == queue.stale(grace - 0.1, store=late + grace)
    assert ["a"] == queue.stale(grace, store=late + grace)


def test_a_claim_without_a_heartbeat_is_judged_old():
    queue = Queue(heartbeat=None)
    assert [[], ["a"]] == [queue.stale(0, store=5), queue.stale(10, store=15)]


def test_clocks_may_disagree_by_the_allowance():
    queue = Queue()
    assert [] == queue.stale(0, store=30 + 59)
    assert [] == queue.stale(0.9, store=30 + 59.9)
    assert ["a"] == queue.stale(10, store=30 + 69)


def test_a_fresh_process_without_a_store_clock_only_watches():
    queue = Queue(heartbeat=-100_000)
    assert [[], [], ["a"]] == [queue.stale(0), queue.stale(29), queue.stale(30)]


def test_a_claim_seen_to_move_is_not_judged_by_its_age():
    queue = Queue()
    assert [] == queue.stale(0, store=0)
    queue.beat(-50_000)
    assert [[], ["a"]] == [queue.stale(20, store=20), queue.stale(50, store=50)]


def test_age_counts_again_after_a_long_absence():
    """A process that looks once an hour would otherwise never find a dead worker's claim old enough."""
    queue = Queue()
    assert [] == queue.stale(0, store=0)
    queue.beat(100, attempt=2)
    assert ["a"] == queue.stale(3600, store=3600)


def test_a_revoked_claim_is_no_longer_watched():
    queue = Queue()
    queue.stale(0)
    assert ["a"] == queue.stale(30)
    queue.draft.load([queue.draft.jobs["a"].evolve(status=JobStatus.QUEUED, heartbeat_at=None)])
    assert [] == queue.stale(60)


def test_the_watch_does_not_grow_with_heartbeats():
    queue = Queue()
    for second in range(2000):
        queue.beat(second)
        queue.stale(second)
    assert len(queue.watch._due) < 200
