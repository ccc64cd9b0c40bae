"""Metrics for OpenTelemetry, by the names of the catalog: `pip install "jqueue[otel]"`, and an SDK of your choice.

OpenTelemetry has no histogram that is read from elsewhere. So the histograms of the queue itself are three counters
each, as in Prometheus' text: `…_bucket` with the attribute `le`, `…_count` and `…_sum`. The histograms of this process
are real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

try:
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation, get_meter_provider
except ImportError as error:  # pragma: no cover
    raise ImportError('metrics for OpenTelemetry need its API: pip install "jqueue[otel]"') from error

from jqueue._version import __version__
from jqueue.domain.counters import Histogram as Counts
from jqueue.ports.observer import LandedCommit
from jqueue.ports.queue import Operator
from jqueue.telemetry import catalog
from jqueue.telemetry.catalog import METRICS, Metric
from jqueue.telemetry.exporters import WorkerFigures
from jqueue.telemetry.figures import Sample, cumulative
from jqueue.telemetry.recorder import Recorder
from jqueue.telemetry.watching import EVERY, WatchedQueues

LIVE = (catalog.COMMIT_CALLS, catalog.STORE)
"""The histograms of this process."""

Callback = Callable[[CallbackOptions], Iterable[Observation]]


class OpenTelemetryMetrics:
    """Metrics of queues, of the commits of this process, and of its workers.

        worker = Worker(metrics=OpenTelemetryMetrics())

    Args:
        provider: makes the meter; by default, the provider of the program.
        every: seconds between two looks at the figures of a queue.
    """

    def __init__(self, provider: MeterProvider | None = None, every: float = EVERY) -> None:
        meter = (get_meter_provider() if provider is None else provider).get_meter("jqueue", __version__)
        histograms = {metric.name: _histogram(meter, metric) for metric in LIVE}
        self._queues = WatchedQueues(every, lambda queue: _LiveRecorder(queue, histograms))
        for metric in METRICS:
            if metric.kind == "histogram":
                if metric not in LIVE:
                    self._count_in_parts(meter, metric)
            else:
                make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
                make(metric.name, [self._values(metric)], metric.unit, metric.description)

    def watch(self, queue: Operator, worker: WorkerFigures | None = None) -> AbstractAsyncContextManager[None]:
        """Return an async context manager: within it, these metrics include those of a queue.

        A worker watches its own queue: this is for programs that only enqueue, or show figures.

        Args:
            queue: the queue.
            worker: the figures of the worker that runs on it; None without one.
        """
        return self._queues.watch(queue, worker)

    def _count_in_parts(self, meter: Meter, metric: Metric) -> None:
        parts: dict[str, Callable[[Sample], Iterator[Observation]]] = {"bucket": _buckets, "count": _count, "sum": _sum}
        for part, observe in parts.items():
            unit = metric.unit if part == "sum" else "1"
            meter.create_observable_counter(
                f"{metric.name}_{part}", [self._parts(metric, observe)], unit, metric.description
            )

    def _values(self, metric: Metric) -> Callback:
        return self._parts(metric, lambda sample: iter([Observation(_number(sample), _attributes(sample))]))

    def _parts(self, metric: Metric, observe: Callable[[Sample], Iterator[Observation]]) -> Callback:
        def observations(_: CallbackOptions) -> Iterator[Observation]:
            for sample in self._queues.samples():
                if sample.metric is metric:
                    yield from observe(sample)

        return observations


class _LiveRecorder(Recorder):
    """Counts the commits and the calls to the store of one queue object, and has OpenTelemetry make the histograms."""

    def __init__(self, queue: str, histograms: dict[str, Histogram]) -> None:
        super().__init__(queue)
        self._attributes = {"queue": queue}
        self._commit_calls = histograms[catalog.COMMIT_CALLS.name]
        self._store_seconds = histograms[catalog.STORE.name]

    def committed(self, commit: LandedCommit) -> None:
        """See `Observer`."""
        super().committed(commit)
        self._commit_calls.record(len(commit.calls), self._attributes)

    def store_called(self, call: str, seconds: float, error: BaseException | None) -> None:
        """See `Observer`."""
        super().store_called(call, seconds, error)
        self._store_seconds.record(seconds, {**self._attributes, "call": call})


def _histogram(meter: Meter, metric: Metric) -> Histogram:
    return meter.create_histogram(
        metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=list(metric.bounds)
    )


def _attributes(sample: Sample) -> dict[str, Any]:
    return dict(zip(sample.metric.labels, sample.labels, strict=True))


def _number(sample: Sample) -> float:
    assert not isinstance(sample.value, Counts)
    return sample.value


def _counts(sample: Sample) -> Counts:
    assert isinstance(sample.value, Counts)
    return sample.value


def _buckets(sample: Sample) -> Iterator[Observation]:
    bounds = [*(str(bound) for bound in sample.metric.bounds), "+Inf"]
    for bound, number in zip(bounds, cumulative(_counts(sample).counts, sample.metric.bounds), strict=True):
        yield Observation(number, {**_attributes(sample), "le": bound})


def _count(sample: Sample) -> Iterator[Observation]:
    yield Observation(_counts(sample).count, _attributes(sample))


def _sum(sample: Sample) -> Iterator[Observation]:
    yield Observation(_counts(sample).seconds, _attributes(sample))
