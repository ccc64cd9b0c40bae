"""Batch handlers: how batches are filled, what their handlers may return, and the fate of each job."""

import asyncio
from datetime import datetime
from typing import Any

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.domain.errors import InvalidJobError, StorageError
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job
from jqueue.operations import Ack, Enqueue
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import BatchContext, Context, RunReport, Worker
from jqueue.worker.held_jobs import HeldJob, Outcome, Work
from jqueue.worker.run_state import RunState
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import (
    COMPLETED,
    DEAD,
    IN_PROGRESS,
    LONG,
    QUEUED,
    CountingStorage,
    broker,
    direct,
    until,
    working,
)


def recording(worker, entrypoint="work", **options):
    """Register a batch handler that records the time and the payloads of each call."""
    calls = []

    async def work(payloads: list[bytes]) -> None:
        calls.append((round(now(), 3), payloads))

    worker.handler(entrypoint, **options)(work)
    return calls


async def enqueue(queue, *payloads, entrypoint="work"):
    return await queue.enqueue_many([Enqueue(entrypoint, payload) for payload in payloads])


async def drained(worker, queue):
    return await worker.run(queue, drain=True, signals=False)


# Filling batches


@in_virtual_time
async def test_a_batch_takes_what_is_ready_and_does_not_wait():
    worker = Worker()
    calls = recording(worker, batch=3)
    async with broker() as queue:
        async with working(worker, queue):
            await asyncio.sleep(5)
            await queue.enqueue("work", b"1")
            await until(lambda: calls)
        assert [(5, [b"1"])] == calls


@in_virtual_time
async def test_a_batch_waits_for_more_jobs_until_its_time_is_over():
    worker = Worker()
    calls = recording(worker, batch=3, batch_wait=10)
    async with broker() as queue, working(worker, queue):
        await queue.enqueue("work", b"1")
        await asyncio.sleep(4)
        await queue.enqueue("work", b"2")
        await until(lambda: calls)
    assert [(10, [b"1", b"2"])] == calls


@in_virtual_time
async def test_a_batch_that_is_full_waits_no_longer():
    worker = Worker()
    calls = recording(worker, batch=3, batch_wait=10)
    async with broker() as queue, working(worker, queue):
        await enqueue(queue, b"1", b"2")
        await asyncio.sleep(4.5)
        await enqueue(queue, b"3", b"4")
        await until(lambda: len(calls) == 2)
    assert [b"1", b"2", b"3"] == calls[0][1]
    assert calls[0][0] <= 5
    assert [b"4"] == calls[1][1]


@in_virtual_time
async def test_a_draining_worker_does_not_wait_for_fuller_batches():
    worker = Worker()
    calls = recording(worker, batch=3, batch_wait=10)
    async with broker() as queue:
        await enqueue(queue, b"1", b"2", b"3", b"4")
        assert RunReport(succeeded=4) == await drained(worker, queue)
    assert [(0, [b"1", b"2", b"3"]), (0, [b"4"])] == calls


@in_virtual_time
async def test_other_entrypoints_go_on_while_a_batch_waits():
    worker, done = Worker(concurrency=2), []
    calls = recording(worker, batch=3, batch_wait=10)

    @worker.handler("other")
    async def other() -> None:
        done.append(now())

    async with direct() as queue, working(worker, queue):
        await queue.enqueue("work", b"1")
        await asyncio.sleep(2)
        await queue.enqueue("other", b"")
        await until(lambda: done)
        await until(lambda: calls)
        await queue.enqueue("work", b"2")  # the worker claims its jobs again
        await until(lambda: len(calls) == 2)
    assert done[0] < 4
    assert [[b"1"], [b"2"]] == [payloads for _, payloads in calls]


@in_virtual_time
async def test_a_batch_beside_other_handlers_is_claimed_in_two_commits():
    worker, storage = Worker(concurrency=1), CountingStorage()
    calls = recording(worker, batch=500)
    worker.handler("other")(lambda: None)
    async with broker(storage) as queue:
        await enqueue(queue, *[b""] * 500)
        before = storage.writes
        await drained(worker, queue)
        assert 3 + 1 == storage.writes - before  # two claims, one for all acks, one to remove the worker's record
    assert [500] == [len(payloads) for _, payloads in calls]


@in_virtual_time
async def test_a_batch_alone_is_claimed_in_one_commit_and_acked_with_the_next_claim():
    worker, storage = Worker(concurrency=1), CountingStorage()
    recording(worker, batch=100)
    async with broker(storage) as queue:
        await enqueue(queue, *[b""] * 500)
        before = storage.writes
        await drained(worker, queue)
        assert 6 + 1 == storage.writes - before  # the last one removes the worker's record


@in_virtual_time
async def test_small_batches_are_claimed_together_for_all_free_slots():
    worker, storage = Worker(concurrency=50), CountingStorage()
    calls = recording(worker, batch=10)
    async with broker(storage) as queue:
        await enqueue(queue, *[b""] * 50)
        before = storage.writes
        await drained(worker, queue)
        assert 2 + 1 == storage.writes - before  # the last one removes the worker's record
    assert [10] * 5 == [len(payloads) for _, payloads in calls]


@in_virtual_time
async def test_a_batch_larger_than_one_dequeue_is_filled_by_several():
    worker = Worker(concurrency=1)
    calls = recording(worker, batch=25)
    async with broker(limits=Limits(batch_size=10)) as queue:
        for _ in range(3):
            await enqueue(queue, *[b""] * 10)
        assert RunReport(succeeded=30) == await drained(worker, queue)
    assert [25, 5] == [len(payloads) for _, payloads in calls]


@in_virtual_time
async def test_a_batch_whose_further_claims_fail_runs_with_the_jobs_that_it_has():
    class FailsForBatches(BrokerQueue):
        async def dequeue(self, entrypoint=None, *, batch_size=1, **options):
            if entrypoint == "work":
                raise StorageError("on purpose")
            return await super().dequeue(entrypoint, batch_size=batch_size, **options)

    worker = Worker(concurrency=2)
    calls = recording(worker, batch=10)
    worker.handler("other")(lambda: None)
    async with FailsForBatches(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock()) as queue:
        await enqueue(queue, *[b""] * 4)
        assert RunReport(succeeded=4) == await drained(worker, queue)
    assert [2, 2] == [len(payloads) for _, payloads in calls]


@in_virtual_time
async def test_no_batch_has_more_jobs_than_the_entrypoint_may_run():
    worker, sizes = Worker(), []

    @worker.handler("work", batch=10, max_running=3)
    async def work(payloads: list[bytes]) -> None:
        sizes.append(len(payloads))
        await asyncio.sleep(1)

    async with broker() as queue:
        await enqueue(queue, *[b""] * 7)
        async with working(worker, queue):
            await until(lambda: sum(sizes) == 7)
    assert 3 == max(sizes)


# Results of handlers


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([1], "ValueError: the batch handler returned 1 results for 2 jobs: return one for each"),
        (3, "TypeError: a batch handler must return None or a list with one result for each job, got int"),
        ("ab", "TypeError: a batch handler must return None or a list with one result for each job, got str"),
    ],
)
@in_virtual_time
async def test_a_handler_that_returns_no_list_of_results_fails_all_jobs(value, error):
    worker = Worker()

    @worker.handler("work", batch=10, backoff=LONG)
    async def work(payloads: list[bytes]):
        return value

    async with broker() as queue:
        await enqueue(queue, b"1", b"2")
        assert RunReport(failed=2) == await drained(worker, queue)
        assert [error] * 2 == [job.error for job in (await queue.read_state()).jobs]


@in_virtual_time
async def test_a_result_that_cannot_be_kept_fails_its_job_alone():
    worker = Worker()

    @worker.handler("work", batch=10, keep_result=60)
    async def work(numbers: list[int]) -> list[Any]:
        return [None if number else object() for number in numbers]

    async with broker() as queue:
        await enqueue(queue, b"0", b"1")
        assert RunReport(succeeded=1, dead=1) == await drained(worker, queue)


@in_virtual_time
async def test_the_handler_is_not_called_if_no_payload_validates():
    worker, calls = Worker(), []

    @worker.handler("work", batch=10)
    async def work(numbers: list[int]) -> None:
        calls.append(numbers)

    async with broker() as queue:
        await enqueue(queue, b"x", b"y")
        assert RunReport(dead=2) == await drained(worker, queue)
    assert [] == calls


@in_virtual_time
async def test_jobs_without_attempts_left_are_dead_without_a_run():
    worker = Worker()
    calls = recording(worker, batch=10, max_attempts=2)
    async with broker() as queue:
        await enqueue(queue, b"spent")
        for _ in range(2):
            await queue.dequeue("work")
            await queue.requeue_stale(0)
        await enqueue(queue, b"new")
        assert RunReport(succeeded=1, dead=1) == await drained(worker, queue)
    assert [[b"new"]] == [payloads for _, payloads in calls]


# The end of calls


@in_virtual_time
async def test_a_batch_that_takes_too_long_times_out_as_a_whole():
    worker, deadlines = Worker(), list[datetime | None]()

    @worker.handler("work", batch=10, timeout=3, backoff=LONG)
    async def work(ctx: BatchContext) -> None:
        deadlines.extend({ctx.deadline, *(each.deadline for each in ctx)})
        await asyncio.sleep(60)

    async with broker() as queue:
        await enqueue(queue, b"1", b"2")
        assert RunReport(failed=2) == await drained(worker, queue)
        assert ["timed out after 3 s"] * 2 == [job.error for job in (await queue.read_state()).jobs]
    assert 1 == len(deadlines)


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
async def test_a_handler_is_stopped_once_no_job_of_its_batch_is_left():
    worker, stopped = Worker(claim_timeout=3), []

    @worker.handler("work", batch=2)
    async def work(ctx: BatchContext) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            stopped.append(([each.is_cancelled for each in ctx], ctx.is_cancelled))

    async with broker() as queue, working(worker, queue) as task:
        jobs = await enqueue(queue, b"1", b"2")
        await asyncio.sleep(1)
        await queue.cancel(jobs[0].id, running=True)
        await asyncio.sleep(3)
        assert [] == stopped
        await queue.cancel(jobs[1].id, running=True)
        await until(lambda: stopped)
    assert [([True, True], True)] == stopped
    assert RunReport(cancelled=2) == task.result()


@in_virtual_time
async def test_a_cancelled_job_counts_as_running_until_its_batch_has_ended():
    worker = Worker(claim_timeout=3, cancel_grace=5)

    @worker.handler("work", batch=2)
    async def work(payloads: list[bytes]) -> None:
        await asyncio.sleep(600)

    async with broker() as queue:
        async with working(worker, queue) as task:
            jobs = await enqueue(queue, b"1", b"2")
            await asyncio.sleep(1)
            await queue.cancel(jobs[0].id, running=True)
            await asyncio.sleep(500)
            assert [IN_PROGRESS, IN_PROGRESS] == [job.status for job in (await queue.read_state()).jobs]
            await asyncio.sleep(110)
            assert () == (await queue.read_state()).jobs
        assert RunReport(succeeded=1, cancelled=1) == task.result()


@in_virtual_time
async def test_the_outcome_of_a_lost_job_of_a_batch_is_not_sent():
    worker = Worker(claim_timeout=3)

    @worker.handler("work", batch=2)
    async def work(payloads: list[bytes]) -> None:
        await asyncio.sleep(5)

    async with broker() as queue:
        async with working(worker, queue) as task:
            [first, _] = await enqueue(queue, b"1", b"2")
            await asyncio.sleep(1)
            job = (await queue.read_state()).find(first.id)
            await queue.nack(job.claim, delay=600)  # as a thief might
            await asyncio.sleep(10)
        assert RunReport(succeeded=1, lost=1) == task.result()
        assert [QUEUED] == [left.status for left in (await queue.read_state()).jobs]


def test_outcomes_of_a_batch_that_must_be_sent_again_take_one_slot():
    state, work = RunState(2), Work(None, None)  # type: ignore[arg-type]
    state.hold(work)
    jobs = [Job(entrypoint="work", payload=b"") for _ in range(3)]
    for job in jobs:
        state.hold(work)
        state.outcomes.append(Outcome(HeldJob(job, work, 0.0), "succeeded", Ack(job)))
    assert 1 == state.free
    state.let_go(work)  # its handler has ended
    assert 1 == state.free
    [first, *others] = state.take_outcomes()
    assert 2 == state.free
    state.put_back([first])
    state.put_back(others)
    assert 1 == state.free
    state.take_outcomes()
    assert 2 == state.free


@in_virtual_time
async def test_middleware_wraps_a_batch_once():
    worker, seen = Worker(), []
    recording(worker, batch=10)

    @worker.middleware
    async def watch(ctx, call_next):
        seen.append((type(ctx), ctx.entrypoint, len(ctx.jobs)))
        return await call_next()

    @worker.handler("single")
    async def single() -> None: ...

    async with broker() as queue:
        await enqueue(queue, b"1", b"2")
        await drained(worker, queue)
        await enqueue(queue, b"", entrypoint="single")
        await drained(worker, queue)
    assert [(BatchContext, "work", 2), (Context, "single", 1)] == seen


# Declaring


def test_batch_handlers_that_take_or_return_no_list_are_refused():
    worker = Worker()

    async def takes_one(payload: bytes) -> None: ...
    async def returns_one(payloads: list[bytes]) -> int:
        return len(payloads)

    async def takes_context(payloads: list[bytes], it: Context) -> None: ...
    async def takes_batch_context(payload: bytes, it: BatchContext) -> None: ...

    with pytest.raises(TypeError, match=r"annotate its parameter 'payload' as a list .* as in `payload: list"):
        worker.handler("a", batch=2)(takes_one)
    with pytest.raises(TypeError, match="must return None, or a list with one result for each job"):
        worker.handler("b", batch=2)(returns_one)
    with pytest.raises(TypeError, match="annotate its parameter 'it' as BatchContext: it takes a batch"):
        worker.handler("c", batch=2)(takes_context)
    with pytest.raises(TypeError, match=r"annotate its parameter 'it' as Context: .* unless batch=\.\.\. is given"):
        worker.handler("d")(takes_batch_context)
    assert {} == worker.handlers


@pytest.mark.parametrize("options", [{"batch": 0}, {"batch": 10_001}, {"batch": True}, {"batch_wait": 3}])
def test_a_size_or_a_wait_that_makes_no_sense_is_refused(options):
    with pytest.raises(InvalidJobError, match="batch"):
        Worker().handler("work", **options)


@pytest.mark.parametrize(("name", "ours"), [("batch_size", "batch"), ("flush_interval", "batch_wait")])
def test_the_names_of_other_systems_are_known(name, ours):
    handler: Any = Worker().handler
    with pytest.raises(TypeError, match=f"it is '{ours}' here"):
        handler("work", **{name: 3})


@in_virtual_time
async def test_a_batch_handler_enqueues_and_reads_the_results_of_single_jobs():
    worker = Worker()

    @worker.handler("work", batch=10, keep_result=60)
    async def work(numbers: list[int]) -> list[tuple[int, str] | ValueError] | None:
        return [(number, "x") for number in numbers]

    async with broker() as queue:
        job = await work.enqueue(queue, 3)
        await queue.apply(work.operation(4))
        await drained(worker, queue)
        assert (3, "x") == await work.result(queue, job)
        assert [COMPLETED] * 2 == [each.status for each in (await queue.read_state()).jobs]
    several: Any = [3]
    with pytest.raises(InvalidJobError):
        work.operation(several)


def test_a_scheduled_batch_handler_has_jobs_with_one_payload():
    worker = Worker()

    @worker.cron("0 3 * * *", payload=7, batch=10)
    async def work(numbers: list[int]) -> None: ...

    assert [b"7"] == [entry.payload for entry in worker.crons]


@in_virtual_time
async def test_an_exception_in_a_single_handlers_list_is_only_a_value():
    worker = Worker()

    @worker.handler("work")
    async def work() -> list[object]:
        return [ValueError()]

    async with broker() as queue:
        await enqueue(queue, b"")
        assert RunReport(succeeded=1) == await drained(worker, queue)
        assert DEAD not in {job.status for job in (await queue.read_state()).jobs}
