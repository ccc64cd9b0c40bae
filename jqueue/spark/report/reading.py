"""`report(spark, urls, lake=...)`: the figures of queues as they are now, and of the past as a lake has it.

The figures are few, even if there are many jobs. So they are collected on the driver when the report is made, and
tables, page and DataFrames show the same figures, even if the queues change meanwhile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack, overload

import pyspark
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from jqueue._version import __version__
from jqueue.connect import connect_storage
from jqueue.domain.durations import Duration, check_time, to_seconds
from jqueue.domain.errors import InvalidURLError
from jqueue.domain.printable import printable
from jqueue.ports.storage import describe
from jqueue.runtime.posix_files import storage_errors
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.spark.fleet import queues_of
from jqueue.spark.lake.reading import read_lake
from jqueue.spark.lake.store import lake_name
from jqueue.spark.report import columns, figures, past_figures
from jqueue.spark.report.columns import EntrypointFigures, Failure, HistogramBucket, PastFailure, PastFigures
from jqueue.spark.report.figures import EPOCH
from jqueue.spark.report.sections import Part, past_part, present_part
from jqueue.spark.session import require_spark

if TYPE_CHECKING:
    from rich.console import Console

WINDOWS = (
    *(1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 2 * 3600.0, 6 * 3600.0),
    *(86400.0, 7 * 86400.0, 28 * 86400.0, 364 * 86400.0),
)
"""Lengths of windows, in seconds, of which a report takes the first that makes at most `MOST_WINDOWS`."""

MOST_WINDOWS = 72
"""Largest number of windows, unless the caller sets their length."""

MOST_ROWS = 1000
"""Largest number of rows in a table of the page; the report has all."""

R = TypeVar("R", EntrypointFigures, PastFigures, PastFailure)


class _Shown:
    """A report that can be printed, and written as a page."""

    def _parts(self) -> list[Part]:
        raise NotImplementedError

    def print(self, console: Console | None = None) -> None:
        """Show it in the terminal, in tables of 80 columns.

        Raises:
            ImportError: rich is not installed. The message says how to get it.
        """
        from jqueue.spark.report.terminal import show

        show(self._parts(), console)

    def to_html(self, path: str | Path) -> Path:
        """Write it as a page: one file, with plots. Return its path.

        The page needs nothing else: no script, no font, no file from anywhere, and its own policy forbids them. The
        names and the classes of errors come from programs that enqueue jobs, so the template escapes everything.

        Raises:
            ImportError: Jinja or Matplotlib is not installed. The message says how to get it.
            StorageError: the file cannot be written.
        """
        try:
            import matplotlib  # noqa: F401
            from jinja2 import Environment, PackageLoader, StrictUndefined
        except ImportError as error:
            raise ImportError(
                'the page of a report needs Jinja and Matplotlib: pip install "jqueue[report]"'
            ) from error
        loader = PackageLoader("jqueue.spark.report")
        environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
        environment.filters["printable"] = printable
        template, place = environment.get_template("page.html.jinja"), Path(path)
        text = template.render(version=__version__, parts=self._parts(), most=MOST_ROWS)
        with storage_errors("write the page", str(place)):
            place.write_text(text, encoding="utf-8")
        return place


@dataclass(frozen=True)
class PastReport(columns.Past, _Shown):
    """A report on the past of queues: its figures as DataFrames, tables and a page."""

    spark: SparkSession = field(repr=False)

    @property
    def frame(self) -> DataFrame:
        """One row for each entrypoint and window; the columns are those of `PastFigures`."""
        return self.spark.createDataFrame(self.parts, columns.schema_of(PastFigures))

    def _parts(self) -> list[Part]:
        return [past_part(self)]


@dataclass(frozen=True)
class Report(columns.Figures, _Shown):
    """A report on queues as they are now: its figures as DataFrames, tables and a page.

    Attributes:
        past: the past, if a lake was given.
    """

    spark: SparkSession = field(repr=False)
    past: PastReport | None = field(default=None, repr=False)

    @property
    def frame(self) -> DataFrame:
        """One row for each queue and entrypoint; the columns are those of `EntrypointFigures`."""
        return self.spark.createDataFrame(self.standings, columns.schema_of(EntrypointFigures))

    def _parts(self) -> list[Part]:
        return [present_part(self), *([past_part(self.past)] if self.past else ())]


class _Times(TypedDict, total=False):
    now: datetime | None
    since: datetime | None
    until: datetime | None
    window: Duration | None


@overload
def report(
    spark: SparkSession, urls: str | Sequence[str], *, lake: str | None = None, **times: Unpack[_Times]
) -> Report: ...
@overload
def report(spark: SparkSession, urls: None = None, *, lake: str, **times: Unpack[_Times]) -> PastReport: ...
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
        InvalidJobError: a time has no time zone.
        InvalidURLError: no queue matches, a URL is wrong, or there is no lake, or it has no events in this time.
        StorageError: a store could not list its queues, or the lake cannot be read.
    """
    require_spark(pyspark.__version__, spark.version)
    for name, time in (("now", now), ("since", since), ("until", until)):
        if time is not None:
            check_time(name, time)
    past = None if lake is None else _past_report(spark, lake, since, until, window)
    if urls is not None:
        return replace(_present_report(spark, urls, now or SystemClock().now()), past=past)
    if past is None:
        raise InvalidURLError("a report needs a queue or a lake: give a URL, or lake=")
    return past


def _present_report(spark: SparkSession, urls: str | Sequence[str], now: datetime) -> Report:
    matching = queues_of(urls if isinstance(urls, str) else ",".join(urls))
    queues = tuple(sorted({describe(connect_storage(url)) for url in matching}))
    reader = spark.read.format("jqueue")
    if len(matching) == 1:
        snapshot = reader.schema(figures.READ).load(matching[0]).withColumn("queue", F.lit(queues[0]))
    else:
        snapshot = reader.schema(f"{figures.READ}, queue string").load(matching)
    own = F.lit(SystemEntropy().new_id())  # or Spark would share persisted data between two equal reports
    facts = figures.facts_of(snapshot, now).withColumn("report", own).persist()
    try:
        rows = figures.standings_of(facts).withColumn("next_at", F.unix_micros("next_at")).collect()
        counts = figures.counts_of(facts).collect()
    finally:
        facts.unpersist()
    levels = defaultdict[int, list[EntrypointFigures]](list)
    for row in rows:
        levels[row["level"]].append(_record(EntrypointFigures, row, "next_at", timedelta(microseconds=1)))
    known = {each.queue: each for each in levels[figures.QUEUE] + levels[figures.ALL]}
    errors = (_failure(row) for row in counts if row["kind"] == "error")
    return Report(
        spark=spark,
        now=now.astimezone(UTC),
        queues=queues,
        standings=tuple(sorted(levels[figures.EACH], key=attrgetter("queue", "entrypoint"))),
        totals={name: known.get(name, EntrypointFigures(name, None)) for name in (None, *queues)},
        failures=tuple(columns.sums(errors, "queue", "entrypoint", "error")),
        ages=_buckets(counts, "age", columns.AGES),
        turnarounds=_buckets(counts, "turnaround", columns.AGES),
        attempts=_buckets(counts, "attempts", columns.ATTEMPTS),
    )


def _record(kind: type[R], row: Row, time: str, unit: timedelta) -> R:
    """Return a row as a record. A collected time would lose its zone: it is collected as a number of units."""
    values = {name: row[name] for name in kind._fields}
    if values[time] is not None:
        values[time] = EPOCH + values[time] * unit
    return kind(**values)


def _failure(row: Row) -> Failure:
    jobs, state = row["jobs"], row["state"]
    dead, completed = jobs if state == "dead" else 0, jobs if state == "completed" else 0
    return Failure(row["queue"], row["entrypoint"], row["part"], jobs, dead, jobs - dead - completed, completed)


def _buckets(counts: Sequence[Row], kind: str, names: Iterable[float]) -> tuple[HistogramBucket, ...]:
    """Return one histogram, its columns in order. Columns without jobs are left out."""
    jobs: Counter[tuple[str, str, int]] = Counter()
    for row in counts:
        if row["kind"] == kind:
            jobs[row["queue"], row["entrypoint"], int(row["part"])] += row["jobs"]
    bounds = [*names]
    below = (*bounds[1:], None)
    return tuple(HistogramBucket(*key[:2], bounds[key[2]], below[key[2]], jobs[key]) for key in sorted(jobs))


def _past_report(
    spark: SparkSession, lake: str, since: datetime | None, until: datetime | None, window: Duration | None
) -> PastReport:
    events = read_lake(spark, lake, past_figures.READ)
    if since is not None:
        events = events.where(F.col("at") >= F.lit(since))
    if until is not None:
        events = events.where(F.col("at") < F.lit(until))
    bounds = events.agg(F.min(F.unix_micros("at")), F.max(F.unix_micros("at"))).collect()[0]
    if bounds[0] is None:
        raise InvalidURLError("the lake has no events in this time")
    first, last = (EPOCH + timedelta(microseconds=micros) for micros in bounds)
    seconds = (last - first).total_seconds()
    default = next((each for each in WINDOWS if seconds <= each * MOST_WINDOWS), WINDOWS[-1])
    length = to_seconds("window", window or default)
    facts, second = past_figures.facts_of(events, length), timedelta(seconds=1)
    levels = defaultdict[int, list[PastFigures]](list)
    for row in past_figures.figures_of(facts).collect():
        levels[row["level"]].append(_record(PastFigures, row, "start", second))
    failures = past_figures.failures_of(facts).collect()
    return PastReport(
        lake=lake_name(lake),
        since=first,
        until=last,
        window=length,
        total=next(iter(levels[past_figures.WHOLE]), PastFigures()),
        windows=tuple(sorted(levels[past_figures.BY_WINDOW], key=attrgetter("start"))),
        entrypoints=_most_first(levels[past_figures.BY_ENTRYPOINT]),
        parts=tuple(sorted(levels[past_figures.BY_BOTH], key=attrgetter("entrypoint", "start"))),
        holders=_most_first(each for each in levels[past_figures.BY_HOLDER] if each.holder is not None),
        failures=tuple(sorted(_record(PastFailure, row, "start", second) for row in failures)),
        spark=spark,
    )


def _most_first(rows: Iterable[PastFigures]) -> tuple[PastFigures, ...]:
    return tuple(sorted(rows, key=lambda each: (-each.done, -each.enqueued, each.entrypoint or each.holder or "")))
