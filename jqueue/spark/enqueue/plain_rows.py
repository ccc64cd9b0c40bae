"""Rows without options, encoded as segments column by column: no object is made for a row.

The lines are those of `jqueue.core.blob.lines.encode_plain_rows`, byte for byte. If payloads have the same length, so
have the lines, and NumPy writes them column by column. Otherwise Arrow joins their parts. Either way they are written
into memory that the segment before the last was in.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jqueue.core.blob.lines import plain_texts
from jqueue.core.blob.segment_object import EncodedSegment, finished_segment, first_line
from jqueue.core.blob.segment_staging import SegmentStager
from jqueue.domain.durations import to_seconds
from jqueue.domain.enqueued_jobs import SCATTER, bulk_hash_base, bulk_hashes
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import check_name
from jqueue.domain.segment_index import MARKS, Chunk, HashTable
from jqueue.domain.segments import RowKey, Span
from jqueue.spark.enqueue.row_bytes import (
    ID_DIGITS,
    Base64,
    GrowingBytes,
    binary_column,
    hexadecimal,
    write_decimals,
)

AT_ONCE = 8192
"""Number of rows that are encoded at once: they fit into the caches of a processor."""

FREE_BUFFERS = 2
"""Number of buffers that are kept to be used again: one segment is made while another is stored."""


class ArrowStager(SegmentStager):
    """Encodes the jobs of one task. Those without options are encoded column by column."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._plain: dict[tuple[str, float | None], PlainRows] = {}
        self._free: list[GrowingBytes] = []

    def check_column(self, entrypoint: str, payloads: pa.Array) -> None:
        """Check jobs before they are added.

        Raises:
            InvalidJobError: the entrypoint is wrong, or a payload is too large.
        """
        check_name("entrypoint", entrypoint, self.limits)
        largest = pc.max(pc.binary_length(payloads)).as_py() or 0
        most = self.limits.most_payload(objects=False)
        if largest > most:
            raise InvalidJobError(f"payload is {largest} bytes; the limit is {most}")

    def add_column(self, entrypoint: str, payloads: pa.Array, keep_result: float | None, numbers: Any) -> None:
        """Add jobs without other options, which `check_column` has seen. Their numbers were given by `take_numbers`.

        Args:
            entrypoint: the name of the handler.
            payloads: binary, without nulls.
            keep_result: seconds for which results are kept; None: they are not.
            numbers: the number of each job.
        """
        kept = None if keep_result is None else to_seconds("keep_result", keep_result)
        found = self._plain.get((entrypoint, kept))
        if found is None:
            found = self._plain[entrypoint, kept] = PlainRows(
                first_line(self.queue, entrypoint),
                entrypoint,
                self.rest_of_ids,
                self.created_at,
                kept,
                self.chunk_rows,
                self._free.pop() if self._free else GrowingBytes(),
            )
        for first in range(0, len(payloads), AT_ONCE):
            found.add(payloads[first : first + AT_ONCE], numbers[first : first + AT_ONCE])

    def take_numbers(self, count: int) -> Any:
        """Return the numbers of the next jobs, as an array."""
        first = self.jobs + 1
        self.jobs += count
        return np.arange(first, first + count, dtype=np.uint64)

    def full(self) -> Iterator[EncodedSegment]:
        """Yield segments that are complete, and forget their rows."""
        yield from super().full()
        for group, rows in list(self._plain.items()):
            if len(rows) >= self.most_rows or rows.size >= self.most_bytes:
                yield self._plain.pop(group).encoded()
        while sum(rows.size for rows in self._plain.values()) > self.most_bytes:
            largest = max(self._plain, key=lambda group: self._plain[group].size)
            yield self._plain.pop(largest).encoded()

    def rest(self) -> Iterator[EncodedSegment]:
        """Yield segments with all other jobs."""
        yield from super().rest()
        while self._plain:
            yield self._plain.pop(next(iter(self._plain))).encoded()

    def reuse(self, content: bytes | memoryview) -> None:
        """Use the memory of a segment again. It has been stored, and nobody reads it any longer."""
        if isinstance(content, memoryview) and len(self._free) < FREE_BUFFERS:
            self._free.append(GrowingBytes(content.obj))


class PlainRows:
    """The rows of one entrypoint without options but `keep_result`, in the order in which they are served.

    Args:
        head: the first line of the segment.
        entrypoint: of all rows.
        rest: the end of the ids: see `bulk_id`.
        created_at: the time of the enqueue.
        keep_result: seconds for which the results of all rows are kept; None: they are not.
        chunk_rows: number of rows in a chunk.
        text: takes the bytes of the segment.

    Attributes:
        size: bytes of the rows.
    """

    def __init__(
        self,
        head: bytes,
        entrypoint: str,
        rest: str,
        created_at: datetime,
        keep_result: float | None,
        chunk_rows: int,
        text: GrowingBytes,
    ) -> None:
        self.size = 0
        self._entrypoint, self._rest = entrypoint, rest
        self._hash_base = bulk_hash_base(rest)
        self._since = created_at.timestamp()
        self._kept = keep_result
        self._chunk_rows = chunk_rows
        self._texts = plain_texts(rest, entrypoint, created_at, keep_result)
        self._head = np.frombuffer(b'"' + bytes(ID_DIGITS) + MARKS[0], np.uint8)
        self._middle, self._last = MARKS[1], MARKS[2] + b"\n"
        self._text, self._start = text, len(head)
        text.add(head)
        self._lengths: list[Any] = []
        self._rows = 0
        self._hashes: list[Any] = []
        self._numbers: list[Any] = []

    def __len__(self) -> int:
        return self._rows

    def add(self, payloads: pa.Array, numbers: Any) -> None:
        """Add rows.

        Args:
            payloads: binary, without nulls.
            numbers: the number of each row in its task, in ascending order.
        """
        start = 0
        for digits in range(len(str(numbers[0])), len(str(numbers[-1])) + 1):  # numbers of the same length together
            stop = int(np.searchsorted(numbers, 10**digits))
            if stop > start:
                self._add(payloads[start:stop], numbers[start:stop], digits)
            start = stop

    def _add(self, payloads: pa.Array, numbers: Any, digits: int) -> None:
        """Add rows whose numbers have as many decimal digits."""
        heads_of_ids = (numbers * np.uint64(SCATTER)).astype(np.uint32)
        ids = hexadecimal(heads_of_ids)
        tail = np.frombuffer(self._middle + bytes(digits) + self._last, np.uint8)
        encoded = Base64(payloads)
        lengths = encoded.lengths + (len(self._head) + len(tail))
        size = int(lengths.sum())
        if encoded.width is None:
            heads, tails = np.tile(self._head, (len(ids), 1)), np.tile(tail, (len(ids), 1))
            self._fill(heads, tails, ids, numbers, digits)
            joined = pc.binary_join_element_wise(binary_column(heads), encoded.column(), binary_column(tails), EMPTY)
            self._text.room(size)[:] = np.frombuffer(joined.buffers()[2], np.uint8)[:size]
        else:
            rows = self._text.room(size).reshape(len(ids), -1)
            heads, tails = rows[:, : len(self._head)], rows[:, rows.shape[1] - len(tail) :]
            heads[:], tails[:] = self._head, tail
            self._fill(heads, tails, ids, numbers, digits)
            encoded.write(rows[:, len(self._head) : rows.shape[1] - len(tail)])
        self.size += size
        self._lengths.append(lengths)
        self._rows += len(ids)
        self._hashes.append(self._hashes_of(heads_of_ids, numbers))
        self._numbers.append(numbers)

    def _hashes_of(self, heads_of_ids: Any, numbers: Any) -> Any:
        """Return the hashes of ids, given their first 32 bits and the numbers of their rows: see `bulk_hashes`."""
        if self._hash_base is None:
            return np.frombuffer(bulk_hashes(numbers.tolist(), self._rest), np.uint64)
        return heads_of_ids.astype(np.uint64) << np.uint64(32) ^ np.uint64(self._hash_base)

    def _fill(self, heads: Any, tails: Any, ids: Any, numbers: Any, digits: int) -> None:
        """Write the ids and numbers of rows into the texts before and behind their payloads."""
        heads[:, 1 : 1 + ID_DIGITS] = ids
        write_decimals(tails[:, len(self._middle) : len(self._middle) + digits], numbers)

    def encoded(self) -> EncodedSegment:
        """Return the rows as a segment. Its content is a view of `text`, until that is used again."""
        rows, start = len(self), self._start
        ends = np.cumsum(np.concatenate(self._lengths))
        bounds = [0, *ends[self._chunk_rows - 1 : -1 : self._chunk_rows].tolist(), self.size]
        sequences = np.concatenate(self._numbers)
        lines = self._text.view()[start:]
        chunks = [
            Chunk(start + first, zlib.crc32(lines[first:end]), RowKey(0, sequence, self._since), self._since)
            for (first, end), sequence in zip(pairwise(bounds), sequences[:: self._chunk_rows].tolist(), strict=False)
        ]
        single: Sequence[Span] = () if self._kept is None else ((0, rows),)
        return finished_segment(
            self._text.ended_by,
            chunks,
            start + self.size,
            _table(np.concatenate(self._hashes)),
            HashTable(array("Q"), array("I")),
            entrypoint=self._entrypoint,
            rows=rows,
            chunk_rows=self._chunk_rows,
            least=int(sequences[0]),
            largest=int(sequences[-1]),
            single=single,
            texts=self._texts,
        )


EMPTY = pa.scalar(b"", pa.large_binary())


def _table(found: Any) -> HashTable:
    """Return the table of ids, given the hash of each row. Those that are equal are in the order of their rows."""
    low = np.uint64((1 << len(found).bit_length()) - 1)
    order = (
        np.sort((found & ~low) | np.arange(len(found), dtype=np.uint64)) & low
    )  # quicker than to sort numbers of rows
    in_order = found[order]
    if (in_order[1:] < in_order[:-1]).any():  # two differ in their last bits alone
        order = np.argsort(found, kind="stable").astype(np.uint64)
        in_order = found[order]
    sorted_hashes, rows = array("Q"), array("I")
    sorted_hashes.frombytes(in_order.tobytes())
    rows.frombytes(order.astype(np.uint32).tobytes())
    return HashTable(sorted_hashes, rows, own=True)
