"""The figures of a report on the past, from the events in a lake, as Python values."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType


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
class Past:
    """All figures of a report on the past, as its tables and its page show them.

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


_COUNTS = ("enqueued", "claimed", "done", "failed", "dead", "most_attempts")
_KINDS = {
    **dict.fromkeys(("entrypoint", "holder", "error"), StringType()),
    **dict.fromkeys(_COUNTS, LongType()),
    "start": TimestampType(),
}


def _schema(names: tuple[str, ...]) -> StructType:
    return StructType([StructField(name, _KINDS.get(name, DoubleType())) for name in names])


PAST_SCHEMA = _schema(PastFigures._fields)
PAST_FAILURE_SCHEMA = _schema(PastFailure._fields)

WINDOWS = (
    *(1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 2 * 3600.0, 6 * 3600.0),
    *(86400.0, 7 * 86400.0, 28 * 86400.0, 364 * 86400.0),
)
"""Lengths of windows, in seconds, of which a report takes the first that makes at most `MOST_WINDOWS`."""

MOST_WINDOWS = 72
"""Largest number of windows, unless the caller sets their length."""
