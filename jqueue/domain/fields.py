"""The field types of a queue's values: rules to read, check and write each, and the largest numbers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator

PRIORITY_MIN, PRIORITY_MAX = -(2**31), 2**31 - 1
"""The range of the priorities that enqueue takes: a signed 32-bit integer. A blob of 1.0.0 may hold larger ones."""

COUNT_MAX = 2**63 - 1
"""The largest whole number that a blob may hold."""

LARGEST = 2**53
"""The largest version, attempt and number of failures. None grows beyond, so that all can be read back."""


class FrozenHeaders(dict[str, str]):
    """A job's headers: an immutable, hashable mapping."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a job's headers cannot be changed; pass new ones to enqueue")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[FrozenHeaders], tuple[dict[str, str]]]:
        return FrozenHeaders, (dict(self),)


NO_HEADERS = FrozenHeaders()


def _to_payload(value: object) -> object:
    """Return a payload as bytes. Text is base64, as in the blob."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        try:
            return base64.b64decode(value.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise ValueError("payload as text must be base64") from None
    raise ValueError(f"payload must be bytes or a base64-encoded str, got {type(value).__name__}")


def _to_utc(value: object) -> object:
    """Return a time in UTC. A time without a zone, as in foreign blobs, is taken as UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:  # not passed on: its message shows the value
            raise ValueError("a time must be an ISO 8601 text") from None
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    raise ValueError("a time must be an ISO 8601 text or a datetime")


def _to_headers(value: object) -> FrozenHeaders:
    if isinstance(value, FrozenHeaders):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("headers must be a mapping of names to texts")
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in value.items()):
        raise ValueError("headers must map text to text")
    return FrozenHeaders(value)


def _encode_payload(payload: bytes) -> str:
    return base64.b64encode(payload).decode("ascii")


Payload = Annotated[bytes, BeforeValidator(_to_payload), PlainSerializer(_encode_payload, return_type=str)]
Timestamp = Annotated[datetime, BeforeValidator(_to_utc)]
Headers = Annotated[Mapping[str, str], PlainValidator(_to_headers)]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
Bucket = Annotated[int, Field(ge=0, le=1000)]  # a far one would make a histogram of as many numbers
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
JobId = Annotated[str, Field(min_length=1)]
