"""Handlers in processes of their own, by the extra "processes" (pebble).

A process that dies, or is killed when its job is cancelled or out of time, costs that job and no other. What goes to a
process is the job; the function is found there by its module and its name, and the payload is parsed there.
"""

from __future__ import annotations

import asyncio
import importlib
import multiprocessing
import multiprocessing.connection
import operator
import os
import threading
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from jqueue.domain.errors import JQueueError
from jqueue.domain.models import Job
from jqueue.worker.context import Context
from jqueue.worker.handlers import Handler
from jqueue.worker.payloads import json_value

if TYPE_CHECKING:
    from pebble import ProcessPool

JOIN = 5.0
"""Seconds that processes get to end."""


class ProcessDied(Exception):
    """The process of a handler ended before the handler did."""


class Processes:
    """A pool of processes that is made when it is first needed.

    Args:
        most: how many processes it may have; there are never more than processors.
    """

    def __init__(self, most: int) -> None:
        self._most = min(most, os.cpu_count() or 1)
        self._pool: ProcessPool | None = None

    async def call(self, handler: Handler[..., Any], job: Job, deadline: datetime | None) -> Any:
        """Do a job in a process. Cancelling this kills the process."""
        from pebble import ProcessExpired

        if self._pool is None:
            self._pool = _made_pool(self._most)
        function = handler.function
        future = self._pool.schedule(_do, args=[function.__module__, function.__qualname__, job, deadline])
        try:
            return await asyncio.wrap_future(future)
        except ProcessExpired as error:
            code = error.exitcode
        except asyncio.CancelledError:
            future.cancel()  # type: ignore[no-untyped-call]
            raise
        raise ProcessDied(f"the process of the handler ended with exit code {code}")

    async def close(self) -> None:
        """End the processes."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()  # type: ignore[no-untyped-call]
            await asyncio.get_running_loop().run_in_executor(None, _join, pool)


def check_processes() -> None:
    """Have an error at the start of a worker, and not at its first job, if the extra is missing.

    Raises:
        JQueueError: it is.
    """
    try:
        import pebble  # noqa: F401
    except ImportError:
        raise JQueueError(
            'handlers with process=True need the extra "processes": pip install "jqueue[processes]"'
        ) from None


def _made_pool(most: int) -> ProcessPool:
    from pebble import ProcessPool

    # A fork of a program with threads and an event loop may hang.
    return ProcessPool(max_workers=most, context=multiprocessing.get_context("spawn"))


def _join(pool: ProcessPool) -> None:
    try:
        pool.join(JOIN)
    except TimeoutError:
        return


def _do(module: str, name: str, job: Job, deadline: datetime | None) -> Any:
    """In the process: find the handler, do the job, and return its result if it is to be kept."""
    _end_with_parent()
    handler = operator.attrgetter(name)(importlib.import_module(module))
    if not isinstance(handler, Handler):
        raise TypeError(f"{module}.{name} is not a handler of jqueue there: decorate it where it is defined")
    signature = handler.signature
    value = signature.codec.parse(job.payload) if signature.codec is not None else None
    ctx = Context(job, deadline=deadline) if signature.wants_context else None
    result = signature.call(handler.function, value, ctx)
    if getattr(job, "keep_result", None) is None:
        return None
    return json_value(signature.returns, result)


@cache
def _end_with_parent() -> None:
    """Have this process end when its worker does, however that ends: nobody else keeps its handler's time."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="jqueue-parent", daemon=True).start()
