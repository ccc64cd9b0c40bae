"""`report(spark, urls)`: one version of each queue, read once, and all figures from it.

The figures of a queue are few, even if it has many jobs. So they are collected on the driver when the report is made,
and tables, page and DataFrames show the same figures, even if the queues change meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, overload

import pyspark
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from jqueue.connect import connect_storage
from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidJobError, InvalidURLError
from jqueue.ports.storage import describe
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.spark.fleet import queues_of
from jqueue.spark.report.columns import (
    AGES,
    ATTEMPTS,
    FAILURE_SCHEMA,
    FIGURES_SCHEMA,
    HISTOGRAM_SCHEMA,
    EntrypointFigures,
    Failure,
    Figures,
    HistogramBucket,
)
from jqueue.spark.report.figures import EPOCH, READ, facts_of, figures_of
from jqueue.spark.report.past import PastReport, past_of
from jqueue.spark.session import require_spark

if TYPE_CHECKING:
    from rich.console import Console

EACH, QUEUES, ALL = 0, 1, 3
"""Levels of a row of figures, as Spark numbers them: one entrypoint, one queue, or all queues."""


@dataclass(frozen=True)
class Report(Figures):
    """A report on queues: its figures as DataFrames, tables and a page."""

    spark: SparkSession = field(repr=False)
    past: PastReport | None = field(default=None, repr=False)
    """The past, if a lake was given."""

    @property
    def frame(self) -> DataFrame:
        """One row for each queue and entrypoint; the columns are those of `EntrypointFigures`."""
        return self.spark.createDataFrame(list(self.standings), FIGURES_SCHEMA)

    @property
    def failure_frame(self) -> DataFrame:
        """One row for each queue, entrypoint and class of errors; see `Failure`."""
        return self.spark.createDataFrame(list(self.failures), FAILURE_SCHEMA)

    @property
    def histogram_frame(self) -> DataFrame:
        """The histograms of ages, turnarounds and attempts, named by the column `histogram`; see `HistogramBucket`."""
        kinds = {"ages": self.ages, "turnarounds": self.turnarounds, "attempts": self.attempts}
        frames = [
            self.spark.createDataFrame(list(buckets), HISTOGRAM_SCHEMA).withColumn("histogram", F.lit(kind))
            for kind, buckets in kinds.items()
        ]
        return frames[0].union(frames[1]).union(frames[2])

    def print(self, console: Console | None = None) -> None:
        """Show it in the terminal, in tables of 80 columns.

        Raises:
            ImportError: rich is not installed. The message says how to get it.
        """
        from jqueue.spark.report.tables import show

        out = show(self, console)
        if self.past is not None:
            out.print()
            self.past.print(out)

    def to_html(self, path: str | Path) -> Path:
        """Write it as a page: one file, with plots, that needs nothing else. Return its path.

        Raises:
            ImportError: Jinja is not installed. The message says how to get it.
            StorageError: the file cannot be written.
        """
        from jqueue.spark.report.page import write_page

        return write_page(path, self, self.past)


@overload
def report(
    spark: SparkSession,
    urls: str | Sequence[str],
    *,
    now: datetime | None = None,
    lake: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    window: Duration | None = None,
) -> Report: ...
@overload
def report(
    spark: SparkSession,
    urls: None = None,
    *,
    lake: str,
    since: datetime | None = None,
    until: datetime | None = None,
    window: Duration | None = None,
) -> PastReport: ...
def report(
    spark: SparkSession,
    urls: str | Sequence[str] | None = None,
    *,
    now: datetime | None = None,
    lake: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    window: Duration | None = None,
) -> Report | PastReport:
    """Report on the jobs of queues: their ages and outcomes now, from the queues, and the past, from a lake.

    It only reads, and reads each queue once.

    Args:
        spark: runs the queries.
        urls: one URL, several with commas between them, or a sequence of URLs; with wildcards or without. None: the
            report is on the lake alone.
        now: the time from which ages are measured, with a time zone. The default is the time of this machine.
        lake: path or URL of a lake that `jqueue.spark.lake.archive` has filled.
        since: events of the lake from this time on only.
        until: events of the lake before this time only.
        window: length of the windows of time in plots and figures; by default such that there are at most 72.

    Returns:
        The report on the queues, with the past as `past` if a lake is given; without queues, the past alone.

    Raises:
        ImportError: Spark is too old.
        InvalidURLError: no queue matches, a URL is wrong, or there is no lake.
        StorageError: a store could not list its queues, or the lake cannot be read.
    """
    require_spark(pyspark.__version__, spark.version)
    past = None if lake is None else past_of(spark, lake, since, until, window)
    if urls is None:
        if past is None:
            raise InvalidURLError("a report needs a queue or a lake: give a URL, or lake=")
        return past
    found = _report(spark, urls, now)
    return found if past is None else replace(found, past=past)


def _report(spark: SparkSession, urls: str | Sequence[str], now: datetime | None) -> Report:
    if now is not None and now.tzinfo is None:
        raise InvalidJobError("now must be aware of its time zone, as in datetime.now(UTC)")
    found = queues_of(urls if isinstance(urls, str) else ",".join(urls))
    names = tuple(sorted({describe(connect_storage(url)) for url in found}))
    reader = spark.read.format("jqueue")
    if len(found) == 1:
        snapshot = reader.schema(READ).load(found[0]).withColumn("queue", F.lit(names[0]))
    else:
        snapshot = reader.schema(f"{READ}, queue string").load(found)
    return report_of(snapshot, names, now or SystemClock().now())


def report_of(snapshot: DataFrame, queues: Sequence[str], now: datetime) -> Report:
    """Return the report of a snapshot, which is read once.

    Args:
        snapshot: the jobs; see `figures_of`.
        queues: the names of its queues.
        now: the time from which ages are measured.
    """
    own = F.lit(SystemEntropy().new_id())  # or Spark would share persisted data between two equal reports
    facts = facts_of(snapshot, now).withColumn("report", own).persist()
    try:
        frames = figures_of(facts)
        next_at = F.unix_micros("next_at")  # a collected time loses its zone
        standings = frames.standings.withColumn("next_at", next_at).collect()
        counts = frames.counts.collect()
    finally:
        facts.unpersist()
    by_level: dict[int, list[EntrypointFigures]] = {EACH: [], QUEUES: [], ALL: []}
    for row in standings:
        by_level[row["level"]].append(_standing(row))
    return Report(
        spark=snapshot.sparkSession,
        now=now.astimezone(UTC),
        queues=tuple(queues),
        standings=tuple(sorted(by_level[EACH], key=lambda each: (each.queue, each.entrypoint))),
        totals={
            **{name: EntrypointFigures(name, None) for name in (None, *queues)},
            **{each.queue: each for each in (*by_level[QUEUES], *by_level[ALL])},
        },
        failures=_failures(counts),
        ages=_shares(counts, "age", AGES),
        turnarounds=_shares(counts, "turnaround", AGES),
        attempts=_shares(counts, "attempts", ATTEMPTS),
    )


def _standing(row: Row) -> EntrypointFigures:
    values = {name: row[name] for name in EntrypointFigures._fields}
    if values["next_at"] is not None:
        values["next_at"] = EPOCH + timedelta(microseconds=values["next_at"])
    return EntrypointFigures(**values)


def _failures(counts: Sequence[Row]) -> tuple[Failure, ...]:
    """Return the classes of errors, the most frequent first."""
    found: dict[tuple[str, str, str], Counter[str]] = {}
    for row in counts:
        if row["kind"] == "error":
            key = (row["queue"], row["entrypoint"], row["part"])
            found.setdefault(key, Counter())[row["state"]] += row["jobs"]
    made = []
    for key, states in found.items():
        dead, completed = states["dead"], states["completed"]
        made.append(Failure(*key, states.total(), dead, states.total() - dead - completed, completed))
    return tuple(sorted(made, key=lambda each: (-each.jobs, each)))


def _shares(counts: Sequence[Row], kind: str, bounds: Sequence[float]) -> tuple[HistogramBucket, ...]:
    """Return one histogram, its columns in order. Columns without jobs are left out."""
    found: Counter[tuple[str, str, int]] = Counter()
    for row in counts:
        if row["kind"] == kind:
            found[row["queue"], row["entrypoint"], int(row["part"])] += row["jobs"]
    below = (*bounds[1:], None)
    return tuple(
        HistogramBucket(queue, entrypoint, bounds[part], below[part], jobs)
        for (queue, entrypoint, part), jobs in sorted(found.items())
    )
