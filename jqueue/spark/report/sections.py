"""The sections of the page: one question each, with its plots and its table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jqueue.domain.printable import counted
from jqueue.spark.report import plots
from jqueue.spark.report.columns import (
    AGE_NAMES,
    AGES,
    ATTEMPT_NAMES,
    ATTEMPTS,
    EntrypointFigures,
    Figures,
    HistogramBucket,
)
from jqueue.spark.report.formatting import ahead, duration, mean, number
from jqueue.spark.report.past_plots import Spark, TimePlot

MOST_ROWS = 1000
"""Largest number of rows in a table of the page; the DataFrame has all."""

OPEN_ROWS = 30
"""Largest number of rows in a table that is open at first; a longer one is folded up."""

Cells = Callable[[EntrypointFigures], tuple[str, ...]]


@dataclass(frozen=True)
class Plot:
    """A plot, and the same in words for readers who cannot see it.

    Attributes:
        kind: the way to draw it: bars, columns, ranges, time or sparks.
        title: its title.
        data: its data, of `jqueue.spark.report.plots` and `past_plots`.
        description: the same in words.
        legend: kinds of pieces, and their names.
        note: remarks on its scale, and on entrypoints that it leaves out.
    """

    kind: str
    title: str
    data: Sequence[plots.Bar] | Sequence[plots.Column] | plots.Ranges | TimePlot | Sequence[Spark]
    description: str
    legend: tuple[tuple[str, str], ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: its title.
        names: the headings of the columns with names.
        numbers: the headings of the columns with figures.
        rows: the cells of each row.
        total: the last row; empty if there is none.
        more: number of rows left out.
    """

    title: str
    names: tuple[str, ...]
    numbers: tuple[str, ...]
    rows: list[tuple[str, ...]]
    total: tuple[str, ...] = ()
    more: int = 0

    @property
    def is_open(self) -> bool:
        """True if it is open at first."""
        return len(self.rows) <= OPEN_ROWS


@dataclass(frozen=True)
class Section:
    """One question, its plots, and its table."""

    title: str
    about: str
    plots: tuple[Plot, ...]
    tables: tuple[Table, ...]


def sections_of(report: Figures, short: Mapping[str, str]) -> list[Section]:
    """Return the sections that have something to tell.

    Args:
        report: the figures.
        short: a short name for each queue.
    """
    builder = _SectionBuilder(report, short)
    sections = (builder.where(), builder.waiting(), builder.finished(), builder.attempts(), builder.failed())
    return [section for section in sections if section.tables[-1].rows]


@dataclass(frozen=True)
class _SectionBuilder:
    """The sections of a report, a method for each."""

    report: Figures
    short: Mapping[str, str]

    def where(self) -> Section:
        bars = plots.entrypoint_bars(self.report.standings, self.short)
        total = self.report.totals[None]
        columns = (*(words for _, words in plots.STATES), "stale", "all")

        def cells(each: EntrypointFigures) -> tuple[str, ...]:
            states = (number(getattr(each, field)) for field, _ in plots.STATES)
            return (*states, number(each.stale), number(each.jobs))

        legend = tuple((field, words) for field, words in plots.STATES if getattr(total, field))
        more = len(self.report.standings) - plots.MOST_BARS
        kept = sorted((each.jobs for each in self.report.standings), reverse=True)[: plots.MOST_BARS]
        left_out = f"{counted(more, 'entrypoint')} with fewer jobs: in the table only." if more > 0 else ""
        note = " ".join(filter(None, (_scale_note(kept), left_out)))
        description = _describe("Bar chart of jobs by entrypoint", ((bar.name, bar.value) for bar in bars))
        tables = [self._table("Entrypoints", columns, self.report.standings, cells)]
        if len(self.short) > 1:
            rows = [(name, *cells(self.report.totals[name])) for name in self.report.queues]
            tables.insert(0, Table("Queues", ("queue",), columns, rows, ("all", *cells(total))))
        return Section(
            "Where jobs stand",
            "Ready jobs can be claimed now, scheduled ones not yet. A job in progress is stale if its worker has sent "
            "no heartbeat for longer than its claim lasts. Finished jobs are counted as long as their results are "
            "kept.",
            (Plot("bars", "Jobs by entrypoint", bars, description, legend, note),),
            tuple(tables),
        )

    def waiting(self) -> Section:
        def cells(each: EntrypointFigures) -> tuple[str, ...]:
            ages = map(duration, (each.oldest_age, each.median_age, each.p95_age))
            return (number(each.ready), *ages, number(each.scheduled), ahead(each.next_at, self.report.now))

        return Section(
            "How long ready jobs have waited",
            "A job's age counts from its scheduled time, or from its enqueue if it had none. A job that was handed "
            "back keeps its age, unless it was given a delay.",
            (
                *_histogram("Ages of ready jobs", self.report.ages, AGES, AGE_NAMES),
                *self._ranges("Ages by entrypoint", lambda each: (each.median_age, each.p95_age, each.oldest_age)),
            ),
            (
                self._table(
                    "Waiting",
                    ("ready", "oldest", "median", "p95", "scheduled", "next"),
                    [each for each in self.report.standings if each.ready or each.scheduled],
                    cells,
                ),
            ),
        )

    def finished(self) -> Section:
        def times(each: EntrypointFigures) -> tuple[float | None, ...]:
            return each.median_turnaround, each.p95_turnaround, each.longest_turnaround

        def cells(each: EntrypointFigures) -> tuple[str, ...]:
            return (number(each.completed), *map(duration, times(each)))

        rows = [each for each in self.report.standings if each.completed]
        return Section(
            "How long finished jobs took",
            "The time of a job goes from when it was due until its ack, waiting and work together. For a job that was "
            "tried again after a pause, it begins at the end of the pause. Only jobs with kept results are known.",
            (
                *_histogram("Times of finished jobs", self.report.turnarounds, AGES, AGE_NAMES),
                *self._ranges("Times by entrypoint", times),
            ),
            (self._table("Finished", ("finished", "median", "p95", "longest"), rows, cells),),
        )

    def attempts(self) -> Section:
        def cells(each: EntrypointFigures) -> tuple[str, ...]:
            most = number(each.most_attempts or 0)
            return (number(each.tried), mean(each.mean_attempts), most, number(each.failing))

        rows = [each for each in self.report.standings if each.tried]
        return Section(
            "How often jobs were tried",
            "An attempt is a claim. Mean and most are over the jobs that were claimed at least once. Failed are jobs "
            "with a recorded last error, even if they succeeded afterwards.",
            _histogram("Jobs by attempts", self.report.attempts, ATTEMPTS, ATTEMPT_NAMES),
            (self._table("Attempts", ("tried", "mean", "most", "failed"), rows, cells),),
        )

    def failed(self) -> Section:
        title = "Jobs by the class of their last error"
        bars = plots.failure_bars(self.report.failures)
        description = _describe(f"Bar chart of {title[0].lower()}{title[1:]}", ((bar.name, bar.value) for bar in bars))
        note = _scale_note([each.jobs for each in plots.by_class(self.report.failures)[: plots.MOST_BARS]])
        legend = (("dead", "dead"), ("ready", "waiting or in progress"), ("completed", "finished after all"))
        names = ("error", "entrypoint", "queue") if len(self.short) > 1 else ("error", "entrypoint")
        rows = [
            (
                *(each.error, each.entrypoint, self.short[each.queue])[: len(names)],
                *map(number, (each.jobs, each.dead, each.waiting, each.completed)),
            )
            for each in self.report.failures
        ]
        columns = ("jobs", "dead", "waiting", "finished")
        return Section(
            "What failed",
            "The class of the last error of each job; the rest of its text is not in this report. Errors without a "
            "class count as other. A timeout is a handler that ran longer than allowed. A stale claim is a worker "
            "that sent no more heartbeats.",
            (Plot("bars", title, bars, description, legend, note),),
            (Table("Errors", names, columns, rows[:MOST_ROWS], more=max(0, len(rows) - MOST_ROWS)),),
        )

    def _ranges(self, title: str, times: Callable[[EntrypointFigures], tuple[float | None, ...]]) -> tuple[Plot, ...]:
        known = []
        for each in self.report.standings:
            median, p95, longest = times(each)
            if median is not None and p95 is not None and longest is not None:
                known.append(plots.Times(plots.label(each, self.short), median, p95, longest))
        made = plots.ranges(known)
        if made is None:
            return ()
        about = "Median, 95th percentile and longest, on a logarithmic axis"
        return (Plot("ranges", title, made, _describe(about, ((row.name, row.description) for row in made.rows))),)

    def _table(self, title: str, columns: tuple[str, ...], rows: Sequence[EntrypointFigures], cells: Cells) -> Table:
        """Return a table of entrypoints, with their queue if there are several. Too many are cut to the largest."""
        names = ("entrypoint", "queue") if len(self.short) > 1 else ("entrypoint",)
        kept = sorted(rows, key=lambda each: each.jobs, reverse=True)[:MOST_ROWS]
        kept.sort(key=lambda each: (each.entrypoint or "", each.queue or ""))
        made = [(*(each.entrypoint or "", self.short[each.queue or ""])[: len(names)], *cells(each)) for each in kept]
        whole = ("all", *[""] * (len(names) - 1), *cells(self.report.totals[None]))
        return Table(title, names, columns, made, whole if len(rows) > 1 else (), len(rows) - len(kept))


def _histogram(
    title: str, buckets: Sequence[HistogramBucket], bounds: Sequence[float], names: Sequence[str]
) -> tuple[Plot, ...]:
    columns = plots.columns(buckets, bounds, names)
    if not columns:
        return ()
    return (Plot("columns", title, columns, _describe("Histogram", ((each.name, each.value) for each in columns))),)


def _scale_note(counts: Sequence[int]) -> str:
    """Return a note on the lengths of bars; an empty one if they are linear."""
    if not plots.is_uneven(counts):
        return ""
    return "The lengths of the bars are logarithmic; within a bar, the parts are in proportion."


def _describe(what: str, values: Iterable[tuple[str, str]]) -> str:
    """Return a plot in words."""
    return f"{what}. {'; '.join(f'{name}: {value}' for name, value in values)}."
