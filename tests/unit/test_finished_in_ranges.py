"""Ids of jobs that ended in a range are remembered like acked ones: enqueueing one again adds nothing."""

import asyncio

import pytest

from jqueue import BrokerQueue, ClaimLostError, InMemoryStorage, JobStatus, Limits
from jqueue.domain.commits import FINISHED_SLACK
from jqueue.domain.limits import FINISHED_KEPT
from jqueue.operations import Enqueue
from jqueue.testing.faults import FaultyObjects
from tests.tiny_segments import in_segments, segments_of, spilled


def tiny(storage, **sizes):
    return in_segments(BrokerQueue(storage, limits=Limits()), **sizes)


async def claimed(queue, rows):
    claim = await queue.claim_range("t", rows)
    assert claim is not None
    return claim


async def statuses(queue, ids):
    return [(await queue.enqueue("t", job_id=job_id)).status for job_id in ids]


async def finished(queue):
    return (await queue.read_state()).finished


def jobs(number, **options):
    return [Enqueue("t", job_id=f"job {place}", **options) for place in range(number)]


async def test_a_job_that_was_done_in_a_range_is_not_added_again():
    async with tiny(storage := InMemoryStorage()) as queue, tiny(storage) as other:
        await queue.apply(*jobs(10))
        await spilled(queue)
        claim = await claimed(queue, 8)
        held = [job async for job in queue.read_range(claim)]
        await queue.end_range(claim, failed={"job 1": "boom"}, returned=["job 2"], kept=["job 3"])
        gone = [f"job {number}" for number in (0, 4, 5, 6, 7)]
        for asked in (queue, other):
            assert [JobStatus.COMPLETED] * 5 == await statuses(asked, gone)
            assert ["queued", "queued", "in_progress", "queued"] == await statuses(
                asked, ["job 1", "job 2", "job 3", "job 8"]
            )
        assert {job.id: job.attempt for job in held if job.id in gone} == {
            job_id: attempt for job_id, attempt in (await finished(queue)).items() if job_id in gone
        }
        await queue.ack(held[4])  # its end counts as this ack, too


async def test_jobs_that_end_in_parts_of_a_range_are_remembered_in_their_order():
    async with tiny(InMemoryStorage()) as queue:
        await queue.apply(*jobs(10))
        await spilled(queue)
        claim = await claimed(queue, 9)
        await queue.end_range(claim, jobs=5)
        await queue.end_range(claim, nothing_done=True)
        claim = await claimed(queue, 9)
        await queue.end_range(claim)
        known = await finished(queue)
        assert [f"job {number}" for number in range(9)] == [job_id for job_id in known if job_id.startswith("job")]
        assert [1] * 5 + [2] * 4 == [known[f"job {number}"] for number in range(9)]


async def test_only_the_last_jobs_of_a_long_range_are_read_and_remembered():
    storage, number = FaultyObjects(InMemoryStorage()), 2 * FINISHED_KEPT
    async with tiny(storage, bulk_jobs=0, most_rows=4096, chunk_rows=256) as queue:
        await queue.enqueue_many(jobs(number))
        claim = await claimed(queue, number)
        storage.object_calls.clear()
        await queue.end_range(claim)
        assert 1 == len([name for name, _ in storage.object_calls if name == "read_object"])
        known = await finished(queue)
        assert [f"job {place}" for place in range(number - len(known) + 1, number)] == list(known)[:-1]
        assert FINISHED_KEPT <= len(known)


async def test_no_row_is_read_at_the_end_of_a_range_whose_ids_jqueue_made():
    storage = FaultyObjects(InMemoryStorage())
    async with tiny(storage, bulk_jobs=0, merged=2, most_rows=100) as queue:
        await queue.enqueue_many([Enqueue("t") for _ in range(20)])
        await queue.enqueue_many([Enqueue("t", priority=1) for _ in range(20)])
        for _ in range(20):  # until they were merged
            await queue.pause("nothing")
            await queue.resume("nothing")
            await asyncio.gather(*(task for each in [segments_of(queue).writer._merges] if (task := each._task)))
        [segment] = (await queue.read_state()).segments.values()
        assert (40, True) == (segment.rows, segment.own_ids)
        claim = await claimed(queue, 40)
        storage.object_calls.clear()
        await queue.end_range(claim)
        assert [] == storage.object_calls
        assert [claim.id] == list(await finished(queue))


@pytest.mark.parametrize("are_own", [True, False])
async def test_ranges_take_the_places_of_acked_jobs_only_if_callers_chose_their_ids(are_own):
    number = FINISHED_KEPT + FINISHED_SLACK
    async with tiny(InMemoryStorage(), bulk_jobs=0, most_rows=4096, chunk_rows=256) as queue:
        await queue.enqueue("alone")
        [acked] = await queue.dequeue("alone")
        await queue.ack(acked)
        await queue.enqueue_many([Enqueue("t") for _ in range(number)] if are_own else jobs(number))
        for rows in (FINISHED_KEPT, FINISHED_SLACK):
            await queue.end_range(await claimed(queue, rows))
        await queue.pause("nothing")  # its commit drops the oldest
        if are_own:
            await queue.ack(acked)
        else:
            with pytest.raises(ClaimLostError):
                await queue.ack(acked)


async def test_a_range_in_a_damaged_segment_can_be_ended():
    async with tiny(storage := InMemoryStorage()) as queue:
        await queue.apply(*jobs(6))
        await spilled(queue)
        claim = await claimed(queue, 6)
        segment = storage.beside(f".segments/{claim.segment}")
        data, etag = await segment.read()
        for damaged in (data.replace(b"queued", b"QUEUED"), data[:-1]):  # its rows, then its index
            etag = await segment.write(damaged, etag)
            async with tiny(storage) as fresh:
                await fresh.end_range(claim, jobs=3)
        async with tiny(storage) as fresh:
            await fresh.end_range(claim)
            assert 6 == (await fresh.stats()).totals.done
            assert [claim.id] == list(await finished(fresh))
