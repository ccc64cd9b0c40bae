"""Rows without options, encoded as segments column by column: no object is made for a row.

The lines are those of `jqueue.core.blob.lines.encode_plain_rows`, byte for byte. Arrow joins their parts, NumPy encodes
payloads as base64 and sorts the hashes of ids.
"""

from __future__ import annotations

import zlib
from array import array
from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jqueue.core.blob.lines import plain_row_texts
from jqueue.core.blob.segment_object import EncodedSegment, finished_segment, first_line
from jqueue.core.blob.segment_staging import SegmentStager
from jqueue.domain.durations import to_seconds
from jqueue.domain.enqueued_jobs import SCATTER
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import check_name
from jqueue.domain.segment_index import Chunk, HashTable, hashes_of
from jqueue.domain.segments import RowKey, Span

HEX_DIGITS = np.frombuffer(b"".join(b"%04x" % number for number in range(1 << 16)), "S4")
"""The four hexadecimal digits of each 16-bit number."""


AT_ONCE = 8192
"""Number of rows that are encoded at once: they fit into the caches of a processor."""


class ArrowStager(SegmentStager):
    """Encodes the jobs of one task. Those without options are encoded column by column."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._plain: dict[tuple[str, float | None], PlainRows] = {}

    def add_column(self, entrypoint: str, payloads: pa.Array, keep_result: float | None, numbers: Any) -> None:
        """Add jobs without other options. Their numbers must have been taken with `take_numbers`.

        Args:
            entrypoint: the name of the handler.
            payloads: binary, without nulls.
            keep_result: seconds for which results are kept; None: they are not.
            numbers: the number of each job.

        Raises:
            InvalidJobError: the entrypoint is wrong, or a payload is too large. Nothing was added.
        """
        check_name("entrypoint", entrypoint, self.limits)
        largest = pc.max(pc.binary_length(payloads)).as_py() or 0
        if largest > self.limits.payload_bytes:
            raise InvalidJobError(f"payload is {largest} bytes; the limit is {self.limits.payload_bytes}")
        kept = None if keep_result is None else to_seconds("keep_result", keep_result)
        found = self._plain.get((entrypoint, kept))
        if found is None:
            found = self._plain[entrypoint, kept] = PlainRows(
                entrypoint, self.rest_of_ids, self.created_at, kept, self.chunk_rows
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
                yield self._plain.pop(group).encoded(self.queue, self.aging)
        while sum(rows.size for rows in self._plain.values()) > self.most_bytes:
            largest = max(self._plain, key=lambda group: self._plain[group].size)
            yield self._plain.pop(largest).encoded(self.queue, self.aging)

    def rest(self) -> Iterator[EncodedSegment]:
        """Yield segments with all other jobs."""
        yield from super().rest()
        while self._plain:
            yield self._plain.pop(next(iter(self._plain))).encoded(self.queue, self.aging)


class PlainRows:
    """The rows of one entrypoint without options but `keep_result`, in the order in which they are served.

    Args:
        entrypoint: of all rows.
        rest: the end of the ids: see `bulk_id`.
        created_at: the time of the enqueue.
        keep_result: seconds for which the results of all rows are kept; None: they are not.
        chunk_rows: number of rows in a chunk.

    Attributes:
        size: bytes of the rows.
    """

    def __init__(
        self, entrypoint: str, rest: str, created_at: datetime, keep_result: float | None, chunk_rows: int
    ) -> None:
        self.size = 0
        self._entrypoint, self._rest = entrypoint, rest.encode()
        self._since = created_at.timestamp()
        self._kept = keep_result
        self._chunk_rows = chunk_rows
        before, middle, last = plain_row_texts(entrypoint, created_at, keep_result)
        self._before, self._middle = pa.scalar(self._rest + before, BINARY), pa.scalar(middle, BINARY)
        self._last = pa.scalar(last + b"\n", BINARY)
        self._parts: list[memoryview] = []
        self._lengths: list[Any] = []
        self._hashes = array("Q")
        self._numbers: list[Any] = []

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, payloads: pa.Array, numbers: Any) -> None:
        """Add rows.

        Args:
            payloads: binary, without nulls.
            numbers: the number of each row in its task, in ascending order.
        """
        heads = _hexadecimal((numbers * np.uint64(SCATTER)).astype(np.uint32))
        texts = pa.Array.from_buffers(FIXED, len(numbers), [None, pa.py_buffer(heads)]).cast(BINARY)
        lines = pc.binary_join_element_wise(
            QUOTE,
            texts,
            self._before,
            _base64(payloads),
            self._middle,
            pa.array(numbers).cast(pa.large_string()).cast(BINARY),
            self._last,
            EMPTY,
        )
        offsets = np.frombuffer(lines.buffers()[1], np.int64, len(lines) + 1, lines.offset * 8)
        self._parts.append(memoryview(lines.buffers()[2])[int(offsets[0]) : int(offsets[-1])])
        self._lengths.append(np.diff(offsets))
        self.size += int(offsets[-1] - offsets[0])
        rest = self._rest
        self._hashes += hashes_of([head + rest for head in heads.view("S8").tolist()])
        self._numbers.append(numbers)

    def encoded(self, queue: str, aging: float | None) -> EncodedSegment:
        """Return the rows as a segment.

        Args:
            queue: id of the queue.
            aging: the setting `aging` of the queue.
        """
        rows = len(self)
        head = first_line(queue, self._entrypoint)
        ends = np.cumsum(np.concatenate(self._lengths))
        bounds = [0, *ends[self._chunk_rows - 1 : -1 : self._chunk_rows].tolist(), self.size]
        sequences = np.concatenate(self._numbers)
        chunks = [
            Chunk(len(head) + start, crc, RowKey(0, sequence, self._since), self._since)
            for start, crc, sequence in zip(
                bounds, _checksums(self._parts, bounds), sequences[:: self._chunk_rows].tolist(), strict=False
            )
        ]
        single: Sequence[Span] = () if self._kept is None else ((0, rows),)
        return finished_segment(
            [head, *self._parts],
            chunks,
            len(head) + self.size,
            _table(self._hashes),
            HashTable(array("Q"), array("I")),
            entrypoint=self._entrypoint,
            rows=rows,
            chunk_rows=self._chunk_rows,
            least=int(sequences[0]),
            aging=aging,
            single=single,
            own_ids=True,
        )


BINARY, FIXED = pa.large_binary(), pa.binary(8)
QUOTE, EMPTY = pa.scalar(b'"', BINARY), pa.scalar(b"", BINARY)


def _checksums(parts: Sequence[memoryview], bounds: Sequence[int]) -> Iterator[int]:
    """Yield the checksum of the bytes between each bound and the next. The parts are not joined for that."""
    rest = iter(parts)
    part = memoryview(b"")
    for start, stop in pairwise(bounds):
        crc, missing = 0, stop - start
        while missing:
            if not part:
                part = next(rest)
            crc = zlib.crc32(part[:missing], crc)
            missing, part = max(0, missing - len(part)), part[missing:]
        yield crc


def _hexadecimal(numbers: Any) -> Any:
    """Return the eight hexadecimal digits of each 32-bit number, as bytes."""
    halves = HEX_DIGITS[np.stack([numbers >> 16, numbers & 0xFFFF], axis=1)]
    return np.ascontiguousarray(halves).view("S8").reshape(-1)


def _base64(values: pa.Array) -> pa.Array:
    """Return each of some binary values as base64. Each is padded to whole groups, and all are encoded at once."""
    wide = values.cast(BINARY)
    offsets = np.frombuffer(wide.buffers()[1], np.int64, len(wide) + 1, wide.offset * 8)
    data = wide.buffers()[2]
    lengths = np.diff(offsets)
    groups = -(-lengths // 3)
    ends = np.concatenate(([0], np.cumsum(groups)))
    raw = np.frombuffer(b"" if data is None else data, np.uint8)[offsets[0] : offsets[-1]]
    padded = np.zeros(int(ends[-1]) * 3, np.uint8)
    if len(lengths) and (lengths == lengths[0]).all():
        if lengths[0]:
            padded.reshape(len(lengths), -1)[:, : lengths[0]] = raw.reshape(len(lengths), -1)
    else:
        padded[np.arange(len(raw)) + np.repeat(ends[:-1] * 3 - (offsets[:-1] - offsets[0]), lengths)] = raw
    text = np.frombuffer(b2a_base64(padded.data, newline=False), np.uint8).copy()
    rests = lengths % 3
    text[ends[1:][rests > 0] * 4 - 1] = ord("=")
    text[ends[1:][rests == 1] * 4 - 2] = ord("=")
    return pa.Array.from_buffers(BINARY, len(wide), [None, pa.py_buffer(ends * 4), pa.py_buffer(text)])


def _table(hashes: array[int]) -> HashTable:
    found = np.frombuffer(hashes, np.uint64)
    order = np.argsort(found, kind="stable")
    sorted_hashes, rows = array("Q"), array("I")
    sorted_hashes.frombytes(found[order].tobytes())
    rows.frombytes(order.astype(np.uint32).tobytes())
    return HashTable(sorted_hashes, rows)
