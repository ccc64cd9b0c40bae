"""The name, size and digest of an object beside the queue, as the line of a job has them."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from msgspec import Meta

from jqueue.domain.fields import Count

OBJECTS = "objects"
"""The critical feature of a queue with such objects: an older reader would hand an empty payload to a handler."""

PAYLOADS, RESULTS = ".payloads/", ".results/"
"""The beginnings of the suffixes of these objects."""

OBJECT_BYTES = 240
"""About how many bytes the name of an object takes in the blob, with its size and its digest."""


class StoredObject(NamedTuple):
    """The object of a payload or a result."""

    suffix: Annotated[str, Meta(pattern=r"^\.(payloads|results)/[A-Za-z0-9_-]{1,200}\Z")]
    """The end of its name, after the name of the queue's object."""
    size: Count
    """Number of its bytes."""
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """The SHA-256 digest of its bytes, in hexadecimal."""


def is_apart(payload: bytes, stored: StoredObject | None) -> bool:
    """Return True if a payload is not in a job, but only in its object."""
    return stored is not None and len(payload) != stored.size
