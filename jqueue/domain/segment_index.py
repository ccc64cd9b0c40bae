"""The index of a segment: where each chunk begins, and which rows may hold a job id or a unique key."""

from __future__ import annotations

import hashlib
import sys
from array import array
from bisect import bisect_left, bisect_right
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, TypeVar

import msgspec

from jqueue.domain.segments import RowKey, Span
from jqueue.domain.slices import Slices

Sortable = TypeVar("Sortable", int, tuple[tuple[float, ...], int])

ENTRIES_PER_SLICE = 4096
"""Number of entries of a long list that are sorted in one slice."""


class Chunk(NamedTuple):
    """The entry of one chunk in the index. Sequence numbers are without the segment's offset."""

    offset: int
    """Of its first byte in the object."""
    crc: int
    """CRC-32 of its bytes."""
    first: RowKey
    """The key of its first row."""
    oldest: float
    """Earliest `since` of its rows."""
    best: tuple[int, int]
    """The priority and the sequence number of the row that comes first once all are due."""


def hash_of(text: str) -> int:
    """Return the 64-bit hash of an id or a key: the first eight bytes of its SHA-256 digest, as a big-endian number."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])


class HashTable:
    """Rows by the hash of a text.

    Args:
        data: the table as bytes: all hashes in order, 8 bytes each, and the row of each, 4 bytes, all little-endian.

    Attributes:
        hashes: in order.
        rows: the row of each hash.
    """

    __slots__ = ("hashes", "rows")

    def __init__(self, data: bytes = b"") -> None:
        hashes = 8 * (len(data) // 12)
        self.hashes = _little_endian(array("Q", data[:hashes]))
        self.rows = _little_endian(array("I", data[hashes:]))

    @classmethod
    def making(cls, packed: list[int]) -> Slices[HashTable]:
        """Return a table, in slices, given each hash times 2**32 plus its row. The list is sorted."""
        yield from sorting(packed)  # of numbers, as pairs would keep the garbage collector busy
        table = cls()
        table.hashes = array("Q", [each >> 32 for each in packed])
        table.rows = array("I", [each & 0xFFFF_FFFF for each in packed])
        return table

    @property
    def data(self) -> bytes:
        """The table as bytes."""
        return _little_endian(self.hashes[:]).tobytes() + _little_endian(self.rows[:]).tobytes()

    def find(self, text: str) -> list[int]:
        """Return the rows whose text may be this one."""
        return self.find_hash(hash_of(text))

    def find_hash(self, wanted: int) -> list[int]:
        """Return the rows whose text has a hash."""
        first = bisect_left(self.hashes, wanted)
        return self.rows[first : bisect_right(self.hashes, wanted, first)].tolist()


def _little_endian(numbers: array[int]) -> array[int]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def sorting(entries: list[Sortable]) -> Slices[None]:
    """Sort a long list in slices: parts of it first, so that the sort of all takes little time."""
    for first in range(0, len(entries) - ENTRIES_PER_SLICE, ENTRIES_PER_SLICE):
        entries[first : first + ENTRIES_PER_SLICE] = sorted(entries[first : first + ENTRIES_PER_SLICE])
        yield
    entries.sort()


class SegmentIndex(msgspec.Struct, dict=True):
    """The index of one segment, the last line of its object.

    Attributes:
        rows: number of its rows.
        chunks: its chunks, in order.
        end: offset of the byte after the last row.
        ids: rows by job id.
        keys: rows by unique key, of the rows that have one.
        objects: suffixes of the objects that its rows name.
        single: rows that are never a part of a range, as spans.
    """

    rows: int
    chunks: tuple[Chunk, ...]
    end: int
    ids: HashTable
    keys: HashTable
    objects: tuple[str, ...] = ()
    single: tuple[Span, ...] = ()

    @cached_property
    def oldest(self) -> list[float]:
        """For each chunk, the earliest `since` of its rows and of the rows behind it."""
        return [*accumulate((chunk.oldest for chunk in reversed(self.chunks)), min)][::-1]

    def bytes_of(self, first: int, last: int) -> tuple[int, int]:
        """Return the offsets of the first byte of a chunk, and of the byte after another chunk."""
        end = self.chunks[last + 1].offset if last + 1 < len(self.chunks) else self.end
        return self.chunks[first].offset, end

    def without_tables(self) -> SegmentIndex:
        """Return the index without the tables, which take most of its memory."""
        return msgspec.structs.replace(self, ids=HashTable(), keys=HashTable())
