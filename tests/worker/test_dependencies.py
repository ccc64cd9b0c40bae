"""Dependencies are made once for each call of a handler, where it runs, and ended after it in reverse order."""

import asyncio
import threading
from contextlib import suppress
from typing import Annotated, Any

import pytest

from jqueue.operations import Enqueue
from jqueue.worker import BatchContext, Context, Depends, RunReport, Worker
from tests.worker.scenes import LONG, broker, drained

pytestmark = pytest.mark.virtual_time

AnyDepends: Any = Depends
"""Accepts wrong arguments."""


class Scene:
    """Dependencies of all kinds, and what happens to them."""

    def __init__(self):
        self.events: list[Any] = []
        self.fail_in_end = False

    def note(self, *event):
        self.events.append((*event, threading.current_thread() is threading.main_thread()))

    def settings(self):
        self.note("settings")
        with suppress(BaseException):  # it does not raise an error again
            yield "settings"

    async def pool(self):
        self.note("open")
        try:
            yield "pool"
        except BaseException as error:
            self.note(type(error).__name__)  # and does not raise it again
        finally:
            self.note("close")

    def handlers(self, worker: Worker) -> Any:
        """Register a handler on the event loop and one in a thread, and return them."""
        settings, pool = Depends(self.settings), Depends(self.pool)

        def session(ctx: Context, db: Annotated[str, pool], name: Annotated[str, settings]):
            self.note("begin", ctx.job.payload)
            try:
                yield f"{name} {db}"
                self.note("commit")
            except BaseException as error:
                self.note("roll back", type(error).__name__)
                if self.fail_in_end:
                    raise LookupError("the end failed") from error
                raise

        def work(number: int, s: str, db: str, name: str) -> float:
            self.note("work", s, db, name)
            return 10 / number

        @worker.handler(max_attempts=1, keep_result=60)
        async def on_loop(
            number: int,
            *,
            s: Annotated[str, Depends(session)],
            db: Annotated[str, pool],
            name: Annotated[str, settings],
        ) -> float:
            return work(number, s, db, name)

        @worker.handler(max_attempts=1, keep_result=60)
        def in_thread(number: int, s: str = Depends(session), db: str = pool, name: str = settings) -> float:
            return work(number, s, db, name)

        return on_loop, in_thread


async def test_a_dependency_is_made_once_for_each_job_where_its_handler_runs_and_ended_after_it():
    worker, scene = Worker(concurrency=1), Scene()
    async with broker() as queue:
        for handler, loop in zip(scene.handlers(worker), (True, False), strict=True):
            scene.events.clear()
            job = await handler.using(queue).enqueue(5)
            assert RunReport(succeeded=1) == await drained(worker, queue)
            assert 2.0 == await handler.using(queue).result(job, timeout=1)
            assert [
                ("open", True),  # what must be awaited is awaited on the event loop
                ("settings", loop),
                ("begin", b'{"number":5}', loop),
                ("work", "settings pool", "pool", "settings", loop),
                ("commit", loop),
                ("close", True),
            ] == scene.events


@pytest.mark.parametrize("fail_in_end", [False, True])
async def test_the_error_of_a_handler_reaches_its_dependencies_and_none_of_them_can_hide_it(fail_in_end):
    worker, scene = Worker(), Scene()
    scene.fail_in_end = fail_in_end
    later = "LookupError" if fail_in_end else "ZeroDivisionError"
    async with broker() as queue:
        for handler, loop in zip(scene.handlers(worker), (True, False), strict=True):
            scene.events.clear()
            job = await handler.using(queue).enqueue(0)
            assert RunReport(dead=1) == await drained(worker, queue)
            assert [("roll back", "ZeroDivisionError", loop), (later, True), ("close", True)] == scene.events[-3:]
            assert (await queue.read_state()).find(job.id).error.startswith(later)


async def test_dependencies_end_when_a_job_is_out_of_time():
    worker, scene = Worker(), Scene()

    @worker.handler(timeout=5, backoff=LONG)
    async def work(*, db: str = Depends(scene.pool)) -> None:
        await asyncio.sleep(60)

    async with broker() as queue:
        await work.using(queue).enqueue()
        assert RunReport(failed=1) == await drained(worker, queue)
    assert [("open", True), ("CancelledError", True), ("close", True)] == scene.events


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
async def test_no_error_of_a_dependency_costs_more_than_an_attempt_of_its_job(error):
    worker = Worker()

    async def fails():
        raise error

    async def on_loop(*, it: Annotated[None, Depends(fails)]) -> None: ...

    def in_thread(*, it: Annotated[None, Depends(fails)]) -> None: ...

    for function in (on_loop, in_thread):
        worker.handler(max_attempts=1)(function)
    async with broker() as queue:
        for name in worker.handlers:
            job = await queue.enqueue(name, b"")
            assert RunReport(dead=1) == await worker.run(queue, drain=True)
            assert (await queue.read_state()).find(job.id).error.startswith(type(error).__name__)


async def test_a_batch_makes_its_dependencies_once_and_a_class_is_one_as_well():
    worker, got = Worker(), list[Any]()

    class Service:
        def __init__(self, ctx: BatchContext, name: Annotated[str, Depends(lambda: "db")], size: int = 3, /):
            self.seen = len(ctx), name, size

    @worker.handler(batch=10)
    async def on_loop(numbers: list[int], service: Annotated[Service, Depends(Service)]) -> None:
        got.append((numbers, service.seen))

    @worker.handler(batch=10)
    def in_thread(numbers: list[int], ctx: BatchContext, *, service: Annotated[Service, Depends(Service)]) -> None:
        assert [b"1", b"2"] == [b"".join(each.open_payload()) for each in ctx]
        got.append((numbers, service.seen))

    async with broker() as queue:
        await queue.enqueue_many([handler.call(n) for handler in (on_loop, in_thread) for n in (1, 2)])
        assert RunReport(succeeded=4) == await drained(worker, queue)
    assert [([1, 2], (2, "db", 3))] * 2 == got


async def test_overrides_of_a_worker_take_the_place_of_dependencies_and_bring_their_own():
    worker, scene, got = Worker(), Scene(), list[str]()

    def user(db: Annotated[str, Depends(scene.pool)]):
        return f"user of {db}"

    @worker.handler
    async def greet(name: str = Depends(user), db: str = Depends(scene.pool)) -> None:
        got.append(f"{name}, {db}")

    async def fake(name: Annotated[str, Depends(scene.settings)]):
        return f"fake {name}"

    async with broker() as queue:
        await queue.apply(greet.call().operation(), Enqueue("greet"))
        worker.dependency_overrides[scene.pool] = fake
        assert RunReport(succeeded=2) == await drained(worker, queue)
        worker.dependency_overrides.clear()
        await greet.using(queue).enqueue()
        assert RunReport(succeeded=1) == await drained(worker, queue)
    assert ["user of fake settings, fake settings"] * 2 + ["user of pool, pool"] == got


def test_a_dependency_that_cannot_be_made_is_refused_when_its_handler_is_declared():
    def needs(size: int): ...

    def first(other: Annotated[Any, Depends(lambda it: 1)]): ...

    def of_batch(ctx: BatchContext): ...

    def circle(other: Any): ...

    circle.__annotations__["other"] = Annotated[Any, Depends(circle)]

    cases: list[tuple[Any, str]] = [
        (needs, "dependency 'needs' of handler 'work' cannot get its parameter 'size': annotate it as Context or as"),
        (first, "dependency '<lambda>' of handler 'work' cannot get its parameter 'it'"),
        (
            of_batch,
            "dependency 'of_batch' of handler 'work': annotate its parameter 'ctx' as Context: it takes one job",
        ),
        (circle, "handler 'work' has dependencies that need each other: circle -> circle"),
    ]
    for dependency, error in cases:

        async def work(it: Any) -> None: ...

        work.__annotations__["it"] = Annotated[Any, Depends(dependency)]
        with pytest.raises(TypeError, match=error):
            Worker().handler(work)
    with pytest.raises(TypeError, match="Depends takes a function, got str"):
        AnyDepends("pool")
