"""The counters of an entrypoint, as the header of the blob keeps them, and their sums.

Durations are counted in buckets whose bounds double: bucket 0 holds less than 1 ms, bucket n less than 2^n ms. For
rates over the last minute, hour and day, each of these windows has the totals at the beginning of its current stretch
of the clock, and of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Annotated, NamedTuple

from msgspec import Meta

from jqueue.domain.fields import Count, Seconds

OTHERS = ""
"""The name under which the counters of idle entrypoints are added up."""

LAST_BUCKET = 41
"""The bucket of all durations from 35 years on."""

WINDOWS = (60, 3600, 86400)
"""The lengths of the windows over which rates are given, in seconds."""

AHEAD = 3600.0
"""Seconds by which the clock of another writer may be ahead. A window further ahead begins anew."""

KINDS = (
    "enqueued",
    "claimed",
    "done",
    "failed",
    "retried",
    "dead",
    "cancelled",
    "expired",
    "recovered",
    "removed",
)
"""The names of the counters, in their order in the blob."""

ENQUEUED, CLAIMED, DONE, FAILED, RETRIED, DEAD, CANCELLED, EXPIRED, RECOVERED, REMOVED = range(len(KINDS))

RATED = FAILED + 1
"""Number of counters, the first ones, for which windows are kept."""


class Durations(NamedTuple):
    """A histogram of durations, as the blob keeps it."""

    seconds: Seconds = 0.0
    """Sum of all durations."""
    first: Annotated[int, Meta(ge=0, le=1000)] = 0
    """The first bucket that holds any."""
    counts: tuple[Count, ...] = ()
    """Number of durations in each bucket from the first on."""


class Window(NamedTuple):
    """The beginnings of the last two stretches of a window, as the blob keeps them."""

    number: Count = 0
    """The current stretch: the time divided by the length of the window."""
    start: tuple[Count, ...] = ()
    """The first `RATED` totals when it began."""
    earlier: tuple[Count, ...] = ()
    """The same totals when the stretch before it began."""


class Counters(NamedTuple):
    """The counters of one entrypoint, as the blob keeps them."""

    totals: tuple[Count, ...] = ()
    """One number for each of `KINDS`."""
    waits: Durations = Durations()
    """The times from ready to claimed."""
    runs: Durations = Durations()
    """The times from claimed to acked or nacked."""
    windows: tuple[Window, ...] = ()
    """One for each of `WINDOWS`."""
    at: float = 0.0
    """Time of the last transition, in seconds since 1970."""


EMPTY = Counters()


def bucket_of(seconds: float) -> int:
    """Return the bucket of a duration."""
    return min(LAST_BUCKET, int(seconds * 1000).bit_length()) if seconds > 0 else 0


def with_durations(known: Durations, seconds: Iterable[tuple[float, int]]) -> Durations:
    """Return a histogram with more durations. One below 0 counts as 0, because clocks may disagree.

    Args:
        known: the histogram.
        seconds: new durations, and the number of each.
    """
    total, first, counts = known.seconds, known.first, list(known.counts)
    for each, number in seconds:
        bucket = bucket_of(each)
        if not counts:
            first = bucket
        elif bucket < first:
            counts[:0] = [0] * (first - bucket)
            first = bucket
        place = bucket - first
        if place >= len(counts):
            counts += [0] * (place - len(counts) + 1)
        counts[place] += number
        if each > 0:
            total += each * number
    return Durations(round(total, 3), first, tuple(counts))


def windows_after(known: Counters, at: float) -> tuple[Window, ...]:
    """Return the windows at a time, in seconds since 1970, given the counters before anything that happened then."""
    windows = known.windows
    if len(windows) == len(WINDOWS) and -AHEAD < at - windows[0].number * WINDOWS[0] < WINDOWS[0]:
        return windows  # a stretch of any window begins with one of the first
    now, moved = known.totals[:RATED], []
    for place, length in enumerate(WINDOWS):
        window = windows[place] if place < len(windows) else Window()
        number = max(0, int(at // length))
        if number > window.number or window.number * length >= at + AHEAD:
            window = Window(number, now, window.start if number == window.number + 1 else now)
        moved.append(window)
    return tuple(moved)


def merged(several: Iterable[Counters]) -> Counters:
    """Add up the counters of several entrypoints."""
    several = list(several)
    at = max(each.at for each in several)
    several = [each._replace(windows=windows_after(each, at)) for each in several]
    return Counters(
        _added_up(each.totals for each in several),
        _together(each.waits for each in several),
        _together(each.runs for each in several),
        tuple(_side_by_side(windows) for windows in zip(*(each.windows for each in several), strict=True)),
        at,
    )


def _added_up(several: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Add numbers place by place. A later version of jqueue may count more kinds."""
    return tuple(map(sum, zip_longest(*several, fillvalue=0)))


def _together(several: Iterable[Durations]) -> Durations:
    several = [each for each in several if each.counts]
    if not several:
        return Durations()
    first = min(each.first for each in several)
    counts = _added_up((0,) * (each.first - first) + each.counts for each in several)
    return Durations(round(sum(each.seconds for each in several), 3), first, counts)


def _side_by_side(windows: Iterable[Window]) -> Window:
    windows = list(windows)
    starts = _added_up(window.start for window in windows)
    return Window(max(window.number for window in windows), starts, _added_up(window.earlier for window in windows))
