"""A segment that cannot be read is named, stops its own jobs and nothing else, and heals by itself."""

import asyncio
import zlib
from array import array
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from jqueue import (
    BrokerQueue,
    ClaimLostError,
    DirectQueue,
    InMemoryStorage,
    JobStatus,
    JQueueError,
)
from jqueue.core.blob.segment_check import SegmentCheck
from jqueue.domain.errors import (
    DeadlineExceededError,
    JobsUnreadableError,
    SegmentDamagedError,
    StorageError,
    StorageFatalError,
)
from jqueue.domain.operations.drop_rows import DropRows
from jqueue.domain.segment_index import HashTable, SegmentIndex
from jqueue.operations import Enqueue
from jqueue.testing.faults import FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import (
    change_row,
    remove_segment,
    restore_segment,
    segments_of,
    spilled,
    tiny_queue,
)
from tests.virtual_world import in_virtual_time, now

JOBS = 40
"""Number of jobs in the one segment of `filled`, in chunks of four."""

FAILURES = {"refused": StorageFatalError("403"), "failing": StorageError("input/output error"), "silent": None}


def direct_queue(storage, **options) -> Any:
    """Return a queue whose figures and claims the type checker takes as they come."""
    return DirectQueue(storage, **options)


async def filled(storage):
    """Fill a queue with jobs of one segment, and return the name of the segment."""
    queue: Any = tiny_queue(storage, fewest_rows=JOBS)
    await queue.enqueue_many([Enqueue("a", b"%02d" % number, job_id=f"{number:02}") for number in range(JOBS)])
    await spilled(queue)
    [name] = (await queue.read_state()).segments
    return name


def ids(jobs):
    return [job.id for job in jobs]


def names(first, last):
    return [f"{number:02}" for number in range(first, last)]


def try_again_at_once(queue):
    """Let a queue read a damaged segment again now, and not in a minute."""
    segments_of(queue).loader.damage_kept = -1.0


async def claim_and_read(queue):
    if (claim := await queue.claim_range("a", JOBS)) is not None:
        try:
            async for _ in queue.read_range(claim):
                pass
        finally:
            await queue.end_range(claim, nothing_done=True)


async def iterate(queue):
    async for _ in queue.iterate_jobs():
        pass


READS = {
    "peek": lambda queue: queue.peek("a", batch_size=JOBS),
    "dequeue": lambda queue: queue.dequeue("a"),
    "claim_range": claim_and_read,
    "find": lambda queue: queue.find("09"),
    "iterate_jobs": iterate,
}


@pytest.mark.parametrize("read", READS)
async def test_stats_name_a_segment_from_its_first_failed_read_to_its_next_good_one(read):
    storage = FaultyObjects(store := InMemoryStorage())
    name = await filled(store)
    queue = direct_queue(storage)
    whole = await remove_segment(store, name)
    assert () == (await queue.stats()).warnings, "no read has met the damage"
    with suppress(JQueueError):
        await READS[read](queue)
    storage.object_calls.clear()
    [warning] = (await queue.stats()).warnings
    assert [] == storage.object_calls, "the warning costs no request"
    assert warning.startswith(f"segment .segments/{name} (a) cannot be read, and 40 jobs in it wait")
    assert "until it is restored from a backup, or given up" in warning
    assert warning.endswith("it is missing")
    await restore_segment(store, name, whole)
    try_again_at_once(queue)
    assert ["00"] == ids(await queue.dequeue("a"))
    assert () == (await queue.stats()).warnings


async def test_a_segment_that_has_left_the_manifest_is_no_longer_named():
    store = InMemoryStorage()
    name = await filled(store)
    claim = await direct_queue(store).claim_range("a", 8)
    await remove_segment(store, name)
    queue = direct_queue(store)
    assert [] == await queue.peek("a")
    [warning] = (await queue.stats()).warnings
    assert "32 jobs in it wait (8 more are in claimed ranges)" in warning
    await direct_queue(store).end_range(claim, nothing_done=True)
    assert JOBS == await direct_queue(store).purge(status=JobStatus.QUEUED)
    assert () == (await queue.stats()).warnings


async def test_views_show_all_other_jobs_and_then_an_error_that_names_the_segment():
    store = InMemoryStorage()
    name = await filled(store)
    other = tiny_queue(store)
    job = await other.enqueue("b")
    await spilled(other)
    await remove_segment(store, name)
    queue, found = direct_queue(store), []
    with pytest.raises(JobsUnreadableError, match=name) as caught:
        async for each in queue.iterate_jobs():
            found.append(each.id)
    assert ([job.id], [f".segments/{name}"]) == (found, list(caught.value.segments))
    view = await queue.view()
    assert job.id == (await view.find(job.id)).id
    with pytest.raises(JobsUnreadableError, match=name):
        await view.find("07")
    stats = await direct_queue(store).stats()
    assert (JOBS + 1, {"a": JOBS, "b": 1}) == (
        stats.depth,
        {entrypoint: each.depth for entrypoint, each in stats.entrypoints.items()},
    )


async def work_through(queue, rows):
    """Do all jobs of a queue as a program does that claims ranges. Return their ids, and the number of ranges."""
    done, ranges = [], 0
    for _ in range(100):
        if (claim := await queue.claim_range("a", rows)) is not None:
            ranges += 1
            try:
                async for job in queue.read_range(claim):
                    done.append(job.id)
            except SegmentDamagedError as error:
                claim = claim.without(error.rows)
            await queue.end_range(claim)
        elif jobs := await queue.dequeue("a"):
            await queue.ack_many(jobs)
            done += ids(jobs)
        else:
            return done, ranges
    raise AssertionError("the same jobs are claimed again and again")


@pytest.mark.parametrize("rows", [3, 10, 100])
async def test_ranges_do_all_jobs_beside_damaged_ones_once_and_those_wait_uncharged(rows):
    storage = InMemoryStorage()
    name = await filled(storage)
    whole = await change_row(storage, name, "17")
    queue = direct_queue(storage)
    done, ranges = await work_through(queue, rows)
    assert [*names(0, 16), *names(20, JOBS)] == done
    assert ranges <= JOBS // rows + 3
    stats = await queue.stats()
    assert (36, 4, 0) == (stats.totals.done, stats.depth, stats.in_progress)
    await restore_segment(storage, name, whole)
    left = await direct_queue(storage).dequeue("a", batch_size=9)
    assert (names(16, 20), {1}) == (ids(left), {job.failures for job in left})


async def test_jobs_of_a_missing_segment_wait_and_those_of_others_are_done_with_few_requests():
    storage = FaultyObjects(store := InMemoryStorage())
    name = await filled(store)
    queue = direct_queue(storage)
    claim = await queue.claim_range("a", 10)
    other = await queue.enqueue("b", b"")
    whole = await remove_segment(store, name)
    with pytest.raises(SegmentDamagedError, match=rf"\.segments/{name}' .*10 jobs of a range cannot be read") as caught:
        await anext(queue.read_range(claim))
    await queue.end_range(claim.without(caught.value.rows))
    storage.object_calls.clear()
    assert [other.id] == ids(await queue.dequeue(batch_size=JOBS))
    assert len([call for call, _ in storage.object_calls if call == "read_object"]) <= 2
    assert JOBS == (await queue.stats()).depth
    await restore_segment(store, name, whole)
    assert names(0, JOBS) == ids(await direct_queue(store).dequeue("a", batch_size=JOBS))


async def test_a_due_cron_entry_waits_for_a_damaged_segment_and_other_jobs_go_on():
    clock = VirtualClock()
    storage = InMemoryStorage(clock=clock)
    deep: Any = tiny_queue(storage)
    await deep.enqueue("a", b"")
    await spilled(deep)
    [name] = (await deep.read_state()).segments
    segment = storage.beside(f".segments/{name}")
    whole, etag = await segment.read()
    etag = await segment.write(whole[:-1], etag)  # its index is cut off

    queue = direct_queue(storage)
    await queue.schedule("hourly", "0 * * * *", "cron")
    await queue.enqueue("b", b"")
    clock.skew += timedelta(hours=2)
    assert ["b"] == [job.entrypoint for job in await queue.dequeue(batch_size=9)]
    with pytest.raises(SegmentDamagedError):
        await queue.cancel("unknown")

    await segment.write(whole, etag)
    try_again_at_once(queue)
    assert ["a", "cron"] == sorted(job.entrypoint for job in await queue.dequeue(batch_size=9))


async def test_claims_on_a_damaged_segment_are_neither_ended_wrongly_nor_in_the_way_of_others():
    storage = InMemoryStorage(clock=VirtualClock())
    deep: Any = tiny_queue(storage)
    jobs = await deep.enqueue_many([Enqueue("a", max_attempts=1) for _ in range(4)])
    await spilled(deep)
    claim = await deep.claim_range("a", 4)
    await deep.cancel(jobs[1].id, running=True)
    whole = await remove_segment(storage, claim.segment)
    other = await deep.enqueue("another")
    queue = direct_queue(storage)
    await queue.dequeue("another")
    assert 1 == await queue.requeue_stale(0), "the range stays claimed: its jobs have no attempt left"
    assert [other.id] == ids(await queue.dequeue("another"))
    with pytest.raises(SegmentDamagedError, match=claim.segment):
        await queue.end_range(claim, returned=[jobs[0].id])
    assert 4 == (await queue.stats()).entrypoints["a"].in_progress
    await restore_segment(storage, claim.segment, whole)
    fresh = direct_queue(storage)
    await fresh.end_range(claim, returned=[jobs[0].id])
    assert [jobs[0].id] == [job.id async for job in fresh.iterate_jobs() if job.entrypoint == "a"]


async def beside_a_segment(store):
    """Return a broker whose jobs of "deep" are in one segment, its storage, and the suffix of the segment."""
    deep: Any = tiny_queue(store)
    await deep.enqueue_many([Enqueue("deep", job_id=f"deep {number}") for number in range(3)])
    await spilled(deep)
    [name] = (await deep.read_state()).segments
    storage = FaultyObjects(store)
    return BrokerQueue(storage, clock=VirtualClock()), storage, f".segments/{name}"


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_a_segment_that_cannot_be_read_holds_up_only_the_calls_that_need_it(failure):
    @in_virtual_time
    async def run():
        opened, storage, suffix = await beside_a_segment(InMemoryStorage(clock=VirtualClock()))
        async with opened as queue:
            await queue.enqueue("hot")
            [held] = await queue.dequeue("hot", claim_timeout=5)
            storage.unreadable[suffix] = failure
            waiting = asyncio.gather(queue.dequeue("deep", wait=200), queue.dequeue())
            looking = asyncio.gather(queue.cancel("unknown", deadline=20), return_exceptions=True)
            begun = now()
            await asyncio.gather(queue.heartbeat(held), queue.enqueue("hot"), queue.enqueue("hot"))
            for _ in range(3):
                await queue.heartbeat(held)
                await queue.ack((await queue.dequeue("hot"))[0])
                await queue.enqueue("hot")
            assert now() - begun < 2
            [error] = await looking
            assert isinstance(error, SegmentDamagedError if failure is FAILURES["refused"] else DeadlineExceededError)
            assert suffix in str(error)
            assert any(suffix in warning for warning in (await queue.stats()).warnings)

            del storage.unreadable[suffix]
            found, of_any = await waiting
            assert "hot" == of_any[0].entrypoint, "the claim goes on with the next rows that can be read"
            assert "deep 0" == found[0].id, "the segment is read again by itself"
            assert not (await queue.stats()).warnings
            assert ["deep 1", "deep 2"] == [job.id for job in await queue.dequeue("deep", batch_size=9)]

    run()


@in_virtual_time
async def test_rows_in_a_stale_range_are_given_up_if_none_of_them_can_be_read():
    """A job without an attempt left could not leave its range otherwise: that needs its row."""
    storage = InMemoryStorage(clock=VirtualClock())
    queue: Any = tiny_queue(storage)
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


# The check of a whole segment


async def read(delay=None):
    """Return the entry, the index and the chunks of a segment of eight jobs, two of them in each chunk."""
    queue: Any = tiny_queue(InMemoryStorage(), chunk_rows=2)
    await queue.enqueue_many(
        [Enqueue("mail", b"%d" % each, each % 2, delay=delay, unique_key=f"key {each}") for each in range(8)]
    )
    await spilled(queue)
    [(name, segment)] = (await queue.read_state()).segments.items()
    reader = segments_of(queue).reader
    index = await reader.index(name, segment)
    return segment, index, dict([each async for each in reader.parts(name, index, range(segment.chunks))])


def faults(segment, index, chunks):
    check = SegmentCheck(segment, index, ())
    found = [check.chunk(number, chunks[number]) for several in check.pieces for number in several]
    return [each.unreadable or each.misplaced for each in found]


def changed(index, **fields):
    kept = {name: getattr(index, name) for name in ("chunks", "end", "ids", "keys", "objects", "single", "texts")}
    return SegmentIndex(**{**kept, **fields})


def with_chunk(index, chunks, number, data):
    """Return the index and the chunks with one chunk replaced, as if it had been written so."""
    summed = [
        each._replace(crc=zlib.crc32(data)) if place == number else each for place, each in enumerate(index.chunks)
    ]
    return changed(index, chunks=summed), {**chunks, number: data}


@pytest.mark.parametrize("delay", [None, 60])
async def test_a_segment_as_it_was_written_has_no_fault(delay):
    assert [""] * 4 == faults(*await read(delay))


async def test_each_row_that_contradicts_the_index_or_the_manifest_is_named():
    segment, index, chunks = await read()
    nothing = HashTable(array("Q"), array("I"))

    def of(entry, table, stored=chunks):
        return " / ".join(filter(None, faults(entry, table, stored)))

    assert "another entrypoint" in of(segment.model_copy(update={"entrypoint": "other"}), index)
    assert "smaller sequence number" in of(segment.model_copy(update={"least": 5}), index)
    assert "the id of row 0 is not in the index" in of(segment, changed(index, ids=nothing))
    assert "the unique key of row 0 is not in the index" in of(segment, changed(index, keys=nothing))
    moved = [each._replace(first=each.first.moved(1)) for each in index.chunks]
    assert "chunk 0: its first row is not the one that the index names" in of(segment, changed(index, chunks=moved))
    lines = chunks[1].splitlines(keepends=True)
    other, swapped = with_chunk(index, chunks, 1, b"".join(reversed(lines)))
    assert "its first row" in of(segment, other, swapped)
    firsts = [each._replace(first=each.first.moved(2 * (place == 1))) for place, each in enumerate(other.chunks)]
    ids, keys = (
        HashTable(each.hashes, array("I", [{2: 3, 3: 2}.get(row, row) for row in each.rows]))
        for each in (index.ids, index.keys)
    )
    assert "chunk 1: row 3 belongs before" in of(segment, changed(other, chunks=firsts, ids=ids, keys=keys), swapped)
    assert "chunk 1 has 1 rows, and not 2" in of(segment, *with_chunk(index, chunks, 1, lines[0]))
    assert "the checksum does not match" in of(segment, index, {**chunks, 2: chunks[2].replace(b"\2", b"\1")})
