"""Middleware, the lifespan and context variables of handlers; limits and schedules set when a worker starts."""

import asyncio
import contextvars
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from jqueue import InvalidJobError
from jqueue.domain.errors import StorageError
from jqueue.ports.queue import Capabilities
from jqueue.worker import Context, Discard, Exponential, RunReport, Snooze, Worker
from tests.virtual_world import in_virtual_time
from tests.worker.scenes import broker, only_job, working

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


# Queues with fewer features


class QueueWithout:
    """A queue without some features, which asserts that none of them is requested."""

    def __init__(self, queue, **missing):
        self._queue = queue
        self.capabilities = replace(Capabilities(), **dict.fromkeys(missing, False))
        self.refused = []

    def __getattr__(self, name):
        return getattr(self._queue, name)

    async def heartbeat_many(self, jobs, **options):
        raise AssertionError("it knows no heartbeats")

    async def dequeue(self, *args, **options):
        assert not {"wait", "claim_timeout"} & set(options)
        return await self._queue.dequeue(*args, **options)

    async def apply_each(self, *operations, **options):
        for operation in operations:
            said = {name for name in ("delay", "error") if getattr(operation, name, None) is not None}
            assert not said
            assert not getattr(operation, "dead", False)
            assert getattr(operation, "charge", True)
        return await self._queue.apply_each(*operations, **options)


@in_virtual_time
async def test_a_worker_calls_only_the_features_that_its_queue_has():
    own, done = Worker(claim_timeout=0.05), []

    @own.handler("work")
    async def work() -> None:
        await asyncio.sleep(1)
        done.append(1)
        if done.count(1) == 1:
            raise ValueError

    @own.handler("snoozed")
    async def snoozed() -> None:
        done.append(2)
        if done.count(2) < 3:
            raise Snooze(5)

    @own.handler("discarded", backoff=Exponential())
    async def discarded() -> None:
        raise Discard("never")

    async with broker() as queue:
        limited_queue = QueueWithout(
            queue,
            **dict.fromkeys(["heartbeat", "wait", "claim_timeout", "delay", "errors", "dead_letters", "uncharged"]),
        )
        for handler in (work, snoozed, discarded):
            await queue.enqueue(handler.entrypoint, b"")
        assert RunReport(succeeded=2, failed=1, snoozed=2, dead=1) == await own.run(
            limited_queue, drain=True, signals=False
        )
        assert () == (await queue.read_state()).jobs


@in_virtual_time
async def test_limits_and_schedules_are_refused_by_a_queue_without_them():
    limited, scheduled = Worker(), Worker()

    @limited.handler("work", max_running=1)
    async def work() -> None:
        pass

    @scheduled.cron("0 3 * * *")
    async def nightly() -> None:
        pass

    async with broker() as queue:
        with pytest.raises(InvalidJobError, match="no limits"):
            await limited.run(QueueWithout(queue, limits=1, wait=1, claim_timeout=1), signals=False)
        with pytest.raises(InvalidJobError, match="no schedules"):
            await scheduled.run(QueueWithout(queue, schedules=1, wait=1, claim_timeout=1), signals=False)
