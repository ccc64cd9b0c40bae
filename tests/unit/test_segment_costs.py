"""Bounds that a queue with segments promises: requests, bytes written, segments kept, size of its object."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from jqueue import BrokerQueue, InMemoryStorage, JobStatus, Limits
from jqueue.domain.limits import FINISHED_KEPT
from jqueue.domain.segments import SEGMENTS_KEPT
from jqueue.domain.selection import Phase, Selection
from jqueue.operations import Enqueue
from jqueue.testing.faults import FaultyObjects
from jqueue.testing.tuning import tune
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import direct_queue, in_segments
from tests.virtual_world import in_virtual_time

HOT = 64 << 10
"""Bytes of waiting jobs in the queue's object above which they move to segments."""


class Counted(FaultyObjects):
    """Notes the size of each version, and the sizes of all objects together."""

    def __init__(self, storage):
        super().__init__(storage)
        self.sizes, self.created_bytes = [], 0

    async def write(self, content, if_match=None):
        self.sizes.append(len(content))
        return await super().write(content, if_match)

    async def create_object(self, suffix, content):
        self.created_bytes += len(content)
        await super().create_object(suffix, content)

    def calls(self):
        """Return how often each verb was called for a segment since the last call."""
        found = Counter(name for name, suffix in self.object_calls if suffix.startswith(".segments/"))
        self.object_calls.clear()
        return found


@pytest.fixture
def storage():
    return Counted(InMemoryStorage(clock=VirtualClock()))


def queue_on(storage, **sizes):
    return tune(BrokerQueue(storage, clock=VirtualClock(), limits=Limits(hot_bytes=HOT)), **sizes)


async def rested(queue):
    """Commit until the segments stay as they are, and return the header."""
    before, calm = None, 0
    while calm < 20:
        await asyncio.sleep(0.01)
        await queue.pause("nothing")
        await queue.resume("nothing")
        state = await queue.read_state(hot=True)
        segments = list(state.segments)
        calm = calm + 1 if segments == before else 0
        before = segments
    return state


def jobs(number, size=64, **options):
    return [Enqueue("a", bytes(size), **options) for _ in range(number)]


# What is written


@in_virtual_time
async def test_the_object_stays_small_while_jobs_are_enqueued_quickly(storage):
    async with queue_on(storage) as queue:

        async def work():
            for _ in range(10):
                await queue.enqueue("a", bytes(64))

        await asyncio.gather(*(work() for _ in range(100)))
    assert max(storage.sizes) < 2.5 * HOT  # 100 jobs in each commit, 25 KB


@in_virtual_time
async def test_few_large_jobs_among_many_small_ones_of_other_entrypoints_are_spilled(storage):
    async with queue_on(storage, bulk_jobs=1000) as queue:
        for entrypoint in range(40):
            await queue.enqueue_many([Enqueue(f"small {entrypoint}") for _ in range(3)])
        await queue.enqueue_many(jobs(4, 45_000))
        state = await rested(queue)
        assert [("a", 4)] == [(segment.entrypoint, segment.waiting) for segment in state.segments.values()]
    assert storage.sizes[-1] < HOT


@in_virtual_time
async def test_jobs_that_pass_through_a_deep_queue_are_written_and_read_a_few_times(storage):
    async with queue_on(storage) as queue:
        for _ in range(3):
            await queue.enqueue_many(jobs(1000))
        await rested(queue)
        storage.calls()

        async def work():
            for _ in range(20):
                await queue.enqueue("a", bytes(64))
                [job] = await queue.dequeue("a")
                await queue.ack(job)

        await asyncio.gather(*(work() for _ in range(50)))
        calls = storage.calls()
        assert calls["create_object"] <= 6  # 1,000 jobs: a segment for each 250 or so, and their merges
        assert calls["read_object"] <= 10  # 256 rows at a time, and those of the merges
        assert storage.sizes[-1] < 2 * HOT + (64 << 10)


@in_virtual_time
async def test_a_queue_of_any_number_of_full_segments_keeps_few_by_merges_of_few_bytes(storage):
    async with queue_on(storage, bulk_jobs=0, fewest_rows=1, most_bytes=2048) as queue:
        for _ in range(20):
            await queue.enqueue_many(jobs(1, 2500))
        storage.calls()
        assert 20 == len((await rested(queue)).segments), "full segments are not merged while they are few"
        assert {} == storage.calls()
        for _ in range(220):
            await queue.enqueue_many(jobs(1, 2500))
        segments = (await rested(queue)).segments.values()
        assert 240 == sum(segment.waiting for segment in segments)
        assert len(segments) <= SEGMENTS_KEPT * 3 // 4
        assert storage.created_bytes <= 8 * sum(segment.bytes for segment in segments)


# What is read


@in_virtual_time
async def test_views_and_figures_read_an_index_and_the_rows_that_they_need(storage):
    async with queue_on(storage, bulk_jobs=0, fewest_rows=1, chunk_rows=4) as queue:
        for entrypoint in "abc":
            await queue.enqueue_many([Enqueue(entrypoint) for _ in range(30)])
        await rested(queue)
        storage.calls()
        other = direct_queue(storage, clock=VirtualClock())
        assert (90, 3, 90) == ((stats := await other.stats()).depth, stats.segments, stats.segment_jobs)
        assert {} == storage.calls(), "figures of untouched segments need no request"
        made = [job.id async for job in other.iterate_jobs()]
        assert {"read_object": 6} == storage.calls(), "an index and the rows of each segment"
        assert 30 == len([job async for job in other.iterate_jobs(entrypoint="b")])
        assert 2 >= storage.calls()["read_object"]
        assert [] == [job async for job in other.iterate_jobs(JobStatus.DEAD)]
        assert {} == storage.calls()
        view = await direct_queue(storage, clock=VirtualClock()).view()
        assert made[40] == (await view.find(made[40])).id
        assert storage.calls()["read_object"] <= 4, "an index for each segment, and one chunk"
        await queue.dequeue("a", batch_size=6)
        storage.calls()
        for reads in (3, 0):
            assert 84 == (await other.stats()).depth
            assert storage.calls()["read_object"] <= reads, "the age of a segment in use is read once"


@pytest.mark.parametrize("bulk_jobs", [0, None], ids=["bulk", "spilled"])
@in_virtual_time
async def test_the_first_of_many_due_jobs_is_claimed_and_the_others_are_not_read(storage, bulk_jobs):
    async with queue_on(storage, hot_bytes=0, bulk_jobs=bulk_jobs or 10**6, fewest_rows=1, chunk_rows=4) as queue:
        [first, *_] = await queue.enqueue_many(jobs(96, delay=300))
        await rested(queue)
        await asyncio.sleep(86_400)
        segments = (await queue.read_state(hot=True)).segments
        storage.calls()
        [job] = await in_segments(direct_queue(storage, clock=VirtualClock())).dequeue("a")
        assert first.id == job.id
        assert storage.calls()["read_object"] <= 2 * len(segments), "the index and a chunk of each"


# Ranges


@in_virtual_time
async def test_of_a_long_range_only_the_last_ids_are_read_and_none_that_jqueue_made(storage):
    number = 2 * FINISHED_KEPT
    async with queue_on(storage, bulk_jobs=0, most_rows=4096, chunk_rows=256) as queue:
        await queue.enqueue_many([Enqueue("own", job_id=f"job {place}") for place in range(number)])
        await queue.enqueue_many([Enqueue("made") for _ in range(number)])
        for entrypoint, reads in (("own", 1), ("made", 0)):
            claim = await queue.claim_lease(entrypoint, number)
            storage.calls()
            await queue.end_lease(claim)
            assert reads == storage.calls()["read_object"]
        finished = [job_id for job_id in (await queue.read_state(hot=True)).finished if job_id.startswith("job ")]
        assert [f"job {place}" for place in range(number - len(finished), number)] == finished
        assert FINISHED_KEPT <= len(finished)


@in_virtual_time
async def test_a_look_at_the_first_of_very_many_due_jobs_is_exact_and_reads_few_chunks(storage):
    async with queue_on(storage, bulk_jobs=0) as queue:
        due = [Enqueue("a", b"", -(number // 11_999), delay=60 + number / 1000) for number in range(12_000)]
        made = [job.id for job in await queue.enqueue_many(due)]
        await asyncio.sleep(3600)
        view: Any = await direct_queue(storage, clock=VirtualClock()).view()
        storage.calls()
        first = await view.first_jobs(3, VirtualClock().now())
        assert ([made[-1], *made[:2]], True) == ([job.id for job in first.jobs], first.more)
        assert storage.calls()["read_object"] <= 1 + 2, "the index, and two chunks"
        later = Selection(frozenset({Phase.SCHEDULED}))
        assert [] == (await view.first_jobs(3, VirtualClock().now(), later)).jobs
        assert storage.calls()["read_object"] <= 1, "chunks of due rows alone have none"
        every = await view.first_jobs(20_000, VirtualClock().now(), Selection(newer_than=7200))
        assert ([made[-1], *made[:-1]], False) == ([job.id for job in every.jobs], every.more)
