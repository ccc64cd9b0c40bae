"""A report in the terminal: tables that fit 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from jqueue.domain.printable import counted
from jqueue.spark.report.columns import EntrypointFigures, Figures
from jqueue.spark.report.formatting import ahead, duration, mean, moment, name, number, short_names
from jqueue.spark.report.plots import by_class

try:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    raise ImportError('the tables of a report need rich: pip install "jqueue[report]"') from error

MOST_ROWS = 40
"""Largest number of rows in a table; the DataFrame has all."""


@dataclass(frozen=True)
class View:
    """One table.

    Attributes:
        title: the heading of its first column.
        columns: the headings of the others.
        cells: returns the figures of an entrypoint in these columns.
        weight: returns the importance of a row; 0 if it has nothing to tell.
    """

    title: str
    columns: tuple[str, ...]
    cells: Callable[[EntrypointFigures], tuple[Text | str, ...]]
    weight: Callable[[EntrypointFigures], int]


def show(report: Figures, console: Console | None = None) -> Console:
    """Print the report, and return the console on which it stands."""
    out = console or Console(highlight=False)
    total = report.totals[None]
    several = len(report.queues) > 1
    short = short_names(report.queues) if several else {}
    of = counted(len(report.queues), "queue") if several else name(report.queues[0])
    out.print(Text.assemble((of, "bold"), f"  {counted(total.jobs, 'job')}, {moment(report.now)}"))
    if several:
        queues = [report.totals[queue] for queue in report.queues]
        print_table(out, _table("queue", JOBS, queues, total, {}), len(queues))
    views = _views(report)
    for view in views:
        rows = [each for each in report.standings if view.weight(each)]
        if rows:
            print_table(out, _table(view.title, view, rows, total, short), len(rows))
    if report.failures:
        print_table(out, *_failures(report))
    if not total.jobs:
        out.print("no jobs")
    return out


def _views(report: Figures) -> tuple[View, ...]:
    def waits(each: EntrypointFigures) -> tuple[Text | str, ...]:
        return (
            *_durations(each.oldest_age, each.median_age, each.p95_age),
            number(each.scheduled) if each.scheduled else "",
            ahead(each.next_at, report.now),
        )

    return (
        JOBS,
        View(
            "waiting",
            ("oldest", "median", "p95", "scheduled", "next"),
            waits,
            lambda each: each.ready + each.scheduled,
        ),
        FINISHED,
        ATTEMPTS,
    )


def _jobs(each: EntrypointFigures) -> tuple[Text | str, ...]:
    plain = [shown_count(each.ready), shown_count(each.scheduled), shown_count(each.in_progress)]
    return (*plain, shown_count(each.stale, "yellow"), shown_count(each.dead, "red"), shown_count(each.completed))


def _finished(each: EntrypointFigures) -> tuple[Text | str, ...]:
    times = _durations(each.median_turnaround, each.p95_turnaround, each.longest_turnaround)
    return (number(each.completed), *times)


def _attempts(each: EntrypointFigures) -> tuple[Text | str, ...]:
    most = number(each.most_attempts or 0)
    return (number(each.tried), mean(each.mean_attempts), most, shown_count(each.failing))


JOBS = View(
    "entrypoint",
    ("ready", "scheduled", "running", "stale", "dead", "finished"),
    _jobs,
    lambda each: each.jobs,
)
FINISHED = View("finished", ("jobs", "median", "p95", "longest"), _finished, lambda each: each.completed)
ATTEMPTS = View("attempts", ("jobs", "mean", "most", "failed"), _attempts, lambda each: each.tried)


def _table(
    title: str, view: View, rows: Sequence[EntrypointFigures], total: EntrypointFigures, short: Mapping[str, str]
) -> Table:
    """Return one table, its rows in order of their names; only the weightiest rows if they are too many.

    Args:
        title: the heading of the first column.
        view: the other columns.
        rows: entrypoints, or queues.
        total: the figures of all.
        short: short names of queues, under which their entrypoints stand; none if there is one queue.
    """
    made = empty_table(title, view.columns)
    kept = sorted(rows, key=view.weight, reverse=True)[:MOST_ROWS]
    kept.sort(key=lambda each: (each.queue or "", each.entrypoint or ""))
    for queue, group in groupby(kept, key=lambda each: each.queue or ""):
        if short:
            made.add_row(Text(name(short[queue]), "dim"))
        for each in group:
            label = name(queue) if each.entrypoint is None else name(each.entrypoint)
            made.add_row(Text(f"  {label}" if short else label), *view.cells(each))
    if len(rows) > 1:
        made.add_section()
        made.add_row(Text("all", "bold"), *view.cells(total))
    return made


def _failures(report: Figures) -> tuple[Table, int]:
    """Return the table of the classes of errors, each over all entrypoints; and their number."""
    made = empty_table("error", ("jobs", "dead", "waiting", "finished"), "most of them in")
    classes = by_class(report.failures)
    for each in classes[:MOST_ROWS]:
        counts = (shown_count(each.dead, "red"), shown_count(each.waiting), shown_count(each.completed))
        made.add_row(Text(name(each.error)), Text(name(each.entrypoint)), number(each.jobs), *counts)
    return made, len(classes)


def empty_table(title: str, columns: Sequence[str], *texts: str) -> Table:
    """Return a table without rows.

    Args:
        title: the heading of the first column.
        columns: the headings of the columns with figures.
        texts: the headings of more columns with texts, before those.
    """
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for text in (title, *texts):
        made.add_column(text, overflow="fold")
    for column in columns:
        made.add_column(column, justify="right", no_wrap=True)
    return made


def print_table(out: Console, table: Table, rows: int) -> None:
    """Print a table, and the number of rows that it leaves out, given the number of all."""
    out.print("", table, sep="\n")
    if rows > MOST_ROWS:
        out.print(Text(f"and {number(rows - MOST_ROWS)} more", "dim"))


def _durations(*seconds: float | None) -> tuple[str, ...]:
    return tuple(map(duration, seconds))


def shown_count(count: int, style: str = "") -> Text:
    """Return a count in this style, or dimmed if it is zero."""
    return Text(number(count), style if count else "dim")
