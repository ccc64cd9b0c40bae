"""The commits and the calls to the store of one queue object, counted."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from math import inf

from jqueue.domain.counters import Histogram
from jqueue.ports.observer import LandedCommit, Observer
from jqueue.telemetry import catalog
from jqueue.telemetry.exporters import kind_of
from jqueue.telemetry.figures import Sample

CALLS = ("read", "write", "create", "fetch", "list", "remove")
"""The calls to a store: see `Observer.store_called`."""


class Distribution:
    """Counts values by the bounds of a histogram.

    Args:
        bounds: the upper bounds. A value that equals a bound is below it.

    Attributes:
        count: number of values.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = (*bounds, inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        self.count += 1

    def histogram(self) -> Histogram:
        """Return the counts so far."""
        return Histogram(dict(zip(self._bounds, self._counts, strict=True)), self._sum)


class Recorder(Observer):
    """Counts the commits and the calls to the store of one queue object.

    Args:
        queue: name of the queue.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._commits = self._recognised = self._conflicts = 0
        self._calls = Distribution(catalog.CALLS)
        self._store = {call: Distribution(catalog.BUCKETS) for call in CALLS}
        self._errors: Counter[tuple[str, str]] = Counter()

    def committed(self, commit: LandedCommit) -> None:
        """See `Observer`."""
        self._commits += 1
        self._recognised += commit.recognised
        self._calls.add(len(commit.calls))

    def store_called(self, call: str, seconds: float, error: BaseException | None) -> None:
        """See `Observer`."""
        self._store[call].add(seconds)
        if error is None or isinstance(error, asyncio.CancelledError):
            return
        kind = kind_of(error)
        if kind == "conflict":
            self._conflicts += call == "write"
        else:
            self._errors[call, kind] += 1

    def samples(self) -> Iterator[Sample]:
        """Yield the counts so far. Any thread may call this."""
        labels = (self._queue,)
        yield Sample(catalog.COMMITS, labels, self._commits)
        yield Sample(catalog.RECOGNISED, labels, self._recognised)
        yield Sample(catalog.CONFLICTS, labels, self._conflicts)
        yield Sample(catalog.COMMIT_CALLS, labels, self._calls.histogram())
        for call, durations in self._store.items():
            if durations.count or call in ("read", "write"):
                yield Sample(catalog.STORE, (*labels, call), durations.histogram())
        for (call, kind), number in dict(self._errors).items():
            yield Sample(catalog.STORE_ERRORS, (*labels, call, kind), number)
