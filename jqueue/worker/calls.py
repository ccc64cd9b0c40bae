"""Calls of handlers: on the event loop, in a thread or in a process, through the middleware around them.

The call of a handler is put together once for each run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from jqueue.domain.models import Job
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.handler_errors import raisable
from jqueue.worker.handler_options import Middleware
from jqueue.worker.handlers import Handler
from jqueue.worker.processes import Processes, Running
from jqueue.worker.threads import Threads

Call = Callable[[Any, Any], Awaitable[Any]]
"""Runs the handler on a job, or on the parsed payloads of a batch, with a context."""


def call_of(handler: Handler[..., Any], threads: Threads, processes: Processes) -> Call | ProcessCall:
    """Return the function that calls a handler through its middleware. The first middleware is the outermost."""
    if handler.home == "process":
        return ProcessCall(handler, processes)
    middlewares, parse, body = handler.middlewares, handler.signature.parse, _body_of(handler, threads)
    if handler.options.batch is not None:
        return lambda values, ctx: around(middlewares, ctx, lambda: body(values, ctx))
    if handler.home == "loop" and not middlewares:
        return lambda job, ctx: body(parse(job), ctx)

    async def call(job: Job, ctx: Context | None) -> Any:
        value = parse(job)
        assert ctx is not None or not middlewares
        return await around(middlewares, ctx, lambda: body(value, ctx))

    return call


def _body_of(handler: Handler[..., Any], threads: Threads) -> Call:
    """Return the function that runs a handler on the event loop, or in a thread with the middleware of threads."""
    bind = handler.signature.call
    if handler.home == "loop":
        return bind

    def call(value: Any, ctx: Any) -> Any:
        innermost: Callable[[], Any] = partial(bind, value, ctx)
        for middleware in reversed(handler.thread_middlewares):
            innermost = partial(middleware, ctx, innermost)
        return innermost()

    async def in_thread(value: Any, ctx: Context | BatchContext | None) -> Any:
        context = contextvars.copy_context()
        if ctx is not None:
            ctx.enter_thread(asyncio.get_running_loop())
        return await to_its_end(threads.call(context.run, call, value, ctx))

    return in_thread


class ProcessCall:
    """The call of a handler in a process. Processes are few, so each caller waits for its turn.

    Args:
        handler: the handler to call.
        processes: the pool that runs the handler.

    Attributes:
        turn: semaphore to acquire before the call and to release after it.
    """

    def __init__(self, handler: Handler[..., Any], processes: Processes) -> None:
        self.turn = processes.turn
        self._handler = handler
        self._processes = processes

    async def __call__(
        self, jobs: Sequence[Job], ctx: Context | BatchContext | None, running: Running = lambda _: None
    ) -> Any:
        """Do a job or a batch. `running` gets False while it waits for a process, and True once one has begun."""
        innermost = lambda: self._processes.call(self._handler, jobs, running)  # noqa: E731 - as in the others
        return await around(self._handler.middlewares, ctx, innermost)


def around(
    middlewares: Sequence[Middleware], ctx: Context | BatchContext | None, innermost: Callable[[], Awaitable[Any]]
) -> Awaitable[Any]:
    """Return the awaitable of `innermost`, wrapped in the middlewares. The first middleware is the outermost."""
    call = innermost
    for middleware in reversed(middlewares):
        call = _bound(middleware, ctx, call)
    return call()


def _bound(middleware: Middleware, ctx: Any, call_next: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    return lambda: middleware(ctx, call_next)


async def to_its_end(future: asyncio.Future[Any]) -> Any:
    """Wait for a call that cannot be stopped. A second cancellation is raised at once.

    After the first cancellation the call still runs to its end. Its value is then returned; if it failed, the
    cancellation is raised.
    """
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
