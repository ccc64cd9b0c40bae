"""What workers and exporters share: the interfaces of metrics and traces, the names of queues, addresses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Protocol, runtime_checkable

from jqueue.domain.errors import (
    BlobMissingError,
    CASConflictError,
    InvalidJobError,
    StorageError,
    StorageFatalError,
    StorageThrottledError,
)
from jqueue.ports.observer import Observer, SupportsObservers
from jqueue.ports.queue import Operator
from jqueue.ports.storage import describe


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


@contextmanager
def observed(queue: object, observer: Observer | None) -> Iterator[None]:
    """Have an observer told of the commits of a queue object while the block runs."""
    if observer is None or not isinstance(queue, SupportsObservers):
        yield
        return
    queue.observe(observer)
    try:
        yield
    finally:
        queue.unobserve(observer)


def place_name(queue: object) -> str:
    """Return the name of the object or the folder of a queue, without secrets."""
    place = getattr(queue, "store", None) or getattr(queue, "storage", None)
    if place is None:
        return type(queue).__name__
    known = type(place).__module__.startswith("jqueue.")
    return describe(place) if known else type(place).__name__


def kind_of(error: BaseException) -> str:
    """Return the kind of an error of a store, in one word."""
    kinds: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
        (CASConflictError, "conflict"),
        (StorageThrottledError, "throttled"),
        (BlobMissingError, "missing"),
        (StorageFatalError, "fatal"),
        (TimeoutError, "timeout"),
        ((StorageError, OSError), "transient"),
    )
    return next((kind for known, kind in kinds if isinstance(error, known)), "other")


def address_of(text: str) -> tuple[str, int]:
    """Return the host and the port of a text such as "127.0.0.1:8080".

    Raises:
        InvalidJobError: it is not an address.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidJobError(f"an address to listen on is HOST:PORT, such as 127.0.0.1:8080, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
