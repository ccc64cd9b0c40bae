"""The name of a queue in metrics and traces, and the kind of an error of its store."""

from __future__ import annotations

from jqueue.domain.errors import (
    BlobMissingError,
    CASConflictError,
    StorageError,
    StorageFatalError,
    StorageThrottledError,
)
from jqueue.ports.storage import describe


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
