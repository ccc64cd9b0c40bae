"""A bulk enqueue adds any number of jobs in one commit, through segments. It means one enqueue after another."""

import asyncio
import random
import re
from datetime import timedelta
from typing import Any

import pytest

from jqueue import BrokerQueue, DirectQueue, DuplicateJobError, InMemoryStorage, Limits
from jqueue.core.blob.segment_columns import SegmentColumns
from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.core.calls import bulk as bulk_calls
from jqueue.core.verbs.producer import PIECE, _First
from jqueue.domain.errors import DeadlineExceededError, InvalidJobError, QueueClosedError
from jqueue.domain.models import JobStatus
from jqueue.domain.operations import EnqueueStaged
from jqueue.domain.segments import FOLDER
from jqueue.operations import Enqueue
from jqueue.testing.faults import Fault, FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from tests.staged_jobs import block
from tests.tiny_segments import segments_of
from tests.virtual_world import in_virtual_time

both = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])


def store():
    return FaultyObjects(InMemoryStorage(clock=VirtualClock()))


def queue_on(storage, kind=DirectQueue, *, batch_size=20, sizes=None, **options):
    """Return a queue whose segments have a few rows only."""
    limits = Limits(hot_bytes=1, batch_size=batch_size, **options)
    queue = kind(storage, clock=VirtualClock(), limits=limits)
    writer = segments_of(queue).writer
    writer.sizes = sizes or SegmentSizes(hot_bytes=1, fewest_rows=3, chunk_rows=2, merged=3, holes=2, most_rows=256)
    return queue


def numbered(count, entrypoint="work", **options):
    return [Enqueue(entrypoint, b"%d" % number, **options) for number in range(count)]


async def as_async(jobs):
    for job in jobs:
        await asyncio.sleep(0)
        yield job


async def waiting(queue):
    """Return the number of jobs that wait."""
    return len([job async for job in queue.iterate_jobs(JobStatus.QUEUED)])


async def payloads(queue, count):
    """Claim jobs, and return their payloads."""
    return [job.payload for job in await queue.dequeue(batch_size=count)]


# One commit


@both
@in_virtual_time
async def test_jobs_beyond_the_threshold_are_added_in_one_commit_in_their_order(kind):
    storage = store()
    async with queue_on(storage, kind) as queue, queue_on(storage, kind) as other:
        await queue.enqueue("work", b"before")
        writes = storage.landed
        jobs = await queue.enqueue_many(numbered(700))
        assert (writes + 1, 0) == (storage.landed, jobs.existing)
        assert 700 == len(jobs) == jobs.added == len({job.id for job in jobs})
        claimed = [job async for job in _claims(other, 701)]
        assert [b"before", *(b"%d" % number for number in range(700))] == [job.payload for job in claimed]
        assert [job.id for job in jobs] == [job.id for job in claimed[1:]]
        assert [job.sequence for job in jobs] == [job.sequence for job in claimed[1:]]
        assert {jobs[5].created_at} == {job.created_at for job in claimed[1:]}


async def _claims(queue, count):
    for _ in range(count):
        [job] = await queue.dequeue(batch_size=1)
        yield job


@in_virtual_time
async def test_an_async_iterable_is_taken_as_well_and_the_deadline_counts_from_its_end():
    async with queue_on(store()) as queue:

        async def slowly():
            for job in numbered(30):
                await asyncio.sleep(10)
                yield job

        jobs = await queue.enqueue_many(slowly(), deadline=5)
        assert [b"%d" % number for number in range(30)] == await payloads(queue, 20) + await payloads(queue, 20)
        assert 30 == len(jobs)


@in_virtual_time
async def test_a_queue_without_segments_takes_an_async_iterable_up_to_its_batch_size():
    queue = DirectQueue(store(), clock=VirtualClock(), limits=Limits(batch_size=20, hot_bytes=None))
    jobs = await queue.enqueue_many(as_async(numbered(20)))
    assert [b"%d" % number for number in range(20)] == [job.payload for job in jobs]
    with pytest.raises(InvalidJobError, match="the limit is 20"):
        await queue.enqueue_many(as_async(numbered(21)))


@in_virtual_time
async def test_up_to_the_batch_size_the_answer_is_a_list_of_whole_jobs():
    async with queue_on(store(), object_bytes=100) as queue:
        segments_of(queue).writer.sizes.bulk_jobs = 2
        given = [*numbered(3), Enqueue("work", b"x" * 200), Enqueue("other", b"", 5, delay=9, job_id="id")]
        jobs = await queue.enqueue_many(given)
        assert isinstance(jobs, list)
        assert [job.payload for job in given] == [job.payload for job in jobs]
        there = {job.id: job async for job in queue.iterate_jobs()}
        assert [there[job.id].evolve(payload=job.payload) for job in jobs] == jobs


# All or none


@in_virtual_time
async def test_an_error_in_the_middle_adds_nothing():
    storage = store()
    async with queue_on(storage) as queue:

        def failing():
            yield from numbered(500)
            raise LookupError

        text: Any = "text"
        for bad, error in ((failing(), LookupError), ([*numbered(500), Enqueue("work", text)], InvalidJobError)):
            with pytest.raises(error):
                await queue.enqueue_many(bad)
        with pytest.raises(InvalidJobError, match="got str"):
            await queue.enqueue_many([*numbered(500), "job"])
        assert [] == await queue.dequeue(batch_size=1)
        assert 0 == storage.landed


@in_virtual_time
async def test_a_store_that_fails_for_a_while_is_asked_again_and_one_that_fails_for_long_is_given_up():
    storage = store()
    async with queue_on(storage) as queue:
        storage.on_object(Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.RESENT)
        assert 500 == len(await queue.enqueue_many(numbered(500)))
        storage.on_object(*[Fault.LOST_REQUEST] * 500)
        with pytest.raises(DeadlineExceededError, match="nothing was done"):
            await queue.enqueue_many(numbered(500), deadline=20)
        assert 1 == storage.landed


@in_virtual_time
async def test_a_call_that_takes_too_long_adds_nothing_because_its_segments_may_be_gone():
    async with queue_on(store()) as queue:

        async def slowly():
            for job in numbered(300):
                yield job
            await asyncio.sleep(timedelta(minutes=46).total_seconds())

        with pytest.raises(DeadlineExceededError, match="stored too long ago"):
            await queue.enqueue_many(slowly())
        assert [] == await queue.dequeue()


@in_virtual_time
async def test_a_queue_that_closes_ends_a_bulk_enqueue_under_way():
    storage = store()
    queue = queue_on(storage)

    async def endless():
        while True:
            await asyncio.sleep(0.01)
            yield Enqueue("work")

    call = asyncio.create_task(queue.enqueue_many(endless()))
    await asyncio.sleep(5)
    await queue.aclose()
    with pytest.raises(QueueClosedError):
        await call
    assert 0 == storage.landed


@in_virtual_time
async def test_counters_and_history_count_the_jobs_of_a_bulk_enqueue_once():
    storage = store()
    async with queue_on(storage) as queue:
        await queue.configure(history=timedelta(days=1))
        await queue.enqueue_many([*numbered(300), *numbered(200, "other"), *numbered(2, "few")])
        stats = (await queue.stats()).entrypoints
        assert [300, 200, 2] == [stats[name].totals.enqueued for name in ("work", "other", "few")]
        events = [event async for event in queue.history() if event.verb == "enqueue"]
        assert 502 == sum(event.jobs for event in events)


# Jobs that are there already


def _random_jobs(random, count):
    for number in range(count):
        options: dict[str, Any] = {}
        if random.random() < 0.5:
            options["unique_key"] = f"key {random.randrange(count)}"
            options["on_conflict"] = random.choice(["return", "replace"])
        if random.random() < 0.3:
            options["job_id"] = f"id {random.randrange(count)}"
        if random.random() < 0.2:
            options["delay"] = random.randrange(5)
        yield Enqueue(random.choice("ab"), b"%d" % number, random.randrange(3), **options)


def _told(job):
    return (job.payload, job.entrypoint, job.priority, job.status, job.attempt, job.unique_key)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("hot_bytes", [1, 100_000])
@in_virtual_time
async def test_many_jobs_mean_the_same_as_the_same_jobs_without_segments(seed, hot_bytes):
    answers = []
    for bulk in (False, True):
        random_jobs = random.Random(seed)
        queue = queue_on(store(), batch_size=500)
        other = queue_on(queue.storage, batch_size=500)
        if not bulk:
            for each in (queue, other):
                segments_of(each).writer.sizes.hot_bytes = None
        else:
            segments_of(queue).writer.sizes.hot_bytes = hot_bytes
        async with queue, other:
            answer = []
            for _ in range(4):
                jobs = list(_random_jobs(random_jobs, random_jobs.choice([3, 40, 300])))
                added = await (_in_bulk(queue, jobs) if bulk else queue.enqueue_many(jobs))
                answer += [_told(job) for job in added]
                claimed = await other.dequeue(batch_size=7)
                answer += [_told(job) for job in claimed]
                await other.ack_many(claimed[:4])
                for job in claimed[4:]:
                    await other.nack(job, dead=True)
                await other.purge()
                await asyncio.sleep(2)
            left = [job async for job in queue.iterate_jobs()]
            answer += [_told(job) for job in sorted(left, key=lambda job: job.sequence)]
            answers.append(answer)
    assert answers[0] == answers[1]


async def _in_bulk(queue, jobs):
    """Enqueue jobs through segments, however few they are."""
    return await queue._enqueue_bulk(_First(jobs, complete=True), None, 30.0)


@in_virtual_time
async def test_a_taken_key_fails_the_whole_call_if_it_says_so():
    storage = store()
    async with queue_on(storage) as queue:
        await queue.enqueue("work", b"", unique_key="key 250")
        jobs = [Enqueue("work", unique_key=f"key {number}", on_conflict="raise") for number in range(300)]
        with pytest.raises(DuplicateJobError, match="key 250"):
            await queue.enqueue_many(jobs)
        assert 1 == await waiting(queue)
        await queue.enqueue_many(jobs[:250])
        with pytest.raises(DuplicateJobError, match="key 299"):
            await queue.enqueue_many([*jobs[251:], jobs[-1]] * 2)


@in_virtual_time
async def test_a_taken_id_fails_the_whole_call_if_it_says_so():
    async with queue_on(store()) as queue:
        await queue.enqueue("work", b"", job_id="id 250")
        jobs = [Enqueue("work", job_id=f"id {number}", on_conflict="raise") for number in range(300)]
        with pytest.raises(DuplicateJobError, match="Job id 'id 250' is taken"):
            await queue.enqueue_many(jobs)
        assert 1 == await waiting(queue)
        await queue.enqueue_many(jobs[:250])
        with pytest.raises(DuplicateJobError, match=r"Job id 'id [0-9]+' is taken"):
            await queue.enqueue_many(jobs[:250])  # all of them are in segments
        with pytest.raises(DuplicateJobError, match="Job id 'id 2"):
            await queue.enqueue_many([*jobs[251:], jobs[-1]])
        assert 251 == await waiting(queue)


@in_virtual_time
async def test_a_key_that_another_writer_takes_before_the_commit_is_seen():
    storage = store()
    async with queue_on(storage) as queue, queue_on(storage) as other:
        await other.enqueue("work", b"first")

        async def given():
            for number in range(300):
                yield Enqueue("work", b"mine", unique_key=f"key {number}")
            await other.enqueue("work", b"theirs", unique_key="key 7")

        jobs = await queue.enqueue_many(given())
        assert (299, 1, b"theirs") == (jobs.added, jobs.existing, jobs[7].payload)
        assert 301 == await waiting(queue)


@in_virtual_time
async def test_an_id_that_is_used_again_starts_above_all_attempts_that_are_forgotten():
    async with queue_on(store()) as queue:
        await queue.enqueue("work", b"", job_id="id 7")
        [job] = await queue.dequeue()
        await queue.nack(job, dead=True)
        await queue.purge()
        jobs = await queue.enqueue_many([Enqueue("work", job_id=f"id {number}") for number in range(300)])
        claimed = await queue.dequeue(batch_size=20)
        assert (1, 0) == (jobs[7].attempt, jobs[7].tries)
        assert {(2, 1)} == {(job.attempt, job.tries) for job in claimed}


@in_virtual_time
async def test_attempts_that_are_forgotten_before_the_commit_count_as_well():
    async with queue_on(store()) as queue, queue_on(queue.storage) as other:
        await other.enqueue("work", b"", job_id="id 7")

        async def given():
            for number in range(300):
                yield Enqueue("work", b"", number % 2, job_id=f"id {number}")
            [job] = await other.dequeue()
            await other.nack(job, dead=True)
            await other.purge()

        jobs = await queue.enqueue_many(given())
        claimed = await queue.dequeue(batch_size=20)
        assert [job.id for job in jobs[:40:2]] == [job.id for job in claimed]
        assert {(2, 1)} == {(job.attempt, job.tries) for job in claimed}


@in_virtual_time
async def test_the_history_can_undo_a_bulk_enqueue():
    async with queue_on(store()) as queue:
        await queue.configure(history=timedelta(days=1))
        await queue.enqueue("work", b"", job_id="before")

        async def slowly():
            for job in numbered(300):
                await asyncio.sleep(0.01)
                yield job

        await queue.enqueue_many(slowly())
        [event] = [event async for event in queue.history() if event.jobs > 1]
        assert event.created_at < event.at
        before = await queue.jobs_at(event.at - timedelta(milliseconds=1))
        assert ["before"] == list(before)


@in_virtual_time
async def test_segments_written_for_a_queue_that_another_writer_has_made_meanwhile_name_that_queue():
    storage = store()
    async with queue_on(storage) as queue, queue_on(storage) as other:
        for each in (queue, other):
            segments_of(each).writer.sizes.hot_bytes = 4000  # one job stays in the queue's object

        async def given():
            for job in numbered(300):
                yield job
            await other.enqueue("other", b"")

        await queue.enqueue_many(given())
        header = (await other.read_state()).queue.encode()
        assert [b"%d" % number for number in range(20)] == [
            job.payload for job in await other.dequeue("work", batch_size=20)
        ]
        for each in await storage.list_beside(FOLDER):
            named = each.suffix.removeprefix(FOLDER) in (await other.read_state()).segments
            assert named == (header in await storage.read_object(each.suffix))


@in_virtual_time
async def test_segments_name_their_queue_while_its_content_is_forgotten_after_staged_jobs():
    storage = store()
    async with queue_on(storage) as queue, queue_on(storage) as other:
        await queue.dequeue()
        assert queue._engine.known_queue  # of the queue that it would have made
        await other.enqueue("other", b"")
        await queue.dequeue("none")

        async def given():
            for number, job in enumerate(numbered(PIECE + 300)):
                if number == PIECE + 1:
                    await queue.apply(EnqueueStaged([block("staged")]))
                yield job

        await queue.enqueue_many(given())
        header = (await other.read_state()).queue.encode()
        contents = [await storage.read_object(each.suffix) for each in await storage.list_beside(FOLDER)]
        assert contents
        assert all(header in content.partition(b"\n")[0] for content in contents)


@in_virtual_time
async def test_calls_that_share_the_commit_of_a_bulk_enqueue_see_its_jobs():
    storage = store()
    async with queue_on(storage, BrokerQueue, batch_size=500) as queue:
        segments_of(queue).writer.sizes.bulk_jobs = 100
        await queue.enqueue("first", b"")
        waiting_for = asyncio.create_task(queue.dequeue("work", wait=60))
        jobs = [Enqueue("work", b"bulk", job_id=f"id {number}") for number in range(300)]
        bulk = [asyncio.create_task(queue.enqueue_many(jobs)) for _ in range(2)]
        storage.latency = 1.0  # the calls gather
        await asyncio.sleep(3)
        alone = await asyncio.gather(*(queue.enqueue("work", b"alone", job_id=f"id {number}") for number in range(200)))
        first, second = await asyncio.gather(*bulk)
        assert {b"bulk"} == {job.payload for job in [*alone, *first, *second]}
        assert [job.id for job in first] == [job.id for job in second]
        [claimed] = await waiting_for
        assert "id 0" == claimed.id
        assert 300 == await waiting(queue)


@in_virtual_time
async def test_jobs_of_many_entrypoints_are_joined_into_few_segments(monkeypatch):
    monkeypatch.setattr(bulk_calls, "BUFFER_BYTES", 20_000)
    monkeypatch.setattr(bulk_calls, "MOST_SEGMENTS", 30)
    async with queue_on(store()) as queue:
        given = [
            Enqueue(f"of {number % 25}", b"%d" % number, number % 2, job_id=f"id {number}" if number % 3 else None)
            for number in range(4000)
        ]
        jobs = await queue.enqueue_many(given)
        assert 50 == len((await queue.read_state()).segments)
        assert [b"0", b"50", b"100"] == [job.payload for job in await queue.dequeue("of 0", batch_size=3)]
        there = {job.id async for job in queue.iterate_jobs()}
        assert {job.id for job in jobs} == there


@in_virtual_time
async def test_a_segment_lists_the_objects_of_its_rows_in_the_order_of_the_rows():
    async with queue_on(store(), object_bytes=8) as queue:
        await queue.enqueue_many([Enqueue("work", b"payload %d" % number, number % 5) for number in range(30)])
        state = await queue.read_state()
        [(name, segment)] = state.segments.items()
        index = await segments_of(queue).reader.index(name, segment)
        rows = await segments_of(queue).reader.chunks(name, segment, index, range(segment.chunks))
        named = [dict(entry[8])["payload_object"].suffix for _, some in rows for _, _, entry in some]
        assert tuple(named) == index.objects
        assert 30 == len(named)


@in_virtual_time
async def test_each_piece_of_a_bulk_enqueue_looks_only_at_the_entrypoints_that_it_has(monkeypatch):
    looks = 0
    length = SegmentColumns.__len__

    def counted(columns):
        nonlocal looks
        looks += 1
        return length(columns)

    monkeypatch.setattr(SegmentColumns, "__len__", counted)
    jobs = 30 * PIECE
    async with queue_on(store(), sizes=SegmentSizes(hot_bytes=1 << 20)) as queue:
        await queue.enqueue_many(Enqueue(f"e{each % (jobs // 2)}", b"") for each in range(jobs))
    assert looks < 4 * jobs


@both
@pytest.mark.parametrize("batch_size", [20, 2])
@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        (None, "an iterable of Enqueue(...), got NoneType"),
        ("abc", "an iterable of Enqueue(...), got str"),
        (b"abc", "an iterable of Enqueue(...), got bytes"),
        ({"a": 1}, "an iterable of Enqueue(...), got dict"),
        ([*numbered(5), b"payload"], "Enqueue(...), got bytes"),
    ],
)
@in_virtual_time
async def test_something_else_than_jobs_is_refused_in_one_sentence(kind, batch_size, jobs, said):
    async with queue_on(store(), kind, batch_size=batch_size) as queue:
        with pytest.raises(InvalidJobError, match=f"^enqueue_many takes {re.escape(said)}$"):
            await queue.enqueue_many(jobs)
        assert 0 == len((await queue.read_state()).jobs)
