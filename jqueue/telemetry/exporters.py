"""The interface of exporters of metrics, as workers use it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

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
    """Exports the metrics of queues: `PrometheusMetrics` or `OpenTelemetryMetrics`."""

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
