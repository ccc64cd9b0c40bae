"""The counters of entrypoints: as the header keeps them, what a commit adds to them, and their sums for users.

Durations are counted in buckets whose bounds double: bucket 0 holds less than 1 ms, bucket n less than 2^n ms. For
rates over the last minute, hour and day, each of these windows has the totals at the beginning of its current stretch
of the clock, and of the one before.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from itertools import islice, zip_longest
from typing import Annotated, Any, NamedTuple, Self

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from jqueue.domain.fields import Count, Seconds
from jqueue.domain.job import JobStatus, ready_since
from jqueue.domain.transitions import ACK, CLAIM, HEARTBEAT, NACK, BulkMove, Move, Verb

OTHERS = ""
"""The name under which the counters of idle entrypoints are added up."""

ENTRYPOINTS_COUNTED = 64
"""Number of entrypoints with counters of their own. The counters of others are added up under `OTHERS`."""

IDLE = 30 * 86400.0
"""Seconds without a transition after which the counters of an entrypoint are added to `OTHERS`."""

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

_ALWAYS = {Verb.ENQUEUE: ENQUEUED, Verb.ARRIVE: ENQUEUED, CLAIM: CLAIMED, ACK: DONE}
RATED = FAILED + 1
"""Number of counters, the first ones, for which windows are kept."""


DURATIONS_HELD = 10_000
"""Number of different durations of events that are held before they are added to the buckets."""

_VERBS = frozenset(Verb)


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


def with_buckets(histogram: Durations, buckets: Iterable[tuple[int, int]], seconds: float) -> Durations:
    """Return a histogram with more durations.

    Args:
        histogram: the histogram.
        buckets: of the new durations, and the number of them in each.
        seconds: sum of the new durations.
    """
    first, counts = histogram.first, list(histogram.counts)
    for bucket, number in buckets:
        if not counts:
            first = bucket
        elif bucket < first:
            counts[:0] = [0] * (first - bucket)
            first = bucket
        place = bucket - first
        if place >= len(counts):
            counts += [0] * (place - len(counts) + 1)
        counts[place] += number
    return Durations(round(histogram.seconds + seconds, 3), first, tuple(counts))


def with_durations(total: Durations, durations: Mapping[float, int]) -> Durations:
    """Return a histogram with more durations, given with the number of each. One below 0 counts as 0: clocks differ."""
    buckets = [(bucket_of(seconds), number) for seconds, number in durations.items()]
    return with_buckets(total, buckets, sum([seconds * number for seconds, number in durations.items() if seconds > 0]))


def windows_after(counters: Counters, at: float) -> tuple[Window, ...]:
    """Return the windows at a time, in seconds since 1970, given the counters before anything that happened then."""
    windows = counters.windows
    if len(windows) == len(WINDOWS) and -AHEAD < at - windows[0].number * WINDOWS[0] < WINDOWS[0]:
        return windows  # a stretch of any window begins with one of the first
    now, moved = counters.totals[:RATED], []
    for place, length in enumerate(WINDOWS):
        window = windows[place] if place < len(windows) else Window()
        number = max(0, int(at // length))
        if number > window.number or window.number * length >= at + AHEAD:
            window = Window(number, now, window.start if number == window.number + 1 else now)
        moved.append(window)
    return tuple(moved)


@cache
def _kinds_of(verb: Verb, before: JobStatus | None, after: JobStatus | None) -> tuple[int, ...]:
    """Return the kinds by which a transition is counted."""
    if verb in (Verb.NACK, Verb.REVOKE):
        end = CANCELLED if after is None else DEAD if after is JobStatus.DEAD else RETRIED
        return (FAILED, RECOVERED, end) if verb is Verb.REVOKE else (FAILED, end)
    if verb in _ALWAYS:
        return (_ALWAYS[verb],)
    if after is not None:
        return (DEAD,) if verb is Verb.RELEASE and after is JobStatus.DEAD else ()
    if verb in (Verb.CANCEL, Verb.HAND_BACK):
        return (CANCELLED,)
    if verb is Verb.EXPIRE and before is JobStatus.QUEUED:
        return (EXPIRED,)
    return () if before is JobStatus.COMPLETED else (REMOVED,)


class _Sums:
    """The counters of an entrypoint while a commit adds to them.

    Attributes:
        known: the counters before the commit.
        totals: the numbers by kind.
        waits: further waits in seconds, and the number of each. The jobs of one commit share many of them.
        runs: further runs in seconds, and the number of each.
    """

    __slots__ = ("known", "runs", "totals", "waits")

    def __init__(self, last_counters: Counters) -> None:
        self.known = last_counters
        self.totals = [*last_counters.totals, *[0] * (len(KINDS) - len(last_counters.totals))]
        self.waits: dict[float, int] = {}
        self.runs: dict[float, int] = {}

    def counters(self, at: float) -> Counters:
        """Return the counters after the commit, at a time in seconds since 1970."""
        last_counters = self.known
        waits = with_durations(last_counters.waits, self.waits) if self.waits else last_counters.waits
        runs = with_durations(last_counters.runs, self.runs) if self.runs else last_counters.runs
        return Counters(tuple(self.totals), waits, runs, windows_after(last_counters, at), max(at, last_counters.at))


def with_moves(
    counters: dict[str, Counters],
    moves: Iterable[Move],
    now: datetime,
    bulk: Iterable[BulkMove] = (),
) -> dict[str, Counters]:
    """Return the counters after a commit.

    Each commit adds its own transitions to the header. So the counters are exact over all processes, and a commit whose
    answer was lost counts once.

    Args:
        counters: the counters before it.
        moves: its transitions.
        now: its time.
        bulk: its transitions of many jobs at once.
    """
    changed: dict[str, _Sums] = {}
    for verb, before, after, _ in moves:
        if verb is HEARTBEAT:
            continue
        job = before or after
        assert job is not None
        if (sums := changed.get(job.entrypoint)) is None:
            sums = changed[job.entrypoint] = _Sums(counters.get(job.entrypoint, EMPTY))
        for kind in _kinds_of(verb, None if before is None else before.status, None if after is None else after.status):
            sums.totals[kind] += 1
        if verb is CLAIM:
            seconds = (now - ready_since(job)).total_seconds()
            sums.waits[seconds] = sums.waits.get(seconds, 0) + 1
        elif (verb is ACK or verb is NACK) and job.claimed_at is not None:
            seconds = (now - job.claimed_at).total_seconds()
            sums.runs[seconds] = sums.runs.get(seconds, 0) + 1
    for rows in bulk:
        if (sums := changed.get(rows.entrypoint)) is None:
            sums = changed[rows.entrypoint] = _Sums(counters.get(rows.entrypoint, EMPTY))
        for kind in _kinds_of(rows.verb, rows.before, rows.after):
            sums.totals[kind] += rows.jobs
        if rows.verb in (CLAIM, ACK):
            durations = sums.waits if rows.verb is CLAIM else sums.runs
            for seconds, number in rows.seconds:
                durations[seconds] = durations.get(seconds, 0) + number
    if not changed:
        return counters
    at, result = round(now.timestamp(), 3), dict(counters)
    for name, sums in changed.items():
        result.pop(name, None)  # the last to change stands last
        result[name] = sums.counters(at)
    first = next(iter(result))
    first_is_idle = first != OTHERS and result[first].at + IDLE < at
    return _folded(result, at) if first_is_idle or len(result) > ENTRYPOINTS_COUNTED else result


class EventCounters:
    """Counts the events of a history, as the counters in the header count transitions."""

    def __init__(self) -> None:
        self._changed: dict[str, _Sums] = {}

    def add(self, event: Any) -> None:
        """Count a `HistoryEvent`. One that is no transition of jobs changes nothing."""
        if event.entrypoint is None or event.verb not in _VERBS:
            return
        sums = self._changed.setdefault(event.entrypoint, _Sums(EMPTY))
        for kind in _kinds_of(Verb(event.verb), event.before, event.after):
            sums.totals[kind] += event.jobs
        is_run = event.verb in (ACK, NACK)
        for seconds, durations in (
            (event.wait_seconds, sums.waits),
            (event.run_seconds if is_run else None, sums.runs),
        ):
            if seconds is not None:
                durations[seconds] = durations.get(seconds, 0) + event.jobs
        if len(sums.waits) + len(sums.runs) > DURATIONS_HELD:
            self._changed[event.entrypoint] = _Sums(sums.counters(0.0))

    def totals(self, now: datetime) -> dict[str, Totals]:
        """Return the totals of all events by entrypoint. Their rates say nothing."""
        return {name: totals_of(sums.counters(0.0), now) for name, sums in self._changed.items()}


def _folded(counters: dict[str, Counters], at: float) -> dict[str, Counters]:
    """Add up the counters of idle entrypoints and, if there are too many, of the least recently changed ones."""
    by_age = sorted((name for name in counters if name != OTHERS), key=lambda name: counters[name].at)
    surplus = len(by_age) + 1 - ENTRYPOINTS_COUNTED
    folded = [name for place, name in enumerate(by_age) if place < surplus or counters[name].at + IDLE < at]
    gone = {OTHERS, *folded}
    active_counters = {name: each for name, each in counters.items() if name not in gone}
    return {OTHERS: merged([counters.get(OTHERS, EMPTY), *(counters[name] for name in folded)]), **active_counters}


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
    total = Durations()
    for each in several:
        total = with_buckets(total, enumerate(each.counts, each.first), each.seconds)
    return total


def _side_by_side(windows: Iterable[Window]) -> Window:
    windows = list(windows)
    starts = _added_up(window.start for window in windows)
    return Window(max(window.number for window in windows), starts, _added_up(window.earlier for window in windows))


class Histogram(msgspec.Struct, frozen=True):
    """How long something took, in buckets whose bounds double.

    Attributes:
        counts: number of durations below each bound and not below the one before, by the bound in seconds.
        seconds: sum of all durations.
    """

    counts: Mapping[float, int] = msgspec.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float | None:
        """The mean duration in seconds; None without any."""
        return self.seconds / self.count if self.counts else None

    def quantile(self, share: float) -> float | None:
        """Return the bound, in seconds, below which at least this share of the durations are; None without any.

        The true quantile is at least half of it, or below 1 ms.
        """
        left = share * self.count
        for bound, count in sorted(self.counts.items()):
            left -= count
            if left <= 0:
                return bound
        return None

    def __add__(self, other: Histogram) -> Histogram:
        """Return both together."""
        bounds = {*self.counts, *other.counts}
        counts = {bound: self.counts.get(bound, 0) + other.counts.get(bound, 0) for bound in sorted(bounds)}
        return Histogram(counts, self.seconds + other.seconds)


class _Sum(msgspec.Struct, frozen=True):
    """Figures that are added field by field."""

    def __add__(self, other: Self) -> Self:
        """Return both together."""
        return type(self)(*map(operator.add, astuple(self), astuple(other)))


class Rates(_Sum, frozen=True):
    """Jobs per second, averaged over some time.

    Attributes:
        enqueued: jobs added, per second.
        claimed: claims made, per second.
        done: jobs acked, per second.
        failed: claims that ended with a failure, per second.
    """

    enqueued: float = 0.0
    claimed: float = 0.0
    done: float = 0.0
    failed: float = 0.0


class Totals(_Sum, frozen=True):
    """Numbers of jobs by outcome since the first commit, of an entrypoint or of a whole queue.

    The numbers are exact over all processes and crashes. A job that a person writes into the object or takes out of it
    is not counted, nor are the claims of a move between queues.

    Attributes:
        enqueued: jobs added, including jobs moved here from another queue.
        claimed: claims made.
        done: jobs acked.
        failed: claims that ended with a failure: nacked, or stale.
        retried: failures after which the job was queued again.
        dead: failures after which the job was dead.
        cancelled: jobs cancelled.
        expired: queued jobs that were removed because their time was over.
        recovered: stale claims, whose worker was gone.
        removed: jobs purged, dead jobs kept for long enough, and jobs moved to another queue.
        waits: times from ready to claimed.
        runs: times from claimed to acked or nacked. Stale claims are left out.
        last_minute: rates over the last minute.
        last_hour: rates over the last hour.
        last_day: rates over the last day.
    """

    enqueued: int = 0
    claimed: int = 0
    done: int = 0
    failed: int = 0
    retried: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0
    recovered: int = 0
    removed: int = 0
    waits: Histogram = Histogram()
    runs: Histogram = Histogram()
    last_minute: Rates = Rates()
    last_hour: Rates = Rates()
    last_day: Rates = Rates()


def totals_of(counters: Counters, now: datetime) -> Totals:
    """Return counters as users see them.

    Args:
        counters: as the blob keeps them.
        now: the time at which the rates end.
    """
    at, rates = now.timestamp(), list[Rates]()
    for window, length in zip(windows_after(counters, at), WINDOWS, strict=True):
        left = 1 - at % length / length  # the share of the last `length` seconds in the stretch before the current one
        numbers = islice(zip_longest(counters.totals, window.start, window.earlier, fillvalue=0), RATED)
        rates.append(Rates(*((total - start + (start - earlier) * left) / length for total, start, earlier in numbers)))
    values: dict[str, Any] = dict(zip(KINDS, counters.totals, strict=False))
    values |= zip(("last_minute", "last_hour", "last_day"), rates, strict=True)
    return Totals(**values, waits=_seen(counters.waits), runs=_seen(counters.runs))


def _seen(durations: Durations) -> Histogram:
    counts: dict[float, int] = {}
    for bucket, count in enumerate(durations.counts, durations.first):
        bound = 2.0 ** min(bucket, LAST_BUCKET) / 1000
        if count:
            counts[bound] = counts.get(bound, 0) + count
    return Histogram(counts, durations.seconds)
