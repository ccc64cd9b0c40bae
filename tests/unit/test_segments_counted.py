"""Segments that a queue writes and reads: how many, and how much of the queue's object stays."""

import asyncio

from jqueue import BrokerQueue, InMemoryStorage, Limits
from jqueue.operations import Enqueue
from jqueue.testing.faults import FaultyObjects
from tests.tiny_segments import segments_of

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
