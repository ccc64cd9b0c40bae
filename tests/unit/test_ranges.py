"""Ranges: rows of a segment that are claimed and ended as one."""

import asyncio
import contextlib
import re
from dataclasses import replace
from datetime import timedelta

import pytest

from jqueue import (
    BrokerQueue,
    ClaimLostError,
    DuplicateJobError,
    HeartbeatManager,
    InMemoryStorage,
    JobNotFoundError,
    JobStateError,
    JobStatus,
    Limits,
    SegmentDamagedError,
)
from jqueue.core.blob.segment_writer import SegmentSizes
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.models import Claim
from jqueue.domain.operations import HandBack, RequeueStale, ranges
from jqueue.domain.operations.ranges import ClaimRange, EndRange
from jqueue.domain.range_jobs import RangeFailure
from jqueue.operations import Ack
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import remove_segment, segments_of
from tests.virtual_world import in_virtual_time

SIZES = SegmentSizes(hot_bytes=1, fewest_rows=1, chunk_rows=4)


def queue_on(storage, **options):
    queue = BrokerQueue(storage, clock=VirtualClock(), limits=Limits(hot_bytes=1), **options)
    segments_of(queue).writer.sizes = SIZES
    return queue


async def _settled(queue):
    """Commit until no segment is being written."""
    for _ in range(20):
        await queue.pause("other") if _ % 2 else await queue.resume("other")
        await asyncio.sleep(0.1)


async def with_rows(queue, number, **options):
    """Enqueue jobs in one commit, and wait until all of them are in segments."""
    jobs = await asyncio.gather(*(queue.enqueue("t", b"%d" % place, **options) for place in range(number)))
    await _settled(queue)
    header = (await queue.read_state()).segments
    assert number == sum(each.waiting for each in header.values())
    return [job.id for job in jobs]


def faulty():
    return InMemoryStorage(clock=VirtualClock())


async def jobs_of(queue, claim):
    return [job async for job in queue.read_range(claim)]


async def claimed(queue, rows):
    claim = await queue.claim_range("t", rows)
    assert claim is not None
    return claim


@in_virtual_time
async def test_a_range_is_done_but_for_jobs_that_failed_or_are_returned():
    async with queue_on(faulty()) as queue:
        ids = await with_rows(queue, 10)
        claim = await claimed(queue, 8)
        jobs = await jobs_of(queue, claim)
        assert ids[:8] == [job.id for job in jobs]
        assert {(JobStatus.IN_PROGRESS, 1, 1)} == {(job.status, job.attempt, job.failures) for job in jobs}
        failed = {ids[2]: RangeFailure("boom", delay=60), ids[5]: ValueError("bad")}
        await queue.end_range(claim, failed=failed, returned=[ids[6]])
        stats = await queue.stats()
        assert (4, 1, 0, 5) == (stats.depth - 0, stats.scheduled, stats.in_progress, stats.totals.done)
        left = await queue.dequeue("t", batch_size=9)
        assert {ids[6]: (2, 1), ids[8]: (1, 1), ids[9]: (1, 1), ids[5]: (2, 2)} == {
            job.id: (job.attempt, job.failures) for job in left
        }
        assert "ValueError: bad" == next(job.error for job in left if job.id == ids[5])


@in_virtual_time
async def test_a_heartbeat_manager_keeps_a_range_alive_by_the_timeout_of_its_claim():
    async with queue_on(faulty(), stale_timeout=30) as queue:
        await with_rows(queue, 4)
        claim = await claimed(queue, 4)
        async with HeartbeatManager(queue, claim):
            for _ in range(20):
                await asyncio.sleep(10)
                assert [] == await queue.dequeue("t")
        await queue.end_range(claim)
        assert 4 == (await queue.stats()).totals.done


@in_virtual_time
async def test_the_end_of_a_range_inside_a_heartbeat_manager_is_no_loss():
    async with queue_on(faulty(), stale_timeout=30) as queue:
        await with_rows(queue, 4)
        claim = await claimed(queue, 4)
        async with HeartbeatManager(queue, claim) as manager:
            await queue.end_range(claim)
            await asyncio.sleep(60)  # heartbeats of the claim would have come meanwhile
        assert (None, False) == (manager.error, manager.lost.is_set())


@in_virtual_time
async def test_a_heartbeat_in_the_commit_of_the_end_of_a_range_is_no_loss():
    async with queue_on(faulty(), stale_timeout=30) as queue:
        await with_rows(queue, 4)
        claim = await claimed(queue, 4)
        _, [lost] = await asyncio.gather(queue.end_range(claim), queue.heartbeat_many([claim.claim]))
        assert lost.ended_here


@in_virtual_time
async def test_a_lost_claim_on_a_job_that_another_client_claimed_with_a_range_names_the_attempt():
    storage = faulty()
    async with queue_on(storage) as queue, queue_on(storage, holder="other") as other:
        ids = await with_rows(queue, 4)
        first = await claimed(queue, 4)
        [job, *_] = await jobs_of(queue, first)
        with pytest.raises(ClaimLostError, match="a part of a range"):
            await queue.ack(job)
        await queue.end_range(first, nothing_done=True)
        assert ids == [job.id for job in await jobs_of(other, await claimed(other, 4))]
        with pytest.raises(ClaimLostError, match=r"attempt 2 holds the job now \(claimed by other since"):
            await queue.ack(job)


@in_virtual_time
async def test_a_repeated_end_changes_nothing_and_a_stale_end_is_refused():
    async with queue_on(faulty(), stale_timeout=30) as queue:
        ids = await with_rows(queue, 4)
        claim = await claimed(queue, 2)
        await queue.end_range(claim)
        await queue.end_range(claim)
        stale = await claimed(queue, 2)
        await asyncio.sleep(200)
        assert [(2, 2), (2, 2)] == [(job.attempt, job.failures) for job in await queue.dequeue("t", batch_size=9)]
        with pytest.raises(ClaimLostError):
            await queue.end_range(stale)
        assert ids[2:] == [job.id for job in (await queue.read_state()).in_progress_jobs()]


@in_virtual_time
async def test_a_heartbeat_keeps_a_range():
    async with queue_on(faulty(), stale_timeout=30) as queue:
        await with_rows(queue, 4)
        claim = await claimed(queue, 4)
        for _ in range(10):
            await asyncio.sleep(20)
            await queue.heartbeat(claim.claim)
            assert [] == await queue.dequeue("t")
        await queue.end_range(claim)
        assert 4 == (await queue.stats()).totals.done


@in_virtual_time
async def test_a_range_that_comes_back_is_whole_at_the_next_attempt():
    async with queue_on(faulty(), stale_timeout=30) as queue:
        ids = await with_rows(queue, 9)
        first = await claimed(queue, 5)
        await queue.end_range(first, nothing_done=True)
        second = await claimed(queue, 9)
        jobs = await jobs_of(queue, second)
        assert [(job_id, 2, 1) for job_id in ids[:5]] == [(job.id, job.attempt, job.failures) for job in jobs]
        await asyncio.sleep(200)
        assert [] == await queue.dequeue("none")  # a look at the queue, by which the silence of the claim counts
        third = await claimed(queue, 9)
        assert [(3, 2)] * 5 == [(job.attempt, job.failures) for job in await jobs_of(queue, third)]


@in_virtual_time
async def test_jobs_that_run_out_of_attempts_in_stale_ranges_die():
    async with queue_on(faulty(), stale_timeout=30) as queue:
        ids = await with_rows(queue, 3, max_attempts=2)
        await claimed(queue, 3)
        await asyncio.sleep(200)
        await claimed(queue, 3)
        await asyncio.sleep(200)
        assert [] == await queue.dequeue("t")
        dead = (await queue.read_state()).dead_jobs()
        assert sorted(ids) == sorted(job.id for job in dead)
        assert 3 == (await queue.stats()).totals.dead


@in_virtual_time
async def test_jobs_in_a_range_are_found_and_hold_their_ids_and_keys():
    async with queue_on(faulty()) as queue:
        ids = [f"id-{number}" for number in range(3)]
        await asyncio.gather(*(queue.enqueue("t", b"", job_id=each, unique_key=f"key of {each}") for each in ids))
        for _ in range(20):
            await queue.pause("other") if _ % 2 else await queue.resume("other")
            await asyncio.sleep(0.1)
        claim = await claimed(queue, 3)
        assert JobStatus.IN_PROGRESS == (await queue.find("id-1")).status
        assert ids[0] == (await queue.enqueue("t", b"", job_id="id-0")).id
        taken = await queue.enqueue("t", b"", unique_key="key of id-2")
        assert (ids[2], JobStatus.IN_PROGRESS) == (taken.id, taken.status)
        with pytest.raises(DuplicateJobError):
            await queue.enqueue("t", b"", unique_key="key of id-2", on_conflict="replace")
        with pytest.raises(JobStateError):
            await queue.cancel("id-1")
        assert 3 == (await queue.stats()).in_progress
        assert sorted(ids) == sorted([job.id async for job in queue.iterate_jobs(JobStatus.IN_PROGRESS)])
        await queue.end_range(claim)
        assert JobStatus.COMPLETED is (await queue.find("id-1")).status  # it is remembered like an acked one


@in_virtual_time
async def test_rows_that_were_loaded_before_another_writer_claimed_them_are_in_progress():
    storage = faulty()
    async with queue_on(storage) as one, queue_on(storage) as two:
        ids = await with_rows(one, 4)
        assert JobStatus.QUEUED == (await two.find(ids[1])).status
        await claimed(one, 4)
        with pytest.raises(JobStateError):
            await two.cancel(ids[1])
        assert ids[1] == (await two.enqueue("t", b"", job_id=ids[1])).id
        assert 4 == (await two.stats()).in_progress


@in_virtual_time
async def test_a_cancelled_job_of_a_range_is_told_and_leaves_unless_it_was_done():
    async with queue_on(faulty()) as queue:
        ids = await with_rows(queue, 4)
        claim = await claimed(queue, 4)
        await queue.cancel(ids[0], running=True)
        await queue.cancel(ids[1], running=True)
        assert ids[:2] == [error.job_id for error in await queue.heartbeat_many([claim.claim])]
        await queue.end_range(claim, failed={ids[0]: "stopped"}, returned=[ids[3]])
        assert [ids[3]] == [job.id async for job in queue.iterate_jobs()]


@in_virtual_time
async def test_a_heartbeat_manager_goes_on_with_a_range_whose_jobs_are_cancelled():
    async with queue_on(faulty(), stale_timeout=30) as queue:
        ids = await with_rows(queue, 6)
        claim = await claimed(queue, 4)
        left_out = []
        async with HeartbeatManager(queue, claim) as manager:
            for job in await jobs_of(queue, claim):
                if job.id in manager.cancelled:
                    left_out.append(job.id)
                elif job.id == ids[0]:
                    for other in (ids[1], ids[3]):
                        await queue.cancel(other, running=True)
                await asyncio.sleep(100)  # the claim would be stale after the first job
            assert [] == await queue.dequeue("none")  # a look at the queue, by which the silence of the claim counts
        assert sorted([ids[1], ids[3]]) == sorted(manager.cancelled)
        assert manager.error is None
        await queue.end_range(claim, returned=left_out)
        assert 2 == (await queue.stats()).totals.done
        assert ids[4:] == [job.id async for job in queue.iterate_jobs()]


@pytest.mark.parametrize("on_lost", ["cancel", "event"])
@in_virtual_time
async def test_a_cancelled_job_with_a_claim_of_its_own_is_lost_beside_a_range(on_lost):
    async with queue_on(faulty(), stale_timeout=30) as queue:
        ids = await with_rows(queue, 4)
        claim = await claimed(queue, 4)
        single = await queue.enqueue("single", b"")
        [job] = await queue.dequeue("single")
        stops = contextlib.nullcontext() if on_lost == "event" else pytest.raises(ClaimLostError)
        with stops:
            async with HeartbeatManager(queue, [job, claim], on_lost=on_lost) as manager:
                await queue.cancel(ids[2], running=True)
                await asyncio.sleep(60)
                assert [ids[2]] == [*manager.cancelled]
                assert manager.error is None
                await queue.cancel(single.id, running=True)
                await asyncio.sleep(60)
        assert manager.error is not None
        assert (single.id, [ids[2]]) == (manager.error.job_id, [*manager.cancelled])
        await queue.nack(job)
        await queue.end_range(claim, returned=[ids[2]])
        assert [] == [job async for job in queue.iterate_jobs()]


@in_virtual_time
async def test_limits_rates_and_pauses_hold_for_rows_of_a_range():
    async with queue_on(faulty()) as queue:
        await with_rows(queue, 10)
        await queue.limit("t", running=6)
        one = await claimed(queue, 4)
        two = await claimed(queue, 4)
        assert (4, 2) == (one.rows, two.rows)
        assert [] == await queue.dequeue("t", batch_size=9)
        await queue.end_range(one)
        await queue.pause("t")
        assert None is await queue.claim_range("t", 4)
        await queue.resume("t")
        await queue.limit("t", running=None, rate=9, per=60)
        assert 4 == (await claimed(queue, 9)).rows


@in_virtual_time
async def test_jobs_that_need_care_one_by_one_are_never_in_a_range():
    async with queue_on(faulty()) as queue:
        await with_rows(queue, 3)
        kept = await queue.enqueue("t", b"", keep_result=60)
        keyed = await queue.enqueue("t", b"", concurrency_key="one")
        unique = await queue.enqueue("t", b"", unique_key="one", unique_for=60)
        await with_rows_of_any(queue)
        claim = await claimed(queue, 9)
        assert 3 == claim.rows
        assert None is await queue.claim_range("t", 9)
        assert {kept.id, keyed.id, unique.id} == {job.id for job in await queue.dequeue("t", batch_size=9)}


async def with_rows_of_any(queue):
    for number in range(20):
        await queue.pause("other") if number % 2 else await queue.resume("other")
        await asyncio.sleep(0.1)


@in_virtual_time
async def test_a_job_that_is_not_in_the_range_refuses_its_end():
    async with queue_on(faulty()) as queue:
        ids = await with_rows(queue, 6)
        claim = await claimed(queue, 3)
        with pytest.raises(JobNotFoundError):
            await queue.end_range(claim, failed={ids[4]: "boom"})
        with pytest.raises(JobNotFoundError):
            await queue.end_range(claim, returned=[ids[4]])
        await queue.end_range(claim)
        assert 3 == (await queue.stats()).depth


@in_virtual_time
async def test_the_claim_of_a_caller_who_left_goes_back():
    async with queue_on(faulty(), stale_timeout=timedelta(days=1)) as queue:
        ids = await with_rows(queue, 4)
        task = asyncio.create_task(queue.claim_range("t", 4))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(1)
        assert ids == [job.id for job in await queue.dequeue("t", batch_size=9)]


@in_virtual_time
async def test_a_row_that_was_in_a_range_meanwhile_is_claimed_with_the_next_attempt():
    storage = faulty()
    async with queue_on(storage) as one, queue_on(storage) as two:
        ids = await with_rows(one, 4)
        assert 0 == (await two.find(ids[1])).attempt  # its row is loaded
        await one.end_range(await claimed(one, 4), nothing_done=True)
        assert [2, 2, 2, 2] == [job.attempt for job in await two.dequeue(batch_size=4)]


@in_virtual_time
async def test_a_stale_range_in_a_damaged_segment_holds_no_other_claim_back():
    storage = faulty()
    async with queue_on(storage, stale_timeout=30) as queue:
        await with_rows(queue, 3, max_attempts=1)
        other = await queue.enqueue("another", b"")
        claim = await claimed(queue, 3)
        assert [other.id] == [job.id for job in await queue.dequeue("another")]
        segment = storage.beside(f".segments/{claim.segment}")
        data, etag = await segment.read()
        await segment.write(data.replace(b"queued", b"QUEUED"), etag)
        async with queue_on(storage, stale_timeout=30) as fresh:
            for _ in range(8):
                await asyncio.sleep(30)
                again = await fresh.dequeue("another")
                if again:
                    break
            assert [other.id] == [job.id for job in again]
            assert 3 == (await fresh.stats()).entrypoints["t"].in_progress


@pytest.mark.parametrize("part", ["jobs", "all"])
@in_virtual_time
async def test_the_end_of_a_range_in_a_damaged_segment_is_refused_until_the_segment_is_repaired(part):
    storage = faulty()
    async with queue_on(storage) as queue:
        ids = await with_rows(queue, 4)
        claim = await claimed(queue, 4)
        await queue.cancel(ids[1], running=True)
        segment = storage.beside(f".segments/{claim.segment}")
        data, etag = await segment.read()
        etag = await segment.write(b"damaged", etag)
        ends = {"jobs": {"jobs": 3}, "all": {"returned": ids[:1]}}[part]
        async with queue_on(storage) as fresh:
            with pytest.raises(SegmentDamagedError, match=claim.segment):
                await fresh.end_range(claim, **ends)
            assert 4 == (await fresh.stats()).entrypoints["t"].in_progress
        await segment.write(data, etag)
        async with queue_on(storage) as fresh:
            await fresh.end_range(claim, **ends)
            assert 4 > (await fresh.stats()).entrypoints["t"].in_progress


@in_virtual_time
async def test_an_order_to_requeue_leaves_a_range_in_a_damaged_segment_claimed():
    storage = faulty()
    async with queue_on(storage) as queue:
        await with_rows(queue, 3, max_attempts=1)
        other = await queue.enqueue("another", b"")
        claim = await claimed(queue, 3)
        await queue.dequeue("another")
        segment = storage.beside(f".segments/{claim.segment}")
        data, etag = await segment.read()
        await segment.write(data.replace(b"queued", b"QUEUED"), etag)
        async with queue_on(storage) as fresh:
            assert 1 == await fresh.requeue_stale(0)
            assert [other.id] == [job.id for job in await fresh.dequeue("another")]
            assert 3 == (await fresh.stats()).entrypoints["t"].in_progress


@in_virtual_time
async def test_a_cancelled_job_that_is_returned_leaves_and_does_not_wait_again():
    async with queue_on(faulty()) as queue:
        ids = await with_rows(queue, 4)
        claim = await claimed(queue, 4)
        await queue.cancel(ids[1], running=True)
        await queue.end_range(claim, returned=[ids[1], ids[2]])
        assert [ids[2]] == [job.id for job in await queue.dequeue("t", batch_size=5)]


@in_virtual_time
async def test_a_cancelled_job_leaves_with_a_claim_that_reached_nobody_or_became_stale():
    async with queue_on(faulty()) as queue:
        ids = await with_rows(queue, 9)
        for cancelled, end in ((ids[1], lambda claim: HandBack((claim.claim,))), (ids[2], lambda _: RequeueStale(0))):
            claim = await claimed(queue, 8)
            await queue.cancel(cancelled, running=True)
            await queue.apply(end(claim))
        stats = await queue.stats()
        assert (2, {}) == (stats.totals.cancelled, (await queue.read_state()).ranges)
        assert (7, 6) == (stats.totals.failed, stats.totals.retried), "a cancelled job is not tried again"
        jobs = await queue.dequeue("t", batch_size=9)
        assert [ids[0], *ids[3:]] == [job.id for job in jobs]
        assert {1} == {job.failures for job in jobs if job.id == ids[8]}
        assert {2} == {job.failures for job in jobs if job.id != ids[8]}


@in_virtual_time
async def test_a_range_with_a_cancelled_job_that_cannot_be_found_stays_claimed():
    storage = faulty()
    async with queue_on(storage) as queue:
        ids = await with_rows(queue, 8)
        claim = await claimed(queue, 8)
        await queue.cancel(ids[1], running=True)
    await remove_segment(storage, claim.segment)
    async with queue_on(storage) as fresh:
        assert [0] == await fresh.apply(HandBack((claim.claim,)))
        assert [claim.id] == [*(await fresh.read_state()).ranges]


@in_virtual_time
async def test_the_first_jobs_of_a_range_end_and_the_claim_goes_on_for_the_others():
    async with queue_on(faulty(), stale_timeout=30) as queue:
        ids = await with_rows(queue, 10)
        claim = await claimed(queue, 9)
        for _ in range(2):  # repeating it changes nothing
            await queue.end_range(claim, jobs=4, failed={ids[1]: "boom"}, returned=[ids[3]])
        stats = await queue.stats()
        assert (2, 5) == (stats.totals.done, stats.in_progress)
        assert {ids[1], ids[3], ids[9]} == {job.id for job in await queue.dequeue("t", batch_size=9)}
        with pytest.raises(JobNotFoundError):
            await queue.end_range(claim, jobs=6, failed={ids[0]: "it has ended"})
        await queue.heartbeat(claim.claim)
        await asyncio.sleep(200)
        assert [] == await queue.dequeue("none")  # a look at the queue, by which the silence of the claim counts
        with pytest.raises(ClaimLostError):
            await queue.end_range(claim, jobs=4)
        again = await queue.claim_range("t", 9)
        assert [(job_id, 2, 2) for job_id in ids[4:9]] == [
            (job.id, job.attempt, job.failures) for job in await jobs_of(queue, again)
        ]


@in_virtual_time
async def test_a_range_may_end_in_parts_around_gaps_and_is_over_with_the_last():
    async with queue_on(faulty()) as queue:
        ids = await with_rows(queue, 10)
        await queue.cancel(ids[2])
        await queue.cancel(ids[5])
        claim = await claimed(queue, 10)
        for jobs in (2, 3, 5, 8):
            await queue.end_range(claim, jobs=jobs)
            assert (jobs, 8 - jobs) == ((stats := await queue.stats()).totals.done, stats.in_progress)
        await queue.end_range(claim)
        await queue.end_range(claim, jobs=3)
        assert 8 == (await queue.stats()).totals.done


@in_virtual_time
async def test_a_range_goes_around_done_jobs_between_jobs_that_came_back_alike():
    async with queue_on(faulty()) as queue:
        ids = await with_rows(queue, 50)
        claim = await claimed(queue, 50)
        returned = ids[:20:5]
        await queue.end_range(claim, returned=returned, jobs=20)
        await queue.end_range(claim, nothing_done=True)
        jobs = await jobs_of(queue, await claimed(queue, 50))
        assert [*returned, *ids[20:]] == [job.id for job in jobs]
        assert {(2, 1)} == {(job.attempt, job.failures) for job in jobs}


@in_virtual_time
async def test_a_range_ends_before_a_job_that_was_tried_less_often():
    async with queue_on(faulty()) as queue:
        ids = await with_rows(queue, 10)
        await queue.end_range(await claimed(queue, 4), returned=ids[:4:2])
        assert ids[:4:2] == [job.id for job in await jobs_of(queue, await claimed(queue, 10))]
        assert ids[4:] == [job.id for job in await jobs_of(queue, await claimed(queue, 10))]


@in_virtual_time
async def test_jobs_of_a_segment_with_very_many_gaps_are_in_no_range_until_it_is_written_anew(monkeypatch):
    monkeypatch.setattr(ranges, "MOST_SPANS", 8)
    async with queue_on(faulty()) as queue:
        ids = await with_rows(queue, 60)
        segments_of(queue).writer.sizes = replace(SIZES, holes=8)
        claim, other = await claimed(queue, 40), await claimed(queue, 10)
        await queue.end_range(claim, returned=ids[:40:2])
        assert await queue.claim_range("t", 10) is None
        [job] = await queue.dequeue("t")
        assert (ids[0], 2, 1) == (job.id, job.attempt, job.failures)
        await queue.end_range(other)
        await _settled(queue)
        assert [(0, ())] == [(each.next, each.taken) for each in (await queue.read_state()).segments.values()]
        jobs = await jobs_of(queue, await claimed(queue, 60))
        assert [*ids[2:40:2], *ids[50:]] == [job.id for job in jobs]
        assert [(2, 1)] * 19 + [(1, 1)] * 10 == [(job.attempt, job.failures) for job in jobs]


@in_virtual_time
async def test_a_kept_job_stays_in_progress_with_a_claim_of_its_own():
    async with queue_on(faulty(), stale_timeout=30) as queue:
        ids = await with_rows(queue, 5)
        claim = await claimed(queue, 5)
        jobs = await jobs_of(queue, claim)
        await queue.cancel(ids[4], running=True)
        await queue.end_range(claim, kept=[ids[1], ids[4]])
        assert (3, 2) == ((stats := await queue.stats()).totals.done, stats.in_progress)
        assert [ids[4]] == [error.job_id for error in await queue.heartbeat_many(jobs[1::3])]
        await queue.nack(jobs[1], error="boom")
        await queue.nack(jobs[4])
        [left] = await queue.dequeue("t", batch_size=9)
        assert (ids[1], 2, 2, "boom") == (left.id, left.attempt, left.failures, left.error)


@in_virtual_time
async def test_cancelled_jobs_of_a_range_are_told_to_the_part_that_has_them():
    async with queue_on(faulty(), stale_timeout=30) as queue:
        ids = await with_rows(queue, 8)
        claim = await claimed(queue, 8)
        for job_id in (ids[1], ids[6]):
            await queue.cancel(job_id, running=True)
        await queue.end_range(claim, jobs=4)  # an ack finishes a cancelled job
        assert [ids[6]] == [error.job_id for error in await queue.heartbeat_many([claim.claim])]
        await queue.end_range(claim, nothing_done=True)
        assert {*ids[4:]} - {ids[6]} == {job.id for job in await queue.dequeue("t", batch_size=9)}


@in_virtual_time
async def test_a_claim_may_ask_for_a_least_number_of_jobs_and_for_payloads_that_are_in_the_segment():
    async with queue_on(faulty()) as queue:
        await with_rows(queue, 5)
        assert await queue.claim_range("t", 9, least=6) is None
        assert 5 == (await claimed(queue, 9)).rows
    async with BrokerQueue(faulty(), clock=VirtualClock(), limits=Limits(hot_bytes=1, object_bytes=100)) as queue:
        queue._engine.segments.writer.sizes = SIZES  # type: ignore[union-attr]
        for _ in range(4):
            await queue.enqueue("t", bytes(1000))
        await with_rows_of_any(queue)
        assert await queue.claim_range("t", 4, inline=True) is None
        assert (await claimed(queue, 4)).rows


@in_virtual_time
async def test_jobs_of_a_range_are_known_after_a_commit_was_undone_that_gave_them_back_and_claimed_them_again():
    async with queue_on(faulty()) as queue:
        ids = await with_rows(queue, 8)
        claim = await claimed(queue, 8)
        await queue.enqueue("t", job_id=ids[3])  # loads its row
        with pytest.raises(ClaimLostError):
            await queue.apply(EndRange(claim, nothing_done=True), ClaimRange("t", 8), Ack(Claim("none", 1)))
        known = await queue.enqueue("t", job_id=ids[3])
        assert (claim.attempt, JobStatus.IN_PROGRESS) == (known.attempt, known.status)
        assert [] == list((await queue.read_state()).jobs)


@in_virtual_time
async def test_wrong_arguments_of_an_end_or_a_read_are_refused_and_the_range_stays_claimed():
    async with queue_on(faulty()) as queue:
        ids = await with_rows(queue, 10)
        claim = await claimed(queue, 8)
        for options, said in [
            ({"failed": []}, "failed takes the error of each job by its id, got list"),
            ({"returned": ids[0]}, "returned takes the ids of jobs, as a list for example, got str"),
            ({"kept": 5}, "kept takes the ids of jobs, as a list for example, got int"),
            ({"returned": [ids[0], b"payload"]}, "returned takes the ids of jobs, and one is of the type bytes"),
        ]:
            with pytest.raises(InvalidJobError, match=f"^{re.escape(said)}$"):
                await queue.end_range(claim, **options)
        with pytest.raises(InvalidJobError, match=r"^pass what claim_range returned, got str$"):
            await jobs_of(queue, "x")
        await queue.end_range(claim, returned=(each for each in ids[:3]))
        assert (5, 5) == ((stats := await queue.stats()).depth, stats.totals.done)
