"""Metrics for Prometheus, by its own client library: `pip install "jqueue[metrics]"`."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import accumulate
from math import inf
from typing import Any

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ImportError as _error:  # pragma: no cover
    raise ImportError('metrics for Prometheus need its client: pip install "jqueue[metrics]"') from _error

from jqueue._version import __version__
from jqueue.domain.counters import KINDS, Histogram, Totals
from jqueue.domain.errors import JQueueError
from jqueue.domain.printable import printable
from jqueue.domain.stats import EntrypointStats, QueueStats, sum_of
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.observer import LandedCommit, Observer, SupportsObservers
from jqueue.ports.queue import Operator
from jqueue.runtime.system import SystemClock
from jqueue.runtime.tasks import all_at_once
from jqueue.runtime.threads import in_its_own_thread
from jqueue.telemetry.catalog import METRICS
from jqueue.telemetry.exporters import kind_of, observed, place_name
from jqueue.telemetry.listener import Page, PageMaker

logger: Logger = logger_of("jqueue.telemetry")

DEADLINE = 10.0
"""Seconds for one look at a queue."""

LOOK_TIME, PAGE_TIME = 1.0, 1.5
"""Seconds for which a scrape waits for new figures, and after which it is answered without the event loop."""

EVERY = 15.0
"""Seconds between two looks at a queue, by default."""

MOST = 100
"""Largest number of entrypoints, and of names of workers, with samples of their own. The others are added up."""

OTHERS = "(others)"
"""The label of what is added up."""

MONOTONIC = SystemClock().monotonic

SECONDS = tuple(2.0**power / 1000 for power in range(27))
"""Bounds of the histograms of seconds: 1 ms, doubled up to 18.6 hours. The blob counts durations in these buckets."""

CALLS = tuple(float(2**power) for power in range(13))
"""Bounds of the histogram of calls in a commit: 1 to 4,096."""

FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}

Samples = dict[tuple[str, tuple[str, ...]], Any]
"""The values of metrics, numbers or histograms, by the name of the metric and the values of its labels."""


class WatchedQueue(Observer):
    """One queue under watch, with its latest figures. It counts the commits of the queue object that it observes.

    Args:
        queue: the queue.
        worker: the state of the worker that runs on it; None without one.
        broker: what answers its clients; None if it is not served.
    """

    def __init__(self, queue: Operator, worker: Any, broker: Any = None) -> None:
        self._name = place_name(queue)
        self._queue = queue
        self._worker, self._broker = worker, broker
        self._labels: dict[str, dict[str, str]] = {"entrypoint": {}, "worker": {}}
        self._stats: QueueStats | None = None
        self._up = False  # True if the last look has succeeded
        self._read_at = 0.0
        self.look_under_way: asyncio.Task[None] | None = None
        self._counts: Samples = {}

    def start_counting(self) -> None:
        """Begin the counts of commits with 0, so that their rates are known from the first commit on."""
        for name in ("commits", "commits_recognised", "conflicts"):
            self._count(name, 0)
        self._count("commit_calls", Histogram())
        for call in ("read", "write"):
            self._count("store_seconds", Histogram(), call)

    def committed(self, commit: LandedCommit) -> None:
        """See `Observer`."""
        self._count("commits", 1)
        self._count("commits_recognised", commit.recognised)
        self._count("commit_calls", _histogram_of(len(commit.calls), CALLS))

    def store_called(self, call: str, seconds: float, error: BaseException | None) -> None:
        """See `Observer`."""
        self._count("store_seconds", _histogram_of(seconds, SECONDS), call)
        if error is None or isinstance(error, asyncio.CancelledError):
            return
        kind = kind_of(error)
        if kind != "conflict":
            self._count("store_errors", 1, call, kind)
        elif call == "write":
            self._count("conflicts", 1)

    def _count(self, name: str, value: float | Histogram, *labels: str) -> None:
        key = f"jqueue_{name}", (self._name, *labels)
        self._counts[key] = self._counts[key] + value if key in self._counts else value

    async def look(self, seconds: float = DEADLINE) -> None:
        """Wait for new figures of the queue, for some seconds at most. Until they come, the last ones stay."""
        if self.look_under_way is None:
            self.look_under_way = asyncio.create_task(self._look(), name="jqueue-figures")
        done, _ = await asyncio.wait([self.look_under_way], timeout=seconds)
        for look in done:
            look.result()

    async def _look(self) -> None:
        began = MONOTONIC()
        try:
            self._stats = await self._queue.stats(deadline=DEADLINE)
            self._read_at, self._up = began, True
        except (JQueueError, OSError) as error:
            if self._up:
                logger.warning("the figures of %s cannot be read: %s", self._name, error)
            self._up = False
        finally:
            self.look_under_way = None

    async def look_each(self, seconds: float) -> None:
        """Read the figures of the queue again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(seconds)

    def samples(self) -> Samples:
        """Return the latest figures. Any thread may call this."""
        stats, worker, queue = self._stats, self._worker, (self._name,)
        samples = {**self._counts, ("jqueue_up", queue): self._up, ("jqueue_build_info", (__version__,)): 1}
        if getattr(self._queue, "is_served", False):  # a broker commits, and only it can count
            uncounted = {key for key, value in self._counts.items() if not getattr(value, "count", value)}
            samples = {key: value for key, value in samples.items() if key not in uncounted}
        if self._broker is not None:
            samples["jqueue_broker_clients", queue] = self._broker.clients
            samples["jqueue_broker_waiting_claims", queue] = self._broker.waiting_claims
        if worker is not None:
            labels = self._name, printable(worker.name)
            samples["jqueue_worker_running", labels] = worker.running
            for outcome, number in worker.outcomes.items():
                samples["jqueue_worker_outcomes", (*labels, outcome)] = number
        if stats is None:
            return samples
        samples["jqueue_figures_age_seconds", queue] = MONOTONIC() - self._read_at
        samples["jqueue_size_bytes", queue] = stats.size
        samples["jqueue_size_limit_bytes", queue] = stats.size_limit
        samples["jqueue_unreadable_lines", queue] = stats.unreadable
        for name in ("version", "segments", "segment_jobs", "segment_bytes", "kept_keys", "kept_key_bytes"):
            samples[f"jqueue_{name}", queue] = getattr(stats, name)
        for label, each in self._by_label(stats).items():
            samples |= _of_entrypoint((self._name, label), each)
        for record in stats.workers:
            labels = self._name, self._label("worker", record.name)
            for name, number in (("workers", 1), ("worker_slots", record.slots), ("worker_busy", record.busy)):
                key = f"jqueue_{name}", labels
                samples[key] = samples.get(key, 0) + (0 if record.lost else number)
        return samples

    def _label(self, kind: str, name: str) -> str:
        """Return the label of a name. The first names have labels of their own, and keep them."""
        labels = self._labels[kind]
        if name not in labels and len(labels) < MOST:
            labels[name] = printable(name)
        return labels.get(name, OTHERS)

    def _by_label(self, stats: QueueStats) -> dict[str, EntrypointStats]:
        """Return the statistics by label. The totals of the others are the queue's minus those with their own label."""
        shown: dict[str, EntrypointStats] = {}
        others: list[EntrypointStats] = []
        entrypoints = stats.entrypoints or {}
        for name, each in sorted(entrypoints.items(), key=lambda item: -(item[1].totals or Totals()).enqueued):
            label = self._label("entrypoint", name)
            if label == OTHERS:
                others.append(each)
            else:
                shown[label] = each
        totals = None if stats.totals is None else _without(stats.totals, [each.totals for each in shown.values()])
        if others or (totals is not None and any(getattr(totals, kind) for kind in KINDS)):
            shown[OTHERS] = replace(sum_of(others), totals=totals, paused=False)
        return shown


def _histogram_of(value: float, bounds: tuple[float, ...]) -> Histogram:
    """Return the histogram of one value. A value that equals a bound is below it."""
    return Histogram({(*bounds, inf)[bisect_left(bounds, value)]: 1}, value)


def _of_entrypoint(labels: tuple[str, str], stats: EntrypointStats) -> Samples:
    samples: Samples = {
        ("jqueue_oldest_ready_seconds", labels): (stats.oldest_ready_age or timedelta()).total_seconds(),
        ("jqueue_oldest_claim_seconds", labels): (stats.oldest_claim_age or timedelta()).total_seconds(),
        ("jqueue_paused", labels): stats.paused,
        ("jqueue_dropped_values", (*labels, "result")): stats.results_dropped,
        ("jqueue_dropped_values", (*labels, "error")): stats.errors_dropped,
    }
    for status in ("ready", "scheduled", "waiting", "in_progress", "dead", "completed"):
        samples["jqueue_jobs", (*labels, status)] = getattr(stats, status)
    if stats.totals is not None:
        samples |= {(f"jqueue_{kind}", labels): getattr(stats.totals, kind) for kind in KINDS}
        samples["jqueue_wait_seconds", labels] = stats.totals.waits
        samples["jqueue_run_seconds", labels] = stats.totals.runs
    return samples


def _without(whole: Totals, parts: Iterable[Totals | None]) -> Totals:
    """Return totals without some of their parts. The rates are left out."""
    part = sum((each for each in parts if each is not None), Totals())
    values: dict[str, Any] = {kind: getattr(whole, kind) - getattr(part, kind) for kind in KINDS}
    for name in ("waits", "runs"):
        ours, theirs = getattr(whole, name), getattr(part, name)
        counts = {bound: count - theirs.counts.get(bound, 0) for bound, count in ours.counts.items()}
        values[name] = Histogram(counts, max(0.0, ours.seconds - theirs.seconds))
    return Totals(**values)


class PrometheusMetrics(Collector):
    """Metrics of queues, of the commits of this process, and of its workers.

        worker = Worker(metrics=PrometheusMetrics(prometheus_client.REGISTRY))

    Args:
        registry: takes the metrics. By default a new one, which `text` prints.
        every: seconds between two looks at the figures of a queue; None: only `fresh_text` looks.
        commits: True to count the commits of this process as well.

    Attributes:
        content_type: the type of the text, for HTTP.
    """

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(
        self, registry: CollectorRegistry | None = None, every: float | None = EVERY, *, commits: bool = True
    ) -> None:
        self.registry: CollectorRegistry = CollectorRegistry() if registry is None else registry
        self._every, self._commits = every, commits
        self._present: tuple[WatchedQueue, ...] = ()
        self.registry.register(self)

    @asynccontextmanager
    async def watch(self, queue: Operator, worker: Any = None, broker: Any = None) -> AsyncIterator[None]:
        """Return an async context manager: within it, these metrics include those of a queue.

        A worker watches its own queue: this is for programs that only enqueue, or show figures.

        Args:
            queue: the queue.
            worker: the worker that runs on it, with its `name`, the number of `running` handlers, and the number of its
                jobs by outcome as `outcomes`; None without one.
            broker: the number of its `clients` and `waiting_claims`, if this process serves the queue.
        """
        watched = WatchedQueue(queue, worker, broker)
        counts = self._commits and isinstance(queue, SupportsObservers)
        if counts:
            watched.start_counting()
        looking = None
        self._present = (*self._present, watched)
        if self._every is not None:
            looking = asyncio.create_task(watched.look_each(self._every), name="jqueue-metrics")
        try:
            with observed(queue, watched if counts else None):
                yield
        finally:
            self._present = tuple(each for each in self._present if each is not watched)
            for task in (looking, watched.look_under_way):
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])

    def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus, with the latest figures of each queue."""
        return generate_latest(self.registry)

    async def fresh_text(self, seconds: float = LOOK_TIME) -> bytes:
        """Read the figures of each queue, and return the metrics in the text format of Prometheus.

        Args:
            seconds: longest time to wait for the figures. After it, the last ones are shown, with their age.
        """
        await all_at_once(*(watched.look(seconds) for watched in self._present))
        return await in_its_own_thread(self.text)

    def page(self) -> PageMaker:
        """Return what makes the page of a scrape, also while the event loop is blocked."""

        async def fresh() -> Page:
            return Page(await self.fresh_text(), kind=self.content_type)

        return PageMaker(fresh, PAGE_TIME, lambda: Page(self.text(), kind=self.content_type))

    def collect(self) -> Iterator[Metric]:
        """Yield the latest samples, for the registry. If two have the same labels, the first counts.

        Any thread may call this.
        """
        samples: Samples = {}
        for watched in self._present:
            samples = watched.samples() | samples
        families: dict[str, Any] = {}
        for (name, labels), value in samples.items():
            if name not in families:
                metric = METRICS[name]
                families[name] = FAMILIES[metric.kind](name, metric.description, labels=metric.labels)
            if isinstance(value, Histogram):
                bounds = CALLS if name == "jqueue_commit_calls" else SECONDS
                sums = accumulate(value.counts.get(bound, 0) for bound in bounds)
                buckets = [*zip(map(floatToGoString, bounds), sums, strict=True), ("+Inf", value.count)]
                families[name].add_metric(labels, buckets, value.seconds)
            else:
                families[name].add_metric(labels, value)
        yield from families.values()
