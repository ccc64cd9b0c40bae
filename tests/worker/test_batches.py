"""Batch handlers: how batches are filled, what their handlers may return, and the fate of each job."""

import asyncio

import pytest

from jqueue.operations import Enqueue
from jqueue.worker import BatchContext, RunReport, Worker
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import LONG, QUEUED, broker, drained, working


def recording(worker, entrypoint="work", **options):
    """Register a batch handler that records the time and the payloads of each call."""
    calls = []

    async def work(payloads: list[bytes]) -> None:
        calls.append((round(now(), 3), payloads))

    worker.handler(entrypoint, **options)(work)
    return calls


async def enqueue(queue, *payloads, entrypoint="work"):
    return await queue.enqueue_many([Enqueue(entrypoint, payload) for payload in payloads])


# Filling batches


@pytest.mark.parametrize(
    ("wait", "times", "calls"),
    [
        (0, [0, 4], [(0, [b"0"]), (4, [b"1"])]),  # a batch takes what is ready
        (10, [0, 4], [(10, [b"0", b"1"])]),  # or waits for more
        (10, [0, 4, 4], [(4, [b"0", b"1", b"2"])]),  # until it is full
    ],
)
@in_virtual_time
async def test_a_batch_waits_only_as_long_as_its_handler_says_or_until_it_is_full(wait, times, calls):
    worker = Worker()
    seen = recording(worker, batch=3, **({"batch_wait": wait} if wait else {}))
    async with broker() as queue, working(worker, queue):
        for number, time in enumerate(times):
            await asyncio.sleep(time - now())
            await queue.enqueue("work", b"%d" % number)
        await asyncio.sleep(20)
    assert [payloads for _, payloads in calls] == [payloads for _, payloads in seen]
    assert all(at <= time <= at + 1 for (at, _), (time, _) in zip(calls, seen, strict=True))


@in_virtual_time
async def test_a_draining_worker_does_not_wait_for_fuller_batches():
    worker = Worker()
    calls = recording(worker, batch=3, batch_wait=10)
    async with broker() as queue:
        await enqueue(queue, b"1", b"2", b"3", b"4")
        assert RunReport(succeeded=4) == await drained(worker, queue)
    assert [(0, [b"1", b"2", b"3"]), (0, [b"4"])] == calls


@in_virtual_time
async def test_no_batch_has_more_jobs_than_the_entrypoint_may_run():
    worker = Worker()
    calls = recording(worker, batch=10, max_running=3)
    async with broker() as queue:
        await enqueue(queue, *[b""] * 7)
        assert RunReport(succeeded=7) == await drained(worker, queue)
    assert 3 == max(len(payloads) for _, payloads in calls)


# The end of calls


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([1], "ValueError: the batch handler returned 1 results for 2 jobs: return one for each"),
        ("ab", "TypeError: a batch handler must return None or a list with one result for each job, got str"),
        (None, "timed out after 3 s"),
    ],
)
@in_virtual_time
async def test_a_call_that_takes_too_long_or_returns_no_list_of_results_fails_all_jobs(value, error):
    worker = Worker()

    @worker.handler("work", batch=10, backoff=LONG, timeout=3)
    async def work(payloads: list[bytes], ctx: BatchContext):
        assert 1 == len({ctx.deadline, *(each.deadline for each in ctx)})
        await asyncio.sleep(0 if value else 60)
        return value

    async with broker() as queue:
        await enqueue(queue, b"1", b"2")
        assert RunReport(failed=2) == await drained(worker, queue)
        assert [error] * 2 == [job.error for job in (await queue.read_state()).jobs]


@in_virtual_time
async def test_a_worker_that_is_stopped_hands_back_a_batch_that_still_waits_for_jobs():
    worker = Worker()
    calls = recording(worker, batch=3, batch_wait=1000)
    async with broker() as queue:
        await enqueue(queue, b"1", b"2")
        async with working(worker, queue) as task:
            await asyncio.sleep(5)
        assert RunReport(handed_back=2) == task.result()
        assert [(QUEUED, 0)] * 2 == [(job.status, job.failures) for job in (await queue.read_state()).jobs]
        assert now() < 6
    assert [] == calls


@in_virtual_time
async def test_a_batch_goes_on_without_a_job_that_is_lost_and_is_stopped_once_it_holds_none():
    worker, stopped = Worker(claim_timeout=3), []

    @worker.handler("work", batch=2)
    async def work(payloads: list[bytes], ctx: BatchContext) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            stopped.append(ctx.is_cancelled)

    async with broker() as queue, broker(queue.storage) as other:
        await enqueue(queue, b"1", b"2")
        async with working(worker, queue) as task:
            for before in (0, 1):
                await asyncio.sleep(10)
                held = (await other.read_state()).in_progress_jobs()
                assert ([], 2 - before) == (stopped, len(held))
                await other.nack(held[0], delay=6000)
            await asyncio.sleep(10)
            assert [True] == stopped
    assert RunReport(lost=2) == task.result()
