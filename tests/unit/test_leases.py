"""Leases: rows of a segment that are claimed and ended as one."""

import asyncio

import pytest

from jqueue import (
    BrokerQueue,
    DuplicateJobError,
    InMemoryStorage,
    JobNotFoundError,
    JobStateError,
    JobStatus,
    Limits,
)
from jqueue.domain.operations.lookups import JobsInLeases
from jqueue.domain.segments import JobFailure
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time


def queue_on(storage, **options):
    return BrokerQueue(storage, **{"clock": VirtualClock(), "limits": Limits(hot_bytes=1), **options})


async def settled(queue):
    """Commit until no segment is being written."""
    for _ in range(10):
        await queue.pause("other")
        await queue.resume("other")
        await asyncio.sleep(0.2)


async def with_rows(queue, number, **options):
    """Enqueue jobs in one commit, and wait until all of them are in segments."""
    jobs = await asyncio.gather(*(queue.enqueue("t", b"%d" % place, **options) for place in range(number)))
    await settled(queue)
    assert number == sum(each.waiting for each in (await queue.read_state(hot=True)).segments.values())
    return [job.id for job in jobs]


def store():
    return InMemoryStorage(clock=VirtualClock())


async def jobs_of(queue, claim):
    return [job async for job in queue.read_lease(claim)]


async def claimed(queue, rows):
    claim = await queue.claim_lease("t", rows)
    assert claim is not None
    return claim


@in_virtual_time
async def test_a_lease_is_done_but_for_jobs_that_failed_or_were_not_worked_on():
    async with queue_on(store()) as queue:
        ids = await with_rows(queue, 10)
        claim = await claimed(queue, 8)
        jobs = await jobs_of(queue, claim)
        assert ids[:8] == [job.id for job in jobs]
        assert {(JobStatus.IN_PROGRESS, 1, 1)} == {(job.status, job.attempt, job.failures) for job in jobs}
        failed = {ids[2]: JobFailure("boom", delay=60), ids[5]: ValueError("bad")}
        with pytest.raises(JobNotFoundError, match=ids[7]):
            await queue.end_lease(claim, failed={ids[7]: "not worked on"}, worked_on=7)
        await queue.end_lease(claim, failed=failed, worked_on=6)
        stats = await queue.stats()
        assert (5, 1, 0, 4) == (stats.depth, stats.scheduled, stats.in_progress, stats.totals.done)
        again = await claimed(queue, 9)
        assert ids[6:8] == [job.id for job in await jobs_of(queue, again)], "the others were in no lease before"
        await queue.end_lease(again, worked_on=0)
        left = await queue.dequeue("t", batch_size=9)
        assert {ids[6]: (3, 1), ids[7]: (3, 1), ids[8]: (1, 1), ids[9]: (1, 1), ids[5]: (2, 2)} == {
            job.id: (job.attempt, job.failures) for job in left
        }
        assert "ValueError: bad" == next(job.error for job in left if job.id == ids[5])


@in_virtual_time
async def test_jobs_in_a_lease_are_found_and_hold_their_ids_and_keys():
    async with queue_on(store()) as queue:
        ids = [f"id-{number}" for number in range(3)]
        await asyncio.gather(*(queue.enqueue("t", b"", job_id=each, unique_key=f"key of {each}") for each in ids))
        await settled(queue)
        claim = await claimed(queue, 3)
        assert JobStatus.IN_PROGRESS == (await queue.find("id-1")).status
        assert [[(claim.id, "id-1")]] == await queue.apply(JobsInLeases(("id-1", "unknown")))
        assert ids[0] == (await queue.enqueue("t", b"", job_id="id-0")).id
        taken = await queue.enqueue("t", b"", unique_key="key of id-2")
        assert (ids[2], JobStatus.IN_PROGRESS) == (taken.id, taken.status)
        with pytest.raises(DuplicateJobError):
            await queue.enqueue("t", b"", unique_key="key of id-2", on_conflict="replace")
        with pytest.raises(JobStateError):
            await queue.cancel("id-1")
        assert 3 == (await queue.stats()).in_progress
        assert sorted(ids) == sorted([job.id async for job in queue.iterate_jobs(JobStatus.IN_PROGRESS)])
        await queue.end_lease(claim)
        assert JobStatus.COMPLETED is (await queue.find("id-1")).status  # it is remembered like an acked one


@in_virtual_time
async def test_a_claim_may_ask_for_a_least_number_of_jobs_and_for_payloads_that_are_in_the_segment():
    async with queue_on(store()) as queue:
        await with_rows(queue, 5)
        assert await queue.claim_lease("t", 9, least=6) is None
        assert 5 == (await claimed(queue, 9)).rows
    async with queue_on(store(), limits=Limits(hot_bytes=1, object_bytes=100)) as queue:
        for _ in range(4):
            await queue.enqueue("t", bytes(1000))
        await settled(queue)
        assert await queue.claim_lease("t", 4, inline=True) is None
        assert (await claimed(queue, 4)).rows
