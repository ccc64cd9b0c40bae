"""`report(spark, lake=...)`: what happened, from the events in a lake. All figures are collected when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError, InvalidURLError
from jqueue.spark.lake.reading import read_lake
from jqueue.spark.lake.store import lake_name
from jqueue.spark.report.figures import EPOCH
from jqueue.spark.report.past_columns import (
    MOST_WINDOWS,
    PAST_FAILURE_SCHEMA,
    PAST_SCHEMA,
    WINDOWS,
    Past,
    PastFailure,
    PastFigures,
)
from jqueue.spark.report.past_figures import (
    BY_BOTH,
    BY_ENTRYPOINT,
    BY_HOLDER,
    BY_WINDOW,
    READ,
    WHOLE,
    facts_of,
    failures_of,
    figures_of,
)

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class PastReport(Past):
    """A report on the past of queues: its figures as DataFrames, tables and a page."""

    spark: SparkSession = field(repr=False)

    @property
    def frame(self) -> DataFrame:
        """One row for each entrypoint and window; the columns are those of `PastFigures`."""
        return self.spark.createDataFrame(list(self.parts), PAST_SCHEMA)

    @property
    def entrypoint_frame(self) -> DataFrame:
        """One row for each entrypoint, over the whole time."""
        return self.spark.createDataFrame(list(self.entrypoints), PAST_SCHEMA)

    @property
    def holder_frame(self) -> DataFrame:
        """One row for each holder of claims, over the whole time."""
        return self.spark.createDataFrame(list(self.holders), PAST_SCHEMA)

    @property
    def failure_frame(self) -> DataFrame:
        """One row for each entrypoint, class of errors and window; see `PastFailure`."""
        return self.spark.createDataFrame(list(self.failures), PAST_FAILURE_SCHEMA)

    def print(self, console: Console | None = None) -> None:
        """Show it in the terminal, in tables of 80 columns.

        Raises:
            ImportError: rich is not installed. The message says how to get it.
        """
        from jqueue.spark.report.past_tables import show_past

        show_past(self, console)

    def to_html(self, path: str | Path) -> Path:
        """Write it as a page: one file, with plots over time, that needs nothing else. Return its path.

        Raises:
            ImportError: Jinja is not installed. The message says how to get it.
            StorageError: the file cannot be written.
        """
        from jqueue.spark.report.page import write_page

        return write_page(path, None, self)


def past_of(
    spark: SparkSession,
    lake: str,
    since: datetime | None = None,
    until: datetime | None = None,
    window: Duration | None = None,
) -> PastReport:
    """Return the report on the events of a lake.

    Args:
        spark: runs the queries.
        lake: path or URL of the lake.
        since: events from this time on only.
        until: events before this time only.
        window: length of a window; by default such that there are at most 72.

    Raises:
        InvalidURLError: there is no lake, or it has no events in this time.
        StorageError: the lake could not be read.
    """
    for name, time in (("since", since), ("until", until)):
        if time is not None and time.tzinfo is None:
            raise InvalidJobError(f"{name} must be aware of its time zone, as in datetime.now(UTC)")
    events = read_lake(spark, lake, READ)
    if since is not None:
        events = events.where(F.col("at") >= F.lit(since))
    if until is not None:
        events = events.where(F.col("at") < F.lit(until))
    return past_report(events, lake_name(lake), None if window is None else to_seconds("window", window))


def past_report(events: DataFrame, name: str, window: float | None = None) -> PastReport:
    """Return the report on events.

    Args:
        events: with the columns `READ`.
        name: the name of the lake.
        window: length of a window, in seconds.
    """
    first, last = events.agg(F.min(F.unix_micros("at")), F.max(F.unix_micros("at"))).collect()[0]
    if first is None:
        raise InvalidURLError("the lake has no events in this time")
    since, until = (EPOCH + timedelta(microseconds=micros) for micros in (first, last))
    length = window or default_window(until - since)
    facts = facts_of(events, length)
    by_level: dict[int, list[PastFigures]] = {}
    for row in figures_of(facts).collect():
        by_level.setdefault(row["level"], []).append(_figures(row))
    failures = failures_of(facts).collect()
    return PastReport(
        name,
        since,
        until,
        length,
        next(iter(by_level.get(WHOLE, ())), PastFigures()),
        tuple(sorted(by_level.get(BY_WINDOW, ()), key=_start)),
        _most_first(by_level.get(BY_ENTRYPOINT, ())),
        tuple(sorted(by_level.get(BY_BOTH, ()), key=lambda each: (each.entrypoint or "", _start(each)))),
        _most_first([each for each in by_level.get(BY_HOLDER, ()) if each.holder is not None]),
        tuple(sorted(PastFailure(row[0], row[1], _time(row[2]), row[3], row[4]) for row in failures)),
        events.sparkSession,
    )


def default_window(time: timedelta) -> float:
    """Return the length of a window, in seconds, for a report on so much time."""
    seconds = time.total_seconds()
    return next((length for length in WINDOWS if seconds <= length * MOST_WINDOWS), WINDOWS[-1])


def _figures(row: Row) -> PastFigures:
    values = {name: row[name] for name in PastFigures._fields}
    return PastFigures(**{**values, "start": None if row["start"] is None else _time(row["start"])})


def _time(seconds: int) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def _start(each: PastFigures) -> datetime:
    return each.start or EPOCH


def _most_first(rows: Sequence[PastFigures]) -> tuple[PastFigures, ...]:
    return tuple(sorted(rows, key=lambda each: (-each.done, -each.enqueued, each.entrypoint or each.holder or "")))
