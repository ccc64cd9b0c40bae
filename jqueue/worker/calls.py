"""How a handler is called: on the event loop, in a thread or in a process, through the middleware around it.

What can be known beforehand is: a call is put together once for each run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from jqueue.domain.models import Job
from jqueue.worker.context import Context
from jqueue.worker.endings import raisable
from jqueue.worker.handlers import Handler
from jqueue.worker.processes import Processes, Running
from jqueue.worker.threads import Threads

Call = Callable[[Job, Context | None], Awaitable[Any]]
"""Parses a job's payload and does it."""

Middleware = Callable[[Context, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""What stands around every handler: `async def timed(ctx, call_next): return await call_next()`."""

Body = Callable[[Any, Context | None], Awaitable[Any]]
"""Does a job whose payload is parsed."""


def needs_context(handler: Handler[..., Any], middlewares: Sequence[Middleware]) -> bool:
    """Whether a context has to be made for the jobs of a handler."""
    return handler.signature.wants_context or bool(middlewares)


def call_of(
    handler: Handler[..., Any], middlewares: Sequence[Middleware], threads: Threads, processes: Processes
) -> Call:
    """How a handler is called, with middleware around it: the first is the outermost."""
    if handler.home == "process":
        return ProcessCall(handler, middlewares, processes)
    signature, function = handler.signature, handler.function
    bind = signature.call
    parse = signature.codec.parse if signature.codec is not None else _nothing
    if handler.home == "loop" and not middlewares:
        return lambda job, ctx: bind(function, parse(job.payload), ctx)
    body: Body = lambda value, ctx: bind(function, value, ctx)  # noqa: E731 - one of two
    if handler.home == "thread":

        async def body(value: Any, ctx: Context | None) -> Any:
            context = contextvars.copy_context()
            return await to_its_end(threads.call(context.run, bind, function, value, ctx))

    async def call(job: Job, ctx: Context | None) -> Any:
        value = parse(job.payload)
        assert ctx is not None or not middlewares
        return await around(middlewares, ctx, lambda: body(value, ctx))

    return call


class ProcessCall:
    """How a handler is called whose home is a process: there are few of them, so that whoever calls takes its turn.

    Args:
        handler: what is called.
        middlewares: around it, here.
        processes: where it is called.

    Attributes:
        turn: has to be taken before the call, and given back after it.
    """

    def __init__(self, handler: Handler[..., Any], middlewares: Sequence[Middleware], processes: Processes) -> None:
        self.turn = processes.turn
        self._handler = handler
        self._middlewares = middlewares
        self._processes = processes

    async def __call__(self, job: Job, ctx: Context | None, running: Running = lambda _: None) -> Any:
        """Do a job. Whether a process has begun with it is told as it goes."""
        innermost = lambda: self._processes.call(self._handler, job, running)  # noqa: E731 - as in the others
        return await around(self._middlewares, ctx, innermost)


def around(
    middlewares: Sequence[Middleware], ctx: Context | None, innermost: Callable[[], Awaitable[Any]]
) -> Awaitable[Any]:
    """What the outermost middleware makes of a call."""
    call = innermost
    for middleware in reversed(middlewares):
        call = _bound(middleware, ctx, call)
    return call()


def _bound(middleware: Middleware, ctx: Any, call_next: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    return lambda: middleware(ctx, call_next)


async def to_its_end(future: asyncio.Future[Any]) -> Any:
    """Wait for what cannot be stopped: a cancellation is passed on when it has ended. The second one is at once."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            if cancelled is not None:
                raise
            cancelled = error
    value, failure = future.result()
    if failure is not None:
        raise raisable(failure) if cancelled is None else cancelled
    return value


def _nothing(payload: bytes) -> None:
    """What a handler gets that takes no payload."""
