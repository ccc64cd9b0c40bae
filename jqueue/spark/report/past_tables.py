"""A report on the past in the terminal: tables that fit 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from jqueue.spark.report.formatting import duration, mean, name, number
from jqueue.spark.report.past_columns import Past, PastFigures
from jqueue.spark.report.past_plots import window_words
from jqueue.spark.report.tables import MOST_ROWS, empty_table, print_table, shown_count

try:
    from rich.console import Console
    from rich.text import Text
except ImportError as error:
    raise ImportError('the tables of a report need rich: pip install "jqueue[report]"') from error

Cells = Callable[[PastFigures], tuple[Text | str, ...]]


def show_past(past: Past, console: Console | None = None) -> None:
    """Print the report."""
    out = console or Console(highlight=False)
    minute = "%Y-%m-%d %H:%M"
    out.print(Text.assemble((name(past.lake, 60), "bold"), f"\n{past.since:{minute}} to {past.until:{minute}} UTC"))
    total = past.total
    _show(out, "entrypoint", COUNTS, _counts, past.entrypoints, total, lambda each: str(each.entrypoint))
    _show(out, "median and p95", TIMES, _times, past.entrypoints, total, lambda each: str(each.entrypoint))
    _show(out, "holder", COUNTS, _counts, past.holders, total, lambda each: str(each.holder))
    if past.failures:
        _show_failures(out, past)
    latest = past.windows[-10:]
    length = past.window
    _show(
        out,
        "latest windows",
        COUNTS,
        _counts,
        latest,
        None,
        lambda each: window_words(each.start or past.since, length),
    )


COUNTS = ("enqueued", "done", "failed", "dead", "attempts")
TIMES = ("wait", "p95", "run", "p95", "total", "p95")


def _counts(each: PastFigures) -> tuple[Text | str, ...]:
    plain = (shown_count(each.enqueued), shown_count(each.done))
    return (*plain, shown_count(each.failed, "yellow"), shown_count(each.dead, "red"), mean(each.mean_attempts))


def _times(each: PastFigures) -> tuple[Text | str, ...]:
    pairs = ((each.median_wait, each.p95_wait), (each.median_run, each.p95_run), (each.median_total, each.p95_total))
    return tuple(duration(value) for pair in pairs for value in pair)


def _show(
    out: Console,
    title: str,
    columns: Sequence[str],
    cells: Cells,
    rows: Sequence[PastFigures],
    total: PastFigures | None,
    label: Callable[[PastFigures], str],
) -> None:
    if not rows:
        return
    made = empty_table(title, columns)
    for each in rows[:MOST_ROWS]:
        made.add_row(Text(name(label(each))), *cells(each))
    if total is not None and len(rows) > 1:
        made.add_section()
        made.add_row(Text("all", "bold"), *cells(total))
    print_table(out, made, len(rows))


def _show_failures(out: Console, past: Past) -> None:
    counts, dead = Counter[str](), Counter[str]()
    for each in past.failures:
        counts[each.error] += each.failed
        dead[each.error] += each.dead
    made = empty_table("error", ("failed", "dead"))
    for error, count in counts.most_common(MOST_ROWS):
        made.add_row(Text(name(error)), number(count), shown_count(dead[error], "red"))
    print_table(out, made, len(counts))
