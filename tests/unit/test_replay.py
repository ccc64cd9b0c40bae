"""Replay: the jobs of a queue at an earlier time."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, InvalidJobError, JobStatus, Limits, connect, replay
from jqueue.core.blob.past_rows import PastRows
from jqueue.core.blob.staged_object import StagedWriter, read_staged
from jqueue.domain.errors import JobsUnreadableError, ReplayError
from jqueue.domain.events import HistoryEvent
from jqueue.domain.models import Job
from jqueue.domain.operations import Enqueue, EnqueueStaged
from jqueue.domain.replay import Replay, Row, Touched
from jqueue.testing.faults import FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import in_segments, spilled, tiny_queue
from tests.virtual_world import in_virtual_time

QUEUED, IN_PROGRESS, DEAD = JobStatus.QUEUED, JobStatus.IN_PROGRESS, JobStatus.DEAD


def queue_on(storage, kind=DirectQueue):
    return kind(storage, clock=VirtualClock())


async def states(queue, at):
    return {job_id: tuple(job) for job_id, job in (await replay(queue, at)).items()}


@in_virtual_time
async def test_the_jobs_of_every_moment_are_found():
    storage = InMemoryStorage(clock=VirtualClock())
    queue = queue_on(storage)
    old = await queue.enqueue("t", b"", job_id="old")
    await queue.configure(history=timedelta(days=1))
    moments, expected = [], []

    async def note():
        moments.append(VirtualClock().now())
        expected.append({job.id: (job.entrypoint, job.status, job.attempt) for job in (await queue.read_state()).jobs})
        await asyncio.sleep(1)

    await note()
    await queue.enqueue_many([Enqueue("t", b"", job_id=f"job {number}") for number in range(3)])
    await note()
    [first, second] = await queue.dequeue(batch_size=2)
    await note()
    await queue.nack(first, dead=True)
    await queue.ack(second)
    await note()
    await queue.cancel("job 2")
    await note()
    await queue.redrive()
    await note()
    await queue.enqueue("mail", b"", job_id="job 2")
    await note()
    assert "old" == old.id == first.id
    assert {"old": ("t", DEAD, 1), "job 1": ("t", QUEUED, 0), "job 2": ("t", QUEUED, 0)} == expected[3]
    assert expected == [await states(queue, moment) for moment in moments]


@in_virtual_time
async def test_jobs_of_a_bulk_enqueue_are_not_there_before_it():
    storage = InMemoryStorage(clock=VirtualClock())
    queue = queue_on(storage, BrokerQueue)
    async with queue:
        await queue.configure(history=3600)
        await queue.enqueue("t", b"", job_id="single")
        await asyncio.sleep(1)
        before = VirtualClock().now()
        await asyncio.sleep(1)
        writer = StagedWriter()
        for number in range(5):
            writer.add(f"job {number}", "t" if number else "mail")
        writer.add("its key", "t", unique_key="key")
        await queue.apply(EnqueueStaged([read_staged(writer.finish())]))
        added = VirtualClock().now()
        await asyncio.sleep(1)
        await queue.ack_many(await queue.dequeue("t", batch_size=4))
        assert 7 == len(await states(queue, added))
        assert {"single"} == (await states(queue, before)).keys()
        bulk = [event for event in [event async for event in queue.history()] if event.jobs > 1]
        assert [("enqueue", None, "t", 4)] == [(each.verb, each.job_id, each.entrypoint, each.jobs) for each in bulk]


@in_virtual_time
async def test_a_time_before_the_history_is_refused():
    storage = InMemoryStorage(clock=VirtualClock())
    queue = queue_on(storage)
    before = VirtualClock().now()
    await queue.configure(aging=60)
    with pytest.raises(ReplayError, match="switched off"):
        await replay(queue, before)
    await asyncio.sleep(1)
    await queue.configure(history=3600)
    with pytest.raises(ReplayError, match="begins at 2026"):
        await replay(queue, before)
    with pytest.raises(InvalidJobError, match="time zone"):
        await replay(queue, before.replace(tzinfo=None))
    wrong: Any = 5
    with pytest.raises(InvalidJobError, match="got int"):
        await replay(wrong, before)


@in_virtual_time
async def test_an_edit_by_hand_is_named_by_the_first_event_that_does_not_fit():
    storage = InMemoryStorage(clock=VirtualClock())
    queue = queue_on(storage)
    await queue.configure(history=3600)
    at = VirtualClock().now()
    await asyncio.sleep(1)
    await queue.enqueue("t", b"", job_id="the job")
    content, etag = await storage.read()
    await storage.write(content.replace(b'"status": "queued"', b'"status": "dead"'), etag)
    with pytest.raises(ReplayError, match=r"event 2 \(enqueue\) does not fit: after it, job 'the job' was queued"):
        await replay(queue_on(storage), at)


async def test_the_queue_may_be_given_as_a_url(tmp_path):
    path = tmp_path / "queue.json"
    async with BrokerQueue(InMemoryStorage()) as other:
        with pytest.raises(ReplayError):
            await replay(other, (await other.enqueue("t", b"")).created_at)
    async with connect(path, DirectQueue) as queue:
        await queue.configure(history=3600)
        job = await queue.enqueue("t", b"")
        now = job.created_at + timedelta(minutes=1)
    assert {job.id: ("t", QUEUED, 0)} == await states(path, now)


def deep_queue(storage):
    """Return a queue that keeps every waiting job in segments of a few rows."""
    queue = DirectQueue(storage, clock=VirtualClock(), limits=Limits(hot_bytes=1, batch_size=5))
    return in_segments(queue, chunk_rows=2)


@in_virtual_time
async def test_the_jobs_of_ranges_are_found_at_every_moment():
    storage = InMemoryStorage(clock=VirtualClock())
    moments, expected = [], []
    async with deep_queue(storage) as queue:
        await queue.configure(history=timedelta(days=1))

        async def note():
            moments.append(VirtualClock().now())
            jobs = [job async for job in queue.iterate_jobs()]
            expected.append({job.id: (job.entrypoint, job.status, job.attempt) for job in jobs})
            await asyncio.sleep(1)

        await note()
        jobs = await queue.enqueue_many([Enqueue("t", b"%d" % number) for number in range(10)])
        await note()
        first = await queue.claim_range("t", 6)
        await note()
        await queue.end_range(first, failed={jobs[1].id: "boom"}, returned=[jobs[4].id])
        await note()
        second = await queue.claim_range("t", 5)
        await note()
        await queue.requeue_stale(0)
        await note()
        await queue.end_range(await queue.claim_range("t", 9))
        await note()
        assert [0, 10, 10, 6, 6, 6, 5] == [len(each) for each in expected]
        assert second.held.rows == 1, "the next rows were claimed less often"
        assert expected == [await states(queue, moment) for moment in moments]


@in_virtual_time
async def test_jobs_that_one_commit_added_and_purged_are_known_for_an_hour():
    storage = FaultyObjects(InMemoryStorage(clock=VirtualClock()))
    async with in_segments(BrokerQueue(storage, clock=VirtualClock()), bulk_jobs=0) as queue:
        await queue.configure(history=timedelta(days=1))

        async def slowly():
            for number in range(256 + 64):  # the first of them are stored at once, 40 minutes before the commit
                yield Enqueue("t", b"", job_id=f"job {number}")
            await asyncio.sleep(40 * 60)

        adding = asyncio.create_task(queue.enqueue_many(slowly()))
        await asyncio.sleep(40 * 60 - 1)
        before = VirtualClock().now()
        storage.latency = 10.0  # of this commit, during which the others are called
        pausing = asyncio.create_task(queue.pause("nothing"))
        await asyncio.sleep(0.5)
        storage.latency = 0.0
        await asyncio.sleep(2)
        purging = asyncio.create_task(queue.purge(status=QUEUED))
        _, _, purged = await asyncio.gather(adding, pausing, purging)
        header = await queue.read_state()
        assert (320, {}) == (purged, header.segments)
        assert len(header.retired) > 1
        await asyncio.sleep(25 * 60)
        await queue._collector.collect()  # type: ignore[union-attr]
        assert {} == await states(queue, before)
        await asyncio.sleep(40 * 60)
        await queue.resume("nothing")
        await queue._collector.collect()  # type: ignore[union-attr]
        assert [] == await storage.list_beside(".segments/")


@in_virtual_time
async def test_a_range_whose_segment_is_gone_ends_a_replay():
    storage = InMemoryStorage(clock=VirtualClock())
    async with deep_queue(storage) as queue:
        await queue.configure(history=timedelta(days=1))
        await queue.enqueue_many([Enqueue("t", b"") for _ in range(10)])
        before = VirtualClock().now()
        await asyncio.sleep(1)
        claim = await queue.claim_range("t", 10)
        await queue.end_range(claim)
        assert 10 == len(await states(queue, before))
        await storage.remove_object(f".segments/{claim.segment}")
        with pytest.raises(ReplayError, match=r"event 4 \(ack\) is of 10 jobs .* the segment with their ids is gone"):
            await replay(queue, before)


@in_virtual_time
async def test_jobs_that_were_enqueued_at_one_time_by_several_calls_are_told_apart():
    async with deep_queue(InMemoryStorage(clock=VirtualClock())) as queue:
        await queue.configure(history=timedelta(days=1))
        calls = [queue.enqueue_many([Enqueue("t", b"") for _ in range(10)]) for _ in range(2)]
        added = [{job.id for job in jobs} for jobs in await asyncio.gather(*calls)]
        header = (await queue.read_state()).history
        events = [event async for event in queue.history()]
        assert [10, 10] == [event.jobs for event in events[:2]]
        present = Replay(header.last)
        async for job in queue.iterate_jobs():
            present.add(job)
        past = PastRows(queue.storage, queue.options.entropy, 5.0, 5.0)
        present.undo(events[0], await past.of(events[0]))
        assert present.jobs.keys() in added


async def test_jobs_that_no_event_names_are_not_held_and_all_are_found_but_those_of_a_missing_segment():
    storage = InMemoryStorage()
    queue = tiny_queue(storage, most_rows=8)
    await queue.enqueue_many([Enqueue("mail", b"", job_id=f"mail {each}") for each in range(8)])
    await queue.enqueue_many([Enqueue("report", b"", job_id=f"report {each}") for each in range(8)])
    await queue.configure(history=3600)
    await spilled(queue)
    at = datetime.now(UTC)
    await queue.cancel("mail 3")
    added = await queue.enqueue("other", b"")
    found = [job_id async for job_id, _ in queue.past_jobs(at)]
    assert 16 == len(found)
    assert "mail 3" == found[-1]  # the others were told while they were read
    assert added.id not in found
    [lost] = [name for name, each in (await queue.read_state()).segments.items() if each.entrypoint == "report"]
    await storage.remove_object(f".segments/{lost}")
    found = []
    with pytest.raises(JobsUnreadableError, match=lost):
        async for job_id, _ in queue.past_jobs(at):
            found.append(job_id)
    assert {f"mail {each}" for each in range(8)} == set(found)


def test_jobs_of_a_bulk_enqueue_are_known_by_their_time():
    at, later = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    touched = Touched()
    touched.add(HistoryEvent(1, later, "enqueue", entrypoint="mail", created_at=at, jobs=3))
    touched.add(HistoryEvent(2, later, "ack", job_id="one", entrypoint="mail"))
    touched.add(HistoryEvent(3, later, "dequeue", entrypoint="mail", jobs=1), [Row("two", "mail", 0, at)])
    job = Job.new("mail", b"")
    assert touched.has(job.evolve(created_at=at))
    assert not touched.has(job.evolve(created_at=at, entrypoint="other"))
    assert not touched.has(job.evolve(created_at=later))
    assert touched.has(job.evolve(id="one"))
    assert touched.has(job.evolve(id="two"))
