"""A purge of waiting jobs drops whole segments, with the result of a purge job by job."""

import asyncio
from datetime import timedelta

import pytest

from jqueue import ClaimLostError, InMemoryStorage, JobNotFoundError, JobStatus
from jqueue.domain.operations.drop_rows import DropRows
from jqueue.operations import Cancel, Enqueue, Purge
from jqueue.testing.faults import FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import spilled, tiny_queue
from tests.virtual_world import in_virtual_time

WAITING = JobStatus.QUEUED


def store():
    return FaultyObjects(InMemoryStorage(clock=VirtualClock()))


async def deep(storage, number=12, **options):
    """Return a queue that has loaded no rows, with all jobs in segments."""
    first = tiny_queue(storage)
    await first.enqueue_many([Enqueue("a", b"%d" % place, **options) for place in range(number)])
    await spilled(first)
    return tiny_queue(storage)


def reads(storage):
    return [suffix for name, suffix in storage.object_calls if name == "read_object"]


@in_virtual_time
async def test_waiting_jobs_are_purged_without_a_look_at_their_rows():
    storage = store()
    queue = await deep(storage)
    await queue.configure(history=timedelta(days=1))
    storage.object_calls.clear()
    assert 0 == await queue.purge(status=WAITING, entrypoint="b")
    assert 12 == await queue.purge(status=WAITING, entrypoint="a")
    assert [] == reads(storage)
    stats = await queue.stats()
    assert stats.totals is not None
    assert (0, 0, 12) == (stats.depth, stats.segments, stats.totals.removed)
    events = [event async for event in queue.history() if event.verb == "purge"]
    assert [("a", WAITING, None, 12)] == [(each.entrypoint, each.before, each.after, each.jobs) for each in events]


@in_virtual_time
async def test_a_replay_knows_the_jobs_that_were_purged_with_their_attempts():
    queue = await deep(store())
    await queue.configure(history=timedelta(days=1))
    claim = await queue.claim_range("a", 4)
    assert claim is not None
    await queue.end_range(claim, nothing_done=True)
    await asyncio.sleep(1)
    now, jobs = queue._engine.now(), [job async for job in queue.iterate_jobs()]
    await asyncio.sleep(1)
    await queue.purge(status=WAITING)
    there = await queue.jobs_at(now)
    assert {job.id: (WAITING, job.attempt) for job in jobs} == {
        job_id: (job.status, job.attempt) for job_id, job in there.items()
    }


@in_virtual_time
async def test_ids_and_unique_keys_of_purged_rows_are_free_and_attempts_go_on():
    queue = await deep(store(), 1, job_id="one", unique_key="key")
    [job] = await queue.dequeue()
    await queue.nack(job)
    await spilled(queue)
    assert 1 == await queue.purge(status=WAITING)
    again = await queue.enqueue("a", b"again", job_id="one", unique_key="key")
    assert (b"again", WAITING) == (again.payload, again.status)
    [claimed] = await queue.dequeue()
    assert "one" == claimed.id
    assert claimed.attempt > job.attempt


@pytest.mark.parametrize("charge", [True, False])
@in_virtual_time
async def test_attempts_go_on_after_the_purge_of_rows_that_came_back_from_a_range(charge):
    queue = await deep(store(), 1, job_id="one")
    claim = await queue.claim_range("a", 1)
    assert claim is not None
    if charge:
        await asyncio.sleep(1)
        await queue.requeue_stale(0)
    else:
        await queue.end_range(claim, nothing_done=True)
    assert 1 == await queue.purge(status=WAITING)
    await queue.enqueue("a", b"", job_id="one")
    [claimed] = await queue.dequeue()
    assert claimed.attempt > claim.attempt


@in_virtual_time
async def test_jobs_in_progress_in_a_range_are_not_purged():
    queue = await deep(store())
    claim = await queue.claim_range("a", 3)
    assert claim is not None
    assert 12 - claim.rows == await queue.purge(status=WAITING)
    assert 0 == await queue.purge(status=WAITING)
    await queue.end_range(claim, nothing_done=True)
    assert claim.rows == (await queue.stats()).depth
    assert claim.rows == len(await queue.dequeue(batch_size=12))


@in_virtual_time
async def test_rows_that_are_loaded_or_taken_count_once():
    queue = await deep(store())
    jobs = await queue.dequeue(batch_size=2)
    await queue.peek(batch_size=5)  # loads rows
    assert 10 == await queue.purge(status=WAITING)
    stats = await queue.stats()
    assert (0, 2) == (stats.depth, stats.in_progress)
    await queue.ack_many(jobs)


@in_virtual_time
async def test_a_purge_that_is_undone_leaves_the_rows_in_their_places():
    queue = await deep(store())
    await queue.peek(batch_size=5)
    with pytest.raises(JobNotFoundError):
        await queue.apply(Purge(WAITING), Cancel("unknown"))
    assert [b"%d" % place for place in range(12)] == [job.payload for job in await queue.dequeue(batch_size=12)]


@in_virtual_time
async def test_a_purge_by_age_reads_only_segments_that_may_have_younger_jobs():
    storage = store()
    queue = await deep(storage)
    await asyncio.sleep(3600)
    await queue.enqueue_many([Enqueue("a", b"young") for _ in range(3)])
    await spilled(queue)
    queue, young = tiny_queue(storage), list((await queue.read_state()).segments)[-1]
    storage.object_calls.clear()
    assert 12 == await queue.purge(status=WAITING, older_than=600)
    assert {f".segments/{young}"} == set(reads(storage))
    assert [b"young"] * 3 == [job.payload for job in await queue.dequeue(batch_size=12)]


@in_virtual_time
async def test_rows_of_a_missing_segment_are_purged_too_and_by_age_only_if_all_are_old():
    storage = store()
    queue = await deep(storage)
    [name] = (await queue.read_state()).segments
    await storage.remove_object(f".segments/{name}")
    assert 0 == await queue.purge(status=WAITING, older_than=0)
    assert 12 == await queue.purge(status=WAITING)


@in_virtual_time
async def test_rows_are_given_up_without_reading_them_and_others_go_on():
    queue = await deep(store())
    [name] = (await queue.read_state()).segments
    await queue.peek(batch_size=2)  # loads rows that are given up
    assert [5] == await queue.apply(DropRows(name, [(1, 4), (10, 12)]))
    assert [0] == await queue.apply(DropRows("gone", [(0, 9)]))
    assert [b"0", *(b"%d" % place for place in range(4, 10))] == [
        job.payload for job in await queue.dequeue(batch_size=12)
    ]


@in_virtual_time
async def test_rows_in_a_stale_range_are_given_up_if_none_of_them_can_be_read():
    """A job without an attempt left could not leave its range otherwise: that needs its row."""
    storage = store()
    queue = tiny_queue(storage)
    await queue.enqueue_many([Enqueue("a", b"", max_attempts=1) for _ in range(12)])
    await spilled(queue)
    [name] = (await queue.read_state()).segments
    claim = await queue.claim_range("a", 8, claim_timeout=60)
    assert claim is not None
    await storage.remove_object(f".segments/{name}")
    queue, everything = tiny_queue(storage), DropRows(name, [(0, 12)])
    assert [4] == await queue.apply(everything)
    await asyncio.sleep(61)
    assert 0 == await queue.requeue_stale(60)
    assert [0] == await queue.apply(DropRows(name, [(0, 4)])), "other rows of the range can be read"
    assert [8] == await queue.apply(everything)
    state = await queue.read_state()
    assert ({}, {}) == (state.segments, state.ranges)
    stats = await queue.stats()
    assert (0, 0) == (stats.depth, stats.in_progress)
    with pytest.raises(ClaimLostError):
        await queue.end_range(claim)
