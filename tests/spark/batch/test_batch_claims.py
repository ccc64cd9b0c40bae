"""The claims of a batch, on a store that fails."""

import asyncio

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.errors import StorageError, UnknownOutcomeError
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Ack, Enqueue
from jqueue.spark.batch.batch_claims import BatchClaims
from jqueue.testing.faults import Fault, FaultyStorage
from tests.spark.batch.batch_scenes import make_worker, works


async def claims_on(storage, **options):
    claims = BatchClaims(DirectQueue(storage, **options), ("work",), 10, 5.0, "a test")
    await claims.queue.enqueue_many(works(b"", b""))
    jobs = await claims.begin(make_worker())
    return claims, jobs


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.RESENT, Fault.HANGS, Fault.HANGS_AFTER])
async def test_the_end_of_a_batch_is_committed_once_under_any_fault(fault):
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


class AwayAfterAWrite(InMemoryStorage):
    """A store that loses the answer of a write that it has done, and is then unreachable for half a second."""

    armed = away = False

    async def read(self):
        if self.away:
            raise StorageError("the store is away")
        return await super().read()

    async def write(self, content, if_match=None):
        if self.away:
            raise StorageError("the store is away")
        etag = await super().write(content, if_match)
        if self.armed:
            self.armed, self.away = False, True
            asyncio.get_running_loop().call_later(0.5, setattr, self, "away", False)
            raise StorageError("the answer was lost")
        return etag


async def test_an_end_with_an_unknown_outcome_is_resolved_and_not_repeated():
    storage = AwayAfterAWrite()
    claims, jobs = await claims_on(storage)
    storage.armed, claims._patience = True, 20.0
    calls, real = [], claims.queue.apply_each

    async def hurried(*operations, deadline):
        calls.append(operations)
        return await real(*operations, deadline=0.1)

    claims.queue.apply_each = hurried
    [result, _] = await claims.end([Enqueue("next", b"once"), Ack(jobs[0])])
    assert "next" == result.entrypoint
    assert ["work", "next"] == [job.entrypoint for job in (await claims.queue.read_state()).jobs]
    assert 1 == len(calls)
    await claims.close()


async def test_the_end_of_a_batch_is_retried_until_its_claims_expire():
    storage = FaultyStorage(InMemoryStorage(), error=lambda: StorageError("the store is away"))
    claims, _ = await claims_on(storage, deadline=0.05)
    claims._patience = 0.3
    storage.on_write(*[Fault.LOST_REQUEST] * 1000)
    storage.on_read(*[Fault.LOST_REQUEST] * 1000)
    with pytest.raises((StorageError, UnknownOutcomeError), match="the store is away"):
        await claims.end([Enqueue("next", b"")])


async def test_claims_without_an_outcome_are_handed_back():
    claims, jobs = await claims_on(InMemoryStorage())
    queue = DirectQueue(claims.queue.storage)
    await claims.close()
    left = (await queue.read_state()).jobs
    assert [(JobStatus.QUEUED, 1, 0)] * 2 == [(job.status, job.attempt, job.failures) for job in left]
    assert {job.id for job in jobs} == {job.id for job in left}
