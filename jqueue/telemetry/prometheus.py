"""Metrics for Prometheus, by its own client library: `pip install "jqueue[metrics]"`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ImportError as error:  # pragma: no cover
    raise ImportError('metrics for Prometheus need its client: pip install "jqueue[metrics]"') from error

from jqueue.domain.counters import Histogram
from jqueue.domain.errors import JQueueError
from jqueue.domain.printable import printable
from jqueue.domain.stats import QueueStats
from jqueue.ports.log import logger_of
from jqueue.ports.observer import SupportsObservers
from jqueue.ports.queue import Operator
from jqueue.telemetry import catalog
from jqueue.telemetry.exporters import WorkerFigures, observed, place_name
from jqueue.telemetry.figures import Figures, Sample
from jqueue.telemetry.recorder import Recorder

logger = logger_of("jqueue.telemetry")

DEADLINE = 10.0
"""Seconds for one look at a queue."""

EVERY = 15.0
"""Seconds between two looks at a queue, by default."""

FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


class WatchedQueue:
    """One queue under watch, with its latest figures.

    Args:
        queue: the queue.
        worker: the figures of the worker that runs on it; None without one.
        commits: True to count the commits of the queue object.
    """

    def __init__(self, queue: Operator, worker: WorkerFigures | None, commits: bool) -> None:
        self.name = place_name(queue)
        self.recorder = Recorder(self.name) if commits and isinstance(queue, SupportsObservers) else None
        self._queue = queue
        self._worker = worker
        self._figures = Figures(self.name)
        self._stats: QueueStats | None = None

    async def look(self) -> None:
        """Read the figures of the queue. If that fails, they are absent."""
        try:
            self._stats = await self._queue.stats(deadline=DEADLINE)
        except (JQueueError, OSError) as error:
            if self._stats is not None:
                logger.warning("the figures of %s cannot be read: %s", self.name, error)
            self._stats = None

    async def look_each(self, seconds: float) -> None:
        """Read the figures of the queue again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(seconds)

    def samples(self) -> Iterator[Sample]:
        """Yield the latest figures. Any thread may call this."""
        worker = self._worker
        yield from self._figures.samples(self._stats)
        if self.recorder is not None:
            yield from self.recorder.samples()
        if worker is not None:
            labels = (self.name, printable(worker.name))
            yield Sample(catalog.RUNNING, labels, worker.running)
            for outcome, number in worker.outcomes.items():
                yield Sample(catalog.OUTCOMES, (*labels, outcome), number)


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
        self.registry = CollectorRegistry() if registry is None else registry
        self._every, self._commits = every, commits
        self._present: tuple[WatchedQueue, ...] = ()
        self.registry.register(self)

    @asynccontextmanager
    async def watch(self, queue: Operator, worker: WorkerFigures | None = None) -> AsyncIterator[None]:
        """Return an async context manager: within it, these metrics include those of a queue.

        A worker watches its own queue: this is for programs that only enqueue, or show figures.

        Args:
            queue: the queue.
            worker: the figures of the worker that runs on it; None without one.
        """
        watched = WatchedQueue(queue, worker, self._commits)
        looking = None
        self._present = (*self._present, watched)
        if self._every is not None:
            looking = asyncio.create_task(watched.look_each(self._every), name="jqueue-metrics")
        try:
            with observed(queue, watched.recorder):
                yield
        finally:
            self._present = tuple(each for each in self._present if each is not watched)
            if looking is not None:
                looking.cancel()
                await asyncio.wait([looking])

    def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus, with the latest figures of each queue."""
        return generate_latest(self.registry)

    async def fresh_text(self) -> bytes:
        """Read the figures of each queue, and return the metrics in the text format of Prometheus."""
        await asyncio.gather(*(watched.look() for watched in self._present))
        return await asyncio.to_thread(self.text)

    def describe(self) -> Iterable[Metric]:
        """Return no metric: they are known once a queue is watched."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the latest samples, for the registry. If two have the same labels, the first counts.

        Any thread may call this.
        """
        families: dict[str, Any] = {}
        seen = set()
        for watched in self._present:
            for sample in watched.samples():
                metric, value = sample.metric, sample.value
                if (key := (metric.name, sample.labels)) in seen:
                    continue
                seen.add(key)
                if metric.name not in families:
                    families[metric.name] = FAMILIES[metric.kind](metric.name, metric.description, labels=metric.labels)
                family = families[metric.name]
                if isinstance(value, Histogram):
                    sums = accumulate(value.counts.get(bound, 0) for bound in metric.bounds)
                    buckets = [*zip(map(floatToGoString, metric.bounds), sums, strict=True), ("+Inf", value.count)]
                    family.add_metric(sample.labels, buckets, value.seconds)
                else:
                    family.add_metric(sample.labels, value)
        yield from families.values()
