"""The warnings of `stats()` name each segment that a read of the same queue has found missing or damaged."""

from contextlib import suppress

import pytest

from jqueue import DirectQueue, InMemoryStorage, JobStatus, JQueueError
from jqueue.domain.operations.drop_rows import DropRows
from jqueue.testing.faults import FaultyObjects
from tests.tiny_segments import change_row, remove_segment, restore_segment, segments_of
from tests.unit.test_damaged_ranges import JOBS, filled

pytestmark = pytest.mark.asyncio

ADVICE = "until it is restored from a backup, or given up with `jqueue drop-segment`: "


async def warnings(queue):
    return (await queue.stats()).warnings


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
    "find": lambda queue: queue.find("00"),
    "iterate_jobs": iterate,
}


async def met(queue, read):
    """Read as a program does that goes on after an error."""
    with suppress(JQueueError):
        await READS[read](queue)


@pytest.mark.parametrize("damage", [change_row, remove_segment])
@pytest.mark.parametrize("read", READS)
async def test_a_segment_is_named_from_its_first_failed_read_to_its_next_good_one(read, damage):
    store = InMemoryStorage()
    name = await filled(store)
    queue = DirectQueue(store)
    in_part = damage is change_row
    whole = await damage(store, name, *(["00"] if in_part else []))
    assert () == await warnings(queue), "no read has met the damage"
    await met(queue, read)
    [warning] = await warnings(queue)
    jobs, how = (4, "cannot be read in part") if in_part else (JOBS, "cannot be read")
    assert warning.startswith(f"segment .segments/{name} (a) {how}, and {jobs} jobs in it wait {ADVICE}")
    assert warning.endswith("the checksum does not match" if in_part else "it is missing")
    assert () == await warnings(DirectQueue(store)), "another queue object has not met it"

    await restore_segment(store, name, whole)
    segments_of(queue).loader.damage_kept = -1.0  # the loader tries it again at once
    assert (warning,) == await warnings(queue)
    await queue.dequeue("a")
    assert () == await warnings(queue)


@pytest.mark.parametrize("read", ["peek", "find"])
async def test_a_warning_costs_no_request(read):
    storage = FaultyObjects(store := InMemoryStorage())
    name = await filled(store)
    await remove_segment(store, name)
    queue = DirectQueue(storage)
    await met(queue, read)
    storage.object_calls.clear()
    assert 1 == len(await warnings(queue))
    assert [] == storage.object_calls


async def test_the_damage_of_one_chunk_stays_named_while_others_are_read():
    store = InMemoryStorage()
    name = await filled(store)
    await change_row(store, name, "05")
    await change_row(store, name, "17")
    queue = DirectQueue(store)
    await queue.dequeue("a", batch_size=JOBS)
    [warning] = await warnings(queue)
    assert "cannot be read in part, and 8 jobs in it wait" in warning
    await queue.apply(DropRows(name, [(4, 8)]))
    [warning] = await warnings(queue)
    assert "cannot be read in part, and 4 jobs in it wait" in warning
    await queue.apply(DropRows(name, [(16, 20)]))
    assert () == await warnings(queue)


async def test_jobs_in_claimed_ranges_are_told_apart_from_those_that_wait():
    store = InMemoryStorage()
    name = await filled(store)
    await DirectQueue(store).claim_range("a", 10)
    await remove_segment(store, name)
    queue = DirectQueue(store)
    await met(queue, "peek")
    [warning] = await warnings(queue)
    assert f"and 30 jobs in it wait (10 more are in claimed ranges) {ADVICE}" in warning


async def test_a_segment_that_has_left_the_manifest_is_no_longer_named():
    store = InMemoryStorage()
    name = await filled(store)
    queue = DirectQueue(store)
    await remove_segment(store, name)
    await met(queue, "peek")
    assert 1 == len(await warnings(queue))
    await DirectQueue(store).purge(status=JobStatus.QUEUED)
    assert () == await warnings(queue)
