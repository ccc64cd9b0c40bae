"""Traces for OpenTelemetry, after its conventions for messaging: `pip install "jqueue[otel]"`, and an SDK.

An enqueue is a producer span, whose context travels in the headers of the job. A handler is a consumer span: a child of
the enqueue, and linked to it. A commit that carries traced calls is an internal span, linked to them.

No span has a payload. The messages of errors may quote one, so a span has only the class of an error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

try:
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider, get_tracer
except ImportError as error:  # pragma: no cover
    raise ImportError('traces need the API of OpenTelemetry: pip install "jqueue[otel]"') from error

from jqueue._version import __version__
from jqueue.core.queue_base import options_of
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.ports.observer import SupportsObservers
from jqueue.ports.queue import JobQueue, SupportsApply
from jqueue.runtime.system import SystemClock
from jqueue.telemetry.commit_spans import MOST_LINKS, CommitSpans
from jqueue.telemetry.places import place_name
from jqueue.telemetry.span_contexts import SYSTEM, HandlerContexts, context_in, span_context_in
from jqueue.telemetry.traced_calls import TracedCalls, traced

Queue = TypeVar("Queue", bound=SupportsApply)

NOT_FAILURES = ("Snooze",)
"""Classes of errors by which a handler says that nothing went wrong."""


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
        self._handlers = HandlerContexts()

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
                self._handlers.note(job.id, job.attempt, span.get_span_context())
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
        earlier = (span_context_in(job.headers), self._handlers.before(job.id, job.attempt))
        for context, what in zip(earlier, ("enqueue", "attempt before"), strict=True):
            if context is not None:
                yield Link(context, {"jqueue.link": what})

    def _note_error(self, span: Span, error: BaseException) -> None:
        name = type(error).__name__
        if name in NOT_FAILURES:
            return
        span.set_attribute("error.type", name)
        span.set_status(Status(StatusCode.ERROR))
        if self._show_errors:
            span.record_exception(error)
