"""The figures of a report: records whose fields are the columns of its DataFrames and tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from operator import add
from typing import Any, NamedTuple, get_args, get_type_hints


class EntrypointFigures(NamedTuple):
    """Figures of the jobs of one entrypoint in one queue, of one queue, or of all queues.

    Ages and times are in seconds. A job is due at its `run_at`, or when it was enqueued if it has none.

    Attributes:
        queue: the name of the queue; None for all queues.
        entrypoint: the entrypoint; None for all of them.
        jobs: number of jobs.
        ready: jobs that can be claimed now.
        scheduled: jobs that cannot be claimed yet.
        in_progress: claimed jobs.
        dead: jobs that are out of attempts.
        completed: finished jobs whose result is kept.
        expired: jobs that outlived their time in the queue, and will be removed with the next commit.
        oldest_age: time since the first of the ready jobs was due; None if no job is ready.
        median_age: half of the ready jobs have been due for longer.
        p95_age: one in twenty ready jobs has been due for longer.
        next_at: time at which the first scheduled job is due.
        stale: claims without a heartbeat for longer than they last, by the clock of the report.
        tried: jobs that were claimed at least once.
        mean_attempts: mean number of claims of the tried jobs.
        most_attempts: largest number of claims of a job.
        failing: jobs whose last failure was recorded, even if they have finished since.
        median_turnaround: half of the completed jobs took longer, from the time they were due to their ack.
        p95_turnaround: one in twenty completed jobs took longer.
        longest_turnaround: no completed job took longer.
    """

    queue: str | None
    entrypoint: str | None
    jobs: int = 0
    ready: int = 0
    scheduled: int = 0
    in_progress: int = 0
    dead: int = 0
    completed: int = 0
    expired: int = 0
    oldest_age: float | None = None
    median_age: float | None = None
    p95_age: float | None = None
    next_at: datetime | None = None
    stale: int = 0
    tried: int = 0
    mean_attempts: float | None = None
    most_attempts: int | None = None
    failing: int = 0
    median_turnaround: float | None = None
    p95_turnaround: float | None = None
    longest_turnaround: float | None = None


class Failure(NamedTuple):
    """Number of jobs whose last failure was of one class.

    Attributes:
        queue: the queue of the jobs.
        entrypoint: of the jobs.
        error: the class of the exception; "timeout" if the handler ran for longer than it
            may; "stale claim" if the worker sent no more heartbeats; "other" if the text
            does not tell a class.
        jobs: number of jobs.
        dead: jobs among them that were given up.
        waiting: jobs that are queued or claimed again.
        completed: jobs that finished all the same.
    """

    queue: str
    entrypoint: str
    error: str
    jobs: int
    dead: int
    waiting: int
    completed: int


class HistogramBucket(NamedTuple):
    """One column of a histogram: jobs with a value from one bound up to the next.

    Attributes:
        queue: the queue of the jobs.
        entrypoint: of the jobs.
        at_least: the lower bound, inclusive: seconds, or attempts.
        below: the upper bound, exclusive; None if there is none.
        jobs: number of jobs.
    """

    queue: str
    entrypoint: str
    at_least: float
    below: float | None
    jobs: int


class PastFigures(NamedTuple):
    """Figures of the events of one entrypoint, holder or window of time, or of all. Times are in seconds.

    Attributes:
        entrypoint: the entrypoint; None for all of them.
        holder: holder of the claims; None for all holders.
        start: beginning of the window; None for the whole time.
        enqueued: jobs that were enqueued.
        claimed: claims of jobs.
        done: jobs that were acked.
        failed: attempts that failed: nacks that count, and stale claims.
        dead: jobs that were given up.
        mean_attempts: mean number of claims of the jobs that were done or given up.
        most_attempts: largest number of claims of such a job.
        median_wait: half of the claimed jobs had been ready for longer.
        p95_wait: one in twenty claimed jobs had been ready for longer.
        p99_wait: one in a hundred claimed jobs had been ready for longer.
        median_run: half of the attempts that were done or failed took longer.
        p95_run: one in twenty attempts took longer.
        p99_run: one in a hundred attempts took longer.
        median_total: half of the jobs that were done and left the queue took longer, from their enqueue to their ack.
        p95_total: one in twenty such jobs took longer.
        p99_total: one in a hundred such jobs took longer.
    """

    entrypoint: str | None = None
    holder: str | None = None
    start: datetime | None = None
    enqueued: int = 0
    claimed: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    mean_attempts: float | None = None
    most_attempts: int | None = None
    median_wait: float | None = None
    p95_wait: float | None = None
    p99_wait: float | None = None
    median_run: float | None = None
    p95_run: float | None = None
    p99_run: float | None = None
    median_total: float | None = None
    p95_total: float | None = None
    p99_total: float | None = None


class PastFailure(NamedTuple):
    """Number of attempts that failed with one class of errors, in one window.

    Attributes:
        entrypoint: of the jobs.
        error: the class, as in `Failure`.
        start: beginning of the window.
        failed: number of attempts.
        dead: jobs among them that were given up.
    """

    entrypoint: str
    error: str
    start: datetime
    failed: int
    dead: int


@dataclass(frozen=True)
class Figures:
    """All figures of a report on queues as they are now.

    Attributes:
        now: the time from which ages are measured.
        queues: the names of all queues that were read, with or without jobs.
        standings: the figures of each entrypoint in each queue, in order of these names.
        totals: the figures of each queue, by its name, and of all queues, by None.
        failures: the classes of errors, the most frequent first.
        ages: histogram of the seconds for which ready jobs have been due; `turnarounds`: of the seconds that finished
            jobs took; `attempts`: of the numbers of claims of jobs.
    """

    now: datetime
    queues: tuple[str, ...]
    standings: tuple[EntrypointFigures, ...] = field(repr=False)
    totals: dict[str | None, EntrypointFigures] = field(repr=False)
    failures: tuple[Failure, ...] = field(repr=False)
    ages: tuple[HistogramBucket, ...] = field(repr=False)
    turnarounds: tuple[HistogramBucket, ...] = field(repr=False)
    attempts: tuple[HistogramBucket, ...] = field(repr=False)


@dataclass(frozen=True)
class Past:
    """All figures of a report on the past, from the events in a lake.

    Attributes:
        lake: path or URL of the lake.
        since: time of the first event.
        until: time of the last event.
        window: length of a window, in seconds. Windows begin at multiples of it since 1970, in UTC.
        total: the figures of all events.
        windows: the figures of each window, in order of time. A window without events is left out.
        entrypoints: the figures of each entrypoint, those with the most jobs done first.
        parts: the figures of each entrypoint in each window.
        holders: the figures of each holder of claims, those with the most jobs done first.
        failures: attempts that failed, by entrypoint, class of the error, and window.
    """

    lake: str
    since: datetime
    until: datetime
    window: float
    total: PastFigures = field(repr=False)
    windows: tuple[PastFigures, ...] = field(repr=False)
    entrypoints: tuple[PastFigures, ...] = field(repr=False)
    parts: tuple[PastFigures, ...] = field(repr=False)
    holders: tuple[PastFigures, ...] = field(repr=False)
    failures: tuple[PastFailure, ...] = field(repr=False)


AGES = {
    **{0.0: "< 1 s", 1.0: "1–10 s", 10.0: "10–60 s", 60.0: "1–10 min", 600.0: "10–60 min"},  # noqa: RUF001
    **{3600.0: "1–6 h", 6 * 3600.0: "6–24 h", 86400.0: "1–7 d", 7 * 86400.0: "≥ 7 d"},  # noqa: RUF001
}
"""The columns of the histograms of ages and turnarounds: lower bounds in seconds, and their names."""

ATTEMPTS = {0.0: "none", 1.0: "1", 2.0: "2", 3.0: "3", 4.0: "4", 5.0: "5–9", 10.0: "10–19", 20.0: "≥ 20"}  # noqa: RUF001
"""The columns of the histogram of attempts. "none" counts jobs that no worker has claimed yet."""

_TYPES = {str: "string", int: "bigint", float: "double", datetime: "timestamp"}


def schema_of(record: type) -> str:
    """Return the schema of a DataFrame of these records."""
    hints = get_type_hints(record).items()
    return ", ".join(f"{name} {_TYPES[(get_args(hint) or (hint,))[0]]}" for name, hint in hints)


def sums(failures: Iterable[Any], *fields: str) -> list[Any]:
    """Return the sums of the failures that are alike in these fields, the most frequent first."""
    by_key: dict[tuple[object, ...], Any] = {}
    for each in failures:
        key = tuple(getattr(each, field) for field in fields)
        if other := by_key.get(key):
            each = each._make((*each[:3], *map(add, each[3:], other[3:])))
        by_key[key] = each
    return sorted(by_key.values(), key=lambda each: (-each[3], each))
