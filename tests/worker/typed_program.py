"""Calls of handlers, right and wrong, for type checkers: this program is never run.

mypy checks it with all others. A comment that ignores an error is an error of its own if there is none.
"""

# mypy: disable-error-code="empty-body"
# ruff: noqa: B008, B018

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar, assert_type

from jqueue import BrokerQueue, Job
from jqueue.operations import Enqueue
from jqueue.sync import SyncQueue
from jqueue.worker import BatchContext, Call, Context, Depends, Discard, Router, Snooze, Worker

P = ParamSpec("P")
R = TypeVar("R")
worker, router = Worker(concurrency=5, grace=timedelta(seconds=3)), Router(prefix="mail.", max_attempts=3)
Worker(concurency=5)  # type: ignore[call-arg]
Worker(grace="soon")  # type: ignore[arg-type]
Router(retries=3)  # type: ignore[call-arg]


async def around(ctx: Context, call_next: Callable[[], Awaitable[object]]) -> object: ...


class Email: ...


class Resources:
    database: str


async def opened() -> Resources: ...


def traced(function: Callable[P, R]) -> Callable[P, R]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return call


@worker.handler("send", max_attempts=8)
@traced
async def send(email: Email, ctx: Context) -> int: ...
@worker.handler("context_first")
def context_first(ctx: Context, email: Email) -> list[int]: ...
@worker.cron("0 3 * * *")
async def nothing(ctx: Context) -> str: ...
@worker.handler("defaulted")
async def defaulted(ctx: Context, n: int = 3) -> None: ...
@worker.handler("a", retries=3)  # type: ignore[call-overload, untyped-decorator]
async def misspelled() -> None: ...
@worker.handler
async def nameless(email: Email) -> int: ...
@router.handler(middleware=[around], timeout=timedelta(seconds=3))
async def routed(email: Email) -> int: ...


worker.handler(5)  # type: ignore[call-overload]
worker.handler(retry={ValueError: 60, OSError: Discard, KeyError: Snooze(3), TimeoutError: None})
worker.handler(retry=60)  # type: ignore[call-overload]
worker.include(worker.handlers)  # type: ignore[arg-type]


@worker.handler
async def with_resources(email: Email, ctx: Context[Resources]) -> None:
    assert_type(ctx.resources, Resources)
    ctx.resources.databse  # type: ignore[attr-defined]


@worker.handler(batch=3)
async def batch_with_resources(emails: list[Email], ctx: BatchContext[Resources]) -> None:
    assert_type(ctx[0].resources.database, str)


@worker.handler
async def anything(payload: Any, second: Any) -> None: ...
@worker.handler
async def needs_with_default(ctx: Context, to: str, width: int = 3, db: Resources = Depends(opened)) -> None: ...
@worker.handler("resize")
async def resize(path: str, width: int = 640, *, height: int = 480) -> None: ...
@worker.handler("move")
async def move(source: str, target: str, ctx: Context) -> None: ...
@worker.handler("between")
async def between(path: str, ctx: Context, width: int = 640) -> None: ...
@worker.handler("batch", batch=500, batch_wait=2, max_attempts=8)
async def in_batches(emails: list[Email], ctx: BatchContext) -> list[int | Exception] | None: ...


async def payloads(queue: BrokerQueue, ctx: Context) -> None:
    assert_type(await send.using(queue, priority=3, delay=60, deadline=5).enqueue(Email()), Job)
    (await send.using(queue).enqueue(Email())).ident  # type: ignore[attr-defined]
    await send.using(queue).enqueue("x")  # type: ignore[arg-type]
    await send.using(queue).enqueue()  # type: ignore[call-arg]
    send.using(queue).enqueue(Email())  # type: ignore[unused-coroutine]
    send.using(queue, dely=3)  # type: ignore[call-arg]
    send.call("x")  # type: ignore[arg-type]
    await context_first.using(queue).enqueue(Context)  # type: ignore[arg-type]
    await context_first.using(queue).enqueue(email=Email())
    await nothing.using(queue).enqueue(3)  # type: ignore[call-arg]
    assert_type(await defaulted.using(queue).enqueue(), Job)
    await defaulted.using(queue).enqueue("3")  # type: ignore[arg-type]
    assert_type(await in_batches.using(queue, priority=3).enqueue(Email()), Job)
    assert_type(await nameless.using(queue).enqueue(Email()), Job)
    await routed.using(queue).enqueue("x")  # type: ignore[arg-type]
    await in_batches.using(queue).enqueue([Email()])  # type: ignore[arg-type]
    await queue.enqueue_many([send.using(job_id="a").call(Email()), nothing.call(), Enqueue("a")])
    await queue.enqueue_many([send])  # type: ignore[list-item]
    ctx.on_ack(defaulted.call(3), Enqueue("a"))
    assert_type(context_first.call(Email()), Call[list[int]])
    assert_type(defaulted.call(3).operation(), Enqueue)


async def arguments(queue: BrokerQueue) -> None:
    assert_type(await resize.using(queue).enqueue("p", 3, height=5), Job)
    await resize.using(queue).using(delay=3).enqueue(path="p", width=3)
    await resize.using(queue).enqueue("p", width="3")  # type: ignore[arg-type]
    await resize.using(queue).enqueue("p", m=2)  # type: ignore[call-arg]
    assert_type(await move.using(queue).enqueue("a", "b"), Job)
    await move.using(queue).enqueue("a", 3)  # type: ignore[arg-type]
    assert_type(await between.using(queue).enqueue("p", width=3), Job)
    await between.using(queue).enqueue(3)  # type: ignore[arg-type]
    assert_type(await with_resources.using(queue).enqueue(Email()), Job)
    await with_resources.using(queue).enqueue(3)  # type: ignore[arg-type]
    await batch_with_resources.using(queue).enqueue(Email())
    await batch_with_resources.using(queue).enqueue(3)  # type: ignore[arg-type]
    await needs_with_default.using(queue).enqueue("p", width=3)
    await needs_with_default.using(queue).enqueue("p", width="3")  # type: ignore[arg-type]
    await anything.using(queue).enqueue(second="a", payload=3)


async def bound(queue: BrokerQueue) -> None:
    worker.bind(queue)
    worker.bind(SyncQueue("memory://"))
    worker.bind("memory://")  # type: ignore[arg-type]
    await send.enqueue(Email())
    await send.enqueue("x")  # type: ignore[arg-type]
    send.enqueue(Email())  # type: ignore[unused-coroutine]
    await nothing.enqueue("x")  # type: ignore[call-arg]
    await resize.using(delay=3).enqueue("p", width=3)
    assert_type(await send.result("a", timeout=3), int)
    await worker.run(drain=True)


async def calls(job: Job, ctx: Context) -> None:
    assert_type(await send(email=Email(), ctx=ctx), int)
    assert_type(context_first(ctx, Email()), list[int])
    await send("x", ctx)  # type: ignore[arg-type]


def blocking(queue: SyncQueue, job: Job) -> None:
    assert_type(send.using(queue, priority=3, deadline=5).enqueue_sync(Email()), Job)
    send.using(queue).enqueue_sync("x")  # type: ignore[arg-type]
    assert_type(send.using(queue).result_sync(job), int)
