"""One blocking call: a thread that waits, a task that works, and no result that is left with nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from jqueue.domain.errors import QueueClosedError

Result = TypeVar("Result")


class CallEnded(QueueClosedError):
    """The call was ended before it was done, or never begun, as its queue, or the process, is left."""


class Call(Generic[Result]):
    """Work that runs on the event loop, and the thread that waits for it.

    Args:
        work: makes the coroutine; called on the event loop.
        endless: whether it may wait for longer than any deadline, so that whoever leaves the queue must end it.
        give_back: gets, on the event loop, a result that came when the thread had stopped waiting.
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
        # Not a `concurrent.futures.Future`: a lock is all that is needed, and waiting for it can be interrupted.
        self._under_way = threading.Lock()
        self._under_way.acquire()

    # On the event loop

    def begin(self) -> asyncio.Task[Result]:
        """Start to work."""
        self._task = asyncio.get_running_loop().create_task(self._work(), name="jqueue-call")
        self._task.add_done_callback(self._end)
        return self._task

    def refuse(self) -> None:
        """It came too late."""
        self._refused = True
        self._under_way.release()

    def abandon(self) -> None:
        """The thread waits no more: stop, and take back what it would have got."""
        task = self._task
        if task is None:
            return
        if not task.done():
            task.cancel()
        elif self._give_back is not None and not task.cancelled() and task.exception() is None:
            self._give_back(task.result())

    def _end(self, task: asyncio.Task[Result]) -> None:
        if not task.cancelled():
            task.exception()  # it has been looked at, whether or not somebody still waits
        self._under_way.release()

    # In the thread

    def wait(self, timeout: float = -1) -> bool:
        """Wait until it has ended; returns whether it has, within so many seconds. To be called once."""
        return self._under_way.acquire(timeout=timeout)

    def error(self) -> BaseException | None:
        """The error that it ended with, after `wait`; None if it was done, or was ended before."""
        task = self._task
        return None if self._refused or task is None or task.cancelled() else task.exception()

    def result(self) -> Result:
        """What became of it, after `wait`.

        Raises:
            CallEnded: it was ended before it was done.
        """
        task = self._task
        if self._refused or task is None or task.cancelled():
            raise CallEnded("the queue was left before this call was done")
        error = task.exception()
        if error is None:
            return task.result()
        self._task = None  # it leads to the error, and the error leads here
        try:
            raise error
        finally:
            del error, task
