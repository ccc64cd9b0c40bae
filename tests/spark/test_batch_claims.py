"""The claims of a batch, on a store that fails."""

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.errors import StorageError, UnknownOutcomeError
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.spark.batch_claims import BatchClaims
from jqueue.testing.faults import Fault, FaultyStorage
from tests.spark.batch_scenes import make_worker, works


async def claims_on(storage, **options):
    claims = BatchClaims(DirectQueue(storage, **options), ("work",), 10, 5.0, "a test")
    await claims.queue.enqueue_many(works(b"", b""))
    jobs = await claims.begin(make_worker())
    return claims, jobs


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.RESENT, Fault.HANGS, Fault.HANGS_AFTER])
async def test_the_end_is_told_once_whatever_the_store_does(fault):
    storage = FaultyStorage(InMemoryStorage())
    claims, jobs = await claims_on(storage, deadline=0.2, call_timeout=0.1)
    storage.on_write(fault, fault)
    storage.on_read(*([Fault.LOST_REQUEST] * 3))
    together = [Enqueue("next", b"once"), Enqueue("next", b"twice")]
    results = await claims.end([*together])
    assert 2 == len(results)
    await claims.end([])
    state = await claims.queue.read_state()
    assert [b"once", b"twice"] == [job.payload for job in state.jobs if job.entrypoint == "next"]
    assert 2 == len(jobs)
    await claims.close()


async def test_the_end_is_tried_as_long_as_claims_last():
    storage = FaultyStorage(InMemoryStorage(), error=lambda: StorageError("the store is away"))
    claims, _ = await claims_on(storage, deadline=0.05)
    claims._patience = 0.3
    storage.on_write(*[Fault.LOST_REQUEST] * 1000)
    storage.on_read(*[Fault.LOST_REQUEST] * 1000)
    with pytest.raises((StorageError, UnknownOutcomeError), match="the store is away"):
        await claims.end([Enqueue("next", b"")])


async def test_claims_that_nobody_ended_are_handed_back():
    claims, jobs = await claims_on(InMemoryStorage())
    queue = DirectQueue(claims.queue.storage)
    await claims.close()
    left = (await queue.read_state()).jobs
    assert [(JobStatus.QUEUED, 1, 0)] * 2 == [(job.status, job.attempt, job.failures) for job in left]
    assert {job.id for job in jobs} == {job.id for job in left}
