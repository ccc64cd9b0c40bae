"""Jobs that tasks have staged: one commit adds them, whatever their number, and each write is done once."""

import asyncio
from datetime import timedelta

import pytest

from jqueue import (
    DeadlineExceededError,
    DirectQueue,
    DuplicateJobError,
    InMemoryStorage,
    InvalidJobError,
    Limits,
)
from jqueue.core.blob.segment_staging import StagedTask
from jqueue.domain.operations.bulk import NewSegment, StagedReceipt, Transaction
from jqueue.domain.segments import FOLDER, SEGMENTS_KEPT, STAGED_NAMED_WITHIN, staged_name
from jqueue.operations import Enqueue
from jqueue.testing.faults import FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from tests.staged_jobs import TaskOfJobs
from tests.virtual_world import in_virtual_time

FIRST = Transaction("app", 1)


@pytest.fixture
def storage():
    return FaultyObjects(InMemoryStorage(clock=VirtualClock()))


def deep_queue(storage, hot_bytes=1):
    return DirectQueue(storage, clock=VirtualClock(), limits=Limits(hot_bytes=hot_bytes))


async def stage(queue, *payloads, transaction=FIRST, task=0, rows=100, **options):
    """Store jobs as a task does, and return its report. An option may be a list with a value for each job."""
    stager = TaskOfJobs(VirtualClock().now(), f"base {task}", rows=rows, chunk_rows=2)
    new: list[NewSegment] = []

    async def create(encoded):
        name = staged_name(transaction[0], transaction[1], f"{task}-{len(new)}")
        await queue.storage.create_object(FOLDER + name, encoded.content)
        new.append(NewSegment(name, encoded.entry, created_at=stager.created_at))

    for number, payload in enumerate(payloads):
        own = {name: value[number] if isinstance(value, list) else value for name, value in options.items()}
        stager.add(Enqueue("work", payload, **own))
        for encoded in stager.full():
            await create(encoded)
    for encoded in stager.rest():
        await create(encoded)
    return StagedTask(stager.jobs, new, frozenset(stager.features))


async def claimed(queue, count=99):
    return [job.payload for job in await queue.dequeue(batch_size=count)]


async def left(storage):
    return sorted(entry.suffix for entry in await storage.list_beside(FOLDER + "staged-"))


@in_virtual_time
async def test_a_few_jobs_enter_the_blob_with_all_their_options(storage):
    async with deep_queue(storage, hot_bytes=9999) as queue:
        task = await stage(queue, b"a", b"b", b"c", priority=[1, 0, 0], delay=[None, None, 60], max_attempts=3)
        assert StagedReceipt(3) == await queue.enqueue_staged([task], FIRST)
        state = await queue.read_state(hot=True)
        assert ([], 3) == (list(state.segments), len(state.jobs))
        assert [] == await left(storage)
        jobs = await queue.dequeue(batch_size=9)
        assert [(b"b", 3), (b"a", 3)] == [(job.payload, job.max_attempts) for job in jobs]
        await asyncio.sleep(61)
        assert [b"c"] == await claimed(queue)


@in_virtual_time
async def test_more_segments_than_the_manifest_takes_are_joined_and_their_rows_keep_options_and_places(storage):
    async with deep_queue(storage) as queue:
        number = SEGMENTS_KEPT + 1
        tasks = [
            await stage(queue, b"%d" % task, b"%db" % task, task=task, priority=[0, -1], max_attempts=task + 1)
            for task in range(number)
        ]
        assert StagedReceipt(2 * number) == await queue.enqueue_staged(tasks, FIRST)
        assert len((await queue.read_state(hot=True)).segments) < SEGMENTS_KEPT // 2
        assert [] == await left(storage)
        jobs = await queue.dequeue(batch_size=2 * number)
        payloads = [b"%d%b" % (task, end) for end in (b"b", b"") for task in range(number)]
        assert payloads == [job.payload for job in jobs]
        assert [*range(1, number + 1)] * 2 == [job.max_attempts for job in jobs]


@pytest.mark.parametrize("hot_bytes", [1, 9999])
@in_virtual_time
async def test_the_first_of_two_rows_gets_their_unique_key_whatever_their_priorities(storage, hot_bytes):
    async with deep_queue(storage, hot_bytes) as queue:
        task = await stage(queue, b"first", b"other", b"second", unique_key=["a", "b", "a"], priority=[2, 0, 0])
        assert StagedReceipt(2, 1) == await queue.enqueue_staged([task], FIRST)
        assert [b"other", b"first"] == await claimed(queue)


@in_virtual_time
async def test_segments_that_may_be_removed_are_not_named(storage):
    async with deep_queue(storage) as queue:
        task = await stage(queue, b"a")
        await asyncio.sleep(STAGED_NAMED_WITHIN.total_seconds() + 1)
        with pytest.raises(DeadlineExceededError, match="may be removed"):
            await queue.enqueue_staged([task], FIRST)


@in_virtual_time
async def test_a_queue_without_segments_refuses_them():
    async with DirectQueue(InMemoryStorage(), clock=VirtualClock(), limits=Limits(hot_bytes=None)) as queue:
        assert await queue.staging_time() is None
        with pytest.raises(InvalidJobError, match="this queue keeps no segments"):
            await queue.enqueue_staged([], FIRST)


@in_virtual_time
async def test_a_collection_keeps_staged_segments_until_their_write_is_done(storage):
    async with deep_queue(storage) as queue:
        await queue.pause("nothing")
        await stage(queue, b"a")
        await stage(queue, b"b", task=1, transaction=Transaction("app", 2))
        await asyncio.sleep(5 * 3600)
        assert 0 == await queue.collect()
        task = await stage(queue, b"a", task=2)
        await queue.enqueue_staged([task], FIRST)
        late = await stage(queue, b"a", task=3)
        await asyncio.sleep(2 * 3600)
        assert 1 == await queue.collect()
        assert FOLDER + late.segments[0].name not in await left(storage)
        await asyncio.sleep(7 * 86400)
        assert 1 == await queue.collect()
        assert [FOLDER + task.segments[0].name] == await left(storage)


@pytest.mark.parametrize(
    "keys", [["a", "b", "c", "d"], ["a", "c", "x", "y"], ["x", "x", "x", "x"], ["x", "a", "x", "b"]]
)
@in_virtual_time
async def test_of_very_many_taken_keys_no_row_is_read_and_each_key_is_added_once(storage, monkeypatch, keys):
    monkeypatch.setattr("jqueue.core.bulk.MOST_CONFLICTS", 1)
    async with deep_queue(storage) as queue:
        first = await stage(queue, b"a", b"b", b"c", b"d", unique_key=list("abcd"))
        assert StagedReceipt(4) == await queue.enqueue_staged([first], FIRST)
        other = Transaction("other", 1)
        again = await stage(queue, b"a", b"b", b"c", b"d", transaction=other, unique_key=list("abcd"))
        assert StagedReceipt(0, 4) == await queue.enqueue_staged([again], other)
        second = Transaction("app", 2)
        tasks = [
            await stage(queue, *part, transaction=second, task=task, unique_key=some)
            for task, (part, some) in enumerate([([b"1", b"2"], keys[:2]), ([b"3", b"4"], keys[2:])])
        ]
        new = {*keys} - {*"abcd"}
        receipt = StagedReceipt(len(new), 4 - len(new), version=1)
        assert receipt == await queue.enqueue_staged(tasks, second)
        jobs = [job async for job in queue.iterate_jobs()]
        assert ({*"abcd"} | new, 4 + len(new)) == ({job.unique_key for job in jobs}, len(jobs))
        with pytest.raises(InvalidJobError, match="more than 1 of these jobs"):
            await queue.enqueue_staged(
                [await stage(queue, b"1", b"2", transaction=Transaction("app", 3), unique_key=["a", "b"])],
                Transaction("app", 3),
                on_conflict="raise",
            )


@in_virtual_time
async def test_the_first_key_that_is_taken_is_named_although_its_row_is_not_loaded(storage):
    async with deep_queue(storage) as queue, deep_queue(storage) as other:
        await queue.enqueue("work", b"a", unique_key="in a segment")
        await queue.enqueue("claimed", b"b", unique_key="in the blob")
        [_] = await queue.dequeue("claimed")
        task = await stage(other, b"c", b"d", unique_key=["in a segment", "in the blob"])
        with pytest.raises(DuplicateJobError) as raised:
            await other.enqueue_staged([task], FIRST, on_conflict="raise")
        assert "in a segment" == raised.value.unique_key


@in_virtual_time
async def test_a_transaction_is_forgotten_with_a_commit_after_its_time(storage):
    async with deep_queue(storage) as queue:
        await queue.enqueue_staged([], Transaction("short", 1, keep=timedelta(hours=1)))
        await queue.enqueue_staged([], Transaction("long", 1))
        await asyncio.sleep(3599)
        await queue.enqueue("work", b"")
        assert {"short", "long"} == set((await queue.read_state(hot=True)).transactions)
        await asyncio.sleep(2)
        await queue.enqueue("work", b"")
        assert {"long"} == set((await queue.read_state(hot=True)).transactions)
        assert StagedReceipt(added=0) == await queue.enqueue_staged([], Transaction("short", 1))
