"""One version of a queue as all viewers see it: its header, its jobs, its figures. One read serves every viewer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from jqueue.adapters.storage.names import describe
from jqueue.core.blob.follower import Follower
from jqueue.core.blob.segment_damage import Damage
from jqueue.core.blob.segment_watch import SegmentWatch
from jqueue.core.blob_queue import BlobQueue
from jqueue.core.lazy_state import LazyState
from jqueue.core.queue_options import QueueOptions
from jqueue.core.view import QueueView
from jqueue.domain.durations import to_seconds
from jqueue.domain.errors import JQueueError
from jqueue.domain.job import JobRecord
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, QueueState, record_of
from jqueue.domain.stats import QueueStats
from jqueue.ports.clock import Clock
from jqueue.ports.queue import JobQueue
from jqueue.ports.storage import ObjectStoragePort, SupportsStoreTime

READ_EVERY = 0.5
"""Seconds between two reads of a queue, at least. Viewers that ask earlier get the last one."""

COUNT_EVERY = 5.0
"""Seconds after which the figures of an unchanged queue are counted again: rates and states change with time."""

READ_DEADLINE = 20.0
"""Seconds after which a viewer is told that the queue cannot be read."""


@dataclass(frozen=True)
class View:
    """A queue as it was read.

    Attributes:
        number: grows with every change. Together with the time of the counting, it tells one view from another.
        now: the time by the queue's clock when the figures were counted.
        queue: its jobs.
        entries: the jobs of the queue's object by id. Do not change it.
        stats: the figures.
        found: the lists of jobs that viewers have asked for, kept by `jqueue.server.jobs`.
        damage: segments that cannot be read, with the reasons: see `jqueue.core.blob.segment_watch`.
    """

    number: int
    now: datetime
    queue: QueueView
    entries: Mapping[str, JobRecord] = field(repr=False)  # payloads must not appear in a repr or a log
    stats: QueueStats
    found: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    damage: Damage = field(default_factory=dict, repr=False, compare=False)

    @property
    def header(self) -> QueueState:
        """The state without its jobs."""
        return self.queue.header

    async def job(self, job_id: str) -> Job | None:
        """Return the job with an id; None if it is not in the queue.

        Raises:
            StorageError: the store failed, or a segment that may hold the job is damaged.
        """
        return await self.queue.find(job_id)

    @property
    def etag(self) -> str:
        """A text that is the same as long as the view is the same, in one process."""
        return f"{self.number}-{int(self.now.timestamp() * 1000)}"


class Reader(Protocol):
    """Reads a queue, and says if it has changed."""

    async def refresh(self) -> bool:
        """Read the queue. Return True if it has changed since the last call."""

    def now(self) -> datetime:
        """Return the time by the queue's clock."""

    async def view(self, number: int, now: datetime) -> View:
        """Return the queue as of the last `refresh`."""


class BlobReader:
    """Reads a queue in one object. Only changed lines are parsed."""

    def __init__(self, storage: ObjectStoragePort, options: QueueOptions) -> None:
        self._storage = storage
        self._options = options
        self._watch = SegmentWatch(storage, options.entropy)
        call_timeout = to_seconds("call_timeout", options.call_timeout)
        self._follower = Follower(storage, options.entropy, options.clock, call_timeout=call_timeout)

    async def refresh(self) -> bool:
        """As in `Reader`."""
        return await self._follower.refresh(READ_DEADLINE)

    def now(self) -> datetime:
        """As in `Reader`."""
        told = self._storage.store_time() if isinstance(self._storage, SupportsStoreTime) else None
        return told or self._options.clock.now()

    async def view(self, number: int, now: datetime) -> View:
        """As in `Reader`."""
        content = self._follower.content(READ_DEADLINE)
        entries = dict(content.entries)  # the next refresh changes the jobs in place
        limits, taken, size = self._options.limits, self._follower.taken, self._follower.size
        queue = QueueView(replace(content, entries=entries), limits, taken, size)
        if await self._watch.look(queue.header, now):
            self._follower.forget_damage()
        return View(number, now, queue, entries, await queue.stats(now), damage=self._watch.damage)


class VerbReader:
    """Reads any queue by its verbs, such as one in the format of another program. Every read is of the whole queue."""

    def __init__(self, queue: JobQueue, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._state = QueueState()
        self._stats = QueueStats()

    async def refresh(self) -> bool:
        """As in `Reader`."""
        before = self._state
        self._state = await self._queue.read_state(hot=True, deadline=READ_DEADLINE)
        self._stats = await self._queue.stats(deadline=READ_DEADLINE)
        return self._state != before

    def now(self) -> datetime:
        """As in `Reader`."""
        return self._clock.now()

    async def view(self, number: int, now: datetime) -> View:
        """As in `Reader`."""
        header = self._state.model_copy(update={"jobs": ()})
        entries = {job.id: record_of(job) for job in self._state.jobs}
        queue = QueueView(LazyState(header, self._state.set_aside, entries), Limits(), 0, self._stats.size)
        return View(number, now, queue, entries, self._stats)


class Viewers:
    """All viewers of one queue. They share its reads.

    Args:
        queue: the queue.
        clock: tells how old the last read is, and the time if the store does not.
    """

    def __init__(self, queue: JobQueue, clock: Clock) -> None:
        self._clock = clock
        self._reader: Reader = VerbReader(queue, clock)
        if isinstance(queue, BlobQueue):
            self._reader = BlobReader(queue.storage, queue.options)
        self._reading = asyncio.Lock()
        self._read_at: float | None = None
        self._view: View | None = None

    async def look(self, *, fresh: bool = False) -> View:
        """Return the queue as it was half a second ago at most.

        Args:
            fresh: True to read it now, because an operator has just changed it.

        Raises:
            JQueueError: it cannot be read.
        """
        asked = self._clock.monotonic()
        async with self._reading:
            read_at = self._read_at
            if self._view is None or read_at is None or read_at < (asked if fresh else asked - READ_EVERY):
                await self._read()
            assert self._view is not None
            return self._view

    def forget(self) -> None:
        """Read the queue at the next look, as it has just been changed here."""
        self._read_at = None

    async def _read(self) -> None:
        started = self._clock.monotonic()
        try:
            changed = await self._reader.refresh()
        except JQueueError:
            self._read_at = None
            raise
        # The time at which the read began: what happened during it, and is not in it, counts as later.
        now, view = self._reader.now() - timedelta(seconds=self._clock.monotonic() - started), self._view
        if view is None or changed or now - view.now >= timedelta(seconds=COUNT_EVERY):
            self._view = await self._reader.view(view.number + 1 if view else 1, now)
        self._read_at = started


def name_of(queue: JobQueue) -> str:
    """Return the name of a queue, as users know it, without secrets."""
    if isinstance(queue, BlobQueue):
        return describe(queue.storage)
    return describe(getattr(queue, "store", queue))
