"""The index of a segment: where each chunk begins, and which rows may hold a job id or a unique key."""

from __future__ import annotations

import hashlib
import re
import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from operator import xor
from typing import NamedTuple

from jqueue.domain.segments import RowKey, Span

MARKS = tuple(bytes([number]) for number in range(1, 9))
"""Bytes that stand for the texts of a segment in its rows. They do not occur in JSON."""

_UUID_TEXT, _UUID_LENGTH = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", 36
_is_uuid = re.compile(_UUID_TEXT).fullmatch
_HYPHENS = 8, 13, 18, 23

_CONTROL = re.compile("[\x00-\x1f]")


class Chunk(NamedTuple):
    """The entry of one chunk in the index."""

    offset: int
    """Of its first byte in the object."""
    crc: int
    """CRC-32 of its bytes."""
    first: RowKey
    """The key of its first row, without the segment's offset."""
    oldest: float
    """Earliest `since` of its rows."""


def hash_of(text: str) -> int:
    """Return the 64-bit hash of an id or a key: the first eight bytes of its SHA-256 digest, as a big-endian number."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])


def uuid_hash(job_id: str) -> int | None:
    """Return the first 64 bits of a UUID XOR its last 64 bits; None if the id is not a UUID in lower-case letters."""
    if _is_uuid(job_id) is None:
        return None
    number = int(job_id.replace("-", ""), 16)
    return (number >> 64) ^ (number & 0xFFFFFFFFFFFFFFFF)


def id_hash(job_id: str, *, own: bool) -> int:
    """Return the 64-bit hash of a job id.

    Args:
        job_id: the id.
        own: True for the hash in a segment with `own_ids`. It is quick, and callers could choose ids with equal hashes.
            So segments with ids of callers have `hash_of` instead.
    """
    found = uuid_hash(job_id) if own else None
    return hash_of(job_id) if found is None else found


def id_hashes(job_ids: Sequence[str], *, own: bool) -> array[int]:
    """Return the hash of each of many ids, as `id_hash` does one by one."""
    if not own:
        copy, digests = hashlib.sha256().copy, []  # a copy is made faster than a new one
        for job_id in job_ids:
            one = copy()
            one.update(job_id.encode("utf-8", "surrogatepass"))
            digests.append(one.digest())
        return _numbers(b"".join(digests))[::4]
    data = _bytes_of_uuids(job_ids)
    if data is None:
        return array("Q", [id_hash(job_id, own=True) for job_id in job_ids])
    halves = _numbers(data)
    return array("Q", map(xor, halves[::2], halves[1::2]))


def _bytes_of_uuids(job_ids: Sequence[str]) -> bytes | None:
    """Return the bytes of UUIDs, 16 for each; None if another text is among them."""
    text, number = "".join(job_ids), len(job_ids)
    digits = text.replace("-", "")
    if (
        {*map(len, job_ids)} != {_UUID_LENGTH}
        or len(digits) != 32 * number
        or any(text[place::_UUID_LENGTH] != "-" * number for place in _HYPHENS)
        or digits != digits.lower()
    ):
        return None
    try:
        data = bytes.fromhex(digits)
    except ValueError:
        return None
    return data if len(data) == 16 * number else None  # it skips spaces


def _numbers(data: bytes) -> array[int]:
    """Return the big-endian numbers of 64 bits in some bytes."""
    numbers = array("Q", data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def whole_lines(rows: bytes, texts: Sequence[bytes]) -> bytes:
    """Return the lines of the jobs in rows, given the texts that `MARKS` stand for."""
    for mark, text in zip(MARKS, texts, strict=False):
        rows = rows.replace(mark, text)
    return rows


def is_shared_text(text: bytes) -> bool:
    """Return True if a mark may stand for a text: it is UTF-8, and could be a part of a line of JSON."""
    try:
        return _CONTROL.search(text.decode()) is None
    except UnicodeDecodeError:
        return False


class HashTable:
    """Rows by the hash of a text.

    Args:
        hashes: in order.
        rows: the row of each hash.
        own: True if the texts are job ids with the hashes of a segment with `own_ids`: see `id_hash`.
    """

    __slots__ = ("hashes", "own", "rows")

    def __init__(self, hashes: array[int], rows: array[int], *, own: bool = False) -> None:
        self.hashes = hashes
        self.rows = rows
        self.own = own

    def find(self, text: str) -> list[int]:
        """Return the rows whose text may be this one."""
        return self.find_hash(id_hash(text, own=self.own))

    def find_hash(self, wanted: int) -> list[int]:
        """Return the rows whose text has a hash."""
        place = bisect_left(self.hashes, wanted)
        found = []
        while place < len(self.hashes) and self.hashes[place] == wanted:
            found.append(self.rows[place])
            place += 1
        return found


class SegmentIndex:
    """The index of one segment.

    Args:
        chunks: its chunks, in order.
        end: offset of the byte after the last row.
        ids: rows by job id.
        keys: rows by unique key, of the rows that have one.
        objects: suffixes of the objects that its rows name.
        single: rows that are never a part of a range, as spans.
        texts: the texts that `MARKS` stand for in its rows.
        best: for each chunk of scheduled rows, the priority and the sequence number of the row that comes first once
            all are due, without the segment's offset. Older versions wrote none.

    Attributes:
        oldest: for each chunk, the earliest `since` of its rows and of the rows behind it.
    """

    __slots__ = ("best", "chunks", "end", "ids", "keys", "objects", "oldest", "single", "texts")

    def __init__(
        self,
        chunks: Sequence[Chunk],
        end: int,
        ids: HashTable,
        keys: HashTable,
        objects: Sequence[str] = (),
        single: Sequence[Span] = (),
        texts: Sequence[bytes] = (),
        best: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.chunks = tuple(chunks)
        self.end = end
        self.ids = ids
        self.keys = keys
        self.objects = tuple(objects)
        self.single = tuple(single)
        self.texts = tuple(texts)
        self.best = tuple(best)
        self.oldest = [*accumulate((chunk.oldest for chunk in reversed(self.chunks)), min)][::-1]

    def bytes_of(self, first: int, last: int) -> tuple[int, int]:
        """Return the offsets of the first byte of a chunk, and of the byte after another chunk."""
        end = self.chunks[last + 1].offset if last + 1 < len(self.chunks) else self.end
        return self.chunks[first].offset, end

    def whole(self, rows: bytes) -> bytes:
        """Return the lines of the jobs in rows of the segment."""
        return whole_lines(rows, self.texts)
