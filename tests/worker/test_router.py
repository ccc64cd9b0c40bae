"""Routers: handlers, cron entries and middleware of a module, which workers include."""

import threading
from typing import Any

import pytest

from jqueue import InvalidJobError
from jqueue.worker import Router, RunReport, Worker
from tests.worker.scenes import broker, drained

pytestmark = pytest.mark.virtual_time

AnyRouter: Any = Router


def around(name, events):
    """Middleware that notes its name, and adds it to the result."""

    async def noting(ctx, call_next):
        events.append(name)
        return [*await call_next(), name]

    return noting


async def test_a_worker_does_the_jobs_of_its_routers_with_their_prefix_options_and_cron_entries():
    router, plain, worker, seen = Router(prefix="mail.", max_attempts=3, timeout=30), Router(), Worker(), []

    @router.handler
    async def send(to: str) -> None:
        seen.append(to)

    @router.handler("answer", max_attempts=8)
    async def other(to: str) -> None: ...

    @router.cron("0 3 * * *", priority=4)
    async def nightly() -> None: ...

    @plain.handler
    async def resize(path: str) -> None:
        seen.append(path)

    worker.include(router)
    worker.include(plain)
    options = {name: (each.options.max_attempts, each.options.timeout) for name, each in worker.handlers.items()}
    assert {"mail.send": (3, 30), "mail.answer": (8, 30), "mail.nightly": (3, 30), "resize": (20, None)} == options
    async with broker() as queue:
        assert "mail.send" == (await send.using(queue).enqueue("ada")).entrypoint
        await resize.using(queue).enqueue("a.png")
        assert RunReport(succeeded=2) == await drained(worker, queue)
        [entry] = await queue.schedules()
    assert (["a.png", "ada"], "mail.nightly", "mail.nightly", 4) == (
        sorted(seen),
        entry.name,
        entry.entrypoint,
        entry.priority,
    )


async def test_middleware_is_around_by_worker_then_router_then_handler_and_touches_no_other():
    worker, events = Worker(concurrency=1), list[Any]()
    router = Router(middleware=[around("of the router", events)])
    worker.middleware(around("of the worker", events))
    router.middleware(around("of the router too", events))

    @router.handler(middleware=[around("its own", events), around("inner", events)], keep_result=60)
    async def mine() -> list[str]:
        events.append("mine")
        return []

    @worker.handler(middleware=[around("of the other", events)], keep_result=60)
    async def other() -> list[str]:
        return []

    worker.include(router)
    async with broker() as queue:
        jobs = [await mine.using(queue).enqueue(), await other.using(queue, priority=1).enqueue()]
        assert RunReport(succeeded=2) == await drained(worker, queue)
        results = [await queue.result(job) for job in jobs]
    names = ["of the worker", "of the router", "of the router too", "its own", "inner"]
    assert [*names, "mine", "of the worker", "of the other"] == events
    assert [names[::-1], ["of the other", "of the worker"]] == results


async def test_middleware_without_async_runs_in_the_thread_of_its_handler():
    worker, threads = Worker(), list[Any]()

    def noting(ctx, call_next):
        threads.append((ctx.entrypoint, threading.current_thread()))
        return call_next()

    worker.thread_middleware(noting)
    router = Router(middleware=[noting])

    @router.handler(middleware=[noting])
    def work() -> None:
        threads.append(("work", threading.current_thread()))

    @router.handler
    async def on_the_loop() -> None: ...

    worker.include(router)
    async with broker() as queue:
        await work.using(queue).enqueue()
        await on_the_loop.using(queue).enqueue()
        assert RunReport(succeeded=2) == await drained(worker, queue)
    assert 4 == len(threads)
    assert 1 == len(set(threads))
    assert threading.current_thread() not in dict(threads).values()
    with pytest.raises(TypeError, match="'on_the_loop' runs in no thread: its middleware 'noting' must be async"):
        Worker().handler(middleware=[noting])(on_the_loop)
    with pytest.raises(TypeError, match="without async"):
        worker.thread_middleware(on_the_loop.function)  # type: ignore[type-var]


async def test_a_router_is_included_once_in_a_worker_and_in_any_number_of_workers():
    router, workers, seen = Router(), [Worker(), Worker()], []

    @router.handler
    async def send(to: str) -> None:
        seen.append(to)

    for worker in workers:
        worker.include(router)
        async with broker() as queue:
            await send.using(queue).enqueue("ada")
            assert RunReport(succeeded=1) == await drained(worker, queue)
    assert ["ada", "ada"] == seen
    with pytest.raises(InvalidJobError, match="included in this worker already"):
        workers[0].include(router)
    register: Any = router
    for late in (register.handler("late"), register.middleware, register.thread_middleware):
        with pytest.raises(InvalidJobError, match="before `include`"):
            late(lambda: None)


def test_only_routers_can_be_included():
    for wrong in (Worker(), Router, "app.mail"):
        with pytest.raises(TypeError, match="takes a Router, got"):
            Worker().include(wrong)  # type: ignore[arg-type]
