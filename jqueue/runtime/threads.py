"""The threads that wait for the disk, or do what takes long, so that no event loop has to.

They are not those of the event loop, which the handlers of jobs may hold all.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Threads(concurrent.futures.ThreadPoolExecutor):
    """A pool that leaves with each call the future that its thread fills: the event loop shows only its own."""

    def submit(self, call: Any, /, *_: Any, **__: Any) -> Any:
        call.future = super().submit(call)
        return call.future


class _Call:
    __slots__ = ("_arguments", "_work", "future")

    future: concurrent.futures.Future[Any]

    def __init__(self, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._work = work
        self._arguments = arguments

    def __call__(self) -> Any:
        try:
            return self._work(*self._arguments)
        except StopIteration as error:  # which no future carries: who waits for it would wait for ever
            raise RuntimeError("what was done in a thread raised StopIteration") from error


def _begin() -> None:
    """A forked child has none of its parent's threads."""
    global _threads
    _threads = _Threads(thread_name_prefix="jqueue-storage")


_threads: _Threads
_begin()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)


async def in_a_thread(work: Callable[..., Result], *arguments: Any, close_last: list[int] | None = None) -> Result:
    """Have a thread do something. Whoever is cancelled here leaves it to the thread, if that has begun.

    Args:
        work: what to do.
        arguments: of it.
        close_last: the descriptors that it puts here are closed when the answer is on its way.
    """
    loop = asyncio.get_running_loop()
    call = _Call(work, arguments)
    answer = loop.run_in_executor(_threads, call)
    future = call.future
    del call.future  # an error leads here, and to the call, by its traceback; neither must lead to the error
    if close_last is not None:
        future.add_done_callback(lambda _: _close_all(close_last))  # in that thread, after it has sent the answer
    try:
        result: Result = await answer
        return result
    except asyncio.CancelledError:
        if not future.done():  # `asyncio.run` does not return before what was begun is done
            with suppress(RuntimeError):
                loop.run_in_executor(None, concurrent.futures.wait, [future])
        raise
    finally:
        del answer, future


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):  # it was only read, and is nobody's concern any more
            os.close(descriptor)
