"""A bulk enqueue adds any number of jobs in one commit, through segments. It means one enqueue after another."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from jqueue import BrokerQueue, DirectQueue, DuplicateJobError, InMemoryStorage, Limits
from jqueue.core import bulk
from jqueue.domain.errors import DeadlineExceededError, InvalidJobError
from jqueue.domain.job import JobStatus
from jqueue.operations import Enqueue
from jqueue.testing.faults import FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import in_segments
from tests.virtual_world import in_virtual_time

both = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])


def store():
    return FaultyObjects(InMemoryStorage(clock=VirtualClock()))


class Slow(FaultyObjects):
    """Takes a second for each object."""

    async def create_object(self, suffix, content):
        await asyncio.sleep(1)
        await super().create_object(suffix, content)


def queue_on(storage, kind=DirectQueue, *, batch_size=20, **sizes):
    """Return a queue whose `enqueue_many` writes segments of a few rows."""
    queue = kind(storage, clock=VirtualClock(), limits=Limits(hot_bytes=1, batch_size=batch_size))
    return in_segments(queue, **{"fewest_rows": 3, "chunk_rows": 2, "merged": 3, "holes": 2, "bulk_jobs": 0, **sizes})


def numbered(numbers, **options):
    return [Enqueue("work", b"%d" % number, job_id=f"id {number}", **options) for number in numbers]


async def depth(queue):
    return (await queue.stats()).depth


# One commit


@in_virtual_time
async def test_jobs_of_a_call_with_weights_stand_where_they_would_if_they_came_one_by_one():
    weights = [None, 0.5, 1, 0.3, 0.01]
    given: list[dict[str, Any]] = [
        {"payload": b"%d" % number, "fair_key": "ab"[number % 2], "fair_weight": weights[number % 5]}
        for number in range(60)
    ]
    async with queue_on(store()) as queue, queue_on(store()) as other:
        jobs = await queue.enqueue_many([Enqueue("work", **job) for job in given])
        alone = [await other.enqueue("work", **job) for job in given]
        assert [job.sequence for job in alone] == [job.sequence for job in jobs]
        assert max(job.sequence for job in jobs) > 600
        for each in (queue, other):
            last = await each.enqueue("work", b"-", priority=1)
            assert last.sequence > max(job.sequence for job in jobs), "a place behind all"
        assert 1 == len({(await each.enqueue("work", b"+", fair_key="a")).sequence for each in (queue, other)})
        claimed = [job for _ in range(7) for job in await queue.dequeue(batch_size=9)]
        assert sorted(job.sequence for job in claimed) == [job.sequence for job in claimed], "served by their places"
        places = {job.payload: job.sequence for job in alone}
        assert places == {job.payload: job.sequence for job in claimed if job.payload in places}


@in_virtual_time
async def test_more_keys_than_a_call_has_segments_for_stand_behind_all(monkeypatch):
    monkeypatch.setattr(bulk, "MOST_TURNS", 0)
    async with queue_on(store()) as queue:
        await queue.enqueue_many([Enqueue("work", key.encode(), fair_key=key) for key in "aaaaabbbbcccc"])
        await queue.enqueue("work", b"b", fair_key="b")
        claimed = [job for _ in range(4) for job in await queue.dequeue(batch_size=5)]
        assert "aaaaabbbbccccb" == b"".join(job.payload for job in claimed).decode()
        assert {} == (await queue.read_state()).fair


@both
@in_virtual_time
async def test_any_number_of_jobs_are_added_in_one_commit_in_their_order_and_counted_once(kind):
    storage = store()
    async with queue_on(storage, kind) as queue, queue_on(storage, kind) as other:
        await queue.configure(history=timedelta(days=1))
        await queue.enqueue("work", b"before")
        landed = storage.landed
        jobs = await queue.enqueue_many(
            [Enqueue("work", b"%d" % number, max_attempts=1 + number // 350) for number in range(700)]
        )
        assert (landed + 1, 700, 0) == (storage.landed, jobs.added, jobs.existing)
        claimed = [job for _ in range(36) for job in await other.dequeue(batch_size=20)]
        assert [b"before", *(b"%d" % number for number in range(700))] == [job.payload for job in claimed]
        assert [(job.id, job.sequence) for job in jobs] == [(job.id, job.sequence) for job in claimed[1:]]
        assert [1] * 350 + [2] * 350 == [job.max_attempts for job in claimed[1:]]
        assert {jobs[5].created_at} == {job.created_at for job in claimed[1:]}
        stats = await queue.stats()
        assert 701 == stats.totals.enqueued
        assert 701 == sum([event.jobs async for event in queue.history() if event.verb == "enqueue"])


@in_virtual_time
async def test_the_deadline_counts_from_the_end_of_an_async_iterable_which_may_not_take_too_long():
    async with queue_on(store()) as queue:

        async def slowly(pause):
            for job in numbered(range(300)):
                yield job
            await asyncio.sleep(pause)

        assert 300 == len(await queue.enqueue_many(slowly(300), deadline=5))
        with pytest.raises(DeadlineExceededError, match="stored too long ago"):
            await queue.enqueue_many(slowly(timedelta(minutes=46).total_seconds()))
        assert 300 == await depth(queue)


@in_virtual_time
async def test_the_deadline_counts_from_the_moment_when_all_segments_are_stored():
    storage = Slow(InMemoryStorage(clock=VirtualClock()))
    async with queue_on(storage) as queue:
        jobs = [Enqueue(f"kind {number % 30}", b"") for number in range(300)]
        assert 300 == (await queue.enqueue_many(jobs, deadline=5)).added, "30 segments, and a second for each"


@in_virtual_time
async def test_a_queue_without_segments_takes_all_jobs_of_an_async_iterable():
    """The writer's own limit, which the queue's replaces, cut the jobs off without an error."""

    async def slowly():
        for job in numbered(range(1000)):
            yield job

    queue = DirectQueue(store(), clock=VirtualClock(), limits=Limits(blob_bytes=40_000, hot_bytes=None))
    await queue.configure(blob_bytes=10_000_000)
    assert 1000 == len(await queue.enqueue_many(slowly()))
    assert 1000 == await depth(queue)


@pytest.mark.parametrize(
    ("feature", "job"),
    [("limits", Enqueue("work", concurrency_key="key")), ("objects", Enqueue("work", bytes(100_000)))],
)
@in_virtual_time
async def test_features_that_only_rows_of_segments_use_are_named_for_older_readers(feature, job):
    storage = store()
    async with queue_on(storage) as queue:
        await queue.enqueue_many([Enqueue("work")] * 30)
        blob, _ = await storage.read()
        assert ["segments"] == json.loads(blob)["critical"]
        await queue.enqueue_many([job] * 3)
        blob, _ = await storage.read()
        assert {} == json.loads(blob)["jobs"]
        assert {feature, "segments"} == {*json.loads(blob)["critical"]}


# Jobs that are there already


@in_virtual_time
async def test_a_call_may_repeat_thousands_of_ids_and_keys_and_reads_each_row_once():
    storage, count = store(), 4000
    async with queue_on(storage, batch_size=2000, chunk_rows=256, most_rows=10_000) as queue:
        jobs = [
            Enqueue("work", job_id=f"name {number}") if number % 4 < 2 else Enqueue("work", unique_key=f"name {number}")
            for number in range(count)
        ]
        first = await queue.enqueue_many(jobs[: count // 2])
        storage.object_calls.clear()
        again = await queue.enqueue_many([*jobs, *jobs[: count // 2]])
        assert (count // 2, count, count) == (again.added, again.existing, await depth(queue))
        assert [each.id for each in first] == [each.id for each in again[: count // 2]]
        assert [each.id for each in first] == [each.id for each in again[count:]]
        assert len([name for name, _ in storage.object_calls if name == "read_object"]) <= 20  # parts, not rows
        for taken in (17, 18):
            refused = [
                Enqueue("work", job_id=jobs[taken].job_id, unique_key=jobs[taken].unique_key, on_conflict="raise"),
                *numbered(range(-3000, 0)),
            ]
            with pytest.raises(DuplicateJobError, match=f"name {taken}"):
                await queue.enqueue_many(refused)
        assert count == await depth(queue)


@in_virtual_time
async def test_what_another_writer_does_before_the_commit_counts():
    async with queue_on(storage := store()) as queue, queue_on(storage) as other:
        await queue.enqueue_many(numbered(range(100)))
        await other.enqueue("other", job_id="id 207", priority=-1)

        async def jobs():
            for number in range(300):
                yield Enqueue("work", b"mine", job_id=f"id {number}", unique_key=f"key {number}")
            claimed = await other.dequeue(batch_size=20)
            await other.ack_many([job for job in claimed if job.id != "id 207"])
            for job in claimed:
                if job.id == "id 207":
                    await other.nack(job, dead=True)
            await other.purge()
            await other.enqueue("work", b"theirs", unique_key="key 250")

        added = await queue.enqueue_many(jobs())
        assert (199, 101) == (added.added, added.existing)
        assert {JobStatus.COMPLETED} == {added[number].status for number in range(19)}
        assert b"theirs" == added[250].payload
        assert (1, 0) == (added[207].attempt, added[207].tries), "its attempts start above those that are forgotten"
        assert 281 == await depth(queue)


@both
@in_virtual_time
async def test_a_call_finds_the_ids_of_jobs_of_which_all_or_some_are_leased(kind):
    async with queue_on(store(), kind, most_rows=100) as queue:
        for first, rows in ((0, 30), (100, 10)):
            await queue.enqueue_many(numbered(range(first, first + 30)))
            claim = await queue.claim_lease("work", rows)
            again = await queue.enqueue_many(numbered(range(first + 5, first + 35)))
            assert (rows, 5, 25) == (claim.rows, again.added, again.existing)
            await queue.end_lease(claim)
            for _ in range(4):
                await queue.ack_many(await queue.dequeue("work", batch_size=20))


@in_virtual_time
async def test_the_answer_has_the_attempts_above_those_of_a_job_that_the_same_call_replaces():
    async with queue_on(store()) as queue:
        await queue.enqueue("work", job_id="old", unique_key="key")
        [job] = await queue.dequeue()
        await queue.nack(job, charge=False)
        replacing = Enqueue("work", unique_key="key", on_conflict="replace")
        added = await queue.enqueue_many([replacing, *numbered(range(50))])
        kept = {job.id: (job.attempt, job.attempts_before) async for job in queue.iterate_jobs()}
        assert (1, 1) == kept["id 7"]
        assert kept == {job.id: (job.attempt, job.attempts_before) for job in added}


@in_virtual_time
async def test_rows_here_and_there_that_are_there_already_are_taken_in_the_new_segment():
    async with queue_on(store(), chunk_rows=256, most_rows=10_000, holes=10_000, merged=99) as queue:
        await queue.enqueue_many(numbered(range(0, 3000, 2)))
        added = await queue.enqueue_many(numbered(range(3000)))
        assert (1500, 1500, 3000) == (added.added, added.existing, await depth(queue))
        segments = (await queue.read_state(hot=True)).segments
        assert [(1500, 1500), (3000, 1500)] == [(each.rows, each.waiting) for each in segments.values()]


@in_virtual_time
async def test_a_call_with_very_many_jobs_that_are_there_already_is_to_be_split(monkeypatch):
    monkeypatch.setattr("jqueue.core.bulk.MOST_CONFLICTS", 1500)
    storage = store()
    async with queue_on(storage, chunk_rows=256, most_rows=10_000) as queue:
        await queue.enqueue_many(numbered(range(2000)))
        landed = storage.landed
        for jobs in (numbered(range(2000)), [*numbered(range(5000, 7000)), *numbered(range(5000, 7000))]):
            with pytest.raises(InvalidJobError, match=r"more than 1500 of these jobs have an id .*: split the call"):
                await queue.enqueue_many(jobs)
        assert landed == storage.landed
        assert 1500 == (await queue.enqueue_many(numbered(range(1500)))).existing


@in_virtual_time
async def test_ids_of_jobs_in_progress_and_keys_that_acked_jobs_still_hold_are_taken():
    async with queue_on(store()) as queue:
        await queue.enqueue("other", job_id="id 7")
        await queue.enqueue("other", unique_key="key 8", unique_for=3600)
        running, done = await queue.dequeue(batch_size=2)
        await queue.ack(done)
        jobs = [Enqueue("work", job_id=f"id {number}", unique_key=f"key {number}") for number in range(300)]
        added = await queue.enqueue_many(jobs)
        assert (298, 2) == (added.added, added.existing)
        assert (running.id, JobStatus.IN_PROGRESS, done.id, JobStatus.COMPLETED) == (
            added[7].id,
            added[7].status,
            added[8].id,
            added[8].status,
        )
        assert 298 == await depth(queue)


@in_virtual_time
async def test_keys_of_rows_that_have_left_are_free_and_count_for_nothing(monkeypatch):
    async with queue_on(store(), most_rows=10_000) as queue:
        jobs = [Enqueue("work", unique_key=f"key {number}") for number in range(200)]
        await queue.enqueue_many(jobs)
        for _ in range(5):
            await queue.ack_many(await queue.dequeue(batch_size=10))
        monkeypatch.setattr("jqueue.core.bulk.MOST_CONFLICTS", 0)
        assert 50 == (await queue.enqueue_many(jobs[:50])).added
        with pytest.raises(InvalidJobError, match="more than 0 of these jobs"):
            await queue.enqueue_many(jobs[100:150])
        assert 200 == await depth(queue)
