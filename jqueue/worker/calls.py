"""Calls of handlers: on the event loop, in a thread or in a process, through the middleware around them.

The call of a handler is put together once for each run.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, cast

from jqueue.worker.context import BatchContext, Context
from jqueue.worker.dependencies import end_of
from jqueue.worker.handler_errors import drop_awaitable, portable, rebuilt
from jqueue.worker.handlers import Handler
from jqueue.worker.threads import Threads

Call = Callable[[Any, Any], Awaitable[Any]]
"""Runs the handler on a job, or on the parsed payloads of a batch, with a context."""


class Plan:
    """The way to call a handler.

    Args:
        handler: the handler.
        threads: run it, if it has no async.
        seconds: time that a call may take, unless the handler has a timeout of its own.

    Attributes:
        handler: the handler.
        seconds: time that a call may take.
        wants_context: True if the handler or middleware takes a context.
        takes_batch: True if it takes a batch.
        is_simple: True if it takes one job without a context, does not run in a process, and keeps no result.
        call: calls it: with a job, or the parsed payloads of a batch, and a context.
    """

    def __init__(self, handler: Handler[..., Any], threads: Threads, seconds: float) -> None:
        options, takes_context = handler.options, handler.signature.wants_context
        self.handler = handler
        self.seconds: float = seconds if options.seconds is None else options.seconds
        self.wants_context: bool = takes_context or bool(handler.middlewares or handler.thread_middlewares)
        self.takes_batch: bool = options.batch is not None
        is_plain = not (self.wants_context or self.takes_batch or handler.runs_in == "process")
        self.is_simple: bool = is_plain and options.keep_result is None
        self.call: Call = _call_of(handler, threads)


def _call_of(handler: Handler[..., Any], threads: Threads) -> Call:
    """Return the function that calls a handler, on the event loop or in a thread, through its middleware."""
    middlewares, body = handler.middlewares, handler.signature.call
    if handler.runs_in == "thread":
        body = _in_thread(handler, threads)
    parse = handler.signature.parse
    if handler.options.batch is not None:
        return lambda values, ctx: around(middlewares, ctx, partial(body, values, ctx))
    if not middlewares:
        return lambda job, ctx: body(parse(job), ctx)
    return lambda job, ctx: around(middlewares, ctx, partial(body, parse(job), ctx))


def _in_thread(handler: Handler[..., Any], threads: Threads) -> Call:
    """Return the function that runs a handler in a thread, with the middleware of threads.

    The coroutine that the handler returns, if it wraps an async function, is awaited on the event loop.
    """
    bind, middlewares = handler.signature.call, handler.thread_middlewares

    async def in_thread(value: Any, ctx: Context | BatchContext | None) -> Any:
        context = contextvars.copy_context()
        loop, name = asyncio.get_running_loop(), cast(asyncio.Task[Any], asyncio.current_task()).get_name()
        if ctx is not None:
            ctx.enter_thread(loop)
        result = await to_its_end(threads.call(context.run, around, middlewares, ctx, partial(bind, value, ctx)))
        if not inspect.isawaitable(result):
            return result
        if ctx is not None:
            ctx.enter_thread(None)
        result, error = await loop.create_task(end_of(result), name=name, context=context)
        if error is not None:
            raise error
        return result

    return in_thread


def around(middlewares: Sequence[Callable[..., Any]], ctx: Any, innermost: Callable[[], Any]) -> Any:
    """Return the value of `innermost`, called through the middlewares. The first middleware is the outermost."""
    for middleware in reversed(middlewares):
        innermost = partial(middleware, ctx, innermost)
    return innermost()


async def to_its_end(future: asyncio.Future[Any]) -> Any:
    """Wait for a call that cannot be stopped. A second cancellation is raised at once.

    After the first cancellation the call still runs to its end. Its value is then returned; if it failed, or its value
    must be awaited, the cancellation is raised.
    """
    try:
        value, failure = await asyncio.shield(future)
    except asyncio.CancelledError:
        value, failure = await future
        if failure is not None or drop_awaitable(value):
            raise
    if isinstance(failure, StopIteration):  # which no coroutine can raise
        failure = rebuilt(portable(failure))
    if failure is not None:
        raise failure
    return value
