"""The past of a queue for the page, from its history: the events of one job, and the last hour minute by minute."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from jqueue.core.shown import event_values
from jqueue.domain.errors import HistoryDamagedError
from jqueue.domain.events import HistoryEvent
from jqueue.domain.job import JobStatus
from jqueue.domain.stats import EntrypointStats
from jqueue.ports.queue import JobQueue, SupportsHistory
from jqueue.server.view import View

EVENTS_SHOWN = 200
"""Maximum number of events of one job in the page, the newest first."""

MINUTES = 60
"""Length of the time that the page draws."""

EVENTS_READ = 200_000
"""Maximum number of events that are read for the drawing. A busier queue is drawn for a shorter time."""

SECONDS = 30.0
"""Seconds within which a history must be read."""

_KIND = {"enqueue": "enqueued", "dequeue": "claimed", "ack": "done", "nack": "failed", "stale": "failed"}


async def events_of(queue: JobQueue, most: int = EVENTS_SHOWN, **choice: Any) -> dict[str, Any]:
    """Return events, the newest first; if there may be `more`; and the reason if some are `missing`.

    Args:
        queue: the queue. Without a history it has no events.
        most: number of events.
        choice: the arguments of its `history`.
    """
    shown: list[dict[str, Any]] = []
    answer = {"events": shown, "more": False, "missing": None}
    if not queue.capabilities.history:
        return answer
    history = cast(SupportsHistory, queue).history(**choice, deadline=SECONDS)
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
class _Minute:
    """The events of one minute: numbers of jobs by kind, changes of depths, and how long jobs have waited and run."""

    jobs: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)
    runs: list[float] = field(default_factory=list)

    def add(self, event: HistoryEvent) -> None:
        self.jobs[_KIND.get(event.verb, "")] += event.jobs
        for name, status in (("queued", JobStatus.QUEUED), ("dead", JobStatus.DEAD)):
            self.jobs[name] += event.jobs * ((event.after is status) - (event.before is status))
        if event.wait_seconds is not None:
            self.waits.append(event.wait_seconds)
        if event.run_seconds is not None:
            self.runs.append(event.run_seconds)


async def timeline(queue: JobQueue, view: View, entrypoint: str | None = None) -> dict[str, Any]:
    """Return the last hour of a queue, minute by minute, the oldest first; no points if it keeps no history.

    Args:
        queue: the queue.
        view: its present state.
        entrypoint: of the events; None for all.
    """
    if view.header.settings.history is None or not queue.capabilities.history:
        return {"points": []}
    end = int(view.now.timestamp() // 60) + 1
    minutes: dict[int, _Minute] = {}
    first = end - MINUTES
    since = view.now - timedelta(minutes=MINUTES)
    number = 0
    try:
        history = cast(SupportsHistory, queue).history(entrypoint=entrypoint, since=since, deadline=SECONDS)
        async with asyncio.timeout(SECONDS), aclosing(cast(Any, history)) as events:
            async for event in events:
                number += 1
                minute = int(event.at.timestamp() // 60)
                if number > EVENTS_READ:
                    first = max(first, minute + 1)  # a minute of which only a part was read is left out
                    break
                minutes.setdefault(minute, _Minute()).add(event)
                if number % 1024 == 0:
                    await asyncio.sleep(0)
    except (HistoryDamagedError, TimeoutError):
        first = max(first, min(minutes, default=end))
    figures = view.stats if entrypoint is None else (view.stats.entrypoints or {}).get(entrypoint, EntrypointStats())
    return {"points": _points(minutes, first, end, figures, view.now.timestamp())}


def _points(
    minutes: dict[int, _Minute], first: int, end: int, figures: EntrypointStats, now: float
) -> list[dict[str, Any]]:
    """Return a point for each minute. Depths are counted back from the figures of now."""
    queued, dead = figures.ready + figures.scheduled, figures.dead
    points = []
    for number in range(end - 1, first - 1, -1):
        minute = minutes.get(number, _Minute())
        point: dict[str, Any] = {"at": min((number + 1) * 60.0, now), "queued": max(0, queued), "dead": max(0, dead)}
        point |= {name: minute.jobs[name] / 60 for name in ("enqueued", "claimed", "done", "failed")}
        for name, values in (("wait", minute.waits), ("run", minute.runs)):
            point |= {f"{name}50": _quantile(values, 0.5), f"{name}95": _quantile(values, 0.95)}
        points.append(point)
        queued, dead = queued - minute.jobs["queued"], dead - minute.jobs["dead"]
    return points[::-1]


def _quantile(values: list[float], share: float) -> float | None:
    if not values:
        return None
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
