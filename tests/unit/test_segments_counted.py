"""Segments that a queue writes and reads: how many, and how much of the queue's object stays."""

import asyncio
from dataclasses import replace

import pytest

from jqueue import BrokerQueue, InMemoryStorage, Limits
from jqueue.core.blob.segment_writer import MOST_FULL, SegmentSizes, _to_merge
from jqueue.domain.indexed_jobs import IndexedJobs
from jqueue.domain.segments import SEGMENTS_KEPT, RowKey, Segment
from jqueue.operations import Enqueue
from jqueue.testing.faults import FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import segments_of
from tests.virtual_world import in_virtual_time

HOT = 64 << 10
"""Bytes of waiting jobs in the queue's object above which they move to segments."""


class Sized(FaultyObjects):
    """Notes the size of each version."""

    def __init__(self, storage):
        super().__init__(storage)
        self.sizes = []

    async def write(self, content, if_match=None):
        self.sizes.append(len(content))
        return await super().write(content, if_match)


async def rested(queue):
    """Commit until no segment is being written, and return the header."""
    writer = segments_of(queue).writer
    for _ in range(50):
        for background in (writer._spills, writer._merges):
            if background._task is not None:
                await asyncio.wait([background._task])
        await queue.pause("nothing")
        await queue.resume("nothing")
    return await queue.read_state()


def queue_on(storage):
    return BrokerQueue(storage, limits=Limits(hot_bytes=HOT))


async def size_of(storage):
    content, _ = await storage.read()
    return len(content)


async def test_a_few_large_jobs_move_to_a_segment():
    storage = InMemoryStorage()
    async with queue_on(storage) as queue:
        await asyncio.gather(*(queue.enqueue("a", bytes(30_000)) for _ in range(20)))
        assert [20] == [segment.rows for segment in (await rested(queue)).segments.values()]
        assert await size_of(storage) < HOT


async def test_dead_jobs_move_no_waiting_job_to_a_segment():
    async with queue_on(InMemoryStorage()) as queue:
        await queue.enqueue_many([Enqueue("a", bytes(300)) for _ in range(100)])
        await queue.nack_many(await queue.dequeue(batch_size=100), dead=True)
        await queue.enqueue_many([Enqueue("b", bytes(300)) for _ in range(70)])
        assert {} == (await rested(queue)).segments


async def test_jobs_that_pass_through_a_deep_queue_are_written_and_read_a_few_times():
    storage = FaultyObjects(InMemoryStorage())
    async with queue_on(storage) as queue:
        for _ in range(10):
            await queue.enqueue_many([Enqueue("a", bytes(64)) for _ in range(1000)])
        await rested(queue)
        storage.object_calls.clear()

        async def work():
            for _ in range(100):
                await queue.enqueue("a", bytes(64))
                [job] = await queue.dequeue("a")
                await queue.ack(job)

        await asyncio.gather(*(work() for _ in range(50)))
        calls = [name for name, _ in storage.object_calls]
        assert calls.count("create_object") <= 26  # 5,000 jobs: a segment for each 250 or so, and their merges
        assert calls.count("read_object") <= 45  # 256 rows at a time, and those of the merges
        assert await size_of(storage) < 2 * HOT + (64 << 10)


async def test_the_object_stays_small_while_jobs_are_enqueued_quickly():
    storage = Sized(InMemoryStorage())
    async with queue_on(storage) as queue:

        async def work():
            for _ in range(50):
                await queue.enqueue("a", bytes(64))

        await asyncio.gather(*(work() for _ in range(100)))
    assert max(storage.sizes) < 2.5 * HOT  # 100 jobs in each commit, 25 KB


async def test_segments_of_large_jobs_are_merged_up_to_a_number_of_bytes_and_then_left_alone():
    most = 128 << 10
    storage = FaultyObjects(InMemoryStorage())
    async with queue_on(storage) as queue:
        writer = segments_of(queue).writer
        writer.sizes = replace(writer.sizes, bulk_jobs=0, fewest_rows=1, most_bytes=most)
        for _ in range(40):
            await queue.enqueue_many([Enqueue("a", bytes(2000)) for _ in range(4)])  # 11 KB
        segments = (await rested(queue)).segments.values()
        assert 160 == sum(segment.waiting for segment in segments)
        assert len(segments) < writer.sizes.merged
        assert most // 2 < max(segment.bytes for segment in segments) <= most
        storage.object_calls.clear()
        await rested(queue)
        assert [] == storage.object_calls


async def test_segments_that_are_full_of_large_jobs_are_not_merged():
    storage = FaultyObjects(InMemoryStorage())
    async with queue_on(storage) as queue:
        writer = segments_of(queue).writer
        writer.sizes = replace(writer.sizes, bulk_jobs=0, fewest_rows=1, most_bytes=16 << 10)
        for _ in range(20):
            await queue.enqueue_many([Enqueue("a", bytes(2000)) for _ in range(4)])
        storage.object_calls.clear()
        assert 20 == len((await rested(queue)).segments)
        assert [] == storage.object_calls


MIB = 1 << 20


@pytest.mark.parametrize("size", [MIB // 5, 5 * MIB, 19 * MIB], ids="{}".format)
def test_a_queue_of_any_number_of_large_jobs_keeps_few_segments_by_merges_of_few_bytes(size):
    sizes, rows = SegmentSizes(), IndexedJobs().rows
    whole = written = 0
    for number in range(1000):
        rows.segments = {**rows.segments, f"{number}": _segment_of(size, number)}
        whole += size
        while names := _to_merge(rows, sizes):
            assert len(names) > 1
            merged = sum(rows.segments[name].bytes for name in names)
            assert merged <= max(sizes.most_bytes, whole // MOST_FULL)
            others = {name: each for name, each in rows.segments.items() if name not in names}
            first = min(rows.segments[name].head.sequence for name in names)
            rows.segments = {**others, f"merged {number} {first}": _segment_of(merged, first)}
            written += merged
        assert len(rows.segments) <= SEGMENTS_KEPT * 3 // 4
    assert whole == sum(each.bytes for each in rows.segments.values())
    assert written <= 8 * whole


def _segment_of(size, sequence):
    return Segment(
        entrypoint="a", rows=max(1, size // 60_000), bytes=size, index=size, crc=0, head=RowKey(0, sequence, 0.0)
    )


async def test_a_job_is_read_without_its_neighbours_unless_one_of_them_was_needed_a_moment_ago():
    storage = FaultyObjects(InMemoryStorage())
    async with queue_on(storage) as queue:
        made = [job.id for job in await queue.enqueue_many([Enqueue("a", bytes(64)) for _ in range(10_000)])]
        await rested(queue)
        segments_of(queue).loader.rows_ahead = segments_of(queue).loader.commits_ahead = 0
        rows = queue._engine.draft.jobs.rows
        rows.unload()
        for place in range(0, 10_000, 300):  # each in another chunk of 256
            await queue.reprioritise(made[place], -1)
        assert 0 == rows.kept
        storage.object_calls.clear()
        for job_id in made[5101:5400]:
            await queue.cancel(job_id)
        assert len(storage.object_calls) <= 4
        assert made[::300] == [job.id for job in await queue.dequeue("a", batch_size=34)]
        assert [*made[1:300], *made[301:600]] == [job.id for job in await queue.dequeue("a", batch_size=598)]


class Far(FaultyObjects):
    """Answers a read of an object after a second."""

    async def read_object(self, suffix, start=0, stop=None):
        await asyncio.sleep(1)
        return await super().read_object(suffix, start, stop)


@in_virtual_time
async def test_many_jobs_are_looked_for_at_once_in_a_far_store():
    storage = Far(InMemoryStorage(clock=VirtualClock()))
    async with BrokerQueue(storage, clock=VirtualClock(), limits=Limits(hot_bytes=HOT)) as queue:
        made = [job.id for job in await queue.enqueue_many([Enqueue("a", bytes(64)) for _ in range(10_000)])]
        await rested(queue)
        await queue.cancel(made[1])  # with the index
        start = asyncio.get_running_loop().time()
        await asyncio.gather(*(queue.cancel(job_id) for job_id in made[2000::600]))
        assert asyncio.get_running_loop().time() - start < 3  # 14 reads
