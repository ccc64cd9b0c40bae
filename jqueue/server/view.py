"""One version of a queue as all viewers see it: its header, its jobs, its figures. One read serves every viewer.

The page shows the JSON of `jqueue.core.json_views`, as the commands and the HTTP interface do.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jqueue.core.blob_queue import BlobQueue
from jqueue.core.direct import DirectQueue
from jqueue.core.json_views import stats_values
from jqueue.core.view import WARNING, QueueView
from jqueue.domain.cron import next_after
from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.domain.header import Header
from jqueue.domain.operations.rules import id_of
from jqueue.domain.rules import A_SECOND, EntrypointRules, Schedule
from jqueue.domain.selection import phase_of
from jqueue.domain.stats import EntrypointStats, QueueStats
from jqueue.ports.clock import Clock
from jqueue.ports.queue import JobQueue
from jqueue.ports.storage import describe, storage_of, time_of

READ_EVERY = 0.5
"""Seconds between two reads of a queue, at least. Viewers that ask earlier get the last one."""

COUNT_EVERY = 5.0
"""Seconds after which the figures of an unchanged queue are counted again: rates and states change with time."""

LIST_EVERY = timedelta(seconds=60)
"""Time between two listings of the segments, which tell which are missing."""

READ_DEADLINE = 20.0
"""Seconds after which a viewer is told that the queue cannot be read."""


@dataclass(frozen=True)
class View:
    """A queue as it was read.

    Attributes:
        number: grows with every change. Together with the time of the counting, it tells one view from another.
        now: the time by the queue's clock when the figures were counted.
        queue: its jobs.
        stats: the figures.
    """

    number: int
    now: datetime
    queue: QueueView
    stats: QueueStats

    @property
    def header(self) -> Header:
        """The state without its jobs."""
        return self.queue.header

    @property
    def etag(self) -> str:
        """A text that is the same as long as the view is the same, in one process."""
        return f"{self.number}-{int(self.now.timestamp() * 1000)}"


class Viewers:
    """All viewers of one queue. They share its reads.

    Args:
        queue: the queue.
        clock: tells how old the last read is, and the time if the store does not.
    """

    def __init__(self, queue: JobQueue, clock: Clock) -> None:
        self._clock = clock
        self._queue: Any = queue
        self._listed_at: datetime | None = None
        if isinstance(queue, BlobQueue):  # what is known of damaged segments is not shared with the queue itself
            self._queue = DirectQueue(queue.storage, **vars(queue.options))
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
        started, last = self._clock.monotonic(), self._view
        try:
            queue: QueueView = await self._queue.view(None if last is None else last.queue, deadline=READ_DEADLINE)
        except JQueueError:
            self._read_at = None
            raise
        # The time at which the read began: what happened during it, and is not in it, counts as later.
        now = time_of(self._queue, self._clock) - timedelta(seconds=self._clock.monotonic() - started)
        if last is None or queue is not last.queue or now - last.now >= timedelta(seconds=COUNT_EVERY):
            if self._listed_at is None or now - self._listed_at >= LIST_EVERY:
                await queue.list_segments()
                self._listed_at = now
            self._view = View(last.number + 1 if last else 1, now, queue, await queue.stats(now))
        self._read_at = started


def name_of(queue: JobQueue) -> str:
    """Return the name of a queue, as users know it, without secrets."""
    return describe(storage_of(queue) or queue)


def overview(queue: JobQueue, view: View) -> dict[str, Any]:
    """Return everything that the page shows of a queue, except its jobs: a `ShownStats`, and more figures."""
    header, stats = view.header, view.stats
    damage = view.queue.damage()  # a list of jobs may have met more of it since the figures were counted
    history = header.history
    return {
        **stats_values(name_of(queue), view.queue, stats, view.now),
        "warnings": [*damage, *(each for each in stats.warnings if not each.startswith(WARNING))],
        "now": view.now.timestamp(),
        "last_runs": {name: _last_run(each, view) for name, each in header.schedules.items()},
        "durations": {name: _durations(each) for name, each in {**(stats.entrypoints or {}), "": stats}.items()},
        "store": {
            "id": header.queue,
            "critical": list(header.critical),
            "history": header.settings.history,
            "history_events": 0 if history is None else history.last,
            "history_lost": 0 if history is None else history.lost,
            "finished": len(header.finished),
            "holds": len(header.holds),
        },
    }


def _last_run(entry: Schedule, view: View) -> dict[str, Any] | None:
    """Return the last job of a cron entry. Its state is null if it left long ago or is in a segment."""
    at = entry.fired[-1].last if entry.fired else view.now
    with suppress(InvalidJobError):  # this machine cannot read the expression
        if next_after(entry.cron, entry.timezone, at - A_SECOND) == at:  # or else none is due since the entry was set
            job_id = id_of(entry, at)
            job = view.queue.records.get(job_id)
            done = "done" if job_id in view.header.finished else None
            return {"id": job_id, "at": at.timestamp(), "state": done if job is None else phase_of(job, view.now)}
    return None


def _durations(figures: EntrypointStats) -> dict[str, list[tuple[float, int]]]:
    """Return the histograms of an entrypoint: the page draws the difference between two of its polls."""
    totals = figures.totals
    times = {} if totals is None else {"wait": totals.waits, "run": totals.runs}
    return {name: sorted(each.counts.items()) for name, each in times.items()}


def rules_seen(rules: EntrypointRules) -> dict[str, Any]:
    """Return the rules of an entrypoint as the page sends them back with an action."""
    return {name: getattr(rules, name) for name in ("paused", "max_running", "rate", "per", "key_rate", "key_per")}
