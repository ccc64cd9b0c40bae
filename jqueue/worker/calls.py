"""Calls of handlers: on the event loop, in a thread or in a process, through the middleware around them.

The call of a handler is put together once for each run.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from jqueue.domain.models import Job
from jqueue.worker.context import Context
from jqueue.worker.handler_errors import raisable
from jqueue.worker.handlers import Handler
from jqueue.worker.payloads import refuse_payload_apart
from jqueue.worker.processes import Processes, Running
from jqueue.worker.signatures import Signature
from jqueue.worker.threads import Threads

Call = Callable[[Job, Context | None], Awaitable[Any]]
"""Parses a job's payload and runs the handler."""

Middleware = Callable[[Context, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Function called around every handler: `async def timed(ctx, call_next): return await call_next()`."""

Body = Callable[[Any, Context | None], Awaitable[Any]]
"""Runs the handler on a payload that is already parsed."""


def needs_context(handler: Handler[..., Any], middlewares: Sequence[Middleware]) -> bool:
    """True if the jobs of a handler need a context."""
    return handler.signature.wants_context or bool(middlewares)


def call_of(
    handler: Handler[..., Any], middlewares: Sequence[Middleware], threads: Threads, processes: Processes
) -> Call:
    """Return the function that calls a handler through its middleware. The first middleware is the outermost."""
    if handler.home == "process":
        return ProcessCall(handler, middlewares, processes)
    signature, function = handler.signature, handler.function
    bind = signature.call
    parse = parser_of(signature)
    if handler.home == "loop" and not middlewares:
        return lambda job, ctx: bind(function, parse(job), ctx)
    body: Body = lambda value, ctx: bind(function, value, ctx)  # noqa: E731 - one of two
    if handler.home == "thread":

        async def body(value: Any, ctx: Context | None) -> Any:
            context = contextvars.copy_context()
            if ctx is not None:
                ctx.loop = asyncio.get_running_loop()
            return await to_its_end(threads.call(context.run, bind, function, value, ctx))

    async def call(job: Job, ctx: Context | None) -> Any:
        value = parse(job)
        assert ctx is not None or not middlewares
        return await around(middlewares, ctx, lambda: body(value, ctx))

    return call


class ProcessCall:
    """The call of a handler in a process. Processes are few, so each caller waits for its turn.

    Args:
        handler: the handler to call.
        middlewares: called around it, in the process of the worker.
        processes: the pool that runs the handler.

    Attributes:
        turn: semaphore to acquire before the call and to release after it.
    """

    def __init__(self, handler: Handler[..., Any], middlewares: Sequence[Middleware], processes: Processes) -> None:
        self.turn = processes.turn
        self._handler = handler
        self._middlewares = middlewares
        self._processes = processes

    async def __call__(self, job: Job, ctx: Context | None, running: Running = lambda _: None) -> Any:
        """Do a job. `running` gets False while the job waits for a process, and True once one has begun with it."""
        innermost = lambda: self._processes.call(self._handler, job, running)  # noqa: E731 - as in the others
        return await around(self._middlewares, ctx, innermost)


def around(
    middlewares: Sequence[Middleware], ctx: Context | None, innermost: Callable[[], Awaitable[Any]]
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


def parser_of(signature: Signature) -> Callable[[Job], Any]:
    """Return the function that parses the payload of a job for a handler. It returns None if the handler takes none."""
    if signature.codec is None:
        return lambda job: None
    parse = signature.codec.parse

    def parse_payload(job: Job) -> Any:
        if job.payload_object is not None:
            refuse_payload_apart(job)
        return parse(job.payload)

    return parse_payload
