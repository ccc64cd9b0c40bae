"""Metrics for OpenTelemetry: the same names and numbers as for Prometheus."""

import asyncio

import prometheus_client
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from jqueue import BrokerQueue, InMemoryStorage
from jqueue.telemetry.catalog import METRICS
from jqueue.telemetry.otel_metrics import OpenTelemetryMetrics
from jqueue.telemetry.prometheus import PrometheusMetrics
from tests.telemetry.samples import samples_of


def points_of(reader):
    """The data points that an exporter would send, by the name of the metric."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
    return {metric.name: metric.data.data_points for scope in scopes for metric in scope.metrics}


async def test_the_numbers_are_those_of_prometheus():
    reader = InMemoryMetricReader()
    ours = OpenTelemetryMetrics(MeterProvider([reader]), every=0.01)
    theirs = PrometheusMetrics(prometheus_client.CollectorRegistry(), every=None)
    queue = BrokerQueue(InMemoryStorage())
    async with queue, ours.watch(queue), theirs.watch(queue), asyncio.timeout(60):
        await asyncio.gather(*(queue.enqueue("mail", b"") for _ in range(5)))
        for job in await queue.dequeue("mail", batch_size=3):
            await queue.ack(job)
        expected = samples_of(await theirs.fresh_text())
        while not (points := points_of(reader)).get("jqueue_done") or points["jqueue_done"][0].value != 3:
            await asyncio.sleep(0.01)
    attributes = {"queue": "memory", "entrypoint": "mail"}
    for name in ("enqueued", "claimed", "done", "failed"):
        (point,) = points[f"jqueue_{name}"]
        assert (expected[f"jqueue_{name}_total", "mail"], attributes) == (point.value, point.attributes)
    ready = [point.value for point in points["jqueue_jobs"] if point.attributes["status"] == "ready"]
    assert [2] == ready == [expected["jqueue_jobs", "mail", "ready"]]
    assert 3 == points["jqueue_run_seconds_count"][0].value
    assert 3 == max(point.value for point in points["jqueue_run_seconds_bucket"])
    (commits,) = points["jqueue_commits"]
    (calls,) = points["jqueue_commit_calls"]
    assert expected["jqueue_commits_total",] == commits.value == calls.count
    assert expected["jqueue_commit_calls_sum",] == calls.sum
    parts = {f"{metric.name}{part}" for metric in METRICS for part in ("", "_bucket", "_count", "_sum")}
    assert points.keys() <= parts


async def test_after_the_watch_nothing_is_observed():
    reader = InMemoryMetricReader()
    ours = OpenTelemetryMetrics(MeterProvider([reader]))
    queue = BrokerQueue(InMemoryStorage())
    async with queue:
        async with ours.watch(queue):
            await queue.enqueue("mail", b"")
        await queue.enqueue("mail", b"")
        points = points_of(reader)
        assert "jqueue_up" not in points
        assert 1 == points["jqueue_commit_calls"][0].count
