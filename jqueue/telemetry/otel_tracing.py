"""Traces for OpenTelemetry, after its conventions for messaging: `pip install "jqueue[otel]"`, and an SDK.

An enqueue is a producer span, whose context travels in the headers of the job. A handler is a consumer span: a child of
the enqueue, and linked to it. A commit that carries traced calls is an internal span, linked to them.

No span has a payload. The messages of errors may quote one, so a span has only the class of an error.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar
from uuid import UUID

from msgspec.structs import replace

try:
    from opentelemetry.context import Context, attach
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        Tracer,
        TracerProvider,
        get_current_span,
        get_tracer,
        set_span_in_context,
    )
except ImportError as _error:  # pragma: no cover
    raise ImportError('traces need the API of OpenTelemetry: pip install "jqueue[otel]"') from _error

from jqueue._version import __version__
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job import Claim, JobRecord
from jqueue.domain.limits import Limits, check_headers
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.printable import printable
from jqueue.ports.observer import LandedCommit, Observer, SupportsObservers
from jqueue.ports.queue import SupportsApply
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.telemetry.exporters import place_name

Queue = TypeVar("Queue", bound=SupportsApply)

NOT_FAILURES = ("Snooze",)
"""Classes of errors by which a handler says that nothing went wrong."""

MOST_LINKS = 128
"""Largest number of links of a span, as SDKs have it by default."""

MARK = "_jqueue_traced"
"""Attribute of a queue object whose calls are traced."""

REMEMBERED = 10_000
"""Number of jobs whose last handler span is remembered."""

SYSTEM = "jqueue"

HandlerContexts = OrderedDict[str, tuple[int, SpanContext]]
"""The attempt and the span context of the last handlers of this process, by the id of the job."""


def with_context(headers: Mapping[str, str] | None, limits: Limits) -> dict[str, str] | None:
    """Return the headers of a new job with the current span context, as the program's propagators write it.

    Headers with a context stay as they are. So do headers that would become too large.
    """
    own = dict(headers or {})
    carrier: dict[str, str] = {}
    inject(carrier)
    if span_context_in(own) is None and not carrier.keys() & own.keys():
        with suppress(InvalidJobError):
            check_headers({**own, **carrier}, limits)
            own |= carrier
    return own or None


def traced(operation: Operation, limits: Limits) -> Operation:
    """Return an enqueue whose job has the current span context, see `with_context`. Other operations are unchanged."""
    if not isinstance(operation, Enqueue):
        return operation
    return replace(operation, headers=with_context(operation.headers, limits))


def context_in(headers: Mapping[str, str] | None) -> Context:
    """Return the context in the headers of a job, with its baggage."""
    return extract(dict(headers or {}), context=Context())


def span_context_in(headers: Mapping[str, str] | None) -> SpanContext | None:
    """Return the span context in the headers of a job; None if there is none."""
    context = get_current_span(context_in(headers)).get_span_context()
    return context if context.is_valid else None


class CommitSpans(Observer):
    """Makes a span for each commit that carries a traced call.

    Args:
        tracer: makes the spans.
        queue: name of the queue.
        handlers: the spans of handlers, to which acks and nacks are linked.
    """

    def __init__(self, tracer: Tracer, queue: str, handlers: HandlerContexts) -> None:
        self._tracer = tracer
        self._queue = queue
        self._handlers = handlers
        self._clock = SystemClock()

    def committed(self, commit: LandedCommit) -> None:
        """See `Observer`."""
        links = list(self._links(commit))
        if not links:
            return
        end = int(self._clock.now().timestamp() * 1e9)
        # The task that commits began in the context of the first call. A batch belongs to no call.
        alone = len(links) == 1
        parent = set_span_in_context(NonRecordingSpan(links[0].context), Context()) if alone else Context()
        span = self._tracer.start_span(
            "commit",
            parent,
            SpanKind.INTERNAL,
            {
                "messaging.system": SYSTEM,
                "messaging.operation.name": "commit",
                "messaging.batch.message_count": len(commit.calls),
                "jqueue.queue": self._queue,
                "jqueue.version": commit.version,
                "jqueue.recognised": commit.recognised,
            },
            links[:MOST_LINKS],
            start_time=end - int(commit.seconds * 1e9),
        )
        span.end(end)

    def looking(self) -> None:
        """Let the store's client make no spans, unless a caller with a span waits: see `Observer`.

        Samplers follow the parent, and this one is not sampled.
        """
        if not get_current_span().get_span_context().is_valid:
            number = UUID(SystemEntropy().new_id()).int
            parent = SpanContext(number, number & (1 << 64) - 1, is_remote=False)
            attach(set_span_in_context(NonRecordingSpan(parent)))  # in a context that ends with the read

    def _links(self, commit: LandedCommit) -> Iterator[Link]:
        for operations, outcome in commit.calls:
            if isinstance(outcome, list):
                for operation, result in zip(operations, outcome, strict=True):
                    for call, job_id, context in self._contexts(operation, result):
                        if context is not None:
                            yield Link(context, {"jqueue.call": call, "messaging.message.id": job_id})

    def _contexts(self, operation: Operation, result: object) -> Iterator[tuple[str, str, SpanContext | None]]:
        """Yield what a call did, to which job, and the span to which that belongs."""
        if isinstance(operation, Enqueue):
            yield "enqueue", operation.id, span_context_in(operation.headers)
        elif isinstance(operation, Ack | Nack) and isinstance(operation.job, Claim):
            attempt, handled = self._handlers.get(operation.job.job_id, (None, None))
            if attempt == operation.job.attempt:
                yield type(operation).__name__.lower(), operation.job.job_id, handled
        elif operation.claims_jobs and isinstance(result, Sequence):
            for job in result:
                if isinstance(job, JobRecord):
                    yield "dequeue", job.id, span_context_in(job.headers)


class OpenTelemetryTracing:
    """Traces the enqueues and commits of queue objects, and the handlers of workers.

        queue = tracing.instrument(connect(url))
        worker = Worker(tracing=tracing)

    Args:
        provider: makes the tracer; by default, the provider of the program.
        show_errors: True to record the messages and tracebacks of errors. They may quote payloads.
    """

    def __init__(self, provider: TracerProvider | None = None, *, show_errors: bool = False) -> None:
        self._tracer = get_tracer("jqueue", __version__, provider)
        self._show_errors = show_errors
        self._handlers: HandlerContexts = OrderedDict()

    def instrument(self, queue: Queue) -> Queue:
        """Trace the enqueues and the commits of a queue object, and return it. A second call changes nothing.

        A worker instruments its own queue: this is for programs that enqueue.
        """
        if getattr(queue, MARK, False):
            return queue
        setattr(queue, MARK, True)
        methods: Any = queue
        name, plain_enqueue, limits = place_name(queue), methods.enqueue, options_of(queue).limits

        def span_of(entrypoints: Sequence[str]) -> AbstractContextManager[Span]:
            return self._span("enqueue", "send", SpanKind.PRODUCER, entrypoints, {"jqueue.queue": name})

        async def enqueue(entrypoint: str, *args: Any, **options: Any) -> Any:
            if span_context_in(options.get("headers")) is not None:
                return await plain_enqueue(entrypoint, *args, **options)
            with span_of([entrypoint]) as span:
                if queue.capabilities.headers:
                    options["headers"] = with_context(options.get("headers"), limits)
                job = await plain_enqueue(entrypoint, *args, **options)
                span.set_attribute("messaging.message.id", job.id)
                return job

        def with_span(apply: Callable[..., Awaitable[list[Any]]]) -> Callable[..., Awaitable[list[Any]]]:
            """Return a method that gives new jobs the context of one span. There is no span without a new job."""

            async def apply_in_span(*operations: Operation, **options: Any) -> list[Any]:
                enqueues = [each for each in operations if isinstance(each, Enqueue)]
                untraced = [each.entrypoint for each in enqueues if span_context_in(each.headers) is None]
                if not untraced:
                    return await apply(*operations, **options)
                with span_of(untraced):
                    if queue.capabilities.headers:
                        operations = tuple(traced(each, limits) for each in operations)
                    return await apply(*operations, **options)

            return apply_in_span

        methods.enqueue = enqueue
        methods.apply, methods.apply_each = with_span(methods.apply), with_span(methods.apply_each)
        if isinstance(queue, SupportsObservers):
            queue.observe(CommitSpans(self._tracer, name, self._handlers))
        return queue

    async def middleware(self, ctx: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Run a handler in its span. A worker with `tracing` calls this around all middleware.

        The span of a single job is a child of its enqueue. That of a batch has links.
        """
        jobs: tuple[Job, ...] = ctx.jobs
        first, alone = jobs[0], len(jobs) == 1
        attributes = {"messaging.message.id": first.id, "jqueue.attempt": first.tries} if alone else {}
        parent = context_in(first.headers if alone else None)
        links = [link for job in jobs for link in self._links_of(job)]
        entrypoints = [job.entrypoint for job in jobs]
        with self._span("process", "process", SpanKind.CONSUMER, entrypoints, attributes, parent, links) as span:
            for job in jobs:
                self._handlers[job.id] = job.attempt, span.get_span_context()
                self._handlers.move_to_end(job.id)
                if len(self._handlers) > REMEMBERED:
                    self._handlers.popitem(last=False)
            result = await call_next()
            if ctx.queue.capabilities.headers:
                limits = options_of(ctx.queue).limits
                ctx.change_on_ack(lambda operation: traced(operation, limits))
            return result

    def _links_of(self, job: Job) -> Iterator[Link]:
        if (enqueued := span_context_in(job.headers)) is not None:
            yield Link(enqueued, {"jqueue.link": "enqueue"})
        attempt, handled = self._handlers.get(job.id, (job.attempt, None))
        if handled is not None and attempt < job.attempt:
            yield Link(handled, {"jqueue.link": "attempt before"})

    @contextmanager
    def _span(
        self,
        operation: str,
        operation_type: str,
        kind: SpanKind,
        entrypoints: Sequence[str],
        own: Mapping[str, Any],
        parent: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        """Open the span of an operation on jobs of some entrypoints, with attributes of its own. Note its error."""
        names = sorted({printable(str(name)) for name in entrypoints})
        attributes: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": operation,
            "messaging.operation.type": operation_type,
            **own,
        }
        if len(names) == 1:
            attributes["messaging.destination.name"] = names[0]
        if len(entrypoints) > 1:
            attributes["messaging.batch.message_count"] = len(entrypoints)
        with self._tracer.start_as_current_span(
            f"{operation} {names[0]}" if len(names) == 1 else operation,
            parent,
            kind,
            attributes,
            links[:MOST_LINKS],
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                name = type(error).__name__
                if name not in NOT_FAILURES:
                    span.set_attribute("error.type", name)
                    span.set_status(Status(StatusCode.ERROR))
                    if self._show_errors:
                        span.record_exception(error)
                raise
