"""Large payloads and results: each is kept in an object of its own, which the line of its job names.

The domain decides which values are large, and keeps the name of the object with the job. It stores nothing:
`jqueue.core.values` creates the object between the preparation of an operation and its commit.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol, runtime_checkable

from jqueue.domain.errors import DeadlineExceededError, InvalidJobError
from jqueue.domain.job import PAYLOADS
from jqueue.domain.limits import BYTES_LIKE, LARGE_PAYLOAD_BYTES, Limits, check_payload

NAMED_WITHIN = timedelta(minutes=45)
"""Longest time from the start of the creation of an object to the commit that names it. No object is removed before it
is older than that: see `jqueue.core.values`."""


@runtime_checkable
class SupportsPath(Protocol):
    """The path of a file, such as `pathlib.Path`."""

    def __fspath__(self) -> Any:
        """Return the path as text or bytes."""


PayloadSource = bytes | SupportsPath | AsyncIterable[bytes]
"""A payload as callers give it: bytes, the path of a file, or an async iterable of pieces."""


@dataclass(frozen=True, slots=True)
class LargeValue:
    """A payload or a result for an object of its own, which does not exist yet.

    Attributes:
        folder: `PAYLOADS` or `RESULTS`, as in `jqueue.domain.job`.
        content: its bytes, the path of a file that has them, or an async iterable of pieces.
    """

    folder: str
    content: PayloadSource = field(repr=False)


def split_payload(value: object, limits: Limits, object_bytes: int | None) -> tuple[bytes, LargeValue | None]:
    """Return the payload that the line of the job holds, and the payload for an object of its own, or None.

    Args:
        value: the payload as the caller gave it.
        limits: of the queue object.
        object_bytes: number of bytes above which a payload gets an object; None: none does.

    Raises:
        InvalidJobError: it is not a payload, or too large.
    """
    most = limits.payload_bytes or LARGE_PAYLOAD_BYTES
    if type(value) is bytes and object_bytes is not None and len(value) <= object_bytes <= most:
        return value, None  # the common case, in one step
    if not isinstance(value, BYTES_LIKE) and isinstance(value, SupportsPath | AsyncIterable):
        if object_bytes is None:
            raise InvalidJobError(
                "a payload from a file or an async iterable needs an object of its own, and this queue has no objects: "
                "its storage or its format cannot keep them, or Limits(object_bytes=None) is set. Pass bytes"
            )
        return b"", LargeValue(PAYLOADS, value)
    payload = check_payload(value, limits, objects=object_bytes is not None)
    if object_bytes is None or len(payload) <= object_bytes:
        return payload, None
    return b"", LargeValue(PAYLOADS, payload)


def check_named_in_time(name_before: datetime | None, now: datetime) -> None:
    """Check that the object of an operation is young enough to be named by a commit at `now`.

    Args:
        name_before: time until which a commit may name it; None if the operation has no object.
        now: the time of the commit.

    Raises:
        DeadlineExceededError: it is too old. A collection may have removed it.
    """
    if name_before is not None and now > name_before:
        said = "the object of this call was stored too long ago, and may be removed: nothing was done; repeat the call"
        raise DeadlineExceededError(said)
