"""The sections of a report, one question each: tables for the terminal and the page, and plots for the page.

Each table is defined here once. The fields of its records are its columns, so their types say how a value is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Any, NamedTuple

from jqueue.domain.printable import counted
from jqueue.spark.report import columns
from jqueue.spark.report.columns import sums
from jqueue.spark.report.figures import EPOCH, STATES
from jqueue.spark.report.plots import Plot, Series
from jqueue.spark.report.words import duration, mean, rate, short_names, words

MOST_BARS, MOST_WINDOWS = 15, 400
"""Largest number of rows, or of windows, in a plot: the largest or the latest are shown."""

TIMES = {"wait": "ready until claimed", "run": "claimed until its end", "total": "enqueued until done"}
"""The times of a job in the past, and what they are."""

AGES = ("median_age", "p95_age", "oldest_age")
TURNAROUNDS = ("median_turnaround", "p95_turnaround", "longest_turnaround")

HEADINGS = {
    **{"in_progress": "running", "completed": "finished", "failing": "failed", "next_at": "next"},
    **{"mean_attempts": "mean", "most_attempts": "most", "start": "begins (UTC)"},
    **{field: field.split("_")[0] for field in (*AGES, *TURNAROUNDS)},
    **{f"{share}_{time}": f"{time} {share}" for time in TIMES for share in ("median", "p95", "p99")},
}
"""Headings of columns, and names in legends, other than the names of their fields."""

COLOURS = {
    **{"done": "completed", "failed": "dead", "waiting": "ready", "enqueued": "text", "jobs": "ready"},
    **{f"median_{time}": "text" for time in ("age", "turnaround", *TIMES)},
    **{f"p95_{time}": "ready" for time in ("age", "turnaround", *TIMES)},
    **dict.fromkeys(("oldest_age", "longest_turnaround", *(f"p99_{time}" for time in TIMES)), "scheduled"),
    "stale": "in_progress",
}
"""Colours of fields. The states of jobs have their own."""

CLASS_COLOURS = ("dead", "in_progress", "purple", "teal", "scheduled")
"""The colours of the most frequent classes of errors; all others have one colour."""


class Column(NamedTuple):
    """A column of a table: a field of its records."""

    field: str
    text: Callable[[Any], str] = words

    @property
    def heading(self) -> str:
        """Its heading."""
        return HEADINGS.get(self.field, self.field)

    def of(self, record: object) -> str:
        """Return its cell in a row."""
        value = getattr(record, self.field)
        return "" if value is None else self.text(value)


Columns = tuple[Column, ...]


class Table(NamedTuple):
    """A table.

    Attributes:
        title: its title.
        names: the columns with names.
        numbers: the columns with figures.
        rows: a record for each row, the most important first.
        total: the record of the last row; None: there is none.
        more: columns with figures for which the terminal has no room.
        longest: largest number of rows in the terminal.
    """

    title: str
    names: Columns
    numbers: Columns
    rows: Sequence[Any]
    total: object = None
    more: Columns = ()
    longest: int = 40


class Part(NamedTuple):
    """The present or the past.

    Attributes:
        title: its heading, if there are both.
        of: the queue, the number of queues, or the lake.
        about: the time that it tells of, in words.
        tiles: figures at its top, each with its name and its colour.
        sections: by title, the tables and the plots of a question.
    """

    title: str
    of: str
    about: str
    tiles: Sequence[tuple[str, str, str]]
    sections: dict[str, tuple[list[Table], list[Plot]]]


def present_part(report: columns.Figures) -> Part:
    """Return the present of queues."""
    total, short, several = report.totals[None], short_names(report.queues), len(report.queues) > 1
    standings = sorted(report.standings, key=lambda each: -each.jobs)
    queue = Column("queue", lambda name: short[name])
    names = (Column("entrypoint"), queue) if several else (Column("entrypoint"),)
    next_at = Column("next_at", lambda time: f"in {duration(max(0.0, (time - report.now).total_seconds()))}")
    jobs = _columns("ready", "scheduled", "in_progress", "stale", "dead", "completed")
    more = _columns("expired", "jobs")
    queues = [Table("Queues", (queue,), jobs, [report.totals[each] for each in report.queues], total, more)]
    waiting = (*_columns(*AGES, "scheduled"), next_at)
    attempts = _columns("tried", "mean_attempts", "most_attempts", "failing")
    outcomes, classes = ("dead", "waiting", "completed"), sums(report.failures, "error")
    errors = Table("Errors", (*_columns("error"), *names), _columns("jobs", *outcomes), report.failures)

    def table(title: str, numbers: Columns, *more: Column) -> Table:
        rows = [each for each in standings if any(getattr(each, field) for field, _ in (*numbers, *more))]
        return Table(title, names, numbers, rows, total, more)

    def label(each: columns.EntrypointFigures) -> str:
        return f"{each.entrypoint} · {short[each.queue or '']}" if several else str(each.entrypoint)

    sections = {
        "Where jobs stand": (
            [*(queues if several else []), table("Entrypoints", jobs, *more)],
            [_bars("Jobs by entrypoint", [each for each in STATES if getattr(total, each)], standings, label)],
        ),
        "How long ready jobs have waited": (
            [table("Waiting", waiting, *_columns("ready"))],
            [
                _histogram("Ages of ready jobs", report.ages, columns.AGES),
                _bars("Ages by entrypoint", AGES, standings, label, are_sums=False),
            ],
        ),
        "How long finished jobs took": (
            [table("Finished", _columns("completed", *TURNAROUNDS))],
            [
                _histogram("Times of finished jobs", report.turnarounds, columns.AGES),
                _bars("Times by entrypoint", TURNAROUNDS, standings, label, are_sums=False),
            ],
        ),
        "How often jobs were tried": (
            [table("Attempts", attempts)],
            [_histogram("Jobs by attempts", report.attempts, columns.ATTEMPTS)],
        ),
        "What failed": (
            [errors],
            [_bars("Jobs by the class of their last error", outcomes, classes, attrgetter("error"))],
        ),
    }
    tiles = _tiles(total, *(each for each in STATES if each != "expired" or total.expired), "stale")
    tiles.append(("oldest ready job", words(total.oldest_age) or "none", "line"))
    of = counted(len(report.queues), "queue") if several else report.queues[0]
    return Part("Now", of, f"{counted(total.jobs, 'job')} as of {words(report.now)} UTC", tiles, sections)


def past_part(past: columns.Past) -> Part:
    """Return the past, as a lake has it."""
    total, length = past.total, timedelta(seconds=past.window)
    first, last = (EPOCH + (time - EPOCH) // length * length for time in (past.since, past.until))
    starts = [last - length * place for place in reversed(range(min(MOST_WINDOWS, (last - first) // length + 1)))]
    titles, edges = [*map(words, starts)], [*starts, last + length]
    by_start = {each.start: each for each in past.windows}
    windows = [by_start.get(start, columns.PastFigures()) for start in starts]
    in_windows = f"in the latest {counted(len(starts), 'window')} of {duration(past.window)}"

    def over_time(title: str, *fields: str, are_sums: bool = True) -> Plot:
        rows = map(attrgetter(*fields), windows)
        return Plot(title, _series(fields), [*zip(titles, rows, strict=True)], are_sums, edges)

    def table(title: str, name: str, rows: Sequence[Any], longest: int = 40) -> Table:
        numbers = _columns("enqueued", "done", "failed", "dead", "mean_attempts")
        more = _columns("most_attempts", "p95_wait", "median_run", "p95_run", "p95_total")
        return Table(title, _columns(name), numbers, rows, total, more, longest=longest)

    by_class = {(each.start, each.error): each.failed for each in sums(past.failures, "start", "error")}
    classes = [each.error for each in sums(past.failures, "error")]
    groups = [[error] for error in classes[: len(CLASS_COLOURS)]]
    names = [*zip(classes, CLASS_COLOURS, strict=False)]
    if rare := classes[len(CLASS_COLOURS) :]:
        groups.append(rare)
        names.append(("all others", "expired"))
    failed = [[sum(by_class.get((start, error), 0) for error in group) for group in groups] for start in starts]
    errors = sums(past.failures, "error", "entrypoint")
    times = _columns(*(f"{share}_{time}" for time in TIMES for share in ("median", "p95")))
    p99 = _columns(*(f"p99_{time}" for time in TIMES))
    sections = {
        "What was done": (
            [
                table("Entrypoints", "entrypoint", past.entrypoints),
                table("Windows", "start", past.windows[::-1], 10),
            ],
            [over_time(f"Jobs {in_windows}", "done", "failed", "enqueued")],
        ),
        "How long jobs took": (
            [Table("Times", _columns("entrypoint"), times, past.entrypoints, total, p99)],
            [
                over_time(f"{time.title()}: {about}", f"median_{time}", f"p95_{time}", f"p99_{time}", are_sums=False)
                for time, about in TIMES.items()
            ],
        ),
        "Attempts that failed": (
            [Table("Errors", _columns("error", "entrypoint"), _columns("failed", "dead"), errors)],
            [Plot(f"Failed attempts {in_windows}", names, [*zip(titles, failed, strict=True)], edges=edges)],
        ),
        "Who did it": (
            [table("Holders", "holder", past.holders)],
            [_bars("Jobs by holder", ("done", "failed"), past.holders, attrgetter("holder"))],
        ),
    }
    seconds = max(1.0, (past.until - past.since).total_seconds())
    tiles = _tiles(total, "enqueued", "done", "failed", "dead", "p95_wait", "p95_run")
    tiles.append(("done / h", rate(total.done * 3600 / seconds), "completed"))
    about = f"{words(past.since)} to {words(past.until)} UTC"
    return Part("Before", past.lake, about, tiles, sections)


def _columns(*fields: str) -> Columns:
    return tuple(Column(field, mean if field == "mean_attempts" else words) for field in fields)


def _series(fields: Iterable[str]) -> Series:
    """Return the name and the colour of each field."""
    return [(HEADINGS.get(field, field), COLOURS.get(field, field)) for field in fields]


def _tiles(total: object, *fields: str) -> list[tuple[str, str, str]]:
    values = [getattr(total, field) for field in fields]
    series = zip(_series(fields), values, strict=True)
    return [(name, words(value) or "none", colour if value else "line") for (name, colour), value in series]


def _bars(
    title: str, fields: Sequence[str], records: Iterable[Any], label: Callable[[Any], str], *, are_sums: bool = True
) -> Plot:
    rows = [(label(each), [getattr(each, field) for field in fields]) for each in records]
    rows = [row for row in rows if None not in row[1]]
    rows.sort(key=lambda row: (sum if are_sums else max)(row[1]), reverse=True)
    return Plot(title, _series(fields), rows[:MOST_BARS], are_sums, more=len(rows) - MOST_BARS)


def _histogram(title: str, buckets: Iterable[columns.HistogramBucket], names: Mapping[float, str]) -> Plot:
    counts = Counter[float]()
    for each in buckets:
        counts[each.at_least] += each.jobs
    return Plot(title, _series(["jobs"]), [(name, [counts[bound]]) for bound, name in names.items()])
