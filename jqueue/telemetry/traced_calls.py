"""The calls of one queue object that add jobs, each in a producer span.

The methods of the object itself are replaced, so that it stays a queue of its class, with all other verbs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from jqueue.core.queue_base import options_of
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.printable import printable
from jqueue.telemetry.span_contexts import SYSTEM, has_context, with_context

MARK = "_jqueue_traced"


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
