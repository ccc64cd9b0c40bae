"""The objects of the history: events that have left the outbox, in immutable objects beside the queue's.

An object is `.history/<series>/<number of its first event, 16 digits>`. Its first line is JSON with a checksum of the
rest. Then comes one batch of events a line, in the order of the numbers.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from jqueue.domain.errors import InvalidBlobError
from jqueue.domain.history import span_of

FORMAT = 1
FOLDER = ".history/"
_NAME = re.compile(r"\.history/([A-Za-z0-9_-]+)/([0-9]{16})")


class Place(NamedTuple):
    """The place of an object in the history."""

    series: str
    first: int
    """The number of its first event."""

    @property
    def suffix(self) -> str:
        """The suffix that names the object."""
        return f"{FOLDER}{self.series}/{self.first:016d}"


def place_of(suffix: str) -> Place | None:
    """Return the place of the object with this suffix; None if the suffix is of another kind."""
    found = _NAME.fullmatch(suffix)
    return None if found is None else Place(found[1], int(found[2]))


def encode_object(queue: str, batches: Sequence[Raw]) -> bytes:
    """Return the content of an object with these batches of events, of which there is at least one."""
    rest = b"\n".join((*batches, b""))
    first, last = span_of(batches[0]).first, span_of(batches[-1]).last
    said = {"history": FORMAT, "queue": queue, "first": first, "last": last, "crc": zlib.crc32(rest)}
    return b"%b\n%b" % (msgspec.json.encode(said), rest)


def last_number(content: bytes) -> int | None:
    """Return the number of the last event that an object should have; None if its first line does not say it."""
    said = _first_line(content)
    last = said.get("last") if isinstance(said, dict) else None
    return last if type(last) is int else None


def _first_line(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content.partition(b"\n")[0])
    except ValueError:
        return None


def decode_object(content: bytes, queue: str, first: int) -> list[Raw]:
    """Return the batches in an object.

    Args:
        content: its bytes.
        queue: id of the queue.
        first: the number of the first event, by the name of the object.

    Raises:
        InvalidBlobError: it is damaged, or belongs elsewhere.
    """
    said, rest = _first_line(content), content.partition(b"\n")[2]
    if not isinstance(said, dict) or "history" not in said:
        raise InvalidBlobError("its first line is not that of a history")
    if said["history"] != FORMAT:
        raise InvalidBlobError("it was written by a later version of jqueue: upgrade jqueue")
    if said.get("crc") != zlib.crc32(rest):
        raise InvalidBlobError("its checksum does not match: it is cut off, or was changed")
    if (said.get("queue"), said.get("first")) != (queue, first):
        raise InvalidBlobError("it belongs to another queue, or has another object's name")
    batches = [Raw(line) for line in rest.split(b"\n")[:-1]]
    try:
        list(map(span_of, batches))
    except ValueError:
        raise InvalidBlobError("a line of it is not a batch of events") from None
    return batches
