"""Heartbeats while blocking code works, and the errors that it gets if a claim is lost."""

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import ClaimLostError, JobCancelledError
from jqueue.domain.limits import Limits
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.sync import SyncQueue
from tests.sync.programs import PATIENCE, SignallingQueue


@pytest.fixture
def broker():
    return SignallingQueue(InMemoryStorage())


@pytest.fixture
def queue(broker):
    with SyncQueue(broker) as queue:
        yield queue


def claim(queue, count=1):
    for _ in range(count):
        queue.enqueue("work", b"")
    return queue.dequeue("work", batch_size=count)


def test_claims_are_kept_while_the_block_runs(queue, broker):
    jobs = claim(queue, 2)
    with queue.keep_alive(jobs, 0.01) as claims:
        for _ in range(3):
            assert broker.beaten.acquire(timeout=PATIENCE)
        assert not claims.lost
    before = {job.id: job.heartbeat_at for job in jobs}
    assert all(job.heartbeat_at > before[job.id] for job in queue.read_state().jobs)
    assert [] == queue.ack_many(jobs)


@pytest.mark.parametrize("error", [ClaimLostError, JobCancelledError])
def test_a_lost_or_cancelled_claim_shows_in_the_block_and_is_raised_at_its_end(queue, broker, error):
    [job] = claim(queue)
    with pytest.raises(error) as caught, queue.keep_alive(job, 0.01) as claims:
        queue.requeue_stale(0) if error is ClaimLostError else queue.cancel(job.id, running=True)
        while not claims.lost:
            assert broker.beaten.acquire(timeout=PATIENCE)
    assert (job.id, claims.error) == (caught.value.job_id, caught.value)


def test_a_cancelled_job_of_a_range_shows_in_the_block_and_is_no_loss():
    broker = SignallingQueue(InMemoryStorage(), limits=Limits(hot_bytes=1))
    with SyncQueue(broker) as queue:
        jobs = queue.enqueue_many(Enqueue("work", b"%d" % number) for number in range(100))
        claim = None
        while claim is None:  # the jobs move to a segment in the background, after a commit
            queue.pause("other")
            queue.resume("other")
            claim = queue.claim_range("work", 4)
        with queue.keep_alive(claim, 0.01) as heartbeats:
            assert frozenset() == heartbeats.cancelled
            queue.cancel(jobs[2].id, running=True)
            while not heartbeats.cancelled:
                assert broker.beaten.acquire(timeout=PATIENCE)
            assert not heartbeats.lost
        queue.end_range(claim, failed=dict.fromkeys(heartbeats.cancelled))
        assert 96 == queue.stats().depth


def test_a_job_acked_in_the_block_is_not_lost(queue, broker):
    job, other = claim(queue, 2)  # the heartbeats of the other go on
    with queue.keep_alive([job, other], 0.01) as claims:
        queue.ack(job)
        while broker.beaten.acquire(blocking=False):
            pass
        assert broker.beaten.acquire(timeout=PATIENCE)
        assert not claims.lost
