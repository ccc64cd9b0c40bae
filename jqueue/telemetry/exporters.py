"""Functions that workers and exporters share: observing a queue, the names of queues and errors, addresses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jqueue.domain.errors import (
    BlobMissingError,
    CASConflictError,
    InvalidJobError,
    StorageError,
    StorageFatalError,
    StorageThrottledError,
)
from jqueue.ports.observer import Observer, SupportsObservers
from jqueue.ports.storage import describe, storage_of


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
    place = storage_of(queue)
    if place is None:
        return type(queue).__name__
    is_ours = type(place).__module__.startswith(("jqueue.adapters.", "jqueue.formats."))
    return describe(place) if is_ours else type(place).__name__


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
    return next((kind for classes, kind in kinds if isinstance(error, classes)), "other")


def address_of(text: str) -> tuple[str, int]:
    """Return the host and the port of a text such as "127.0.0.1:8080".

    Raises:
        InvalidJobError: it is not an address.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidJobError(f"an address to listen on is HOST:PORT, such as 127.0.0.1:8080, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
