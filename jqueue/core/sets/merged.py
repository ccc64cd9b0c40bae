"""Several queues combined: their statistics, their jobs and their common capabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from itertools import chain
from typing import Any

from jqueue.domain.models import QueueState
from jqueue.domain.stats import EntrypointStats, QueueStats
from jqueue.domain.totals import Totals
from jqueue.domain.workers import by_name
from jqueue.ports.queue import Capabilities

NEVER = dict.fromkeys(("limits", "retention", "schedules", "staged", "holders", "history", "ranges"), False)
"""Capabilities for calls to one queue, which a set lacks."""

_COUNTS = ("ready", "scheduled", "in_progress", "dead", "completed")


def common(capabilities: Iterable[Capabilities]) -> Capabilities:
    """Return the capabilities that all queues have. Without queues, these are the ones of a queue on one object."""
    several = list(capabilities)
    can = {field.name: all(getattr(one, field.name) for one in several) for field in fields(Capabilities)}
    return Capabilities(**{**can, **NEVER, "wait": True})


def merged_stats(several: Sequence[QueueStats]) -> QueueStats:
    """Add up the statistics of queues. An entrypoint is paused if it is paused in each queue that has it."""
    names = sorted(set(chain.from_iterable(stats.entrypoints or {} for stats in several)))
    of_each: Mapping[str, list[EntrypointStats]] = {
        name: [stats.entrypoints[name] for stats in several if stats.entrypoints and name in stats.entrypoints]
        for name in names
    }
    return QueueStats(
        **_counts(several),
        **_ages_and_totals(several),
        version=_sum(several, "version"),
        size=_sum(several, "size"),
        size_limit=_sum(several, "size_limit"),
        unreadable=_sum(several, "unreadable"),
        entrypoints={name: _merged(of_each[name]) for name in names},
        holders=dict(sum((Counter(stats.holders or {}) for stats in several), Counter[str]())),
        workers=by_name(chain.from_iterable(stats.workers for stats in several)),
        warnings=tuple(chain.from_iterable(stats.warnings for stats in several)),
        segments=_sum(several, "segments"),
        segment_jobs=_sum(several, "segment_jobs"),
        segment_bytes=_sum(several, "segment_bytes"),
    )


def _merged(several: Sequence[EntrypointStats]) -> EntrypointStats:
    return EntrypointStats(
        **_counts(several),
        **_ages_and_totals(several),
        paused=all(stats.paused for stats in several),
    )


def _counts(several: Sequence[EntrypointStats]) -> dict[str, Any]:
    return {count: _sum(several, count) for count in _COUNTS}


def _sum(several: Sequence[EntrypointStats], name: str) -> int:
    return sum(getattr(stats, name) for stats in several)


def _ages_and_totals(several: Sequence[EntrypointStats]) -> dict[str, Any]:
    counted = [stats.totals for stats in several if stats.totals is not None]
    return {
        "oldest_ready_age": _oldest(stats.oldest_ready_age for stats in several),
        "oldest_claim_age": _oldest(stats.oldest_claim_age for stats in several),
        "totals": sum(counted, Totals()) if counted else None,
    }


def _oldest(ages: Iterable[timedelta | None]) -> timedelta | None:
    return max((age for age in ages if age is not None), default=None)


def merged_state(states: Sequence[QueueState]) -> QueueState:
    """Return the jobs of several queues as one state. Ids may occur more than once.

    The version is the sum of all versions.
    """
    finished: dict[str, int] = {}
    for state in states:
        finished.update(state.finished)
    return QueueState(version=sum(state.version for state in states)).model_copy(
        update={"jobs": tuple(chain.from_iterable(state.jobs for state in states)), "finished": finished}
    )
