"""A thread that sees which job blocks the event loop of a process of handlers, and tells the parent.

A handler that does not give way to the event loop cannot be cancelled, and stops every other job of its process. From
outside, all of these jobs look late. The task that is running shows which job is to blame.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jqueue.worker.job_runner import JOB_TASK

CHECK_INTERVAL = 0.25
"""Seconds between two checks. A loop that has not moved between two checks is blocked."""


@contextmanager
def report_blocked_loop(
    report: Callable[[str | None], object],
    every: float = CHECK_INTERVAL,
) -> Iterator[None]:
    """Report which job's handler blocks the running event loop, until the end of a `with` block.

    If C code of a handler holds Python's global lock, the watching thread cannot run either, and nothing is reported.

    Args:
        report: called in a thread with the id of a job that begins to block the loop, and with None once it is free.
        every: seconds between two checks.
    """
    watch = _Watch(asyncio.get_running_loop(), report, every)
    thread = threading.Thread(target=watch.watch_loop, name="jqueue-loop-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.over.set()


class _Watch:
    """State shared by the event loop and the thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[str | None], object],
        every: float,
    ) -> None:
        self.over = threading.Event()
        self._loop = loop
        self._report = report
        self._every = every
        self._moved = True

    def watch_loop(self) -> None:
        """Check the loop until the watch is over. It runs in a thread."""
        reported: str | None = None
        while not self.over.wait(self._every):
            blocking = None if self._moved else self._job_on_loop()
            if blocking != reported:
                reported = blocking
                self._report(reported)
            if self._moved:
                self._moved = False
                try:
                    self._loop.call_soon_threadsafe(self._move)
                except RuntimeError:  # the loop is closed
                    return

    def _move(self) -> None:
        self._moved = True

    def _job_on_loop(self) -> str | None:
        """Return the id of the job whose handler is running; None if something else runs, or nothing."""
        task = asyncio.current_task(self._loop)
        name = "" if task is None else task.get_name()
        return name.removeprefix(JOB_TASK) if name.startswith(JOB_TASK) else None
