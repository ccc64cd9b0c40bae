"""Metrics for Prometheus, by its own client library: `pip install "jqueue[metrics]"`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString
except ImportError as error:  # pragma: no cover
    raise ImportError('metrics for Prometheus need its client: pip install "jqueue[metrics]"') from error

from jqueue.domain.counters import Histogram
from jqueue.ports.queue import Operator
from jqueue.telemetry.catalog import Metric
from jqueue.telemetry.exporters import WorkerFigures
from jqueue.telemetry.figures import Sample, cumulative
from jqueue.telemetry.watching import EVERY, WatchedQueues

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


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
        self._queues = WatchedQueues(every, commits)
        self.registry.register(self)

    def watch(self, queue: Operator, worker: WorkerFigures | None = None) -> AbstractAsyncContextManager[None]:
        """Return an async context manager: within it, these metrics include those of a queue.

        A worker watches its own queue: this is for programs that only enqueue, or show figures.

        Args:
            queue: the queue.
            worker: the figures of the worker that runs on it; None without one.
        """
        return self._queues.watch(queue, worker)

    def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus, with the latest figures of each queue."""
        return generate_latest(self.registry)

    async def fresh_text(self) -> bytes:
        """Read the figures of each queue, and return the metrics in the text format of Prometheus."""
        await self._queues.look()
        return await asyncio.to_thread(self.text)

    def describe(self) -> Iterable[Family]:
        """Return no metric: they are known once a queue is watched."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yield the latest samples, for the registry. Any thread may call this."""
        families: dict[str, Family] = {}
        for sample in self._queues.samples():
            metric = sample.metric
            if metric.name not in families:
                families[metric.name] = _family(metric)
            _add(families[metric.name], sample)
        yield from families.values()


def _family(metric: Metric) -> Family:
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    made: Family = kinds[metric.kind](metric.name, metric.description, labels=metric.labels)
    return made


def _add(family: Family, sample: Sample) -> None:
    value = sample.value
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Histogram)
        bounds = [*map(floatToGoString, sample.metric.bounds), "+Inf"]
        sums = cumulative(value.counts, sample.metric.bounds)
        family.add_metric(sample.labels, list(zip(bounds, sums, strict=True)), value.seconds)
    else:
        assert not isinstance(value, Histogram)
        family.add_metric(sample.labels, value)
