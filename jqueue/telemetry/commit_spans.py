"""The spans of commits: each is linked to the traced calls that it carries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, Tracer, set_span_in_context

from jqueue.domain.job import Claim, JobRecord
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.ports.clock import Clock
from jqueue.ports.observer import LandedCommit, Observer
from jqueue.telemetry.span_contexts import SYSTEM, HandlerContexts, span_context_in

MOST_LINKS = 128
"""Largest number of links of a span, as SDKs have it by default."""


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
                context = self._handlers.of_attempt(operation.job.job_id, operation.job.attempt)
                if context is not None:
                    yield type(operation).__name__.lower(), operation.job.job_id, context
        elif operation.claims_jobs and isinstance(result, Sequence):
            for job in result:
                context = span_context_in(job.headers or {}) if isinstance(job, JobRecord) else None
                if context is not None:
                    yield "dequeue", job.id, context
