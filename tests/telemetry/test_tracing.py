"""Traces: enqueue, commit and handler, in one trace across processes, without payloads."""

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage
from jqueue.operations import Enqueue
from jqueue.sync import SyncQueue
from jqueue.telemetry.otel_tracing import OpenTelemetryTracing
from jqueue.worker import BatchContext, Context, Exponential, Worker
from tests.worker.scenes import SECRET


class Traces:
    """Spans in memory, and what makes them."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.tracing = OpenTelemetryTracing(self.provider)

    def spans(self, start=""):
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(start)]

    def only(self, start):
        [span] = self.spans(start)
        return span


@pytest.fixture
def traces():
    return Traces()


class TracedStore(InMemoryStorage):
    """A store whose client makes a span of each read, as instrumented clients do."""

    def __init__(self, tracer):
        super().__init__()
        self.tracer, self.reads = tracer, 0

    async def read(self):
        with self.tracer.start_as_current_span("GET"):
            self.reads += 1
            return await super().read()


async def drain(traces, queue, function, **options):
    """Run a worker with one traced handler until nothing is left to do."""
    worker = Worker(tracing=traces.tracing)
    worker.handler("mail", **options)(function)
    return await worker.run(queue, drain=True, signals=False)


async def test_enqueue_and_handler_are_one_trace_and_linked(traces):
    storage = InMemoryStorage()
    async with traces.tracing.instrument(BrokerQueue(storage)) as queue:
        with traces.tracer.start_as_current_span("request") as request:
            job = await queue.enqueue("mail", SECRET.encode(), headers={"own": "kept"})
    seen = []

    async def mail(payload: bytes, ctx: Context):
        seen.append((dict(ctx.headers), trace.get_current_span().get_span_context()))

    async with BrokerQueue(storage) as other:  # as in another process: it shares only the store
        await drain(traces, other, mail)
    enqueue, process = traces.only("enqueue mail"), traces.only("process mail")
    assert (SpanKind.PRODUCER, SpanKind.CONSUMER) == (enqueue.kind, process.kind)
    assert request.get_span_context().span_id == enqueue.parent.span_id
    assert enqueue.context.span_id == process.parent.span_id
    assert {request.get_span_context().trace_id} == {span.context.trace_id for span in (enqueue, process)}
    assert [enqueue.context.span_id] == [link.context.span_id for link in process.links]
    [(headers, current)] = seen
    assert ("kept", process.context.span_id) == (headers["own"], current.span_id)
    assert {"messaging.system": "jqueue", "messaging.message.id": job.id}.items() <= dict(process.attributes).items()
    assert {
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": job.id,
        "jqueue.queue": "memory",
        "messaging.system": "jqueue",
    } == dict(enqueue.attributes)
    assert SECRET not in "".join(span.to_json() for span in traces.spans())


async def test_a_batch_is_one_span_that_links_the_enqueues_of_its_jobs(traces):
    async def mail(payloads: list[bytes], ctx: BatchContext) -> None:
        ctx[0].on_ack(Enqueue("next", b""))

    async with traces.tracing.instrument(BrokerQueue(InMemoryStorage())) as queue:
        for _ in range(3):
            await queue.enqueue("mail", b"")
        await drain(traces, queue, mail, batch=10)
        [following] = (await queue.read_state()).jobs
    enqueues, process = traces.spans("enqueue mail"), traces.only("process mail")
    assert process.parent is None
    assert {span.context.span_id for span in enqueues} == {link.context.span_id for link in process.links}
    assert 3 == process.attributes["messaging.batch.message_count"]
    assert f"{process.context.span_id:016x}" in following.headers["traceparent"]
    acks = [link for span in traces.spans("commit") for link in span.links if link.attributes["jqueue.call"] == "ack"]
    assert [process.context.span_id] * 3 == [link.context.span_id for link in acks]


async def test_retries_are_linked_to_the_enqueue_and_to_the_attempt_before(traces):
    async def mail(ctx: Context):
        if ctx.attempt < 3:
            raise ValueError(SECRET)

    async with traces.tracing.instrument(BrokerQueue(InMemoryStorage())) as queue:
        await queue.enqueue("mail", b"")
        report = await drain(traces, queue, mail, backoff=Exponential(1e-9))
    assert (2, 1) == (report.failed, report.succeeded)
    enqueue = traces.only("enqueue").context.span_id
    first, second, third = traces.spans("process")
    assert [1, 2, 3] == [span.attributes["jqueue.attempt"] for span in (first, second, third)]
    assert [enqueue] * 3 == [span.parent.span_id for span in (first, second, third)]
    assert [[enqueue], [enqueue, first.context.span_id], [enqueue, second.context.span_id]] == [
        [link.context.span_id for link in span.links] for span in (first, second, third)
    ]
    assert (StatusCode.ERROR, "ValueError") == (first.status.status_code, first.attributes["error.type"])
    assert StatusCode.UNSET == third.status.status_code
    assert SECRET not in "".join(span.to_json() for span in traces.spans())


async def test_jobs_of_a_bulk_enqueue_have_the_context_of_one_span(traces):
    queue = traces.tracing.instrument(BrokerQueue(InMemoryStorage()))
    async with queue:
        jobs = await queue.enqueue_many([Enqueue(name, b"") for name in ("mail", "mail", "resize")])
    span = traces.only("enqueue")
    assert ("enqueue", 3) == (span.name, span.attributes["messaging.batch.message_count"])
    assert {f"{span.context.span_id:016x}"} == {job.headers["traceparent"].split("-")[2] for job in jobs}


async def test_a_context_that_the_caller_gives_is_kept(traces):
    queue = traces.tracing.instrument(DirectQueue(InMemoryStorage()))
    given = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    jobs = [await queue.enqueue("mail", b"", headers=given)]
    jobs += await queue.enqueue_many([Enqueue("mail", b"", headers=given)])
    assert [given, given] == [dict(job.headers) for job in jobs]
    assert [] == traces.spans("enqueue")


def test_a_span_of_a_thread_is_the_parent_of_its_blocking_enqueue(traces):
    inner = traces.tracing.instrument(BrokerQueue(InMemoryStorage()))
    with SyncQueue(inner) as queue, traces.tracer.start_as_current_span("request") as request:
        queue.enqueue("mail", b"")
    assert request.get_span_context().span_id == traces.only("enqueue").parent.span_id


async def test_the_polls_of_an_idle_worker_make_no_spans_and_those_of_a_traced_call_are_in_its_trace(traces):
    store = TracedStore(traces.tracer)

    async def polls(number):
        until = store.reads + number
        async with asyncio.timeout(20):
            while store.reads < until:
                await asyncio.sleep(0.01)

    async with traces.tracing.instrument(BrokerQueue(store, poll_interval=0.01)) as queue:
        with traces.tracer.start_as_current_span("request") as request:
            traced = asyncio.create_task(queue.dequeue("mail", wait=60))  # it starts the task that polls for all
        await polls(3)
        idle = asyncio.create_task(queue.dequeue("mail", wait=60))
        await polls(3)
        traced.cancel()
        await asyncio.wait([traced])
        gets = traces.spans("GET")
        assert {request.get_span_context().span_id} == {span.parent.span_id for span in gets}
        await polls(5)
        assert len(gets) >= len(traces.spans("GET")) - 1  # at most the one under way
        await queue.enqueue("mail", b"")
        await idle
