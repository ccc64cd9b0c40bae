"""Scheduled rows that are due together: they are served in the order of ready jobs, and few of them are read for it."""

import asyncio
import json
import random
import zlib
from datetime import UTC, datetime, timedelta

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.limits import Limits
from jqueue.operations import Enqueue
from jqueue.testing import FakeClock
from jqueue.testing.faults import FaultyObjects
from tests.tiny_segments import in_segments, segments_of, spilled

pytestmark = pytest.mark.asyncio

START = datetime(2026, 1, 1, tzinfo=UTC)
JOBS = 96


@pytest.fixture
def clock():
    return FakeClock(START)


@pytest.fixture
def storage(clock):
    return FaultyObjects(InMemoryStorage(clock=clock))


def queue_on(storage, clock, batch_size=JOBS):
    return in_segments(DirectQueue(storage, clock=clock, limits=Limits(batch_size=batch_size)))


async def scheduled(storage, clock, minutes, priorities=(0,), aging=None, batch_size=JOBS):
    """Enqueue jobs that are due after some minutes each, wait until all are due, and return the order of ready jobs."""
    queue = queue_on(storage, clock, batch_size)
    await queue.configure(aging=aging)
    await queue.enqueue_many([Enqueue("b", b"") for _ in range(20)])  # the numbers of the others begin behind these
    jobs = [
        Enqueue("a", b"", random.choice(priorities), run_at=START + timedelta(minutes=random.choice(minutes)))
        for _ in range(JOBS)
    ]
    ids = [job.id for job in await queue.enqueue_many(jobs)]
    await spilled(queue)
    clock.advance(timedelta(days=1))
    ranks = [job.priority * aging + job.run_at.timestamp() if aging else job.priority for job in jobs]
    return [job_id for _, _, job_id in sorted(zip(ranks, range(JOBS), ids, strict=True))]


async def drained(storage, clock):
    """Claim all jobs one after the other."""
    found, queue = [], queue_on(storage, clock)
    while jobs := await queue.dequeue("a"):
        found.append(jobs[0].id)
        await queue.ack(jobs[0])
    return found


@pytest.mark.parametrize("batch_size", [JOBS, 40], ids=["spilled", "bulk"])
@pytest.mark.parametrize("aging", [None, 60.0])  # with which many jobs have the same rank
async def test_due_rows_are_served_in_the_order_of_ready_jobs(storage, clock, aging, batch_size):
    expected = await scheduled(storage, clock, range(60), range(-2, 3), aging, batch_size)
    assert expected == await drained(storage, clock)


@pytest.mark.parametrize(("batch_size", "segments"), [(JOBS, 2), (40, 1)], ids=["spilled", "bulk"])
async def test_the_first_of_many_due_jobs_is_claimed_without_a_look_at_all(storage, clock, batch_size, segments):
    [first, *_] = await scheduled(storage, clock, [5], batch_size=batch_size)
    storage.object_calls.clear()
    [job] = await queue_on(storage, clock).dequeue("a")
    assert first == job.id
    reads = [call for call in storage.object_calls if call[0] == "read_object"]
    assert len(reads) <= 2 * segments  # the index and a chunk of each


async def test_segments_of_older_versions_which_tell_no_places_are_served_in_order(storage, clock):
    expected = await scheduled(storage, clock, range(60), range(-2, 3))
    content, etag = await storage.read()
    for name, entry in json.loads(content)["segments"].items():
        segment = storage.storage.beside(f".segments/{name}")
        data, object_etag = await segment.read()
        line, _, tables = data[entry["index"] :].partition(b"\n")
        said = json.loads(line)
        assert len(said["chunks"]) == len(said.pop("best", said["chunks"]))
        index = json.dumps(said).encode() + b"\n" + tables
        await segment.write(data[: entry["index"]] + index, object_etag)
        for field, new in (("bytes", entry["index"] + len(index)), ("crc", zlib.crc32(index))):
            content = content.replace(b'"%b": %d' % (field.encode(), entry[field]), b'"%b": %d' % (field.encode(), new))
    await storage.write(content, etag)
    assert expected == await drained(storage, clock)


async def claimed_once(storage, clock):
    """Claim a job with a queue of its own, wait for the segments that it writes then, and return that queue."""
    queue = queue_on(storage, clock)
    await queue.dequeue("a")
    merges = segments_of(queue).writer._merges
    for _ in range(20):
        if merges._task is not None:
            await asyncio.wait([merges._task])
        await queue.pause("nothing")
        await queue.resume("nothing")
    return queue


def written(storage):
    return sum(call[0] == "create_object" for call in storage.object_calls)


async def test_a_segment_whose_rows_are_all_due_becomes_a_ready_one_with_ranges(storage, clock):
    expected = await scheduled(storage, clock, range(60), range(-2, 3))
    queue = await claimed_once(storage, clock)
    segments = [each for each in (await queue.read_state()).segments.values() if each.entrypoint == "a"]
    assert {False} == {segment.scheduled for segment in segments}
    claim = await queue.claim_range("a", 10)
    found = {job.id async for job in queue.read_range(claim)}
    await queue.end_range(claim)
    assert [job_id for job_id in expected[1:] if job_id not in found] == await drained(storage, clock)


async def test_a_segment_with_a_row_that_is_not_due_stays_and_is_read_once(storage, clock):
    queue = queue_on(storage, clock)
    times = [START + timedelta(minutes=1)] * 7 + [START + timedelta(days=9)]
    await queue.enqueue_many([Enqueue("a", b"", run_at=time) for time in times])
    await spilled(queue)
    clock.advance(timedelta(days=1))
    storage.object_calls.clear()
    queue = await claimed_once(storage, clock)
    assert 0 == written(storage)
    reads = len(storage.object_calls)
    await queue.pause("nothing else")
    assert reads == len(storage.object_calls)
    clock.advance(timedelta(days=9))
    await claimed_once(storage, clock)
    assert 1 == written(storage)
