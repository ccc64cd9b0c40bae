"""Middleware, the lifespan and context variables of handlers; limits and schedules set when a worker starts."""

import asyncio
import contextvars
import threading
from contextlib import asynccontextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any

import pytest

from jqueue import InvalidJobError
from jqueue.domain.errors import StorageError
from jqueue.worker import Context, Rate, RunReport, Worker
from tests.virtual_world import in_virtual_time
from tests.worker.scenes import broker, only_job, until, working

number = contextvars.ContextVar("number", default=0)


@in_virtual_time
async def test_middleware_wraps_the_handler_with_the_first_one_outermost():
    worker = Worker()
    events: list[Any] = []

    @worker.middleware
    async def outer(ctx, call_next):
        events.append(("outer", ctx.entrypoint))
        try:
            return await call_next()
        finally:
            events.append("outer again")

    @worker.middleware
    async def inner(ctx, call_next):
        events.append("inner")
        value = await call_next()
        events.append(("inner again", value))
        return value + 1

    @worker.handler("work", keep_result=60)
    async def work(payload: int) -> int:
        events.append(("work", payload))
        return payload * 2

    async with broker() as queue:
        job = await work.enqueue(queue, 5)
        await worker.run(queue, drain=True, signals=False)
        assert 11 == await work.result(queue, job, timeout=1)
    assert [("outer", "work"), "inner", ("work", 5), ("inner again", 10), "outer again"] == events


@in_virtual_time
async def test_thread_middleware_runs_in_the_thread_of_each_handler_without_async():
    worker, local = Worker(concurrency=1), threading.local()
    events: list[Any] = []

    @worker.thread_middleware
    def fresh(ctx, call_next):
        local.connection = "fresh"
        events.append(("begins", ctx.entrypoint))
        try:
            return call_next()
        finally:
            events.append("ends")

    @worker.thread_middleware
    def doubled(ctx, call_next):
        return 2 * call_next()

    @worker.handler("work", keep_result=60, max_attempts=1)
    def work(number: int) -> int:
        connection, local.connection = local.connection, "broken"
        events.append(connection)
        return number if number else 1 // number

    @worker.handler("on_the_loop")
    async def on_the_loop() -> None:
        events.append("on the loop")

    async with broker() as queue:
        jobs = [await work.enqueue(queue, number) for number in (0, 5)]
        await on_the_loop.enqueue(queue)
        assert RunReport(succeeded=2, dead=1) == await worker.run(queue, drain=True, signals=False)
        assert 10 == await work.result(queue, jobs[1], timeout=1)
    assert [("begins", "work"), "fresh", "ends"] * 2 + ["on the loop"] == events

    with pytest.raises(TypeError, match="without async"):
        worker.thread_middleware(on_the_loop.function)  # type: ignore[type-var]


@in_virtual_time
async def test_an_exception_of_middleware_fails_the_job():
    worker = Worker()

    @worker.middleware
    async def refuse(ctx, call_next):
        raise PermissionError("not on a sunday")

    @worker.handler("work", max_attempts=1)
    async def work() -> None:
        raise AssertionError

    async with broker() as queue:
        await work.enqueue(queue)
        assert RunReport(dead=1) == await worker.run(queue, drain=True, signals=False)
        assert "PermissionError: not on a sunday" == (await only_job(queue)).error.partition(" (")[0]


@in_virtual_time
async def test_the_value_that_the_lifespan_yields_is_given_to_handlers_as_resources():
    events = []

    worker = Worker()

    @worker.lifespan
    @asynccontextmanager
    async def resources():
        events.append("open")
        yield {"db": "a database"}
        events.append("closed")

    @worker.handler("work")
    async def work(ctx: Context) -> None:
        events.append(ctx.resources["db"])

    async with broker() as queue:
        await work.enqueue(queue)
        await worker.run(queue, drain=True, signals=False)
    assert ["open", "a database", "closed"] == events


@in_virtual_time
async def test_a_lifespan_that_fails_at_the_start_ends_the_worker_before_any_claim():
    @asynccontextmanager
    async def lifespan():
        raise ConnectionError("no database")
        yield

    worker = Worker(lifespan=lifespan)

    @worker.handler("work")
    async def work() -> None:
        raise AssertionError

    async with broker() as queue:
        await work.enqueue(queue)
        with pytest.raises(ConnectionError, match="no database"):
            await worker.run(queue, signals=False)
        assert 0 == (await only_job(queue)).attempt


@in_virtual_time
async def test_a_lifespan_error_at_the_end_is_raised_after_all_outcomes_are_written():
    @asynccontextmanager
    async def lifespan():
        yield
        raise ConnectionError("the database is gone")

    worker = Worker(lifespan=lifespan)

    @worker.handler("work")
    async def work() -> None:
        return

    async with broker() as queue:
        await work.enqueue(queue)
        with pytest.raises(ConnectionError, match="is gone"):
            await worker.run(queue, drain=True, signals=False)
        assert () == (await queue.read_state()).jobs


def test_a_second_lifespan_is_refused():
    worker = Worker(lifespan=nullcontext)
    with pytest.raises(InvalidJobError):
        worker.lifespan(nullcontext)


@pytest.mark.parametrize("kind", ["async", "thread"])
@in_virtual_time
async def test_each_job_has_its_own_context_variables(kind):
    worker, seen = Worker(), []

    def note(payload: int) -> None:
        seen.append(number.get())
        number.set(payload)

    async def work(payload: int) -> None:
        note(payload)

    handler = worker.handler("work")(work if kind == "async" else note)
    number.set(-1)
    async with broker() as queue:
        await queue.enqueue_many([handler.operation(value) for value in range(1, 30)])
        await worker.run(queue, drain=True, signals=False)
    assert [-1] * 29 == seen
    assert -1 == number.get()


@in_virtual_time
async def test_max_running_is_set_at_the_start_and_kept():
    worker = Worker(concurrency=10)
    running = most = 0

    @worker.handler("work", max_running=2)
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    async with broker() as queue, working(worker, queue) as task:
        await queue.enqueue_many([work.operation() for _ in range(8)])
        await until(lambda: running == 0 and most > 0 and not task.done())
        await asyncio.sleep(10)
        worker.stop()
        assert RunReport(succeeded=8) == await task
    assert 2 == most


@in_virtual_time
async def test_a_rate_is_set_at_the_start_and_kept():
    worker, times = Worker(concurrency=10), []

    @worker.handler("work", rate=Rate(3, per=60))
    async def work() -> None:
        times.append(asyncio.get_running_loop().time())

    async with broker() as queue, working(worker, queue):
        await queue.enqueue_many([work.operation() for _ in range(7)])
        await asyncio.sleep(50)
        assert 3 == len(times)
        await asyncio.sleep(150)
        assert 7 == len(times)
    assert times[3] - times[0] >= 60


@in_virtual_time
async def test_a_cron_handler_is_scheduled_at_the_start_and_runs_when_due():
    worker, fired = Worker(), []

    @worker.cron("0 3 * * *", timezone="Europe/Berlin", payload={"full": True}, unique_key="backup", max_attempts=2)
    async def nightly(options: dict[str, bool], ctx: Context) -> None:
        fired.append((options, ctx.headers["jqueue-scheduled-for"]))

    async with broker() as queue, working(worker, queue):
        await asyncio.sleep(3 * 3600)
        [schedule] = await queue.schedules()
        assert ("nightly", "0 3 * * *", "Europe/Berlin", 2, "backup") == (
            schedule.name,
            schedule.cron,
            schedule.timezone,
            schedule.max_attempts,
            schedule.unique_key,
        )
    assert [({"full": True}, datetime(2026, 1, 1, 2, tzinfo=UTC).isoformat())] == fired


@in_virtual_time
async def test_two_workers_with_one_schedule_run_each_occurrence_once():
    fired = []

    def made():
        worker = Worker()

        @worker.cron("*/10 * * * *", name="often")
        async def tick() -> None:
            fired.append(1)

        return worker

    async with broker() as queue, broker(queue.storage) as other, working(made(), queue), working(made(), other):
        await asyncio.sleep(3605)
    assert 6 == len(fired)


def test_an_invalid_cron_handler_is_refused_when_decorated():
    with pytest.raises(InvalidJobError, match="not a cron expression"):

        @Worker().cron("at three")
        async def nightly() -> None:
            pass

    with pytest.raises(InvalidJobError, match="takes a payload, but none was given"):

        @Worker().cron("0 3 * * *")
        async def weekly(payload: int) -> None:
            pass


@in_virtual_time
async def test_a_limit_that_cannot_be_set_at_the_start_is_set_later():
    worker, done = Worker(), []

    @worker.handler("work", max_running=3)
    async def work() -> None:
        done.append(1)

    async with broker() as queue:
        errors, real = [StorageError("down")] * 3, queue.limit

        async def limit(*args, **options):
            if errors:
                raise errors.pop()
            return await real(*args, **options)

        queue.limit = limit
        await work.enqueue(queue)
        assert RunReport(succeeded=1) == await worker.run(queue, drain=True, signals=False)
    assert not errors


@in_virtual_time
async def test_stopping_during_the_start_ends_the_worker():
    worker = Worker()

    @worker.handler("work", max_running=3)
    async def work() -> None:
        raise AssertionError

    async with broker() as queue:

        async def limit(*args, **options):
            raise StorageError("down")

        queue.limit = limit
        async with working(worker, queue) as task:
            await asyncio.sleep(20)
            worker.stop()
            assert RunReport() == await task


@pytest.mark.parametrize("phase", ["opening", "closing"])
@in_virtual_time
async def test_a_worker_with_a_hanging_lifespan_can_be_stopped(phase):
    worker, reached = Worker(grace=5), asyncio.Event()

    @worker.lifespan
    @asynccontextmanager
    async def resources():
        for here in ("opening", "closing"):
            if here == phase:
                reached.set()
                await asyncio.sleep(10**6)
            if here == "opening":
                yield

    @worker.handler("work")
    async def work() -> None: ...

    async with broker() as queue:
        task = asyncio.create_task(worker.run(queue, signals=False))
        if phase == "closing":
            await asyncio.sleep(1)
            worker.stop()
        await reached.wait()
        worker.stop()
        assert RunReport() == await asyncio.wait_for(task, 60)
