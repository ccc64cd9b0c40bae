"""Metrics, probes and traces of a queue on SeaweedFS, with a connection that is lost meanwhile."""

import asyncio
import json

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from jqueue import BrokerQueue, DirectQueue, connect
from jqueue.telemetry.otel_tracing import OpenTelemetryTracing
from jqueue.worker import Worker
from tests.cli.commands import SECRET, run
from tests.object_stores import BUCKET, store_of
from tests.servers.fault_kinds import Refuse
from tests.servers.fault_proxy import FaultProxy
from tests.telemetry.samples import samples_of
from tests.worker.test_probes import ANY_PORT, get, probed, until_status

pytestmark = pytest.mark.wide


@pytest.fixture
def store(request, monkeypatch):
    store = store_of(request, "seaweedfs")
    for name, value in {
        "AWS_ENDPOINT_URL": store.address,
        "AWS_ACCESS_KEY_ID": store.server.access_key,
        "AWS_SECRET_ACCESS_KEY": store.server.secret_key,
        "AWS_REGION": store.server.region,
    }.items():
        monkeypatch.setenv(name, value)
    return store


@pytest.fixture
def url(store, request):
    return f"s3://{BUCKET}/telemetry/{request.node.name}.json"


def test_the_figures_of_a_queue_on_a_store_are_printed(url):
    async def fill():
        async with connect(url, DirectQueue) as queue:
            await queue.enqueue("mail", SECRET.encode())
            await queue.ack((await queue.dequeue())[0])

    asyncio.run(fill())
    result = run("metrics", url)
    found = samples_of(result.stdout)
    assert (0, 1, 3) == (result.exit_code, found["jqueue_done_total", "mail"], found["jqueue_version",])
    assert f'queue="{url}"' in result.stdout


def test_wrong_credentials_and_a_missing_queue_are_one_clear_line(url, monkeypatch):
    for secret in (None, "wrong"):
        if secret is not None:
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        result = run("metrics", url)
        assert (2, "", 1) == (result.exit_code, result.stdout, result.stderr.count("\n"))


async def test_a_lost_connection_is_counted_and_shown_by_the_probe_and_work_goes_on(store, url, monkeypatch, caplog):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    worker = Worker(health=ANY_PORT, tracing=OpenTelemetryTracing(provider))
    done = asyncio.Event()

    @worker.handler("mail")
    async def mail():
        done.set()

    host, _, port = store.address.rpartition("://")[2].partition(":")
    async with FaultProxy(host, int(port)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        queue = connect(url, BrokerQueue, poll_interval=0.1, call_timeout=5)
        task = asyncio.create_task(worker.run(queue, signals=False))
        address = await probed(caplog)
        await until_status(address, "/readyz", 200)
        proxy.every(1, Refuse())
        _, body = await until_status(address, "/readyz", 503)
        assert "the store fails to read" in json.loads(body)["status"]
        assert 200 == (await get(address, "/healthz"))[0]
        proxy.clear()
        await until_status(address, "/readyz", 200)
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.address)
        async with connect(url, DirectQueue) as other:
            await other.enqueue("mail", b"")
        await asyncio.wait_for(done.wait(), 60)
        _, text = await get(address, "/metrics")
        worker.stop()
        await task
    errors = {key[1:]: value for key, value in samples_of(text).items() if key[0] == "jqueue_store_errors_total"}
    assert {"read"} == {call for call, _ in errors}
    assert sum(errors.values()) > 0
    assert ["process mail"] == [span.name for span in exporter.get_finished_spans() if span.name.startswith("process")]
