"""Heartbeats while blocking code works, and the errors that it gets if a claim is lost."""

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import ClaimLostError, JobCancelledError
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


def test_a_job_acked_in_the_block_is_not_lost(queue, broker):
    job, other = claim(queue, 2)  # the heartbeats of the other go on
    with queue.keep_alive([job, other], 0.01) as claims:
        queue.ack(job)
        while broker.beaten.acquire(blocking=False):
            pass
        assert broker.beaten.acquire(timeout=PATIENCE)
        assert not claims.lost
