"""The queue of a test whose jobs run at once: each call that adds jobs ends when a worker has nothing left to do."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jqueue.ports.queue import JobQueue
    from jqueue.worker.worker import Worker

ADDING = frozenset({"enqueue", "enqueue_many", "apply", "apply_each"})
"""Verbs that may add jobs."""


class InlineQueue:
    """A wrapper around the queue of a tester. All calls but those that add jobs go straight to the queue.

    A job that is added while jobs run, as by a handler, is left to that run: it runs before the first call ends.

    Args:
        queue: the queue itself.
        worker: the worker of its jobs.
        run_until_idle: runs that worker.
    """

    def __init__(self, queue: JobQueue, worker: Worker, run_until_idle: Callable[[], Awaitable[object]]) -> None:
        self._queue = queue
        self._worker = worker
        self._run_until_idle = run_until_idle
        self._runs = self._has_new_jobs = False

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._queue, name)
        if name not in ADDING:
            return verb

        @functools.wraps(verb)
        async def add(*arguments: Any, **options: Any) -> Any:
            __tracebackhide__ = True
            result = await verb(*arguments, **options)
            await self._run()
            return result

        return add

    async def _run(self) -> None:
        __tracebackhide__ = True
        self._has_new_jobs = True
        if self._runs or self._worker._run is not None:  # noqa: SLF001 - a test may run the worker itself
            return
        self._runs = True
        try:
            while self._has_new_jobs:
                self._has_new_jobs = False
                await self._run_until_idle()
        finally:
            self._runs = False
