"""Totals, rates and histograms of a queue since its first commit, for users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from jqueue.domain.counters import KINDS, LAST_BUCKET, WINDOWS, Counters, Durations, Window


@dataclass(frozen=True, slots=True)
class Histogram:
    """How long something took, in buckets whose bounds double.

    Attributes:
        counts: number of durations below each bound and not below the one before, by the bound in seconds.
        seconds: sum of all durations.
    """

    counts: Mapping[float, int] = field(default_factory=dict)
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


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs per second, averaged over some time.

    Attributes:
        enqueued: added.
        claimed: claimed by a worker.
        done: acked.
        failed: claims that ended with a failure.
    """

    enqueued: float = 0.0
    claimed: float = 0.0
    done: float = 0.0
    failed: float = 0.0

    def __add__(self, other: Rates) -> Rates:
        """Return both together."""
        return Rates(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Rates)))


@dataclass(frozen=True, slots=True)
class Totals:
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

    def __add__(self, other: Totals) -> Totals:
        """Return both together."""
        return Totals(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(Totals)))


def totals_of(counters: Counters, now: datetime) -> Totals:
    """Return counters as users see them.

    Args:
        counters: as the blob keeps them.
        now: the time at which the rates end.
    """
    at = now.timestamp()
    rates = [_rates(counters, window, length, at) for window, length in zip(counters.windows, WINDOWS, strict=False)]
    values: dict[str, Any] = dict(zip(KINDS, counters.totals, strict=False))
    values |= zip(("last_minute", "last_hour", "last_day"), rates, strict=False)
    return Totals(**values, waits=_seen(counters.waits), runs=_seen(counters.runs))


def _seen(durations: Durations) -> Histogram:
    counts: dict[float, int] = {}
    for bucket, count in enumerate(durations.counts, durations.first):
        bound = 2.0 ** min(bucket, LAST_BUCKET) / 1000
        if count:
            counts[bound] = counts.get(bound, 0) + count
    return Histogram(counts, durations.seconds)


def _rates(counters: Counters, window: Window, length: int, at: float) -> Rates:
    """Return the rates over the last `length` seconds: the current stretch, and the share of the one before in them."""
    number, passed = int(at // length), at % length / length
    now, start, earlier = counters.totals, window.start, window.earlier
    if number > window.number:  # nothing has happened in the current stretch
        start, earlier = now, start if number == window.number + 1 else now
    rated = range(len(Rates.__slots__))
    recent = [_at(now, place) - _at(start, place) for place in rated]
    before = [_at(start, place) - _at(earlier, place) for place in rated]
    return Rates(*((new + old * (1 - passed)) / length for new, old in zip(recent, before, strict=True)))


def _at(numbers: tuple[int, ...], place: int) -> int:
    return numbers[place] if place < len(numbers) else 0
