"""Segments that tasks have staged: one commit names them, whatever their size, and each write is done once."""

import asyncio

import pytest

from jqueue import DirectQueue, DuplicateJobError, InMemoryStorage, Limits
from jqueue.core.blob.segment_staging import SegmentStager, StagedTask
from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.core.calls import staged_commit
from jqueue.domain.errors import DeadlineExceededError, InvalidJobError, StorageError
from jqueue.domain.limits import Limits as DomainLimits
from jqueue.domain.operations import NewSegment, StagedReceipt, Transaction
from jqueue.domain.segments import FOLDER, STAGED_NAMED_WITHIN, awaits_commit, staged_name
from jqueue.testing.faults import Fault, FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time

FIRST = Transaction("app", 1)


def store():
    return FaultyObjects(InMemoryStorage(clock=VirtualClock()))


def queue_on(storage, deadline=30, **sizes):
    queue = DirectQueue(storage, clock=VirtualClock(), limits=Limits(hot_bytes=1000), deadline=deadline)
    given = {"hot_bytes": 1000, "fewest_rows": 3, "chunk_rows": 2, "few_staged": 0, **sizes}
    segments = queue._engine.segments
    assert segments is not None
    segments.writer.sizes = SegmentSizes(**given)
    return queue


async def stage(queue, *payloads, transaction=FIRST, task=0, rows=100, entrypoint="work", **options):
    """Store jobs as a task does, and return its report."""
    stager = SegmentStager(DomainLimits(), queue._engine.now(), f"base {task}", rows=rows, chunk_rows=2)
    new: list[NewSegment] = []

    async def create(encoded):
        name = staged_name(transaction.app_id, transaction.version, f"{task}-{len(new)}")
        await queue.storage.create_object(FOLDER + name, encoded.content)
        new.append(NewSegment(name, "", encoded.entry, created_at=stager.created_at))

    for number, payload in enumerate(payloads):
        given = {name: value[number] if isinstance(value, list) else value for name, value in options.items()}
        stager.add(entrypoint, payload, **given)
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
async def test_one_commit_names_the_segments_of_all_tasks_in_their_order():
    storage = store()
    async with queue_on(storage) as queue:
        await queue.enqueue("work", b"first")
        tasks = [await stage(queue, b"a", b"b", b"c", rows=2), await stage(queue, b"d", task=1)]
        fetched, version = storage.writes, (await queue.read_state()).version
        assert StagedReceipt(4) == await queue.enqueue_staged(tasks, FIRST)
        assert fetched + 1 == storage.writes
        await queue.enqueue("work", b"last")
        state = await queue.read_state()
        assert (version + 2, 3) == (state.version, len(state.segments))
        assert [b"first", b"a", b"b", b"c", b"d", b"last"] == await claimed(queue)


@in_virtual_time
async def test_a_repeated_write_adds_nothing_even_if_its_segments_are_gone():
    storage = store()
    async with queue_on(storage) as queue:
        tasks = [await stage(queue, b"a")]
        await queue.enqueue_staged(tasks, FIRST)
        again = [await stage(queue, b"a", task=1)]
        repeated = StagedReceipt(repeated=True, version=1)
        assert repeated == await queue.enqueue_staged(again, FIRST)
        assert repeated == await queue.enqueue_staged(again, FIRST)
        assert repeated == await queue.enqueue_staged(tasks, FIRST)
        assert [FOLDER + tasks[0].segments[0].name] == await left(storage)
        assert [b"a"] == await claimed(queue)


@in_virtual_time
async def test_a_few_jobs_enter_the_blob_with_all_their_options():
    storage = store()
    async with queue_on(storage, few_staged=3) as queue:
        task = await stage(queue, b"a", b"b", b"c", priority=[1, 0, 0], delay=[None, None, 60], max_attempts=3)
        assert StagedReceipt(3) == await queue.enqueue_staged([task], FIRST)
        state = await queue.read_state()
        assert ([], 3) == (list(state.segments), len(state.jobs))
        assert [] == await left(storage)
        jobs = await queue.dequeue(batch_size=9)
        assert [(b"b", 3), (b"a", 3)] == [(job.payload, job.max_attempts) for job in jobs]
        await asyncio.sleep(61)
        assert [b"c"] == await claimed(queue)


@in_virtual_time
async def test_a_few_jobs_stay_in_their_segment_if_the_blob_has_no_room():
    async with queue_on(store(), few_staged=3) as queue:
        await queue.configure(blob_bytes=1200)
        assert StagedReceipt(1) == await queue.enqueue_staged([await stage(queue, b"x" * 300)], FIRST)
        second = Transaction("app", 2)
        task = await stage(queue, b"y" * 300, transaction=second, task=1)  # with an id of its own
        assert StagedReceipt(1, version=1) == await queue.enqueue_staged([task], second)
        state = await queue.read_state()
        assert (1, 1) == (len(state.segments), len(state.jobs))
        assert [b"x" * 300, b"y" * 300] == await claimed(queue)


@in_virtual_time
async def test_more_segments_than_the_manifest_takes_are_joined(monkeypatch):
    monkeypatch.setattr(staged_commit, "KEPT_FREE", 254)
    storage = store()
    async with queue_on(storage) as queue:
        tasks = [await stage(queue, b"%d" % task, b"%da" % task, task=task) for task in range(9)]
        assert StagedReceipt(18) == await queue.enqueue_staged(tasks, FIRST)
        assert 1 == len((await queue.read_state()).segments)
        assert [] == await left(storage)
        assert [b"%d%b" % (task, end) for task in range(9) for end in (b"", b"a")] == await claimed(queue)


@in_virtual_time
async def test_joined_rows_keep_their_options_and_their_places(monkeypatch):
    monkeypatch.setattr(staged_commit, "KEPT_FREE", 255)
    async with queue_on(store()) as queue:
        tasks = [
            await stage(queue, b"%d" % task, b"%db" % task, task=task, priority=[0, -1], max_attempts=task + 1)
            for task in range(3)
        ]
        assert StagedReceipt(6) == await queue.enqueue_staged(tasks, FIRST)
        assert 1 == len((await queue.read_state()).segments)
        jobs = await queue.dequeue(batch_size=9)
        assert [b"0b", b"1b", b"2b", b"0", b"1", b"2"] == [job.payload for job in jobs]
        assert [1, 2, 3, 1, 2, 3] == [job.max_attempts for job in jobs]


@in_virtual_time
async def test_rows_whose_unique_key_is_taken_are_left_out():
    async with queue_on(store()) as queue:
        await queue.enqueue("work", b"there", unique_key="b")
        task = await stage(queue, b"1", b"2", b"3", b"4", unique_key=["a", "b", "c", "a"])
        assert StagedReceipt(2, 2) == await queue.enqueue_staged([task], FIRST)
        second = Transaction("app", 2)
        other = await stage(queue, b"5", b"6", unique_key=["c", "d"], transaction=second)
        assert StagedReceipt(1, 1, version=1) == await queue.enqueue_staged([other], second)
        assert [b"there", b"1", b"3", b"6"] == await claimed(queue)


@pytest.mark.parametrize("few_staged", [0, 9])
@in_virtual_time
async def test_the_first_of_two_rows_gets_their_unique_key_whatever_their_priorities(few_staged):
    async with queue_on(store(), few_staged=few_staged) as queue:
        task = await stage(queue, b"first", b"other", b"second", unique_key=["a", "b", "a"], priority=[2, 0, 0])
        assert StagedReceipt(2, 1) == await queue.enqueue_staged([task], FIRST)
        assert [b"other", b"first"] == await claimed(queue)


@in_virtual_time
async def test_a_taken_key_refuses_the_whole_write_if_that_was_asked_for():
    async with queue_on(store()) as queue:
        await queue.enqueue("work", b"there", unique_key="b")
        task = await stage(queue, b"1", b"2", unique_key=["a", "b"])
        with pytest.raises(DuplicateJobError):
            await queue.enqueue_staged([task], FIRST, on_conflict="raise")
        assert ([b"there"], {}) == (await claimed(queue), (await queue.read_state()).transactions)


@in_virtual_time
async def test_rows_with_a_concurrency_key_are_limited_and_make_older_readers_refuse_the_queue():
    async with queue_on(store()) as queue:
        task = await stage(queue, b"a", b"b", b"c", concurrency_key=["k", "k", None])
        assert StagedReceipt(3) == await queue.enqueue_staged([task], FIRST)
        assert {"limits", "segments"} <= set((await queue.read_state()).critical)
        assert [b"a", b"c"] == await claimed(queue)


@in_virtual_time
async def test_a_missing_segment_is_not_named():
    storage = store()
    async with queue_on(storage) as queue:
        tasks = [await stage(queue, b"a"), await stage(queue, b"b", task=1)]
        await storage.remove_object(FOLDER + tasks[1].segments[0].name)
        with pytest.raises(StorageError, match="1 of 2 staged segments are gone: they were removed, or tasks ran on"):
            await queue.enqueue_staged(tasks, FIRST)
        assert [] == await claimed(queue)


@in_virtual_time
async def test_segments_that_may_be_removed_are_not_named():
    async with queue_on(store()) as queue:
        task = await stage(queue, b"a")
        await asyncio.sleep(STAGED_NAMED_WITHIN.total_seconds() + 1)
        with pytest.raises(DeadlineExceededError, match="may be removed"):
            await queue.enqueue_staged([task], FIRST)


@in_virtual_time
async def test_segments_of_attempts_that_were_not_reported_are_removed_with_the_commit():
    storage = store()
    async with queue_on(storage) as queue:
        lost, task = await stage(queue, b"a"), await stage(queue, b"a", task=1)
        other = await stage(queue, b"b", transaction=Transaction("app", 11))
        await queue.enqueue_staged([task], FIRST)
        kept = {FOLDER + each.segments[0].name for each in (task, other)}
        assert (sorted(kept), 1) == (await left(storage), len(lost.segments))


@in_virtual_time
async def test_a_queue_that_is_closed_while_segments_are_removed_still_says_what_was_added():
    storage = store()
    queue = queue_on(storage, deadline=5)
    await stage(queue, b"a")
    task = await stage(queue, b"a", task=1)
    storage.on_object(Fault.NONE, Fault.HANGS)  # the listing, and the removal
    call = asyncio.create_task(queue.enqueue_staged([task], FIRST, deadline=1000))
    await asyncio.sleep(1)
    assert "remove_object" == storage.object_calls[-1][0]
    await queue.aclose()
    assert 1 == (await call).added


@in_virtual_time
async def test_a_queue_without_segments_refuses_them():
    async with DirectQueue(InMemoryStorage(), clock=VirtualClock(), limits=Limits(hot_bytes=None)) as queue:
        assert await queue.staging_place() is None
        with pytest.raises(InvalidJobError, match="this queue keeps no segments"):
            await queue.enqueue_staged([], FIRST)


@in_virtual_time
async def test_a_collection_keeps_staged_segments_until_their_write_is_done():
    storage = store()
    async with queue_on(storage) as queue:
        await queue.enqueue("work", b"")
        await stage(queue, b"a")
        await stage(queue, b"b", task=1, transaction=Transaction("app", 2))
        await asyncio.sleep(5 * 3600)
        assert 0 == await queue._collector.collect()
        task = await stage(queue, b"a", task=2)
        await queue.enqueue_staged([task], FIRST)
        late = await stage(queue, b"a", task=3)
        await asyncio.sleep(2 * 3600)
        assert 1 == await queue._collector.collect()
        assert FOLDER + late.segments[0].name not in await left(storage)
        await asyncio.sleep(7 * 86400)
        assert 1 == await queue._collector.collect()
        assert [FOLDER + task.segments[0].name] == await left(storage)


def test_names_tell_the_transaction():
    name = staged_name("app", 3, "0-17-abc")
    assert awaits_commit(name, {})
    assert awaits_commit(name, {"app": (2, 0.0), "other": (9, 0.0)})
    assert not awaits_commit(name, {"app": (3, 0.0)})
    assert not awaits_commit("b1946ac92492d2347c6235b4d2611184", {})
    assert not awaits_commit("staged-x", {})
