"""The plots of the page, as numbers: the length of each bar, and the place of each mark. The template draws them.

Lengths and places are percentages, so that a plot fits any screen, and its words keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from jqueue.spark.report.columns import EntrypointFigures, Failure, HistogramBucket
from jqueue.spark.report.formatting import duration, number

MOST_BARS = 15
"""Largest number of entrypoints in a plot; the largest ones are shown."""

UNEVEN = 10
"""Bars are logarithmic if the largest count is more than this many times the smallest."""

STATES = (
    ("ready", "ready"),
    ("scheduled", "scheduled"),
    ("in_progress", "in progress"),
    ("dead", "dead"),
    ("completed", "finished"),
    ("expired", "expired"),
)
"""The states of jobs, and their names in the report."""

MOST_RANGES = 8
"""Largest number of entrypoints in a plot of ranges, which stands beside a histogram."""

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0

MARKS = {
    **{0.001: "1 ms", 0.01: "10 ms", 0.1: "100 ms", 1.0: "1 s", 10.0: "10 s"},
    **{_MINUTE: "1 min", 10 * _MINUTE: "10 min", _HOUR: "1 h", 6 * _HOUR: "6 h"},
    **{_DAY: "1 d", 7 * _DAY: "7 d", 70 * _DAY: "70 d", 700 * _DAY: "700 d"},
}
"""Places in seconds at which an axis of durations may have a mark, and its words."""

MARKS_APART = 20
"""Least distance between the marks of an axis, in percent of it: their words must fit between."""


class Piece(NamedTuple):
    """A part of a bar: its start, its length and its kind."""

    start: float
    length: float
    kind: str


class Bar(NamedTuple):
    """One line of a plot: its name, its parts, and its sum."""

    name: str
    pieces: tuple[Piece, ...]
    value: str


class Column(NamedTuple):
    """One column of a histogram: its name, its height, and its number of jobs."""

    name: str
    height: float
    value: str


class Times(NamedTuple):
    """The durations of an entrypoint, in seconds."""

    name: str
    median: float
    p95: float
    longest: float


class Range(NamedTuple):
    """Median, 95th percentile and longest duration, on a logarithmic axis; and the same in words."""

    name: str
    middle: float
    high: float
    most: float
    description: str


class Ranges(NamedTuple):
    """Ranges, and the marks of their axis: the place and the words of each."""

    rows: tuple[Range, ...]
    marks: tuple[tuple[float, str], ...]


def label(each: EntrypointFigures, short: Mapping[str, str]) -> str:
    """Return the name of a line: the entrypoint, with its queue if there are several."""
    return f"{each.entrypoint} · {short[each.queue or '']}" if len(short) > 1 else str(each.entrypoint)


def entrypoint_bars(standings: Iterable[EntrypointFigures], short: Mapping[str, str]) -> tuple[Bar, ...]:
    """Return a bar for each entrypoint, with its jobs by state; the largest first."""
    rows = sorted(standings, key=lambda each: each.jobs, reverse=True)[:MOST_BARS]
    place = scale_of(each.jobs for each in rows)
    return tuple(
        Bar(
            label(each, short),
            _pieces([(getattr(each, field), field) for field, _ in STATES], place(each.jobs)),
            number(each.jobs),
        )
        for each in rows
    )


def scale_of(counts: Iterable[int]) -> Callable[[int], float]:
    """Return a function from a count to the length of its bar, in percent.

    It is linear, unless the smallest count is less than a tenth of the largest: then it is logarithmic, from half a job
    on, so that a queue of five jobs is seen beside one of a million.
    """
    kept = [count for count in counts if count]
    if is_uneven(kept):
        return lambda count: 100 * math.log(2 * count) / math.log(2 * max(kept)) if count else 0.0
    return lambda count: 100 * count / max(kept) if count else 0.0


def is_uneven(counts: Iterable[int]) -> bool:
    """Return True if linear bars would hide the smallest of the counts beside the largest."""
    kept = [count for count in counts if count]
    return bool(kept) and UNEVEN * min(kept) < max(kept)


def _pieces(counts: Iterable[tuple[int, str]], length: float) -> tuple[Piece, ...]:
    """Return the parts of a bar of this length, each in proportion to its count."""
    kept = [(count, kind) for count, kind in counts if count]
    whole, start, pieces = sum(count for count, _ in kept), 0.0, []
    for count, kind in kept:
        share = length * count / whole
        pieces.append(Piece(round(start, 3), round(share, 3), kind))
        start += share
    return tuple(pieces)


def failure_bars(failures: Iterable[Failure]) -> tuple[Bar, ...]:
    """Return a bar for each class of errors over all entrypoints, with its jobs by state; the most frequent first."""
    rows = by_class(failures)[:MOST_BARS]
    place = scale_of(each.jobs for each in rows)
    bars = []
    for each in rows:
        counts = [(each.dead, "dead"), (each.waiting, "ready"), (each.completed, "completed")]
        bars.append(Bar(each.error, _pieces(counts, place(each.jobs)), number(each.jobs)))
    return tuple(bars)


def by_class(failures: Iterable[Failure]) -> list[Failure]:
    """Return the sums of each class, with the queue and the entrypoint that have most of its failures."""
    found: dict[str, Failure] = {}
    for each in failures:  # the most frequent first
        seen = found.get(each.error)
        if seen is None:
            found[each.error] = each
            continue
        sums = (seen.jobs + each.jobs, seen.dead + each.dead, seen.waiting + each.waiting)
        found[each.error] = Failure(*seen[:3], *sums, seen.completed + each.completed)
    return sorted(found.values(), key=lambda each: (-each.jobs, each.error))


def columns(buckets: Iterable[HistogramBucket], bounds: Sequence[float], names: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of a histogram over all entrypoints; none if it has no jobs."""
    counts = dict.fromkeys(bounds, 0)
    for share in buckets:
        counts[share.at_least] += share.jobs
    whole = max(counts.values())
    if not whole:
        return ()
    return tuple(
        Column(name, round(100 * count / whole, 3), number(count))
        for name, count in zip(names, counts.values(), strict=True)
    )


def ranges(times: Sequence[Times]) -> Ranges | None:
    """Return the ranges of entrypoints, the longest first; None if there are none."""
    kept = sorted(times, key=lambda each: (-each.longest, each.name))[:MOST_RANGES]
    if not kept:
        return None
    shortest, longest = min(each.median for each in kept), max(each.longest for each in kept)
    first = max((mark for mark in MARKS if mark <= shortest), default=min(MARKS))
    last = min((mark for mark in MARKS if mark > max(first, longest)), default=10 * longest)

    def place(seconds: float) -> float:
        return round(100 * math.log(max(seconds, first) / first) / math.log(last / first), 3)

    marks: list[tuple[float, str]] = []
    for mark, words in MARKS.items():
        if first <= mark <= last and (not marks or place(mark) - marks[-1][0] >= MARKS_APART):
            marks.append((place(mark), words))
    rows = []
    for each in kept:
        middle, high, most = map(place, each[1:])
        rows.append(Range(each.name, middle, high, most, ", ".join(map(duration, each[1:]))))
    return Ranges(tuple(rows), tuple(marks))
