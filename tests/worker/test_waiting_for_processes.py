"""Waiting for a free process does not count towards the timeout of a job."""

import asyncio

import pytest

from jqueue.worker import Worker
from jqueue.worker.calls import ProcessCall
from jqueue.worker.job_runner import JobRunner
from jqueue.worker.run_state import RunState
from tests.virtual_world import in_virtual_time, now
from tests.worker.scenes import broker


class OneSlowProcess:
    """A pool of one process that takes an hour to begin a job and two seconds to run it."""

    def __init__(self):
        self.turn = asyncio.Semaphore(1)
        self.done = 0

    async def call(self, handler, jobs, running):
        running(False)
        await asyncio.sleep(3600)
        running(True)
        await asyncio.sleep(2)
        self.done += 1


async def begin_four_jobs(queue, process, middlewares=()):
    """Begin four jobs with a timeout of three seconds on one process. Returns the worker's parts that hold them."""
    handler = Worker().handler("work", process=True, timeout=3)(lambda: None)
    await queue.enqueue_many([handler.operation()] * 4)
    state = RunState(4)
    job_runner = JobRunner(
        queue,
        state,
        {"work": (handler, ProcessCall(handler, middlewares, process), True)},
        clock=queue.options.clock,
        entropy=queue.options.entropy,
        resources=None,
        cancel_grace=5,
        interrupt=lambda _: False,
    )
    jobs = await queue.dequeue("work", batch_size=4)
    job_runner.begin(jobs)
    return state, job_runner, sorted(state.held, key=lambda held: jobs.index(held.job))


@in_virtual_time
async def test_the_timeout_of_a_process_handler_counts_from_the_start_of_its_process():
    deadlines = []

    async def watched(ctx, call_next):
        await call_next()
        deadlines.append((ctx.deadline - queue.options.clock.now()).total_seconds())

    async with broker() as queue:
        state, _, helds = await begin_four_jobs(queue, OneSlowProcess(), [watched])
        await asyncio.wait([held.work.task for held in helds])
        assert ["succeeded"] * 4 == [outcome.kind for outcome in state.outcomes]
    assert [1, 1, 1, 1] == [round(left, 3) for left in deadlines]
    assert 4 * 3602 == round(now())


@in_virtual_time
async def test_a_process_handler_that_runs_too_long_times_out():
    class Slower(OneSlowProcess):
        async def call(self, handler, jobs, running):
            await super().call(handler, jobs, running)
            await asyncio.sleep(2)

    async with broker() as queue:
        state, _, helds = await begin_four_jobs(queue, Slower())
        await asyncio.wait([held.work.task for held in helds])
        assert ["timed out after 3 s"] * 4 == [outcome.operation.error for outcome in state.outcomes]


@in_virtual_time
async def test_middleware_that_hangs_before_a_process_handler_times_out():
    async def hanging(ctx, call_next):
        await asyncio.sleep(600)

    async with broker() as queue:
        state, _, helds = await begin_four_jobs(queue, OneSlowProcess(), [hanging])
        await asyncio.wait([held.work.task for held in helds])
        assert ["timed out after 3 s"] * 4 == [outcome.operation.error for outcome in state.outcomes]
        assert 4 * 3 == round(now())


@in_virtual_time
@pytest.mark.parametrize(
    ("reason", "kind", "charge"), [("stop", "handed_back", False), ("cancelled", "cancelled", True)]
)
async def test_a_job_stopped_while_it_waits_for_a_process_ends_at_once(reason, kind, charge):
    async with broker() as queue:
        process = OneSlowProcess()
        state, job_runner, [first, *others] = await begin_four_jobs(queue, process)
        await asyncio.sleep(1)
        for held in others:
            job_runner.stop(held, reason)
        await asyncio.wait([held.work.task for held in others])
        assert 1 == round(now(), 3)
        assert [(kind, charge)] * 3 == [(outcome.kind, outcome.operation.charge) for outcome in state.outcomes]
        await first.work.task
        assert (1, "succeeded") == (process.done, state.outcomes[-1].kind)
