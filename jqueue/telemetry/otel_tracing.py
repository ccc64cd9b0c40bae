"""Traces for OpenTelemetry, after its conventions for messaging: `pip install "jqueue[otel]"`, and an SDK.

An enqueue is a producer span, whose context travels in the headers of the job. A handler is a consumer span: a child of
the enqueue, and linked to it. A commit that carries traced calls is an internal span, linked to them.

No span has a payload. The messages of errors may quote one, so a span has only the class of an error.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

try:
    from opentelemetry.context import Context
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
except ImportError as error:  # pragma: no cover
    raise ImportError('traces need the API of OpenTelemetry: pip install "jqueue[otel]"') from error

from jqueue._version import __version__
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job import Claim, JobRecord
from jqueue.domain.limits import Limits, check_headers
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.printable import printable
from jqueue.ports.clock import Clock
from jqueue.ports.observer import LandedCommit, Observer, SupportsObservers
from jqueue.ports.queue import JobQueue, SupportsApply
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import SystemClock
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


def with_context(headers: Mapping[str, str] | None, limits: Limits) -> dict[str, str] | None:
    """Return the headers of a new job with the current span context, as the program's propagators write it.

    Headers with a context stay as they are. So do headers that would become too large.
    """
    given = dict(headers or {})
    carrier: dict[str, str] = {}
    inject(carrier)
    if carrier.keys() & given.keys():
        return given
    try:
        check_headers({**given, **carrier}, limits)
    except InvalidJobError:
        return given or None
    return {**given, **carrier} or None


def has_context(headers: Mapping[str, str] | None) -> bool:
    """Return True if headers have a span context."""
    return bool(headers) and span_context_in(headers or {}) is not None


def context_in(headers: Mapping[str, str]) -> Context:
    """Return the context in the headers of a job, with its baggage."""
    return extract(dict(headers), context=Context())


def span_context_in(headers: Mapping[str, str]) -> SpanContext | None:
    """Return the span context in the headers of a job; None if there is none."""
    found = get_current_span(context_in(headers)).get_span_context()
    return found if found.is_valid else None


HandlerContexts = OrderedDict[str, tuple[int, SpanContext]]
"""The attempt and the span context of the last handlers of this process, by the id of the job."""


class TracedCalls:
    """The traced calls of one queue object.

    Args:
        tracer: makes the spans.
        queue: the queue object.
        name: name of the queue.
    """

    def __init__(self, tracer: Tracer, queue: Any, name: str) -> None:
        self._tracer = tracer
        self._queue = queue
        self._name = name
        self._limits = options_of(queue).limits
        self._enqueue, self._apply, self._apply_each = queue.enqueue, queue.apply, queue.apply_each

    def install(self) -> bool:
        """Replace the methods. Return False if that was done before."""
        queue = self._queue
        if getattr(queue, MARK, False):
            return False
        setattr(queue, MARK, True)
        queue.enqueue, queue.apply, queue.apply_each = self.enqueue, self.apply, self.apply_each
        return True

    async def enqueue(self, entrypoint: str, *args: Any, **options: Any) -> Job:
        """See `Producer.enqueue`."""
        if has_context(options.get("headers")):
            known: Job = await self._enqueue(entrypoint, *args, **options)
            return known
        with self._span([entrypoint]) as span:
            if self._queue.capabilities.headers:
                options["headers"] = with_context(options.get("headers"), self._limits)
            job: Job = await self._enqueue(entrypoint, *args, **options)
            span.set_attribute("messaging.message.id", job.id)
            return job

    async def apply(self, *operations: Operation, **options: Any) -> list[Any]:
        """See `SupportsApply.apply`."""
        with self._adding(operations) as changed:
            results: list[Any] = await self._apply(*changed, **options)
            return results

    async def apply_each(self, *operations: Operation, **options: Any) -> list[Any]:
        """See `SupportsApply.apply_each`."""
        with self._adding(operations) as changed:
            results: list[Any] = await self._apply_each(*changed, **options)
            return results

    @contextmanager
    def _adding(self, operations: Sequence[Operation]) -> Iterator[Sequence[Operation]]:
        """Yield operations whose new jobs have the context of one span. There is no span without a new job."""
        untraced = [each for each in operations if isinstance(each, Enqueue) and not has_context(each.headers)]
        if not untraced:
            yield operations
            return
        with self._span([each.entrypoint for each in untraced]):
            if self._queue.capabilities.headers:
                operations = [traced(each, self._limits) for each in operations]
            yield operations

    @contextmanager
    def _span(self, entrypoints: Sequence[str]) -> Iterator[Span]:
        names = set(entrypoints)
        attributes: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "enqueue",
            "messaging.operation.type": "send",
            "jqueue.queue": self._name,
        }
        title = "enqueue"
        if len(names) == 1:
            attributes["messaging.destination.name"] = name = printable(str(entrypoints[0]))
            title = f"enqueue {name}"
        if len(entrypoints) > 1:
            attributes["messaging.batch.message_count"] = len(entrypoints)
        with self._tracer.start_as_current_span(
            title, None, SpanKind.PRODUCER, attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(Status(StatusCode.ERROR))
                raise


def traced(operation: Operation, limits: Limits) -> Operation:
    """Return an enqueue whose job has the current span context. Other operations, and traced jobs, are unchanged."""
    if not isinstance(operation, Enqueue) or has_context(operation.headers):
        return operation
    return replace(operation, headers=with_context(operation.headers, limits))


class CommitSpans(Observer):
    """Makes a span for each commit that carries a traced call.

    Args:
        tracer: makes the spans.
        queue: name of the queue.
        handlers: the spans of handlers, to which acks and nacks are linked.
        clock: tells the time of a landed commit.
    """

    def __init__(self, tracer: Tracer, queue: str, handlers: HandlerContexts, clock: Clock) -> None:
        self._tracer = tracer
        self._queue = queue
        self._handlers = handlers
        self._clock = clock

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

    def _links(self, commit: LandedCommit) -> Iterator[Link]:
        for operations, outcome in commit.calls:
            if isinstance(outcome, list):
                for operation, result in zip(operations, outcome, strict=True):
                    for call, job_id, context in self._contexts(operation, result):
                        yield Link(context, {"jqueue.call": call, "messaging.message.id": job_id})

    def _contexts(self, operation: Operation, result: object) -> Iterator[tuple[str, str, SpanContext]]:
        """Yield what a call did, to which job, and the span to which that belongs."""
        if isinstance(operation, Enqueue):
            context = span_context_in(operation.headers or {})
            if context is not None:
                yield "enqueue", operation.id, context
        elif isinstance(operation, Ack | Nack):
            if isinstance(operation.job, Claim):
                job_id = operation.job.job_id
                attempt, handled = self._handlers.get(job_id, (None, None))
                if handled is not None and attempt == operation.job.attempt:
                    yield type(operation).__name__.lower(), job_id, handled
        elif operation.claims_jobs and isinstance(result, Sequence):
            for job in result:
                context = span_context_in(job.headers or {}) if isinstance(job, JobRecord) else None
                if context is not None:
                    yield "dequeue", job.id, context


class HandlerContext(Protocol):
    """The context of a handler, as its tracing needs it."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The job, or the jobs of a batch."""

    @property
    def queue(self) -> JobQueue:
        """The queue that the job came from."""

    def change_on_ack(self, change: Callable[[Operation], Operation]) -> None:
        """Change the operations that were given to `on_ack`."""


class OpenTelemetryTracing:
    """Traces the enqueues and commits of queue objects, and the handlers of workers.

        queue = tracing.instrument(connect(url, BrokerQueue))
        worker = Worker(tracing=tracing)

    Args:
        provider: makes the tracer; by default, the provider of the program.
        show_errors: True to record the messages and tracebacks of handlers' errors. They may quote payloads.
    """

    def __init__(self, provider: TracerProvider | None = None, *, show_errors: bool = False) -> None:
        self._tracer = get_tracer("jqueue", __version__, provider)
        self._show_errors = show_errors
        self._handlers: HandlerContexts = OrderedDict()

    def instrument(self, queue: Queue) -> Queue:
        """Trace the enqueues and the commits of a queue object, and return it. A second call changes nothing.

        A worker instruments its own queue: this is for programs that enqueue.
        """
        if TracedCalls(self._tracer, queue, place_name(queue)).install() and isinstance(queue, SupportsObservers):
            queue.observe(CommitSpans(self._tracer, place_name(queue), self._handlers, SystemClock()))
        return queue

    async def middleware(self, ctx: HandlerContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Run a handler in its span. A worker with `tracing` calls this around all middleware."""
        with self._span_of(ctx.jobs) as span:
            for job in ctx.jobs:
                self._handlers[job.id] = job.attempt, span.get_span_context()
                self._handlers.move_to_end(job.id)
                if len(self._handlers) > REMEMBERED:
                    self._handlers.popitem(last=False)
            try:
                result = await call_next()
            except BaseException as error:
                self._note_error(span, error)
                raise
            if ctx.queue.capabilities.headers:
                limits = options_of(ctx.queue).limits
                ctx.change_on_ack(lambda operation: traced(operation, limits))
            return result

    @contextmanager
    def _span_of(self, jobs: Sequence[Job]) -> Iterator[Span]:
        """Open the span of a handler. That of a single job is a child of its enqueue; that of a batch has links."""
        first = jobs[0]
        attributes: dict[str, Any] = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": first.entrypoint,
        }
        if len(jobs) == 1:
            attributes |= {"messaging.message.id": first.id, "jqueue.attempt": first.tries}
        else:
            attributes |= {"messaging.batch.message_count": len(jobs)}
        links = [link for job in jobs for link in self._links_of(job)]
        with self._tracer.start_as_current_span(
            f"process {first.entrypoint}",
            context_in(first.headers if len(jobs) == 1 else {}),
            SpanKind.CONSUMER,
            attributes,
            links[:MOST_LINKS],
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield span

    def _links_of(self, job: Job) -> Iterator[Link]:
        if (enqueued := span_context_in(job.headers)) is not None:
            yield Link(enqueued, {"jqueue.link": "enqueue"})
        attempt, handled = self._handlers.get(job.id, (job.attempt, None))
        if handled is not None and attempt < job.attempt:
            yield Link(handled, {"jqueue.link": "attempt before"})

    def _note_error(self, span: Span, error: BaseException) -> None:
        name = type(error).__name__
        if name in NOT_FAILURES:
            return
        span.set_attribute("error.type", name)
        span.set_status(Status(StatusCode.ERROR))
        if self._show_errors:
            span.record_exception(error)
