"""The plots over time, as numbers: columns of a stack, and lines. The template draws them.

Places and heights are percentages. An axis has few marks, so that their words fit a narrow screen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from jqueue.spark.report.figures import EPOCH
from jqueue.spark.report.formatting import duration, number
from jqueue.spark.report.past_columns import Past, PastFigures
from jqueue.spark.report.plots import MARKS

MOST_SLOTS = 400
"""Largest number of windows in a plot. If there are more, the latest are shown."""

MOST_CLASSES = 5
"""Largest number of classes of errors with a colour of their own."""

LEAST_APART = 16.0
"""Least distance of two marks on the axis of times, in percent."""

_GAP = 0.16
"""Share of a window's width that stays free between two columns."""

_DAY = 86400

_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(60 * each for each in (1, 2, 5, 10, 15, 30)),
    *(3600 * each for each in (1, 2, 3, 6, 12)),
    *(_DAY * each for each in (1, 2, 3, 5, 7, 14, 28, 56, 91, 182, 364)),
)
"""Seconds between two marks of the axis of time."""


class Mark(NamedTuple):
    """A mark of an axis: its place, and its words."""

    place: float
    words: str


class Block(NamedTuple):
    """A part of a column: its lower left corner, its size, and its kind."""

    x: float
    y: float
    width: float
    height: float
    kind: str


class Hint(NamedTuple):
    """The text of a window under the pointer: its place, its width, and the words."""

    x: float
    width: float
    words: str


class Trace(NamedTuple):
    """A line: its kind, its path in a square of 100, and the places of points that no line reaches."""

    kind: str
    path: str
    dots: tuple[tuple[float, float], ...]


class TimePlot(NamedTuple):
    """A plot over time: columns, lines above them, the marks of both axes, and a hint for each window."""

    blocks: tuple[Block, ...]
    traces: tuple[Trace, ...]
    across: tuple[Mark, ...]
    up: tuple[Mark, ...]
    hints: tuple[Hint, ...]


class Spark(NamedTuple):
    """A small plot beside a name: its columns, and a value in words."""

    name: str
    blocks: tuple[Block, ...]
    value: str
    words: str


class Slots:
    """The windows of a report, from its first to its last event, also those without events.

    Attributes:
        starts: beginning of each window.
        words: each window in words.
    """

    def __init__(self, past: Past) -> None:
        length = timedelta(seconds=past.window)
        first, last = (EPOCH + (time - EPOCH) // length * length for time in (past.since, past.until))
        count = min(MOST_SLOTS, (last - first) // length + 1)
        self.starts = [last - length * (count - 1 - place) for place in range(count)]
        self.length = length
        self.words = [window_words(each, past.window) for each in self.starts]
        self._place = {each: place for place, each in enumerate(self.starts)}

    def aligned(self, rows: Sequence[PastFigures]) -> list[PastFigures | None]:
        """Return the row of each window; None if it has none."""
        found: list[PastFigures | None] = [None] * len(self.starts)
        for row in rows:
            if row.start in self._place:
                found[self._place[row.start]] = row
        return found

    def marks(self) -> tuple[Mark, ...]:
        """Return the marks of the axis of time: at the beginnings of windows, and far enough apart."""
        count = len(self.starts)
        least, length = count * LEAST_APART / 100, self.length.total_seconds()
        nice = (each / length for each in _STEPS if each % length == 0 and each / length >= least)
        step = max(1, int(next(nice, math.ceil(least))))
        return tuple(
            Mark(round(100 * place / count, 3), mark_words(self.starts[place], length))
            for place in range(0, count, step)
        )

    def column(self, place: int) -> tuple[float, float]:
        """Return the left end and the width of a column."""
        width = 100 / len(self.starts)
        return round(width * (place + _GAP / 2), 3), round(width * (1 - _GAP), 3)

    def middle(self, place: int) -> float:
        """Return the middle of a window."""
        return round(100 * (place + 0.5) / len(self.starts), 3)

    def hints(self, words: Sequence[str]) -> tuple[Hint, ...]:
        """Return a hint for each window."""
        width = 100 / len(self.starts)
        return tuple(
            Hint(round(width * place, 3), round(width, 3), f"{self.words[place]}: {text}")
            for place, text in enumerate(words)
            if text
        )


def window_words(start: datetime, length: float) -> str:
    """Return a window in words, in UTC."""
    if length % _DAY == 0:
        return f"{start:%Y-%m-%d}"
    return f"{start:%Y-%m-%d %H:%M}" if length % 60 == 0 else f"{start:%Y-%m-%d %H:%M:%S}"


def mark_words(start: datetime, length: float) -> str:
    """Return the words of a mark on the axis of time: short, since several stand side by side."""
    if length % _DAY == 0 or (start.hour, start.minute) == (0, 0):
        return f"{start.day} {start:%b}"
    return f"{start:%H:%M}" if start.second == 0 else f"{start:%H:%M:%S}"


def stack(
    slots: Slots, heights: Sequence[Sequence[tuple[int, str]]], line: tuple[str, Sequence[int]] | None, words: list[str]
) -> TimePlot:
    """Return columns for counts.

    Args:
        slots: the windows.
        heights: the counts of each window, each with its kind, the lowest part first.
        line: the kind of a line above the columns, and its counts; None if there is none.
        words: the hint of each window.
    """
    highest = max((sum(count for count, _ in each) for each in heights), default=0)
    highest = max(highest, *(line[1] if line else ()), 1)
    top, marks = _counting(highest)
    blocks = []
    for place, parts in enumerate(heights):
        x, width = slots.column(place)
        y = 0.0
        for count, kind in parts:
            if count:
                height = 100 * count / top
                blocks.append(Block(x, round(100 - y - height, 3), width, round(height, 3), kind))
                y += height
    traces: tuple[Trace, ...] = ()
    if line is not None:
        points: list[tuple[float, float] | None] = [
            (slots.middle(place), 100 - 100 * count / top) for place, count in enumerate(line[1])
        ]
        traces = (_trace(line[0], points),)
    return TimePlot(tuple(blocks), traces, slots.marks(), marks, slots.hints(words))


def _counting(highest: int) -> tuple[float, tuple[Mark, ...]]:
    """Return the top of an axis of counts, and its marks."""
    unit = 10 ** math.floor(math.log10(highest))
    step = max(1, next(unit * part for part in (0.25, 0.5, 1, 2, 2.5) if unit * part * 4 >= highest))
    step = math.ceil(step)
    top = step * math.ceil(highest / step)
    return top, tuple(Mark(round(100 - 100 * count / top, 3), _short(count)) for count in range(0, top + 1, step))


def _short(count: int) -> str:
    """Return a count in few characters."""
    for unit, words in ((1_000_000, " M"), (1_000, " k")):
        if count >= 10 * unit or (count >= unit and count % (unit // 10) == 0):
            return f"{count / unit:.1f}".removesuffix(".0") + words
    return number(count)


def lines(slots: Slots, values: Mapping[str, Sequence[float | None]], hint: Callable[[int], str]) -> TimePlot | None:
    """Return lines of durations on a logarithmic axis; None if there are no values.

    Args:
        slots: the windows.
        values: by kind, the duration in each window.
        hint: returns the words of a window with values.
    """
    known = [each for line in values.values() for each in line if each is not None]
    if not known:
        return None
    low, high = max(min(known), min(MARKS)), max(known)
    first = max((mark for mark in MARKS if mark <= low), default=min(MARKS))
    last = min((mark for mark in MARKS if mark > max(first, high)), default=10 * max(first, high))

    def place(seconds: float) -> float:
        return round(100 - 100 * math.log(max(seconds, first) / first) / math.log(last / first), 3)

    up: list[Mark] = []
    for mark, words in MARKS.items():
        if first <= mark <= last and (not up or up[-1].place - place(mark) >= 14):
            up.append(Mark(place(mark), words))
    traces = []
    for kind, line in values.items():
        points = [None if each is None else (slots.middle(at), place(each)) for at, each in enumerate(line)]
        traces.append(_trace(kind, points))
    told = [
        hint(at) if any(line[at] is not None for line in values.values()) else "" for at in range(len(slots.starts))
    ]
    return TimePlot((), tuple(traces), slots.marks(), tuple(up), slots.hints(told))


def _trace(kind: str, points: Sequence[tuple[float, float] | None]) -> Trace:
    """Return a line. It is interrupted where there is no point; a point alone becomes a dot."""
    parts: list[str] = []
    dots: list[tuple[float, float]] = []
    for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False):
        if point is None:
            continue
        x, y = point
        if before is None and after is None:
            dots.append((x, round(y, 2)))
        else:
            parts.append(f"{'M' if before is None else 'L'}{x:g},{y:.2f}")
    return Trace(kind, "".join(parts), tuple(dots))


def sparks(slots: Slots, past: Past, names: Sequence[str]) -> tuple[Spark, ...]:
    """Return a small plot for each entrypoint: jobs done and failed attempts over time, each to its own scale."""
    found = []
    for whole in past.entrypoints:
        if whole.entrypoint not in names:
            continue
        rows = slots.aligned([each for each in past.parts if each.entrypoint == whole.entrypoint])
        top = max((each.done + each.failed for each in rows if each), default=0) or 1
        blocks = []
        for place, row in enumerate(rows):
            x, width = slots.column(place)
            y = 0.0
            for count, kind in ((row.done, "completed"), (row.failed, "dead")) if row else ():
                height = 100 * count / top
                if count:
                    blocks.append(Block(x, round(100 - y - height, 3), width, round(height, 3), kind))
                y += height
        words = f"{number(whole.done)} done, {number(whole.failed)} failed, at most {number(top)} in a window"
        found.append(Spark(str(whole.entrypoint), tuple(blocks), number(whole.done), words))
    return tuple(found)


def times_words(row: PastFigures, name: str) -> str:
    """Return the percentiles of a time in words."""
    values = [getattr(row, f"{share}_{name}") for share in ("median", "p95", "p99")]
    return ", ".join(
        f"{words} {duration(value)}" for words, value in zip(("median", "p95", "p99"), values, strict=True)
    )
