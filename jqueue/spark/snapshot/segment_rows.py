"""The rows of a segment in a snapshot. The process that plans the read names them, and each task reads its own.

A segment without a wanted row is not named, and chunks without one are not read: the manifest tells.

Segments never change, so a task reads the rows of the version that was planned, however many versions followed it. The
planning process looks at the manifest only: it reads neither a row nor an index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jqueue.connect import open_storage
from jqueue.core.blob.segment_object import check_chunk
from jqueue.core.blob.segment_reader import SegmentReader
from jqueue.core.observers import Observers
from jqueue.core.tasks import retried
from jqueue.domain.errors import InvalidBlobError, ObjectMissingError, StorageFatalError
from jqueue.domain.job import JobStatus
from jqueue.domain.segments import FOLDER, SCATTER, Segment, SegmentIndex, Span, object_of
from jqueue.ports.storage import SupportsObjects, SupportsRelease
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.spark.lines import columns_of

DEADLINE = 120.0
"""Seconds for a read of a segment, with its repetitions. A task reads up to 64 MiB of one at once by default."""

READ_FOR_ONE = 2
"""Number of bytes that a task reads for one byte of the `size` of its rows: partitions with segments are larger."""

BATCH_ROWS = 8192
"""Number of rows of a segment that become one batch, about: their lines stay in the cache of the processor."""

Rows = npt.NDArray[np.int64]
"""Numbers of rows of a segment, in order."""


ADDED = "sequence", "attempt", "attempts_before", "failures"
"""Columns whose values on the lines are less than those of the jobs, by what the manifest says of the whole entry."""


@dataclass(frozen=True)
class SegmentRows:
    """Chunks of one segment that one task reads, with the rows of one entry of the manifest.

    Attributes:
        queue: name of the queue.
        url: any process can open the queue by it. It may hold secrets.
        name: of the entry.
        segment: the entry.
        chunks: number of the first chunk, and of the chunk behind the last.
        note: takes note of the segment if chunks cannot be read, which are left out then, and returns False if the note
            would not be read. None: they are an error.
    """

    queue: str
    url: str = field(repr=False)
    name: str
    segment: Segment = field(repr=False)
    chunks: Span
    note: Callable[[str], bool] | None = field(default=None, repr=False)

    @classmethod
    def of_entry(
        cls, queue: str, url: str, name: str, entry: Segment, note: Callable[[str], bool] | None = None
    ) -> SegmentRows:
        """Return all rows of an entry that has some."""
        chunks = entry.chunk_of(entry.next), entry.chunk_of(entry.spans[-1][1] - 1) + 1
        return cls(queue, url, name, entry, chunks, note)

    @property
    def size(self) -> int:
        """Half of about the number of bytes to read, as they do not travel with the partition."""
        return (self.chunks[1] - self.chunks[0]) * self._share_of_a_chunk

    def split(self, size: int) -> tuple[SegmentRows, SegmentRows | None]:
        """Return the first chunks, of about `size` bytes and at least one, and all others."""
        first, last = self.chunks
        middle = first + max(1, -(-size // self._share_of_a_chunk))
        if middle >= last:
            return self, None
        return replace(self, chunks=(first, middle)), replace(self, chunks=(middle, last))

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Read the chunks, and yield the wanted rows. No chunk is read if the manifest has all columns of the schema.

        Raises:
            StorageFatalError: rows cannot be read, and nothing takes note of them.
            StorageError: the store failed.
        """
        numbers = [chunk for chunk in range(*self.chunks) if not self.segment.is_chunk_taken(chunk)]
        values = self._facts()
        facts = {each.name: pa.scalar(values[each.name], each.type) for each in schema if each.name in values}
        beside = [each for each in schema if each.name in ADDED or each.name not in values]
        several = max(1, BATCH_ROWS // self.segment.chunk_rows)
        bounds = np.array([edge for span in self.segment.spans for edge in span])  # the rows of the entry
        try:
            index, texts = self._read(numbers) if beside and numbers else (None, [])
            for first in range(0, len(numbers), several):
                rows = self._rows_of(numbers[first : first + several])
                columns = {}
                if index is not None:
                    columns = _columns_of(index, b"".join(texts[first : first + several]), rows, beside)
                wanted = np.searchsorted(bounds, rows, "right") % 2 == 1
                columns = {name: column.filter(pa.array(wanted)) for name, column in columns.items()}
                for name, value in facts.items():
                    is_added, number = name in ADDED, int(wanted.sum())
                    columns[name] = pc.add(columns[name], value) if is_added else pa.repeat(value, number)
                yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        except StorageFatalError as error:
            name = object_of(self.name)
            if self.note is None or not self.note(name):
                reason, repair = f"could not be read: {error}", "restore it from a backup, or use `jqueue repair`"
                if isinstance(error, ObjectMissingError):
                    reason = f"does not exist. Load a table again that is older than an hour; otherwise {repair}"
                elif isinstance(error, InvalidBlobError):
                    reason = f"is damaged: {error}; {repair}"
                raise StorageFatalError(f"{self.queue}: segment {FOLDER}{name} {reason}") from None

    def _facts(self) -> dict[str, Any]:
        """Return what the manifest says of all rows of the entry, by column: to be added to the lines, or instead."""
        entry = self.segment
        added = entry.offset, entry.floor + entry.claims, entry.floor, entry.failures
        return dict(zip(ADDED, added, strict=True)) | {
            "queue": self.queue,
            "entrypoint": entry.entrypoint,
            "status": JobStatus.IN_PROGRESS if entry.is_leased else JobStatus.QUEUED,
            "heartbeat_at": entry.heartbeat_at,
            "claim_timeout": entry.claim_timeout,
            "holder": entry.holder,
            "claimed_at": None if entry.holder is None else entry.claimed_at,
        }

    def _rows_of(self, chunks: Sequence[int]) -> Rows:
        """Return the numbers of the rows of some chunks."""
        size, end = self.segment.chunk_rows, self.segment.rows
        return np.concatenate([np.arange(each * size, min((each + 1) * size, end)) for each in chunks])

    @property
    def _share_of_a_chunk(self) -> int:
        return max(1, self.segment.index // self.segment.chunks // READ_FOR_ONE)

    def _read(self, numbers: Sequence[int]) -> tuple[SegmentIndex, list[bytes]]:
        """Read some chunks at once. Return the index of the segment, and the lines of each chunk."""
        pages: list[tuple[SegmentIndex, list[bytes]]] = []  # `asyncio.run` makes a text of what it returns

        async def read() -> None:
            storage = open_storage(self.url)
            assert isinstance(storage, SupportsObjects)  # so it was when the read was planned
            reader = SegmentReader(storage, Observers(SystemClock()), call_timeout=DEADLINE)

            async def once() -> None:
                index = await reader.index(self.name, self.segment)
                async with aclosing(reader.parts(self.name, index, numbers)) as parts:
                    texts = [check_chunk(data, index.chunks[number]) async for number, data in parts]
                pages[:] = [(index, texts)]

            failed = f"{self.queue}: segment {FOLDER}{object_of(self.name)} could not be read"
            try:
                await retried(DEADLINE, once, SystemEntropy(), failed)
            finally:
                if isinstance(storage, SupportsRelease):
                    await storage.release()

        asyncio.run(read())
        return pages[0]


def _columns_of(index: SegmentIndex, lines: bytes, rows: Rows, wanted: Sequence[pa.Field]) -> dict[str, pa.Array]:
    """Return columns of rows from their lines, and from what the index says about all of them.

    Raises:
        InvalidBlobError: they are not the lines of so many jobs.
    """
    names = {field.name for field in wanted}
    columns: dict[str, pa.Array] = {}
    try:
        shared = () if index.objects else msgspec.json.decode(index.common or b"{}")
        if common := [field for field in wanted if field.name in shared]:
            of_one = columns_of(bytes(index.common), 1, common)
            columns = {name: pa.repeat(column[0], len(rows)) for name, column in of_one.items()}
        if "sequence" in names and index.first is not None:
            columns["sequence"] = pa.array(rows + index.first)
        elif "sequence" in names and index.numbers:
            columns["sequence"] = pa.array(np.frombuffer(index.numbers, "<u4")[rows].astype(np.int64))
        if index.id_rest is not None and "id" in names:
            columns["id"] = _bulk_ids(rows + 1, index.id_rest)
        left = [field for field in wanted if field.name not in columns]
        return columns | columns_of(index.whole(lines) if index.objects else lines, len(rows), left)
    except ValueError as error:
        raise InvalidBlobError(f"rows from {rows[0]} on cannot be read as jobs: {error}") from None


def _bulk_ids(numbers: Rows, rest: str) -> pa.Array:
    """Return the ids of jobs of a bulk enqueue: see `jqueue.domain.segments.bulk_id`."""
    heads = (numbers * SCATTER & 0xFFFFFFFF).astype(">u4").tobytes().hex().encode()
    ends = pa.py_buffer(np.arange(len(numbers) + 1, dtype=np.int32) * np.int32(8))
    texts = pa.Array.from_buffers(pa.string(), len(numbers), [None, ends, pa.py_buffer(heads)])
    return pc.binary_join_element_wise(texts, pa.scalar(rest), "")
