"""The queues and workers that an exporter of metrics watches: each with its latest figures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from jqueue.domain.errors import JQueueError
from jqueue.domain.printable import printable
from jqueue.domain.stats import QueueStats
from jqueue.ports.log import logger_of
from jqueue.ports.observer import SupportsObservers
from jqueue.ports.queue import Operator
from jqueue.telemetry import catalog
from jqueue.telemetry.exporters import WorkerFigures
from jqueue.telemetry.figures import Figures, Sample
from jqueue.telemetry.observing import observed
from jqueue.telemetry.places import place_name
from jqueue.telemetry.recorder import Recorder

logger = logger_of("jqueue.telemetry")

DEADLINE = 10.0
"""Seconds for one look at a queue."""

EVERY = 15.0
"""Seconds between two looks at a queue, by default."""


class WatchedQueue:
    """One queue under watch, with its latest figures.

    Args:
        queue: the queue.
        worker: the figures of the worker that runs on it; None without one.
        commits: True to count the commits of the queue object.
    """

    def __init__(self, queue: Operator, worker: WorkerFigures | None, commits: bool) -> None:
        self.name = place_name(queue)
        self.recorder = Recorder(self.name) if commits and isinstance(queue, SupportsObservers) else None
        self._queue = queue
        self._worker = worker
        self._figures = Figures(self.name)
        self._stats: QueueStats | None = None

    async def look(self) -> None:
        """Read the figures of the queue. If that fails, they are absent."""
        try:
            self._stats = await self._queue.stats(deadline=DEADLINE)
        except (JQueueError, OSError) as error:
            if self._stats is not None:
                logger.warning("the figures of %s cannot be read: %s", self.name, error)
            self._stats = None

    async def look_each(self, seconds: float) -> None:
        """Read the figures of the queue again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(seconds)

    def samples(self) -> Iterator[Sample]:
        """Yield the latest figures. Any thread may call this."""
        stats, worker = self._stats, self._worker
        yield from self._figures.absent() if stats is None else self._figures.samples(stats)
        if self.recorder is not None:
            yield from self.recorder.samples()
        if worker is not None:
            labels = (self.name, printable(worker.name))
            yield Sample(catalog.RUNNING, labels, worker.running)
            for outcome, number in worker.outcomes.items():
                yield Sample(catalog.OUTCOMES, (*labels, outcome), number)


class WatchedQueues:
    """The queues that one exporter watches.

    Args:
        every: seconds between two looks at the figures of a queue; None: only `look` looks.
        commits: True to count the commits of a queue object.
    """

    def __init__(self, every: float | None, commits: bool) -> None:
        self._every = every
        self._commits = commits
        self._present: tuple[WatchedQueue, ...] = ()

    @asynccontextmanager
    async def watch(self, queue: Operator, worker: WorkerFigures | None) -> AsyncIterator[None]:
        """Watch a queue while the context lasts."""
        watched = WatchedQueue(queue, worker, self._commits)
        looking = None
        self._present = (*self._present, watched)
        if self._every is not None:
            looking = asyncio.create_task(watched.look_each(self._every), name="jqueue-metrics")
        try:
            with observed(queue, watched.recorder):
                yield
        finally:
            self._present = tuple(each for each in self._present if each is not watched)
            if looking is not None:
                looking.cancel()
                await asyncio.wait([looking])

    async def look(self) -> None:
        """Read the figures of all queues."""
        await asyncio.gather(*(watched.look() for watched in self._present))

    def samples(self) -> Iterator[Sample]:
        """Yield the latest figures of all queues. If two have the same labels, the first counts. Any thread may."""
        seen = set()
        for watched in self._present:
            for sample in watched.samples():
                key = (sample.metric.name, sample.labels)
                if key not in seen:
                    seen.add(key)
                    yield sample
