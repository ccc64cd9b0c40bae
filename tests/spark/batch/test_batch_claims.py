"""The claims of a batch, on a store that fails."""

import asyncio

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, Limits, connect
from jqueue.domain.errors import StorageError, UnknownOutcomeError
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Ack, Enqueue
from jqueue.spark.batch.batch_claims import LEAST_ROWS, BatchClaims, rows_of_range
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.worker import Worker
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


@pytest.mark.parametrize(
    ("jobs", "parts", "rows"),
    [
        (1_000_000, 4, 100_000),
        (300_000, 4, 75_000),
        (10_000_000, 200, 50_000),
        (3000, 4, 750),
        (300, 4, LEAST_ROWS),
        (1, 1, LEAST_ROWS),
    ],
)
def test_ranges_are_enough_and_neither_too_large_nor_too_small(jobs, parts, rows):
    assert rows == rows_of_range(jobs, parts)


def deep_claims(url, names, most, parts):
    return BatchClaims(connect(url, DirectQueue), names, most, 60.0, "a test", parts)


async def fill(url, *entrypoints, count):
    async with connect(url, BrokerQueue, limits=Limits(batch_size=100, hot_bytes=1)) as queue:
        for entrypoint in entrypoints:
            await queue.enqueue_many(Enqueue(entrypoint, b"%d" % number) for number in range(count))


def worker_of(*names):
    worker = Worker()
    for name in names:
        worker.handler(name)(lambda: None)
    return worker


async def test_ranges_divide_the_ready_jobs_of_the_entrypoints_of_a_batch(tmp_path):
    url = str(tmp_path / "queue.json")
    await fill(url, "work", "other", count=4000)
    claims = deep_claims(url, ("work",), 100_000, 4)
    await claims.begin(worker_of("work"))
    assert [1000] * 4 == [claim.rows for claim in claims.ranges]
    assert not claims.jobs
    await claims.close()


async def test_ranges_among_several_entrypoints_follow_the_order_of_the_jobs(tmp_path):
    url = str(tmp_path / "queue.json")
    await fill(url, "work", "other", count=800)
    claims = deep_claims(url, ("work", "other"), 1600, 4)
    await claims.begin(worker_of("work", "other"))
    assert ["work", "work", "other", "other"] == [claim.entrypoint for claim in claims.ranges]
    assert ([], 1600) == (claims.jobs, claims.number)
    await claims.close()
