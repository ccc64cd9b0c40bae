"""The plots of the page, as data, and their drawing by Matplotlib: SVG in the colours of the page's style.

A plot is drawn for the width of a phone, so that its words can be read there. A wider screen enlarges it.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from jqueue.spark.report.words import duration, name, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = ("text", "quiet", "line", "ready", "scheduled", "in_progress", "dead", "completed", "expired", "purple", "teal")
"""The colours of the page's style, which has them for light and dark screens."""

COLOURS = {name: f"#0000{place:02x}" for place, name in enumerate(NAMES, 1)}
"""A colour for Matplotlib in place of each, which the SVG has as a variable. Black is not written, so it is none."""

UNEVEN = 10
"""Bars are logarithmic if the largest value is more than this many times the smallest."""

MARKS = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, *(86400.0 * days for days in (0.25, 2, 14, 140, 1400)))
"""Seconds at which an axis of durations may have a mark."""

WIDTH, ROW, BAR, TIME_HEIGHT = 280.0, 34.0, 12.0, 140.0
"""Width of a plot, height of a row, of a bar in it, and of a plot over time, in points of 1/72 inch."""

SETTINGS: dict[str, Any] = {
    **{"svg.fonttype": "none", "svg.hashsalt": "jqueue", "font.size": 10.5, "font.sans-serif": "DejaVu Sans"},
    **{"axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True, "grid.color": COLOURS["line"]},
    **{"xtick.color": COLOURS["quiet"], "xtick.major.size": 0, "xtick.major.pad": 6},
    **{"ytick.color": COLOURS["quiet"], "ytick.major.size": 0},
}
"""Settings of Matplotlib while a plot is drawn: words stay words, and the same plot is the same text."""

Series = list[tuple[str, str]]

_TAG, _COLOUR = re.compile(r"<[^>]+>"), re.compile(r"#0000([0-9a-f]{2})\b")


@dataclass(frozen=True)
class Plot:
    """A plot of rows, each a name and a value for each series.

    Attributes:
        title: its title.
        series: the name and the colour of each series. Over time, a series in the colour of text is a line.
        rows: the name and the values of each row; None is no value.
        are_sums: True if the values of a row are parts of a sum. Otherwise they are durations, the longest last.
        edges: of a plot over time, the beginning of each window, and the end of the last.
        more: number of rows that it leaves out, if positive.
    """

    title: str
    series: Series
    rows: Sequence[tuple[str, Sequence[Any]]]
    are_sums: bool = True
    edges: Sequence[datetime] = ()
    more: int = 0

    @property
    def sizes(self) -> list[Any]:
        """The sum of the counts of each row, or its longest duration."""
        return [(sum if self.are_sums else max)(value or 0 for value in values) for _, values in self.rows]

    @property
    def is_logarithmic(self) -> bool:
        """True if linear bars would hide the smallest beside the largest."""
        values = self.sizes if self.are_sums else [value for _, row in self.rows for value in row]
        known = [value for value in values if value]
        return not self.edges and bool(known) and UNEVEN * min(known) < max(known)

    @property
    def description(self) -> str:
        """The same in words; of a plot over time, its first, busiest and last window."""
        rows, sizes = self.rows, self.sizes
        if self.edges:
            rows = [rows[place] for place in sorted({0, sizes.index(max(sizes)), len(rows) - 1})]
        texts = []
        for title, values in rows:
            pairs = zip(values, self.series, strict=True)
            texts.append(f"{title}: {', '.join(f'{words(value)} {series}' for value, (series, _) in pairs if value)}")
        return f"{self.title}. {'; '.join(texts)}."

    def svg(self) -> str:
        """Return it as an element of HTML."""
        from matplotlib import style
        from matplotlib.figure import Figure

        height = TIME_HEIGHT if self.edges else ROW * len(self.rows)
        out = io.StringIO()
        with style.context(["default", SETTINGS]), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the browser has letters that the font here has not
            figure = Figure(figsize=(WIDTH / 72, height / 72))
            (_over_time if self.edges else _bars)(figure, self)
            without = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(out, format="svg", metadata=without, transparent=True)
        svg = out.getvalue()
        return _TAG.sub(_with_variables, svg[svg.index("<svg") :])


def _with_variables(tag: re.Match[str]) -> str:
    return _COLOUR.sub(lambda colour: f"var(--{NAMES[int(colour[1], 16) - 1]})", tag[0])


def _bars(figure: Figure, plot: Plot) -> None:
    axes = figure.add_axes((0, 0, 1, 1))
    sizes, places = plot.sizes, range(len(plot.rows))
    least = min((value for _, values in plot.rows for value in values if value), default=1) / 2
    longest = max(*sizes, least)

    def length(value: float) -> float:
        is_log = plot.is_logarithmic
        return math.log(max(value, least) / least) / math.log(longest / least) if is_log else value / longest

    rights = []
    for place, ((title, values), size) in enumerate(zip(plot.rows, sizes, strict=True)):
        # The name stands above the bar, since it may be long, and in any language.
        axes.text(0, place - 0.29, name(title, 42), color=COLOURS["text"], parse_math=False)
        axes.text(1.22, place, words(size), color=COLOURS["quiet"], ha="right", va="center")
        parts = [length(size) * end / (size or 1) for end in accumulate(values)]
        rights.append(parts if plot.are_sums else [*map(length, values)])
    axes.hlines(places, 0, 1, color=COLOURS["line"], alpha=0.45, linewidth=BAR)
    for series, (_, colour) in reversed([*enumerate(plot.series)]):
        axes.hlines(places, 0, [each[series] for each in rights], color=COLOURS[colour], linewidth=BAR)
    axes.set(xlim=(0, 1.22), ylim=(len(sizes) - 0.65, -0.65))
    axes.set_axis_off()


def _over_time(figure: Figure, plot: Plot) -> None:
    from matplotlib import dates, ticker

    axes = figure.add_axes((0.16, 0.14, 0.77, 0.8), frame_on=False)
    edges: Any = dates.date2num(plot.edges)  # type: ignore[no-untyped-call]
    base, width = [0.0] * len(plot.rows), min(1.4, 100 / len(plot.rows))
    for series, (_, colour) in enumerate(plot.series):
        values = [math.nan if row[1][series] is None else row[1][series] for row in plot.rows]
        if not plot.are_sums or colour == "text":
            axes.stairs(values, edges, baseline=None, color=COLOURS[colour], linewidth=width)
        else:
            tops = [below + value for below, value in zip(base, values, strict=True)]
            axes.stairs(tops, edges, baseline=base, fill=True, color=COLOURS[colour])
            base = tops
    if not plot.are_sums:
        known = [value for _, values in plot.rows for value in values if value is not None]
        first = max((mark for mark in MARKS if mark <= min(known)), default=MARKS[0])
        last = min((mark for mark in MARKS if mark >= max(known) and mark > first), default=MARKS[-1])
        marks = [mark for mark in MARKS if first <= mark <= last]
        marks = marks[:: math.ceil(len(marks) / 5)]
        axes.set_yscale("log")
        axes.set_yticks(marks, [*map(duration, marks)], minor=False)
        axes.set_yticks([], minor=True)
        axes.set_ylim(bottom=first)
    else:
        axes.yaxis.set_major_locator(ticker.MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        axes.set_ylim(bottom=0)
    locator = dates.AutoDateLocator(tz=UTC, minticks=3, maxticks=6)  # type: ignore[no-untyped-call]
    formatter = dates.ConciseDateFormatter(locator, tz=UTC, show_offset=False)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(formatter)
    axes.set_xlim(edges[0], edges[-1])
