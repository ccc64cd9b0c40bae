"""A queue in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, JobStatus, QueueState

WARN_SHARE = 0.5
"""From this share of the blob's limit on, the figures carry a warning."""


@dataclass(frozen=True, slots=True)
class EntrypointStats:
    """How many jobs stand where.

    Attributes:
        depth: ready to be claimed.
        scheduled: queued, and not to be claimed yet.
        in_progress: claimed.
        dead: out of attempts.
        oldest_ready_age: since the earliest `run_at` of the ready jobs, or `created_at` of those without one; None if
            none is ready. A job that was given back or redriven is as old as before.
    """

    depth: int = 0
    scheduled: int = 0
    in_progress: int = 0
    dead: int = 0
    oldest_ready_age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class QueueStats(EntrypointStats):
    """The figures of a whole queue.

    Attributes:
        version: the version that they describe.
        size: bytes of the blob.
        size_limit: bytes that its jobs may take before enqueue refuses more.
        unreadable: lines set aside because they cannot be read as jobs.
        entrypoints: the figures of each entrypoint.
        warnings: what an operator should know, in words.
    """

    version: int = 0
    size: int = 0
    size_limit: int = 0
    unreadable: int = 0
    entrypoints: Mapping[str, EntrypointStats] | None = None
    warnings: tuple[str, ...] = ()


def summarise(state: QueueState, now: datetime, size: int, taken: int, limits: Limits) -> QueueStats:
    """The figures of a state.

    Args:
        state: what to count.
        now: what ages are measured from.
        size: bytes that the state takes in the store.
        taken: bytes of it that count against the limit of enqueue.
        limits: what the queue accepts.
    """
    groups: dict[str, list[Job]] = {}
    for job in state.jobs:
        groups.setdefault(job.entrypoint, []).append(job)
    warnings = []
    if taken > WARN_SHARE * limits.enqueue_bytes:
        share = taken / limits.enqueue_bytes
        warnings.append(f"the blob is {share:.0%} full: {taken} of {limits.enqueue_bytes} bytes")
    if state.set_aside:
        warnings.append(f"{len(state.set_aside)} lines cannot be read as jobs: {state.set_aside[0].reason}, …")
    depth, scheduled, in_progress, dead, oldest = _figures(state.jobs, now)
    return QueueStats(
        depth=depth,
        scheduled=scheduled,
        in_progress=in_progress,
        dead=dead,
        oldest_ready_age=oldest,
        version=state.version,
        size=size,
        size_limit=limits.enqueue_bytes,
        unreadable=len(state.set_aside),
        entrypoints={name: EntrypointStats(*_figures(jobs, now)) for name, jobs in sorted(groups.items())},
        warnings=tuple(warnings),
    )


def _figures(jobs: Iterable[Job], now: datetime) -> tuple[int, int, int, int, timedelta | None]:
    counts: Counter[str] = Counter()
    oldest: datetime | None = None
    for job in jobs:
        if job.status is not JobStatus.QUEUED:
            counts[job.status] += 1
        elif job.run_at is not None and job.run_at > now:
            counts["scheduled"] += 1
        elif job.expires_at is None or job.expires_at > now:
            counts["ready"] += 1
            since = job.run_at or job.created_at
            oldest = since if oldest is None or since < oldest else oldest
    age = None if oldest is None else max(timedelta(), now - oldest)
    return counts["ready"], counts["scheduled"], counts[JobStatus.IN_PROGRESS], counts[JobStatus.DEAD], age
