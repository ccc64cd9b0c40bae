"""One blocking call: a thread that waits, a task that works, and a result that is delivered or given back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from jqueue.domain.errors import QueueClosedError

Result = TypeVar("Result")


AN_HOUR = 3600.0
"""Seconds to wait at a time. gevent refuses to wait without an end for what no greenlet of the thread will do."""


class CallEnded(QueueClosedError):
    """The call was ended before it was done, or was never begun, because its queue was left or the process ends."""


class Call(Generic[Result]):
    """Work that runs on the event loop, and the thread that waits for it.

    Args:
        work: makes the coroutine; called on the event loop.
        endless: True if the call may wait for longer than any deadline. Leaving the queue then ends it.
        give_back: called on the event loop with a result that came after the thread had stopped waiting.
    """

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, Result]],
        *,
        endless: bool = False,
        give_back: Callable[[Result], object] | None = None,
    ) -> None:
        self.endless = endless
        self._work = work
        self._give_back = give_back
        self._task: asyncio.Task[Result] | None = None
        self._refused = False
        # Not a `concurrent.futures.Future`: a lock is enough, and waiting for it can be interrupted.
        self._under_way = threading.Lock()
        self._under_way.acquire()

    # On the event loop

    def begin(self) -> asyncio.Task[Result]:
        """Start the work."""
        self._task = asyncio.get_running_loop().create_task(self._work(), name="jqueue-call")
        self._task.add_done_callback(self._end)
        return self._task

    def refuse(self) -> None:
        """Refuse the call, which came too late."""
        self._refused = True
        self._under_way.release()

    def abandon(self) -> None:
        """Stop the work, as the thread no longer waits, and give a finished result back."""
        task = self._task
        if task is None:
            return
        if not task.done():
            task.cancel()
        elif self._give_back is not None and not task.cancelled() and task.exception() is None:
            self._give_back(task.result())

    def _end(self, task: asyncio.Task[Result]) -> None:
        if not task.cancelled():
            task.exception()  # marks the error as seen, as the caller may be gone
        self._under_way.release()

    # In the thread

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the call has ended, or for `timeout` seconds. Return True if it has ended. To be called once."""
        while not self._under_way.acquire(timeout=AN_HOUR if timeout is None else timeout):
            if timeout is not None:
                return False
        return True

    def error(self) -> BaseException | None:
        """Return the error of the call, after `wait`. None if it succeeded, or was ended before it was done."""
        task = self._task
        return None if self._refused or task is None or task.cancelled() else task.exception()

    def result(self) -> Result:
        """Return the result of the call, or raise its error, after `wait`.

        Raises:
            CallEnded: the call was ended before it was done.
        """
        task = self._task
        if self._refused or task is None or task.cancelled():
            raise CallEnded("the queue was closed before this call was done")
        error = task.exception()
        if error is None:
            return task.result()
        self._task = None  # breaks a reference cycle: the task holds the error, whose traceback holds this call
        try:
            raise error
        finally:
            del error, task
