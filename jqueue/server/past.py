"""The past of a queue for the page, from its history: the events of one job, and the last hour minute by minute."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from jqueue.core.blob_queue import BlobQueue
from jqueue.core.json_views import event_values
from jqueue.core.verbs.operator import BEFORE
from jqueue.core.view import QueueView
from jqueue.domain.counters import EventCounters, Totals
from jqueue.domain.errors import HistoryDamagedError, InvalidJobError, JobsUnreadableError
from jqueue.domain.events import HistoryEvent
from jqueue.domain.job import JobStatus
from jqueue.domain.stats import EntrypointStats
from jqueue.ports.clock import Clock
from jqueue.ports.queue import JobQueue, SupportsHistory
from jqueue.server.view import View

EVENTS_SHOWN = 200
"""Maximum number of events of one job in the page, the newest first."""

STEPS = 60
"""Number of points that the page draws."""

SPANS = ("3600", "900", "86400", "604800")
"""Seconds of the times that the page draws, the first by default."""

EVENTS_READ = 200_000
"""Maximum number of events that are read for the drawing. A busier queue is drawn for a shorter time."""

KEPT = 60.0
"""Seconds for which the events of a job are kept after a page has looked at it."""

SECONDS = 30.0
"""Seconds within which a history must be read."""


async def events_of(
    queue: JobQueue, most: int = EVENTS_SHOWN, view: QueueView | None = None, **choice: Any
) -> dict[str, Any]:
    """Return events, the newest first; if there may be `more`; and the reason if some are `missing`.

    Args:
        queue: the queue. Without a history it has no events.
        most: number of events.
        view: the queue as it was read; None to read it.
        choice: the arguments of its `history`, or of `history_of`.
    """
    shown: list[dict[str, Any]] = []
    answer: dict[str, Any] = {"events": shown, "more": False, "missing": None}
    if not queue.capabilities.history:
        return answer
    own = cast(BlobQueue, queue)
    history = own.history(**choice, deadline=SECONDS) if view is None else own.history_of(view, **choice)
    try:
        async with asyncio.timeout(SECONDS), aclosing(cast(Any, history)) as events:
            async for event in events:
                if len(shown) == most:
                    return answer | {"more": True}
                shown.append(event_values(event))
    except HistoryDamagedError as error:
        return answer | {"missing": str(error)}
    except TimeoutError:
        return answer | {"more": True}
    return answer


@dataclass
class _Life:
    """The events of a job.

    Attributes:
        looked_at: time of the last look at them.
        last: number of the last event of the queue that was read.
        answer: what the page shows.
    """

    looked_at: float
    last: int = 0
    answer: dict[str, Any] = field(default_factory=dict)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class Lives:
    """The events of jobs, kept while pages look at them. No event is read twice, and none after the end of a job.

    Args:
        queue: the queue.
        clock: tells when a page has last looked.
    """

    def __init__(self, queue: JobQueue, clock: Clock) -> None:
        self._queue, self._clock = queue, clock
        self._lives: dict[str, _Life] = {}

    async def look(self, view: View, job_id: str) -> dict[str, Any]:
        """Return the newest events of the last life of a job: see `events_of`."""
        history, now = view.header.history, self._clock.monotonic()
        if history is None:
            return await events_of(self._queue, job_id=job_id)
        self._lives = {name: each for name, each in self._lives.items() if each.looked_at > now - KEPT}
        life = self._lives.setdefault(job_id, _Life(now))
        life.looked_at = now
        async with life.reading:
            last_answer = life.answer if life.last <= history.last else {}  # or else a backup of the queue was restored
            events = last_answer.get("events", [])
            is_over = bool(events) and events[0]["after"] is None and job_id not in view.queue.records
            if last_answer and (is_over or life.last == history.last):
                return last_answer
            created_at = None
            if not last_answer:
                with suppress(JobsUnreadableError):  # it is not known when the job was enqueued
                    job = await view.queue.find(job_id)
                    created_at = None if job is None else job.created_at - BEFORE
            after = life.last if last_answer else 0
            new = await events_of(
                self._queue, view=view.queue, job_id=job_id, since=created_at, after=after, last_life=True
            )
            every = new["events"] + events
            more = new["more"] or last_answer.get("more", False) or len(every) > EVENTS_SHOWN
            missing = new["missing"] or last_answer.get("missing")
            life.answer = {"events": every[:EVENTS_SHOWN], "more": more, "missing": missing}
            life.last = history.last
            return life.answer


class _Step:
    """The events of one step, and the changes of the numbers of queued and of dead jobs in it."""

    def __init__(self) -> None:
        self._counters, self.depths = EventCounters(), Counter[JobStatus | None]()

    def add(self, event: HistoryEvent) -> None:
        self._counters.add(event)
        self.depths.update({event.after: event.jobs})
        self.depths.subtract({event.before: event.jobs})

    def totals(self, now: datetime) -> Totals:
        return sum(self._counters.totals(now).values(), Totals())


async def timeline(queue: JobQueue, view: View, entrypoint: str | None = None, span: str = SPANS[0]) -> dict[str, Any]:
    """Return the last time of a queue, step by step, the oldest first; no points if it keeps no history.

    Args:
        queue: the queue.
        view: its present state.
        entrypoint: of the events; None for all.
        span: one of `SPANS`.

    Raises:
        InvalidJobError: it is not.
    """
    if span not in SPANS:
        raise InvalidJobError(f"there is no such time: choose {', '.join(SPANS)} seconds")
    if view.header.settings.history is None or not queue.capabilities.history:
        return {"points": []}
    length = int(span) // STEPS
    end = int(view.now.timestamp() // length) + 1
    steps: dict[int, _Step] = {}
    first = end - STEPS
    since = view.now - timedelta(seconds=int(span))
    number = 0
    try:
        history = cast(SupportsHistory, queue).history(entrypoint=entrypoint, since=since, deadline=SECONDS)
        async with asyncio.timeout(SECONDS), aclosing(cast(Any, history)) as events:
            async for event in events:
                number += 1
                step = int(event.at.timestamp() // length)
                if number > EVENTS_READ:
                    first = max(first, step + 1)  # a step of which only a part was read is left out
                    break
                steps.setdefault(step, _Step()).add(event)
                if number % 1024 == 0:
                    await asyncio.sleep(0)
    except (HistoryDamagedError, TimeoutError):
        first = max(first, min(steps, default=end))
    figures = view.stats if entrypoint is None else (view.stats.entrypoints or {}).get(entrypoint, EntrypointStats())
    return {"points": _points(steps, length, range(end - 1, first - 1, -1), figures, view.now)}


def _points(
    steps: dict[int, _Step], length: int, numbers: range, figures: EntrypointStats, now: datetime
) -> list[dict[str, Any]]:
    """Return a point for each step. Depths are counted back from the figures of now."""
    queued, dead = figures.ready + figures.scheduled + figures.waiting, figures.dead
    points = []
    for number in numbers:
        step = steps.get(number, _Step())
        totals, at = step.totals(now), min((number + 1.0) * length, now.timestamp())
        point: dict[str, Any] = {"at": at, "queued": max(0, queued), "dead": max(0, dead)}
        point |= {name: getattr(totals, name) / length for name in ("enqueued", "claimed", "done", "failed")}
        for name, times in (("wait", totals.waits), ("run", totals.runs)):
            point |= {f"{name}50": times.quantile(0.5), f"{name}95": times.quantile(0.95)}
        points.append(point)
        queued, dead = queued - step.depths[JobStatus.QUEUED], dead - step.depths[JobStatus.DEAD]
    return points[::-1]
