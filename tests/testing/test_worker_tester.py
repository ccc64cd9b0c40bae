"""`WorkerTester` runs a real worker in simulated time until its work is done, and reports each run of a job."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, JobStatus
from jqueue.errors import QueueClosedError
from jqueue.operations import Enqueue
from jqueue.testing import FakeClock, LongestWaits, RecordedError, RunawayError, WorkerTester
from jqueue.worker import BatchContext, Context, Exponential, Rate, RunReport, Snooze, Worker
from jqueue.worker.claiming import LONG_POLL
from tests.virtual_world import in_virtual_time

HOUR = timedelta(hours=1)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def queue(clock):
    return DirectQueue(InMemoryStorage(clock=clock), clock=clock, entropy=LongestWaits())


@pytest.fixture
def tester(queue, clock):
    return WorkerTester(queue, clock)


class Email(BaseModel):
    to: str


async def test_the_report_lists_each_run_with_its_result(queue, tester):
    app = Worker()

    @app.handler("greet")
    async def greet(message: Email) -> str:
        return f"hello {message.to}"

    job = await greet.using(queue).enqueue(Email(to="Ada"))
    report = await tester.run_until_idle(app)
    assert [("greet", job.id, 1, "succeeded", "hello Ada", None)] == list(report)
    assert RunReport(succeeded=1) == report.counts
    assert (1, "1 succeeded", report) == (len(report), str(report), tester.report)
    assert ((), RunReport()) == ((await queue.read_state()).jobs, (await tester.run_until_idle(app)).counts)


async def test_the_report_lists_each_job_of_a_batch_and_its_wait_is_skipped(queue, tester):
    app, sizes = Worker(), []

    @app.handler("double", batch=10, batch_wait=3600, backoff=Exponential(base=3600, cap=36000))
    async def double(numbers: list[int], ctx: BatchContext) -> list[int | Exception]:
        sizes.append(len(numbers))
        return [
            ValueError("odd") if number % 2 and each.attempt == 1 else 2 * number
            for number, each in zip(numbers, ctx, strict=True)
        ]

    first, second = await double.using(queue).enqueue(1), await double.using(queue).enqueue(2)
    bad = await queue.enqueue("double", b"x")
    report = await tester.run_until_idle(app, raise_errors=False)
    ends = [(ran.job_id, ran.attempt, ran.outcome, ran.result) for ran in report]
    assert {(first.id, 1, "failed", None), (second.id, 1, "succeeded", 4), (bad.id, 1, "dead", None)} == set(ends[:3])
    assert [(first.id, 2, "succeeded", 2)] == ends[3:]
    assert {"odd"} == {str(ran.error) for ran in report if ran.outcome == "failed"}
    assert [2, 1] == sizes


async def test_the_error_of_a_dead_job_is_raised_as_its_handler_raised_it(queue, tester):
    app = Worker()

    @app.handler("work", max_attempts=3)
    async def work() -> None:
        raise ZeroDivisionError("the real one")

    await queue.enqueue_many([work.call(), work.call()])
    with pytest.raises(ZeroDivisionError, match="the real one") as caught:
        await tester.run_until_idle(app)
    assert ["work"] == [entry.name for entry in caught.traceback][-1:]
    [note] = caught.value.__notes__
    first = next(ran for ran in tester.report if ran.outcome == "dead")
    assert f"job {first.job_id} (work, attempt 3) is dead" in note
    assert first.error is caught.value
    assert "1 of work" in note
    assert RunReport(failed=4, dead=2) == tester.report.counts


async def test_an_error_from_outside_a_handler_is_a_recorded_error(queue, tester):
    app = Worker()

    @app.handler("typed")
    async def typed(number: int) -> None: ...

    @app.handler("slow", timeout=0.01, max_attempts=1)
    async def slow() -> None:
        await asyncio.Event().wait()

    await queue.enqueue("typed", b"SECRET")
    with pytest.raises(RecordedError) as caught:
        await tester.run_until_idle(app)
    assert "SECRET" not in str(caught.value)
    await slow.using(queue).enqueue()
    with pytest.raises(RecordedError, match=r"timed out after 0.01 s"):
        await tester.run_until_idle(app)


async def test_a_job_that_snoozes_for_ever_ends_the_run_with_an_error(queue, tester):
    app = Worker()

    @app.handler("poll")
    async def poll() -> None:
        raise Snooze(60)

    await poll.using(queue).enqueue()
    with pytest.raises(RunawayError, match="50 times 'poll' snoozed"):
        async with asyncio.timeout(LONG_POLL / 2):  # a claim ends when a job has ended, not when its wait is over
            await tester.run_until_idle(app, max_jobs=50)
    assert RunReport(snoozed=50) == tester.report.counts
    [job] = (await queue.read_state()).jobs
    assert (JobStatus.QUEUED, 0) == (job.status, job.failures)


async def test_cron_entries_fire_only_in_runs_with_a_given_end(queue, clock, tester):
    app = Worker()

    @app.cron("* * * * *")
    async def each_minute() -> None: ...

    @app.handler("work")
    async def work() -> None: ...

    for runs in (2, 3):
        await work.using(queue, delay=48 * HOUR).enqueue()
        [ran] = await tester.run_until_idle(app)
        assert "work" == ran.entrypoint
        assert ["each_minute"] * runs == [ran.entrypoint for ran in await tester.run_until_idle(app, until=60 * runs)]


async def test_a_run_waits_for_rate_limits(queue, clock, tester):
    app, times = Worker(), []
    began = clock.now()

    @app.handler("work", rate=Rate(2, per=60))
    async def work() -> None:
        times.append(clock.now() - began)

    await queue.enqueue_many([work.call() for _ in range(5)])
    await tester.run_until_idle(app)
    assert [0, 0, 60, 60, 120] == [round(time.total_seconds()) for time in times]


async def test_a_run_does_not_wait_for_jobs_that_can_never_start(queue, tester):
    app = Worker()

    @app.handler("paused")
    async def paused() -> None: ...

    @app.handler("keyed")
    async def keyed() -> None: ...

    await queue.enqueue("unknown", b"", delay=60)
    await queue.pause("paused")
    await queue.enqueue("paused", b"", delay=60)
    await queue.enqueue("held", b"", concurrency_key="key")
    await queue.dequeue("held")
    await queue.enqueue("keyed", b"", concurrency_key="key")
    assert 0 == len(await tester.run_until_idle(app))


@in_virtual_time  # the cancel comes with the next heartbeat
async def test_a_job_cancelled_or_lost_while_it_runs_is_reported_as_such():
    clock, app, freed = FakeClock(), Worker(), []
    queue = DirectQueue(InMemoryStorage(clock=clock), clock=clock)
    tester = WorkerTester(queue, clock)

    @app.handler("cancelled")
    async def cancelled(ctx: Context) -> None:
        await queue.cancel(ctx.job.id, running=True)
        await asyncio.Event().wait()

    @app.handler("lost")
    async def lost(ctx: Context) -> None:
        if ctx.attempt == 1:
            await queue.requeue_stale(0)
        freed.append(ctx.attempt)

    await cancelled.using(queue).enqueue()
    assert ["cancelled"] == (await tester.run_until_idle(app)).outcomes
    await lost.using(queue).enqueue()
    assert ["lost", "succeeded"] == (await tester.run_until_idle(app)).outcomes
    assert [1, 2] == freed


async def test_a_broker_queue_that_is_not_open_is_opened(clock):
    queue = BrokerQueue(InMemoryStorage(clock=clock), clock=clock)
    app = Worker()

    @app.handler("work")
    async def work() -> None: ...

    async with queue:
        await queue.enqueue_many([Enqueue("work", b"", delay=60)] * 3)
        assert 3 == len(await WorkerTester(queue, clock).run_until_idle(app))
        await queue.enqueue_many([Enqueue("work", b"")] * 3)
    assert 3 == len(await WorkerTester(queue, clock).run_until_idle(app))
    with pytest.raises(QueueClosedError):
        await queue.enqueue("work", b"")


def test_a_queue_on_another_clock_is_refused(clock):
    with pytest.raises(ValueError, match="the queue has another clock"):
        WorkerTester(DirectQueue(InMemoryStorage(clock=clock)), clock)
    with pytest.raises(ValueError, match="the storage has another clock"):
        WorkerTester(DirectQueue(InMemoryStorage(), clock=clock), clock)
    nothing: Any = object()
    with pytest.raises(TypeError, match="needs a queue"):
        WorkerTester(nothing, clock)
