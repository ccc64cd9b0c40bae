"""Threads for handlers without async. A thread that hangs holds up neither its worker nor the end of the program.

The pools of `concurrent.futures` are joined when the interpreter ends, so one handler that blocks would keep a stopped
worker from exiting. These threads are daemons.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

_numbers = itertools.count(1)


class Threads(Executor):
    """A pool that grows on demand.

    Args:
        max_threads: the largest number of threads.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads = 0

    def call(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Call a function in a thread. The future gets its value and its error, one of them None."""
        return asyncio.get_running_loop().run_in_executor(self, _caught, function, *args)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `concurrent.futures.Executor`."""
        future: Future[Any] = Future()
        if not self._idle.acquire(blocking=False) and self._threads < self._max_threads:
            name = f"jqueue-handler-{next(_numbers)}"
            threading.Thread(target=self._run, name=name, daemon=True).start()  # raises if the machine has no more
            self._threads += 1
        self._work.put((future, lambda: function(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let threads end when they have nothing to do. A thread that hangs is not waited for."""
        for _ in range(self._threads):
            self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                future.set_result(call())  # it raises nothing: see `_caught`
            del item, future, call
            self._idle.release()


def _caught(function: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
    """Call a function and return its value and its error. A future refuses some errors, such as StopIteration."""
    try:
        return function(*args), None
    except BaseException as error:
        return None, error
