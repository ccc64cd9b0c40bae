"""The jobs in segments as views show them: each once, by filters, with few requests, and with damage named."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.core.blob import segment_jobs
from jqueue.domain.errors import JobsUnreadableError
from jqueue.domain.limits import Limits
from jqueue.domain.models import JobStatus
from jqueue.domain.stats import Census
from jqueue.operations import Enqueue
from jqueue.testing.faults import Fault, FaultyObjects
from tests.tiny_segments import segments_of, spilled, tiny_queue

pytestmark = pytest.mark.asyncio


@pytest.fixture
def storage():
    return FaultyObjects(InMemoryStorage())


async def filled(storage, *numbers):
    """Return a queue with segments of some numbers of jobs, for entrypoints a, b and so on."""
    queue = tiny_queue(storage)
    for entrypoint, number in zip("abcdef", numbers, strict=False):
        await queue.enqueue_many([Enqueue(entrypoint, b"%d" % each) for each in range(number)])
        await spilled(queue)
    storage.object_calls.clear()
    return queue


def reads(storage):
    """Return the number of reads of objects since the last call."""
    calls = [each for each in storage.object_calls if each[0] == "read_object"]
    storage.object_calls.clear()
    return len(calls)


async def damage(storage, suffix, place):
    """Change one byte of an object."""
    segment = storage.storage.beside(suffix)
    data, etag = await segment.read()
    await segment.write(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], etag)


async def ids(jobs):
    return [job.id async for job in jobs]


async def test_an_iteration_yields_each_job_in_a_segment_once_with_one_request_for_its_rows(storage):
    queue = await filled(storage, 30, 10)
    [claimed] = await queue.dequeue("a")
    reads(storage)
    other = DirectQueue(storage)
    found = [job async for job in other.iterate_jobs()]
    assert [*"a" * 30, *"b" * 10] == sorted(job.entrypoint for job in found)
    assert len(found) == len({job.id for job in found})
    assert claimed == next(job for job in found if job.status is JobStatus.IN_PROGRESS)
    assert 4 == reads(storage)  # two indexes and the rows of two segments


async def test_segments_without_a_wanted_job_are_not_read(storage):
    queue = await filled(storage, 6, 4)
    assert 4 == len(await ids(queue.iterate_jobs(entrypoint="b")))
    assert 2 == reads(storage)
    assert [] == await ids(queue.iterate_jobs(JobStatus.DEAD, JobStatus.IN_PROGRESS))
    assert [] == await ids(queue.iterate_jobs(entrypoint="c"))
    assert 0 == reads(storage)
    [one, *_] = await ids(queue.iterate_jobs(JobStatus.QUEUED))
    assert [one] == await ids(queue.iterate_jobs(id_prefix=one))


async def test_rows_are_read_piece_by_piece_and_only_one_piece_ahead(storage, monkeypatch):
    monkeypatch.setattr(segment_jobs, "PIECE_BYTES", 1)
    queue = await filled(storage, 40)
    async with aclosing(queue.iterate_jobs()) as jobs:
        await anext(jobs)
    assert 3 >= reads(storage)  # the index, a chunk, and perhaps the next
    assert 40 == len(await ids(queue.iterate_jobs()))
    assert 11 == reads(storage)


async def test_a_version_can_be_read_to_its_end_while_others_follow_it(storage, monkeypatch):
    monkeypatch.setattr(segment_jobs, "PIECE_BYTES", 1)
    queue = await filled(storage, 20)
    async with aclosing(queue.iterate_jobs()) as jobs:
        found = [await anext(jobs)]
        await queue.ack_many(await queue.dequeue(batch_size=20))
        assert 0 == (await queue.stats()).depth
        found += [job async for job in jobs]
    assert 20 == len({job.id for job in found})


async def test_a_read_of_rows_is_repeated_when_the_store_fails(storage):
    queue = await filled(storage, 8)
    storage.on_object(Fault.LOST_REQUEST, Fault.NONE, Fault.LOST_ANSWER)
    assert 8 == len(await ids(queue.iterate_jobs()))
    assert 4 == reads(storage)


async def test_all_jobs_outside_damaged_chunks_are_yielded_and_then_an_error_names_the_segment(storage):
    queue = await filled(storage, 8, 12, 5)
    segments = (await queue.read_state()).segments
    first, second, third = segments
    await damage(storage, f".segments/{second}", 200)  # in the first of three chunks
    await storage.remove_object(f".segments/{first}")
    found = []
    with pytest.raises(JobsUnreadableError) as caught:
        async for job in queue.iterate_jobs():
            found.append(job.entrypoint)
    assert ["b"] * 8 + ["c"] * 5 == found
    assert {f".segments/{first}", f".segments/{second}"} == set(caught.value.segments)
    assert f".segments/{second}" in str(caught.value)
    assert f".segments/{third}" not in str(caught.value)


async def test_a_job_is_found_by_its_id_with_one_index_for_each_segment_and_one_chunk(storage):
    queue = await filled(storage, 6, 20, 3)
    wanted = [job async for job in queue.iterate_jobs(entrypoint="b")][13]
    view = await DirectQueue(storage).view()
    reads(storage)
    assert wanted == await view.find(wanted.id)
    assert reads(storage) <= 4
    await queue.cancel(wanted.id)
    reads(storage)
    assert wanted == await view.find(wanted.id)  # the same version, and the same job
    assert 0 == reads(storage)
    assert await (await queue.view()).find(wanted.id) is None


async def test_a_job_that_may_be_in_a_damaged_segment_is_an_error_and_others_are_found(storage):
    queue = await filled(storage, 6, 4)
    last = [job async for job in queue.iterate_jobs(entrypoint="b")][-1]
    name = next(iter((await queue.read_state()).segments))
    await storage.remove_object(f".segments/{name}")
    view = await queue.view()
    assert last == await view.find(last.id)
    with pytest.raises(JobsUnreadableError, match=name):
        await view.find("another")


@pytest.mark.parametrize("job_id", ["plain", "größe", 'with "quotes"'])
async def test_a_beginning_of_an_id_finds_the_rows_that_begin_so_however_it_is_written(storage, job_id):
    queue = tiny_queue(storage)
    await queue.enqueue_many([Enqueue("a", b"", job_id=f"{name}{each}") for name in (job_id, "x") for each in range(6)])
    await spilled(queue)
    assert 6 == len(await ids(queue.iterate_jobs(id_prefix=job_id[:5])))
    assert [f"{job_id}4"] == await ids(queue.iterate_jobs(id_prefix=f"{job_id}4"))
    assert {f"{job_id}{each}" for each in range(6)} == {each async for each in (await queue.view()).ids(job_id)}


async def test_rows_come_in_the_order_of_service_over_all_segments_and_are_read_when_they_come_up(storage):
    queue = tiny_queue(storage, most_rows=8)
    priorities = [3, 1, 2, 0] * 8
    for priority in priorities:
        await queue.enqueue("a", b"", priority=priority)
    await spilled(queue)
    reads(storage)
    rows = (await queue.view())._content.rows
    assert rows is not None
    async with aclosing(rows.in_order(scheduled=False)) as jobs:
        first = [await anext(jobs) for _ in range(3)]
        few = reads(storage)
        found = [*first, *[job async for job in jobs]]
    assert found == sorted(found, key=lambda job: (job.priority, job.sequence))
    assert len(priorities) == len(found)
    assert few < reads(storage)
    assert [] == [job async for job in rows.in_order(scheduled=True)]


async def test_figures_of_a_damaged_segment_are_those_of_the_manifest_with_a_warning(storage):
    queue = await filled(storage, 8, 3)
    await queue.dequeue("a")
    name, segment = next(iter((await queue.read_state()).segments.items()))
    await damage(storage, f".segments/{name}", segment.index + 5)
    stats = await DirectQueue(storage).stats()
    assert (10, {"a": 7, "b": 3}) == (
        stats.depth,
        {name: each.depth for name, each in (stats.entrypoints or {}).items()},
    )
    [warning] = stats.warnings
    assert f".segments/{name} (a) cannot be read, and 7 jobs in it wait" in warning


async def test_figures_of_untouched_segments_need_no_request(storage):
    queue = await filled(storage, 30, 10)
    stats = await DirectQueue(storage).stats()
    assert (40, 2, 40) == (stats.depth, stats.segments, stats.segment_jobs)
    segments = (await queue.read_state()).segments.values()
    assert stats.segment_bytes == sum(each.bytes for each in segments)
    assert stats.oldest_ready_age is not None
    assert 0 == reads(storage)


async def test_the_age_of_a_segment_in_use_needs_its_index_and_one_chunk_once(storage):
    queue = await filled(storage, 30)
    await queue.dequeue("a", batch_size=6)
    reads(storage)
    other = DirectQueue(storage)
    assert 24 == (await other.stats()).depth
    assert 2 == reads(storage)
    await other.stats()
    assert 0 == reads(storage)


async def test_the_age_of_a_segment_behind_older_jobs_needs_no_request(storage):
    queue = tiny_queue(storage)
    await queue.enqueue("a", b"first")
    [claimed] = await queue.dequeue("a")
    await queue.enqueue_many([Enqueue("a", b"") for _ in range(12)])
    await spilled(queue)
    await queue.dequeue("a", batch_size=5)
    segments = segments_of(queue)
    segments.writer.sizes.hot_bytes = None  # the job stays in the queue's object
    await queue.nack(claimed)
    reads(storage)
    stats = await DirectQueue(storage).stats()
    assert 8 == stats.depth
    assert 0 == reads(storage)


async def test_due_rows_of_a_scheduled_segment_are_counted_by_one_chunk(storage):
    queue, start = tiny_queue(storage), datetime.now(UTC) + timedelta(hours=1)
    await queue.enqueue_many([Enqueue("a", b"", run_at=start + timedelta(minutes=each)) for each in range(20)])
    await spilled(queue)
    reads(storage)
    view = await queue.view()
    before = await view.stats(start - timedelta(seconds=1))
    assert (0, 20, None, 0) == (before.depth, before.scheduled, before.oldest_ready_age, reads(storage))
    within = await view.stats(start + timedelta(minutes=9, seconds=30))
    assert (10, 10, timedelta(minutes=9, seconds=30)) == (within.depth, within.scheduled, within.oldest_ready_age)
    assert 2 == reads(storage)
    after = await view.stats(start + timedelta(days=1))
    assert (20, 0) == (after.depth, after.scheduled)


async def test_a_job_with_a_dropped_error_stays_in_the_queues_object_and_is_counted(storage):
    queue = tiny_queue(storage, Limits(blob_bytes=1500))
    await queue.enqueue("a", b"x" * 700)
    [claimed] = await queue.dequeue("a")
    await queue.nack(claimed, error="y" * 2000)
    with pytest.raises(AssertionError, match="jobs stay"):
        await spilled(queue)
    stats = await queue.stats()
    assert (1, 1) == (stats.depth, stats.errors_dropped)


@pytest.mark.parametrize("seed", range(4))
async def test_the_figures_equal_a_count_of_all_jobs_one_by_one(storage, seed):
    random, queue = Random(seed), tiny_queue(storage, merged=3, holes=3)
    await queue.enqueue("a")
    for _ in range(12):
        await queue.enqueue_many(
            [
                Enqueue(
                    random.choice("abc"),
                    b"",
                    priority=random.randrange(3),
                    delay=random.choice([None, None, 60 * random.randrange(1, 60)]),
                )
                for _ in range(random.randrange(12))
            ]
        )
        claimed = await queue.dequeue(random.choice("abc"), batch_size=random.randrange(1, 9))
        await queue.nack_many(claimed[:2], delay=random.choice([0, 600]))
        waiting = await ids(queue.iterate_jobs(JobStatus.QUEUED))
        for job_id in random.sample(waiting, len(waiting) // 8):
            await queue.cancel(job_id)
        if random.randrange(3):
            await spilled(queue)
        view = await queue.view()
        for minutes in (0, random.randrange(60), 90):
            now = datetime.now(UTC) + timedelta(minutes=minutes)
            expected = Census(now)
            async for job in view.jobs():
                expected.count(job)
            figures = await view.stats(now)
            assert figures == expected.figures(view.header, view.set_aside, view.size, view._taken, Limits())


async def test_an_earlier_time_is_found_from_jobs_in_segments_and_in_the_object(storage):
    queue = tiny_queue(storage)
    await queue.configure(history=timedelta(days=1))
    before = {job.id for job in await queue.enqueue_many([Enqueue("a", b"") for _ in range(10)])}
    await spilled(queue)
    await asyncio.sleep(0.002)  # events are dated to the millisecond
    at = datetime.now(UTC)
    await asyncio.sleep(0.002)
    await queue.ack_many((await queue.dequeue("a", batch_size=5))[:3])
    then = await queue.jobs_at(at)
    assert before == then.keys()
    assert {JobStatus.QUEUED} == {job.status for job in then.values()}
    assert 7 == len(await queue.jobs_at(datetime.now(UTC)))


async def test_a_state_without_the_jobs_in_segments_says_so_once(storage, caplog):
    queue = tiny_queue(storage)
    await queue.enqueue_many([Enqueue("a", b"")] * 30)
    await queue.read_state()
    assert [] == caplog.messages, "all jobs are in the state"
    await spilled(queue)
    for _ in range(2):
        state = await queue.read_state()
    left_out = 30 - len(state.jobs)
    [warning] = [message for message in caplog.messages if "read_state" in message]
    assert f"{left_out} jobs in segments beside it are left out. iterate_jobs yields all jobs" in warning
