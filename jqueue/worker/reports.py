"""The progress that handlers report, on its way to the queue.

The latest report of each job goes with the next call that the worker makes for its jobs. If there is none for some
seconds, one call brings the reports of all jobs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from jqueue.domain.errors import JQueueError
from jqueue.domain.job import Progress
from jqueue.domain.models import Job
from jqueue.domain.operations.ends import Heartbeat
from jqueue.ports.queue import JobQueue
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import rest

EVERY = 2.0
"""Seconds that a report waits for a call to go with, and between two calls for reports alone."""


class Reports:
    """The latest report of each job of one run."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._latest: dict[str, tuple[Job, Progress]] = {}
        self._due = 0.0
        self._came = asyncio.Event()
        self._wakes = False

    def add(self, job: Job, progress: Progress) -> None:
        """Add a report. The threads of handlers may call this."""
        if not self._latest:
            self._due = self._loop.time() + EVERY
        self._latest[job.id] = job, progress
        if not self._wakes:
            self._wakes = True
            self._loop.call_soon_threadsafe(self._came.set)

    def take(self, most: int) -> list[Heartbeat]:
        """Return the operations that bring the reports to the queue, at most a number of them."""
        taken = list[Heartbeat]()
        while self._latest and len(taken) < most:
            job, progress = self._latest.pop(next(iter(self._latest)))
            taken.append(Heartbeat((job.claim,), tolerant=True, progress=(progress,)))
        return taken

    async def send(self, queue: JobQueue, most: int) -> None:
        """Send reports that no other call takes, until cancelled. One that cannot be sent is dropped."""
        while True:
            await self._came.wait()
            self._came.clear()
            self._wakes = False
            while self._latest:
                if (left := self._due - self._loop.time()) > 0:
                    await rest(left, options_of(queue).clock)
                    continue
                with suppress(JQueueError):
                    await queue.apply_each(*self.take(most))
