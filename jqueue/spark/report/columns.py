"""The columns of a report, and its rows as Python values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType


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


@dataclass(frozen=True)
class Figures:
    """All figures of a report, as its tables and its page show them.

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


_KINDS = {
    **dict.fromkeys(("queue", "entrypoint", "error"), StringType()),
    **dict.fromkeys(("at_least", "below", "mean_attempts"), DoubleType()),
    **dict.fromkeys(("oldest_age", "median_age", "p95_age"), DoubleType()),
    **dict.fromkeys(("median_turnaround", "p95_turnaround", "longest_turnaround"), DoubleType()),
    "next_at": TimestampType(),
}


def _schema(names: tuple[str, ...]) -> StructType:
    return StructType([StructField(name, _KINDS.get(name, LongType())) for name in names])


FIGURES_SCHEMA = _schema(EntrypointFigures._fields)
FAILURE_SCHEMA = _schema(Failure._fields)
HISTOGRAM_SCHEMA = _schema(HistogramBucket._fields)

AGES = (0.0, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 7 * 86400.0)
"""The lower bounds of the histograms of ages and turnarounds, in seconds."""

AGE_NAMES = ("< 1 s", "1–10 s", "10–60 s", "1–10 min", "10–60 min", "1–6 h", "6–24 h", "1–7 d", "≥ 7 d")  # noqa: RUF001

ATTEMPTS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
"""The lower bounds of the histogram of attempts. "none" counts jobs that no worker has claimed yet."""

ATTEMPT_NAMES = ("none", "1", "2", "3", "4", "5–9", "10–19", "≥ 20")  # noqa: RUF001
