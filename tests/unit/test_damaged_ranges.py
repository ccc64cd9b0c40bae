"""Ranges of a damaged segment: all jobs that can be read are done, and no claim is repeated in vain."""

import pytest

from jqueue import ClaimLostError, DirectQueue, InMemoryStorage, SegmentDamagedError
from jqueue.domain.operations import Enqueue
from jqueue.domain.range_jobs import RangeFailure
from jqueue.testing.faults import FaultyObjects
from tests.tiny_segments import change_row, remove_segment, restore_segment, segments_of, spilled, tiny_queue

pytestmark = pytest.mark.asyncio

JOBS = 40
"""Number of jobs in the one segment of `filled`, in chunks of four."""


async def filled(storage, own_ids=False, jobs=JOBS):
    """Fill a queue with jobs in one segment, and return the name of the segment."""
    queue = tiny_queue(storage, fewest_rows=jobs)
    added = [Enqueue("a", b"%02d" % number, job_id=None if own_ids else f"{number:02}") for number in range(jobs)]
    await queue.enqueue_many(added)
    await spilled(queue)
    [name] = (await queue.read_state()).segments
    return name


def numbers(*spans):
    return [f"{number:02}" for first, last in spans for number in range(first, last)]


async def claimed(queue, rows):
    claim = await queue.claim_range("a", rows)
    assert claim is not None
    return claim


async def totals(queue):
    found = (await queue.stats()).totals
    assert found is not None
    return found


async def figures(queue):
    """Return the numbers of jobs that are done, wait, and are in progress."""
    stats = await queue.stats()
    return (await totals(queue)).done, stats.depth, stats.in_progress


async def read(queue, claim):
    """Return the claim on the jobs of a range that can be read, and their ids."""
    found = []
    try:
        async for job in queue.read_range(claim):
            found.append(job.id)
    except SegmentDamagedError as error:
        return claim.without(error.rows), found
    return claim, found


async def work_through(queue, rows):
    """Do all jobs of a queue as a program does that claims ranges. Return their ids, and the number of ranges."""
    done, ranges = [], 0
    for _ in range(100):
        claim = await queue.claim_range("a", rows)
        if claim is not None:
            ranges += 1
            claim, found = await read(queue, claim)
            await queue.end_range(claim)
            done += found
        elif jobs := await queue.dequeue("a"):
            await queue.ack_many(jobs)
            done += [job.id for job in jobs]
        else:
            return done, ranges
    raise AssertionError("the same jobs are claimed again and again")


@pytest.mark.parametrize("rows", [3, 10, 100])
async def test_all_jobs_beside_a_damaged_chunk_are_done_once_and_its_own_jobs_wait(rows):
    storage = InMemoryStorage()
    name = await filled(storage)
    await change_row(storage, name, "17")
    queue = DirectQueue(storage)
    done, ranges = await work_through(queue, rows)
    assert numbers((0, 16), (20, JOBS)) == done
    assert ranges <= JOBS // rows + 3
    assert (36, 4, 0) == await figures(queue)


async def test_the_jobs_of_a_missing_segment_wait_and_those_of_other_segments_are_done():
    storage = InMemoryStorage()
    name = await filled(storage)
    queue = DirectQueue(storage)
    claim = await claimed(queue, 10)
    other = await queue.enqueue("a", b"")
    whole = await remove_segment(storage, name)
    claim, found = await read(queue, claim)
    assert ([], 0) == (found, claim.rows)
    await queue.end_range(claim)
    done, ranges = await work_through(queue, 10)
    assert (other.id, 0) == (done[-1], ranges)
    assert JOBS == len(done) - 1 + (await queue.stats()).depth
    await restore_segment(storage, name, whole)
    rest, _ = await work_through(DirectQueue(storage), 10)
    assert numbers((0, JOBS)) == sorted([*done[:-1], *rest])


@pytest.mark.parametrize("rows", [10, 100])
async def test_programs_that_do_not_know_of_the_damage_do_all_other_jobs_too(rows):
    storage = InMemoryStorage()
    await change_row(storage, await filled(storage), "17")
    done = []
    for _ in range(20):
        queue = DirectQueue(storage)  # knows nothing
        claim = await queue.claim_range("a", rows)
        if claim is None:
            break
        claim, found = await read(DirectQueue(storage), claim)
        await DirectQueue(storage).end_range(claim)
        done += found
    assert numbers((0, 16), (20, JOBS)) == done


async def test_a_chunk_that_could_not_be_read_is_in_a_range_again_once_it_was_loaded():
    storage = InMemoryStorage()
    name = await filled(storage)
    whole = await change_row(storage, name, "17")
    queue = tiny_queue(storage)
    claim, _ = await read(queue, await claimed(queue, 30))
    await queue.end_range(claim, nothing_done=True)
    claim = await claimed(queue, 30)
    assert [(0, 16), (20, 30)] == claim.spans
    queue._engine.draft.jobs.rows.forget_damage([name])  # as after a minute: a dequeue tries the chunk again
    await queue.end_range(claim, nothing_done=True)
    claim = await claimed(queue, 30)
    assert [(0, 16), (20, 30)] == claim.spans, "the rows between them were tried less often, and cannot be in it"
    await queue.end_range(claim, nothing_done=True)
    await restore_segment(storage, name, whole)
    assert numbers((0, 18)) == [job.id for job in await queue.dequeue("a", batch_size=18)]
    assert [(18, 20)] == (await claimed(queue, 30)).spans, "the next rows were tried more often"


@pytest.mark.parametrize("first", [4, 10, 36])
async def test_a_range_ends_in_parts_around_jobs_that_cannot_be_read(first):
    storage = InMemoryStorage()
    name = await filled(storage)
    whole = await change_row(storage, name, "05")
    queue = DirectQueue(storage)
    claim, found = await read(queue, await claimed(queue, JOBS))
    assert (36, found) == (claim.rows, numbers((0, 4), (8, JOBS)))
    await queue.end_range(claim, jobs=first, failed={"01": "boom"})
    unread_left = 4 * (first == 4)
    assert (first - 1, 5 - unread_left, 36 - first + unread_left) == await figures(queue)
    for _ in range(2):
        await queue.end_range(claim)
    assert (35, 5, 0) == await figures(queue)
    await restore_segment(storage, name, whole)
    left = {job.id: (job.attempt, job.failures) for job in await DirectQueue(storage).peek("a", batch_size=9)}
    assert {"01": (1, 1), **dict.fromkeys(numbers((4, 8)), (1, 0))} == left


async def test_the_last_jobs_of_a_range_that_cannot_be_read_end_with_its_last_part():
    storage = InMemoryStorage()
    await change_row(storage, await filled(storage), "39")
    queue = DirectQueue(storage)
    claim, _ = await read(queue, await claimed(queue, JOBS))
    await queue.end_range(claim, jobs=36)
    assert (36, 4, 0) == await figures(queue)
    assert {} == (await queue.read_state()).ranges


async def test_a_cancelled_job_that_cannot_be_read_leaves_the_queue():
    storage = InMemoryStorage()
    name = await filled(storage)
    queue = DirectQueue(storage)
    claim = await claimed(queue, JOBS)
    await queue.cancel("17", running=True)
    whole = await change_row(storage, name, "17")
    other = DirectQueue(storage)
    claim, _ = await read(other, claim)
    await other.end_range(claim)
    assert (36, 3, 0) == await figures(other)
    assert 1 == (await totals(other)).cancelled
    await restore_segment(storage, name, whole)
    assert ["16", "18", "19"] == [job.id for job in await DirectQueue(storage).dequeue("a", batch_size=9)]


@pytest.mark.parametrize("own_ids", [False, True])
@pytest.mark.parametrize("damage", [change_row, remove_segment])
async def test_a_job_that_failed_waits_uncharged_if_its_row_can_no_longer_be_read(damage, own_ids):
    """The row is needed to note the failure with it. All other jobs of the range are done."""
    storage = InMemoryStorage()
    name = await filled(storage, own_ids)
    queue = tiny_queue(storage)
    claim, ids = await read(queue, await claimed(queue, JOBS))
    segments_of(queue).loader.rows_kept = 0
    await queue.enqueue("b", b"")  # the loaded rows are dropped
    text = () if damage is remove_segment else (ids[17],)
    whole = await damage(storage, name, *text)
    await queue.end_range(claim, failed={ids[17]: RangeFailure("boom", dead=True)}, kept=[ids[18]])
    assert (38, 3, 0) == await figures(queue)
    await restore_segment(storage, name, whole)
    again = await DirectQueue(storage).dequeue("a", batch_size=9)
    assert [(ids[17], 2, 1), (ids[18], 2, 1)] == [(job.id, job.attempt, job.failures) for job in again]


async def test_the_end_of_a_revoked_claim_gives_no_row_back():
    storage = InMemoryStorage()
    await change_row(storage, await filled(storage), "05")
    queue = DirectQueue(storage)
    claim, _ = await read(queue, await claimed(queue, JOBS))
    await queue.requeue_stale(0)
    with pytest.raises(ClaimLostError):
        await queue.end_range(claim)
    assert JOBS == (await queue.stats()).depth


async def test_a_missing_segment_is_not_looked_for_once_for_each_of_its_chunks():
    storage = FaultyObjects(store := InMemoryStorage())
    name = await filled(store)
    queue = tiny_queue(storage)
    await queue.dequeue("a")
    await remove_segment(store, name)
    other = await queue.enqueue("b", b"")
    before = len(storage.object_calls)
    found = [job.id for job in await queue.dequeue(batch_size=JOBS)]
    assert [*numbers((1, 4)), other.id] == found
    assert len(storage.object_calls) - before <= 4


async def test_the_error_says_how_many_jobs_of_a_range_cannot_be_read():
    storage = InMemoryStorage()
    name = await filled(storage)
    await change_row(storage, name, "05")
    queue = DirectQueue(storage)
    claim = await claimed(queue, 6)
    with pytest.raises(SegmentDamagedError, match=rf"\.segments/{name}' .*2 jobs of a range cannot be read") as caught:
        [job async for job in queue.read_range(claim)]
    assert ((4, 6),) == caught.value.rows
