"""The interfaces of metrics and traces, as workers use them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from jqueue.ports.queue import Operator


class WorkerFigures(Protocol):
    """The figures of one run of a worker."""

    @property
    def name(self) -> str:
        """Name of the worker."""

    @property
    def running(self) -> int:
        """Number of handlers that run."""

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Number of its jobs so far, by outcome."""


@runtime_checkable
class Exporter(Protocol):
    """Exports the metrics of queues: such as `PrometheusMetrics`."""

    def watch(self, queue: Operator, worker: WorkerFigures | None = None) -> AbstractAsyncContextManager[None]:
        """Return an async context manager: within it, the metrics include those of a queue.

        Args:
            queue: the queue.
            worker: the figures of the worker that runs on it; None without one.
        """


@runtime_checkable
class SupportsText(Protocol):
    """An exporter whose metrics are a text."""

    @property
    def content_type(self) -> str:
        """The type of the text, for HTTP."""

    async def fresh_text(self) -> bytes:
        """Read the figures of each queue, and return the metrics."""


@runtime_checkable
class Tracing(Protocol):
    """Traces queues and handlers: `OpenTelemetryTracing`."""

    def instrument(self, queue: Any) -> Any:
        """Trace the enqueues and the commits of a queue object, and return it. A second call changes nothing."""

    async def middleware(self, ctx: Any, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Run a handler in its span."""
