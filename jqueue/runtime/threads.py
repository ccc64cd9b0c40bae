"""The threads for disk access, long computations and waits for the network, so that they do not block an event loop.

They are separate from the event loop's own threads, all of which job handlers may occupy. Waits for the network have a
pool of their own, so that a host that does not answer delays no file. Waits for other code have a thread each.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from jqueue.runtime.system import at_fork, process_id

Result = TypeVar("Result")

NETWORK_THREADS = 32
"""Waits for the network at a time. One that its caller has given up keeps its thread until it ends."""


class _Threads(concurrent.futures.ThreadPoolExecutor):
    """A pool that stores the future of the thread in each call, as the event loop only returns its own future."""

    def submit(self, call: Any, /, *_: Any, **__: Any) -> Any:
        call.future = super().submit(call)
        return call.future


class _Call(msgspec.Struct):
    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: Any = None

    def __call__(self) -> Any:
        try:
            return self.work(*self.arguments)
        except StopIteration as error:  # no future can carry it: its caller would wait for ever
            raise RuntimeError("a function that ran in a thread raised StopIteration") from error


class _ThreadEach(concurrent.futures.Executor):
    """Runs each call in a thread of its own, for which the end of the program does not wait."""

    def submit(self, call: Any, /, *_: Any, **__: Any) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="jqueue-call", daemon=True).start()
        return future


def _begin() -> None:
    """Create the pools. A forked child needs its own, as it has none of its parent's threads."""
    global _threads, _network
    _threads = _Threads(thread_name_prefix="jqueue-storage")
    _network = concurrent.futures.ThreadPoolExecutor(NETWORK_THREADS, "jqueue-network")


_threads: _Threads
_network: concurrent.futures.ThreadPoolExecutor
_begin()
at_fork(_begin)


async def in_a_thread(work: Callable[..., Result], *arguments: Any, close_last: list[int] | None = None) -> Result:
    """Run a function in a thread, and return its result. If the caller is cancelled, a call that has begun goes on.

    Args:
        work: the function.
        arguments: of the function.
        close_last: the function puts descriptors here that are closed after its answer was sent.
    """
    loop = asyncio.get_running_loop()
    process_id()  # a fork has none of the threads
    call = _Call(work, arguments)
    answer = loop.run_in_executor(_threads, call)
    future = call.future
    call.future = None  # the traceback of an error refers to this frame and to the call: neither may refer to the error
    if close_last is not None:
        future.add_done_callback(lambda _: _close_all(close_last))  # in that thread, after it has sent the answer
    try:
        result: Result = await answer
        return result
    except asyncio.CancelledError:
        if not future.done():  # so that `asyncio.run` does not return before the begun call has ended
            with suppress(RuntimeError):
                loop.run_in_executor(None, concurrent.futures.wait, [future])
        raise
    finally:
        del answer, future


async def in_a_network_thread(work: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Run a function that waits for the network in a thread, and return its result.

    If the caller is cancelled, a call that has begun goes on, and nothing waits for it.
    """
    process_id()  # a fork has none of the threads
    call = _Call(partial(work, **options), arguments)
    result: Result = await asyncio.get_running_loop().run_in_executor(_network, call)
    return result


async def in_its_own_thread(work: Callable[..., Result], *arguments: Any) -> Result:
    """Run a function that waits for a process, a queue or code of the program in a new thread, and return its result.

    If the caller is cancelled, the call goes on, and nothing waits for it.
    """
    call = _Call(contextvars.copy_context().run, (work, *arguments))
    result: Result = await asyncio.get_running_loop().run_in_executor(_ThreadEach(), call)
    return result


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):  # the file was only read, so an error does not matter
            os.close(descriptor)
