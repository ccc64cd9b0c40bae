"""What several queues come to together: their figures, their jobs, what all of them can do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from itertools import chain
from typing import Any

from jqueue.domain.models import Job, QueueState
from jqueue.domain.stats import EntrypointStats, QueueStats
from jqueue.ports.queue import Capabilities

NEVER = {"limits": False, "retention": False, "schedules": False, "staged": False, "holders": False}
"""What is said to one queue, and not to several."""

_COUNTS = ("depth", "scheduled", "in_progress", "dead", "completed")


def common(capabilities: Iterable[Capabilities]) -> Capabilities:
    """What all queues can do. Without any, what a queue on one object can."""
    several = list(capabilities)
    can = {field.name: all(getattr(one, field.name) for one in several) for field in fields(Capabilities)}
    return Capabilities(**{**can, **NEVER, "wait": True})


def merged_stats(several: Sequence[QueueStats]) -> QueueStats:
    """The figures of several queues together. An entrypoint is paused if no queue with jobs of it hands any out."""
    names = sorted(set(chain.from_iterable(stats.entrypoints or {} for stats in several)))
    of_each: Mapping[str, list[EntrypointStats]] = {
        name: [stats.entrypoints[name] for stats in several if stats.entrypoints and name in stats.entrypoints]
        for name in names
    }
    return QueueStats(
        **_counts(several),
        oldest_ready_age=_oldest(several),
        version=_sum(several, "version"),
        size=_sum(several, "size"),
        size_limit=_sum(several, "size_limit"),
        unreadable=_sum(several, "unreadable"),
        entrypoints={name: _merged(of_each[name]) for name in names},
        warnings=tuple(chain.from_iterable(stats.warnings for stats in several)),
    )


def _merged(several: Sequence[EntrypointStats]) -> EntrypointStats:
    return EntrypointStats(
        **_counts(several),
        oldest_ready_age=_oldest(several),
        paused=all(stats.paused for stats in several),
    )


def _counts(several: Sequence[EntrypointStats]) -> dict[str, Any]:
    return {count: _sum(several, count) for count in _COUNTS}


def _sum(several: Sequence[EntrypointStats], name: str) -> int:
    return sum(getattr(stats, name) for stats in several)


def _oldest(several: Sequence[EntrypointStats]) -> timedelta | None:
    return max((stats.oldest_ready_age for stats in several if stats.oldest_ready_age is not None), default=None)


def merged_state(states: Sequence[QueueState]) -> QueueState:
    """The jobs of several queues as one value. Ids may be in it more than once; its version grows with each of them."""
    finished: dict[str, int] = {}
    for state in states:
        finished.update(state.finished)
    return QueueState(version=sum(state.version for state in states)).model_copy(
        update={"jobs": tuple(chain.from_iterable(state.jobs for state in states)), "finished": finished}
    )


def as_served(state: QueueState) -> list[Job]:
    """All jobs of a queue, whatever their status, by priority and place."""
    return sorted(state.jobs, key=lambda job: (job.priority, job.sequence, job.created_at))
