"""The figures of a queue as samples of metrics, with a bounded number of labels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

from jqueue._version import __version__
from jqueue.domain.counters import Histogram, Totals
from jqueue.domain.printable import printable
from jqueue.domain.stats import EntrypointStats, QueueStats
from jqueue.telemetry import catalog
from jqueue.telemetry.catalog import HISTOGRAMS, TOTALS, Metric

MOST = 100
"""Largest number of entrypoints, and of names of workers, with samples of their own. The others are added up."""

OTHERS = "(others)"
"""The label of what is added up."""

STATUSES = ("ready", "scheduled", "in_progress", "dead", "completed")
"""The fields of `EntrypointStats` with the number of jobs of each status."""


class Sample(NamedTuple):
    """One value of a metric.

    Attributes:
        metric: its metric.
        labels: the values of the metric's labels, in their order.
        value: a number, or a histogram.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float | Histogram


class Names:
    """The names that have samples of their own: the first that are seen, up to a number. They stay the same.

    Args:
        most: that number.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: dict[str, str] = {}

    def label(self, name: str) -> str:
        """Return the label of a name."""
        if name not in self._kept and len(self._kept) < self._most:
            self._kept[name] = printable(name)
        return self._kept.get(name, OTHERS)


class Figures:
    """Makes samples of the statistics of one queue.

    Args:
        queue: its name.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._entrypoints = Names()
        self._workers = Names()

    def samples(self, stats: QueueStats | None) -> Iterator[Sample]:
        """Yield the samples of a queue's statistics; None if it cannot be read."""
        of_queue = (self._queue,)
        yield Sample(catalog.UP, of_queue, stats is not None)
        yield Sample(catalog.BUILD, (__version__,), 1)
        if stats is None:
            return
        for name, metric in catalog.OF_QUEUE_STATS.items():
            yield Sample(metric, of_queue, getattr(stats, name))
        for label, each in self._by_label(stats).items():
            yield from _of_entrypoint((self._queue, label), each)
        yield from self._of_workers(stats)

    def _by_label(self, stats: QueueStats) -> dict[str, EntrypointStats]:
        """Return the statistics by label. The totals of the others are the queue's minus those with their own label."""
        shown: dict[str, EntrypointStats] = {}
        others: list[EntrypointStats] = []
        known = stats.entrypoints or {}
        for name in sorted(known, key=lambda name: -_weight(known[name])):
            label = self._entrypoints.label(name)
            if label == OTHERS:
                others.append(known[name])
            else:
                shown[label] = known[name]
        totals = None
        if stats.totals is not None:
            counted = sum((each.totals for each in shown.values() if each.totals is not None), Totals())
            totals = _difference(stats.totals, counted)
        if others or (totals is not None and any(getattr(totals, kind) for kind in TOTALS)):
            shown[OTHERS] = _together(others, totals)
        return shown

    def _of_workers(self, stats: QueueStats) -> Iterator[Sample]:
        sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for record in stats.workers:
            numbers = sums[self._workers.label(record.name)]
            if record.lost:
                continue
            for place, number in enumerate((1, record.slots, record.busy)):
                numbers[place] += number
        for label, numbers in sums.items():
            for metric, number in zip((catalog.WORKERS, catalog.SLOTS, catalog.BUSY), numbers, strict=True):
                yield Sample(metric, (self._queue, label), number)


def _of_entrypoint(labels: tuple[str, str], stats: EntrypointStats) -> Iterator[Sample]:
    for status in STATUSES:
        yield Sample(catalog.JOBS, (*labels, status), getattr(stats, status))
    yield Sample(catalog.OLDEST_READY, labels, _seconds(stats.oldest_ready_age))
    yield Sample(catalog.OLDEST_CLAIM, labels, _seconds(stats.oldest_claim_age))
    yield Sample(catalog.PAUSED, labels, stats.paused)
    yield Sample(catalog.DROPPED, (*labels, "result"), stats.results_dropped)
    yield Sample(catalog.DROPPED, (*labels, "error"), stats.errors_dropped)
    if stats.totals is not None:
        for kind, metric in TOTALS.items():
            yield Sample(metric, labels, getattr(stats.totals, kind))
        for kind, metric in HISTOGRAMS.items():
            yield Sample(metric, labels, getattr(stats.totals, kind))


def _weight(stats: EntrypointStats) -> int:
    return stats.totals.enqueued if stats.totals is not None else stats.ready


def _seconds(age: timedelta | None) -> float:
    return 0.0 if age is None else age.total_seconds()


def _together(several: list[EntrypointStats], totals: Totals | None) -> EntrypointStats:
    """Return the statistics of several entrypoints together, with these totals."""
    names = (*STATUSES, "results_dropped", "errors_dropped")
    ages = {
        name: max((age for each in several if (age := getattr(each, name)) is not None), default=None)
        for name in ("oldest_ready_age", "oldest_claim_age")
    }
    return EntrypointStats(
        **{name: sum(getattr(each, name) for each in several) for name in names},
        **ages,  # type: ignore[arg-type]
        totals=totals,
    )


def _difference(whole: Totals, part: Totals) -> Totals:
    values: dict[str, int | Histogram] = {kind: getattr(whole, kind) - getattr(part, kind) for kind in TOTALS}
    for name in HISTOGRAMS:
        ours, theirs = getattr(whole, name), getattr(part, name)
        counts = {bound: count - theirs.counts.get(bound, 0) for bound, count in ours.counts.items()}
        values[name] = Histogram(counts, max(0.0, ours.seconds - theirs.seconds))
    return Totals(**values)  # type: ignore[arg-type]
