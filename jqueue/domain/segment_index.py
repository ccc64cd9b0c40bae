"""The index of a segment: where each chunk begins, and which rows may hold a job id or a unique key."""

from __future__ import annotations

import hashlib
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from jqueue.domain.segments import RowKey, Span


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


def hashes_of(texts: Iterable[bytes]) -> array[int]:
    """Return the hash of each of many texts, given in UTF-8."""
    copy, digests = hashlib.sha256().copy, []  # a copy is made faster than a new one
    for text in texts:
        one = copy()
        one.update(text)
        digests.append(one.digest())
    hashes = array("Q", b"".join(digests))[::4]
    if sys.byteorder == "little":
        hashes.byteswap()
    return hashes


class HashTable:
    """Rows by the hash of a text.

    Args:
        hashes: in order.
        rows: the row of each hash.
    """

    __slots__ = ("hashes", "rows")

    def __init__(self, hashes: array[int], rows: array[int]) -> None:
        self.hashes = hashes
        self.rows = rows

    @classmethod
    def of(cls, texts: Iterable[tuple[str, int]]) -> HashTable:
        """Return the table of some texts with their rows."""
        pairs = sorted((hash_of(text), row) for text, row in texts)
        return cls(array("Q", [each for each, _ in pairs]), array("I", [row for _, row in pairs]))

    def find(self, text: str) -> list[int]:
        """Return the rows whose text may be this one."""
        return self.find_hash(hash_of(text))

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

    Attributes:
        oldest: for each chunk, the earliest `since` of its rows and of the rows behind it.
    """

    __slots__ = ("chunks", "end", "ids", "keys", "objects", "oldest", "single")

    def __init__(
        self,
        chunks: Sequence[Chunk],
        end: int,
        ids: HashTable,
        keys: HashTable,
        objects: Sequence[str] = (),
        single: Sequence[Span] = (),
    ) -> None:
        self.chunks = tuple(chunks)
        self.end = end
        self.ids = ids
        self.keys = keys
        self.objects = tuple(objects)
        self.single = tuple(single)
        self.oldest = [*accumulate((chunk.oldest for chunk in reversed(self.chunks)), min)][::-1]

    def bytes_of(self, first: int, last: int) -> tuple[int, int]:
        """Return the offsets of the first byte of a chunk, and of the byte after another chunk."""
        end = self.chunks[last + 1].offset if last + 1 < len(self.chunks) else self.end
        return self.chunks[first].offset, end
