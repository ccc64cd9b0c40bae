"""A bulk enqueue of jobs that are in the queue already, or stand twice in the call: any number of them."""

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest

from jqueue import DirectQueue, DuplicateJobError, InMemoryStorage, Limits
from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.core.calls import bulk as bulk_calls
from jqueue.core.calls import segment_commit
from jqueue.core.verbs.producer import _First
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import JobStatus
from jqueue.operations import Enqueue
from jqueue.testing.faults import FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import segments_of
from tests.virtual_world import in_virtual_time

MANY, SOME = 20_000, 5000


def queue_on(storage, *, batch_size=2000, **sizes):
    """Return a queue whose `enqueue_many` writes segments from the first job on."""
    queue = DirectQueue(storage, clock=VirtualClock(), limits=Limits(hot_bytes=1, batch_size=batch_size))
    segments_of(queue).writer.sizes = SegmentSizes(**{"hot_bytes": 1, "fewest_rows": 3, "bulk_jobs": 0, **sizes})
    return queue


def store():
    return FaultyObjects(InMemoryStorage(clock=VirtualClock()))


def numbered(numbers, **options):
    return [Enqueue("work", b"%d" % number, job_id=f"id {number}", **options) for number in numbers]


def reads(storage):
    return len([name for name, _ in storage.object_calls if name == "read_object"])


async def depth(queue):
    return (await queue.stats()).depth


@in_virtual_time
async def test_a_call_may_repeat_20_000_ids_and_reads_each_row_once():
    storage = store()
    async with queue_on(storage) as queue:
        first = await queue.enqueue_many(numbered(range(MANY)))
        assert (MANY, 0) == (first.added, first.existing)
        storage.object_calls.clear()
        again = await queue.enqueue_many(numbered(range(MANY)))
        assert (0, MANY, MANY) == (again.added, again.existing, await depth(queue))
        assert [(job.id, job.sequence, job.created_at) for job in first[::997]] == [
            (job.id, job.sequence, job.created_at) for job in again[::997]
        ]
        parts = -(-MANY // 256 // 16)
        assert reads(storage) <= 2 * (parts + 1)  # both segments once, 16 chunks of 256 rows at a time


@in_virtual_time
async def test_taken_ids_among_thousands_fail_the_call_if_it_says_so():
    async with queue_on(store()) as queue:
        await queue.enqueue_many(numbered(range(SOME)))
        with pytest.raises(DuplicateJobError, match=r"Job id 'id 3\d+' is taken"):
            await queue.enqueue_many(numbered(range(SOME - 1500, 2 * SOME), on_conflict="raise"))
        assert SOME == await depth(queue)


@in_virtual_time
async def test_new_jobs_between_repeated_ones_are_added_in_few_segments_without_gaps():
    storage = store()
    async with queue_on(storage) as queue:
        await queue.enqueue_many(numbered(range(0, SOME, 2)))
        jobs = await queue.enqueue_many(numbered(range(SOME)))
        assert (SOME // 2, SOME // 2, SOME) == (jobs.added, jobs.existing, await depth(queue))
        manifest = (await queue.read_state()).segments
        assert [(SOME // 2, ())] * 2 == [(segment.rows, segment.taken) for segment in manifest.values()]
        ids = [job.id async for job in queue.iterate_jobs()]
        assert sorted(f"id {number}" for number in range(SOME)) == sorted(ids)


@in_virtual_time
async def test_a_call_may_name_each_of_its_ids_twice():
    async with queue_on(store()) as queue:
        jobs = await queue.enqueue_many(numbered([*range(SOME // 2), *range(SOME // 2)]))
        assert (SOME // 2, SOME // 2) == (jobs.added, jobs.existing)
        assert [jobs[17].id, jobs[17].sequence] == [jobs[SOME // 2 + 17].id, jobs[SOME // 2 + 17].sequence]
        assert SOME // 2 == await depth(queue)
        assert [b"0", b"1"] == [job.payload for job in await queue.dequeue(batch_size=2)]


@pytest.mark.parametrize("twice", [False, True])
@in_virtual_time
async def test_a_call_may_repeat_thousands_of_unique_keys(twice):
    async with queue_on(store()) as queue:
        keyed = [Enqueue("work", b"%d" % number, unique_key=f"key {number}") for number in range(3000)]
        if twice:
            jobs = await queue.enqueue_many([*keyed, *keyed])
        else:
            await queue.enqueue_many(keyed)
            jobs = await queue.enqueue_many([*keyed, Enqueue("work", unique_key="another")])
        assert (3000, 3000) == (jobs.existing, 3000)
        held = {job.id async for job in queue.iterate_jobs()}
        assert {job.id for job in jobs} == held
        again = [Enqueue("work", unique_key=job.unique_key, on_conflict="raise") for job in keyed[:1500]]
        with pytest.raises(DuplicateJobError, match="key 0"):
            await queue.enqueue_many(again)


@in_virtual_time
async def test_jobs_that_have_left_before_the_commit_are_added_again():
    async with queue_on(storage := store()) as queue, queue_on(storage) as other:
        await queue.enqueue_many(numbered(range(3000)))

        async def given():
            for job in numbered(range(3000)):
                yield job
            claim = await other.claim_range("work", 2500)
            assert claim is not None
            await other.end_range(claim)

        jobs = await queue.enqueue_many(given())
        assert (1500, 1500) == (jobs.added, jobs.existing)  # the last 1,000 that were done are remembered
        assert {JobStatus.COMPLETED} == {jobs[number].status for number in range(1500, 2500)}
        assert 2000 == await depth(queue)


@in_virtual_time
async def test_too_many_jobs_outside_of_segments_that_are_there_already_are_refused():
    async with queue_on(store()) as queue:
        for first in range(0, 3000, 1000):
            await queue.enqueue_many(numbered(range(first, first + 1000)))
            await queue.dequeue(batch_size=1000)
        with pytest.raises(InvalidJobError, match="more than 2000 of these jobs"):
            await queue.enqueue_many(numbered(range(3000)))
        assert {JobStatus.IN_PROGRESS} == {job.status for job in await queue.enqueue_many(numbered(range(2000)))}


@in_virtual_time
async def test_jobs_that_repeat_others_of_the_call_do_not_raise_the_number_that_is_looked_at_one_by_one(monkeypatch):
    monkeypatch.setattr(segment_commit, "MOST_CONFLICTS", 10)
    monkeypatch.setattr(segment_commit, "MOST_SPANS", 10)
    async with queue_on(store(), batch_size=20) as queue:
        await queue.enqueue_many(numbered(range(30)))
        assert 30 == len(await queue.dequeue(batch_size=20)) + len(await queue.dequeue(batch_size=20))
        await queue.enqueue_many(numbered(range(100, 140, 2)))
        repeated = [*range(100, 140), *range(200, 240), *range(200, 240)]  # every other job of the first is there
        with pytest.raises(InvalidJobError, match="more than 20 of these jobs"):
            await queue.enqueue_many(numbered([*range(30), *repeated]))
        jobs = await queue.enqueue_many(numbered([*range(20), *repeated]))
        assert (20 + 40, 20 + 20 + 40) == (jobs.added, jobs.existing)


@in_virtual_time
async def test_a_job_that_another_job_of_the_call_replaces_is_added_again(monkeypatch):
    monkeypatch.setattr(segment_commit, "MOST_CONFLICTS", 2)
    monkeypatch.setattr(bulk_calls.BulkEnqueue, "_keep", _forget_jobs)
    async with queue_on(store()) as queue:
        await queue.enqueue_many([*numbered(range(20)), Enqueue("work", b"old", job_id="old", unique_key="key")])
        replacing = Enqueue("work", b"new", job_id="new", unique_key="key", on_conflict="replace")
        jobs = await queue.enqueue_many([replacing, *numbered(range(20)), Enqueue("work", b"again", job_id="old")])
        assert (2, 20) == (jobs.added, jobs.existing)
        there = {job.id: job.payload async for job in queue.iterate_jobs()}
        assert (22, b"new", b"again") == (len(there), there["new"], there["old"])


def _forget_jobs(self, several):
    self._whole = None


# As one enqueue after the other


def _random_jobs(dice, count):
    for number in range(count):
        options: dict[str, Any] = {}
        if dice.random() < 0.5:
            options["unique_key"] = f"key {dice.randrange(count)}"
            options["on_conflict"] = dice.choice(["return", "return", "replace"])
        if dice.random() < 0.5:
            options["job_id"] = f"id {dice.randrange(count)}"
        if dice.random() < 0.2:
            options["delay"] = dice.randrange(5)
        if dice.random() < 0.1:
            options["expires_at"] = VirtualClock().now() + timedelta(seconds=1 + dice.randrange(5))
        yield Enqueue(dice.choice("ab"), b"%d" % number, dice.randrange(3), **options)


def _left(job):
    return (job.payload, job.entrypoint, job.priority, job.status, job.attempt, job.unique_key)


async def _rounds(seed, *, in_bulk):
    """Enqueue random jobs several times. Return the answers, and the jobs that are left."""
    dice = random.Random(seed)
    queue = queue_on(store(), chunk_rows=2, merged=3, holes=2, most_rows=64)
    other = queue_on(queue.storage)
    if not in_bulk:
        for each in (queue, other):
            segments_of(each).writer.sizes.hot_bytes = None
    answers = []
    async with queue, other:
        for _ in range(4):
            jobs = list(_random_jobs(dice, dice.choice([3, 40, 300])))
            if in_bulk:
                added = await queue._enqueue_bulk(_First(jobs, complete=True), None, 30.0)
            else:
                added = await queue.apply(*jobs)
            # a job that has finished is shown with the fields of a job of the call
            there = (job for job in added if job.status is not JobStatus.COMPLETED)
            answers.append([(job.entrypoint, job.priority) for job in there])
            claimed = await other.dequeue(batch_size=7)
            answers.append([_left(job) for job in claimed])
            await other.ack_many(claimed[:4])
            await other.nack_many(claimed[4:], dead=True)
            await other.purge()
            await asyncio.sleep(2)
        now = VirtualClock().now()  # jobs in segments that have expired leave when their turn comes
        left = [job async for job in queue.iterate_jobs() if job.expires_at is None or job.expires_at > now]
        answers.append([_left(job) for job in sorted(left, key=lambda job: job.sequence)])
    return answers


@pytest.mark.parametrize("seed", [5, 6, 8, 27, *(pytest.param(seed, marks=pytest.mark.wide) for seed in range(28, 36))])
@in_virtual_time
async def test_jobs_that_are_compared_mean_the_same_as_jobs_one_by_one(seed, monkeypatch):
    expected = await _rounds(seed, in_bulk=False)
    monkeypatch.setattr(segment_commit, "MOST_CONFLICTS", 2)
    monkeypatch.setattr(segment_commit, "MOST_SPANS", 2)
    monkeypatch.setattr(bulk_calls.BulkEnqueue, "_keep", _forget_jobs)
    assert expected == await _rounds(seed, in_bulk=True)
