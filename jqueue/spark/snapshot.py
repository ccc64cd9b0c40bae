"""`spark.read.format("jqueue")`: one version of a queue, or of each queue of a fleet, as a table.

A blob is read once for each load, by the process that plans it, and its lines travel with the partitions. If every
task read the blob by itself, each would see another version, and a job that moved would appear twice or not at all.

Jobs in segments do not travel: each task reads its own rows, which never change, however many versions have followed.
The planning process looks at the manifest only: it reads neither a row nor an index. A segment without a wanted row is
not named, and chunks without one are not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from jqueue.connect import open_storage
from jqueue.core.blob.lines import encode_record
from jqueue.core.blob.segment_object import check_chunk
from jqueue.core.blob.segment_reader import SegmentReader
from jqueue.core.direct import DirectQueue
from jqueue.core.observers import Observers
from jqueue.core.tasks import retried, some_at_once
from jqueue.domain.errors import (
    InvalidBlobError,
    ObjectMissingError,
    QueueMissingError,
    StorageError,
    StorageFatalError,
)
from jqueue.domain.job import JobStatus
from jqueue.domain.printable import counted
from jqueue.domain.segments import FOLDER, SCATTER, Segment, SegmentIndex, Span, object_of
from jqueue.domain.selection import Selection, phases_of
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.storage import SupportsObjects, SupportsRelease
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.spark.errors import shows_one_line
from jqueue.spark.fleet import FleetQueue, addresses_of, find_all, names_several, release_all
from jqueue.spark.lines import columns_of, rows_of
from jqueue.spark.option_parsing import INTEGER, NAMES, OptionType, parse_options
from jqueue.spark.rows import check_schema
from jqueue.spark.staging import absolute

SEGMENT_DEADLINE = 120.0
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
            reader = SegmentReader(storage, Observers(SystemClock()), call_timeout=SEGMENT_DEADLINE)

            async def once() -> None:
                index = await reader.index(self.name, self.segment)
                async with aclosing(reader.parts(self.name, index, numbers)) as parts:
                    texts = [check_chunk(data, index.chunks[number]) async for number, data in parts]
                pages[:] = [(index, texts)]

            failed = f"{self.queue}: segment {FOLDER}{object_of(self.name)} could not be read"
            try:
                await retried(SEGMENT_DEADLINE, once, SystemEntropy(), failed)
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


logger: Logger = logger_of("jqueue")

DEADLINE = 30.0
"""Seconds to read a queue, as for any call of a queue."""

MOST_PARTITIONS = 100_000
PARTITIONS = 4
"""Default number of partitions, unless that makes them too small or too large."""

SMALLEST, LARGEST = 1 << 18, 1 << 24
"""Least and most bytes of a partition by default. Spark sends it with its task, and refuses messages of 128 MiB."""


STATUSES = OptionType(
    f"some of {', '.join(JobStatus)}, with commas between them",
    lambda text: [JobStatus(name.strip().lower()) for name in text.split(",")],
)

KNOWN: dict[str, OptionType] = {"entrypoint": NAMES, "status": STATUSES, "num_partitions": INTEGER(1, MOST_PARTITIONS)}
"""The options besides the path."""


@dataclass(frozen=True)
class BlobLines:
    """Jobs in the object of a queue.

    Attributes:
        queue: name of the queue.
        text: their lines, with a line break between two.
    """

    queue: str
    text: bytes = field(repr=False)

    @property
    def size(self) -> int:
        """Number of bytes, with the end of the last line."""
        return len(self.text) + 1 if self.text else 0

    def split(self, size: int) -> tuple[BlobLines, BlobLines | None]:
        """Return the first lines, of about `size` bytes and at least one, and all others."""
        end = self.text.find(b"\n", max(0, size - 1))
        if end < 0:
            return self, None
        return replace(self, text=self.text[:end]), replace(self, text=self.text[end + 1 :])

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the jobs as rows."""
        yield rows_of(self.text, schema, self.queue)


Piece = BlobLines | SegmentRows


@shows_one_line
class SnapshotReader(DataSourceReader):
    """Reads one version of each queue.

    It does not take Spark's filters (`pushFilters`): Spark 4.3 keeps the partitions that it has planned with the filter
    of one query for all other queries of the same DataFrame, whose rows would then be missing.

    Args:
        options: as Spark passes them.
        schema: the columns to make.

    Raises:
        InvalidJobError: an option is unknown or wrong, or a column does not exist.
        InvalidURLError: no queue is named.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        taken = parse_options(options, KNOWN)
        self.addresses: list[str] = addresses_of(options)
        self.selection: Selection = Selection(
            phases_of(taken.get("status", ())), frozenset(taken.get("entrypoint", ()))
        )
        self.count: int | None = taken.get("num_partitions")
        self.schema = schema
        check_schema(schema, fleet=names_several(self.addresses))

    def partitions(self) -> list[InputPartition]:
        """Read one version of each queue, and cut it into runs of jobs.

        Raises:
            QueueMissingError: one of the queues does not exist.
            InvalidURLError: an address is wrong, or no queue matches.
            StorageError: a queue could not be read. The message names it.
        """
        return [InputPartition(part) for part in cut(asyncio.run(self._pieces()), self.count)]

    async def _pieces(self) -> list[Piece]:
        queues, pieces = await find_all(self.addresses), dict[str, list[Piece]]()

        async def plan(queue: FleetQueue) -> None:
            pieces[queue.name] = await _pieces_of(queue, self.selection)

        try:
            await some_at_once(plan, queues)
        finally:
            await release_all(queues)
        return [piece for queue in queues for piece in pieces[queue.name]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one partition.

        Raises:
            StorageError: a segment could not be read. The message names it.
        """
        return read_pieces(partition.value, self.schema)


async def _pieces_of(queue: FleetQueue, selection: Selection) -> list[Piece]:
    """Return the wanted jobs of one version of a queue: the lines in its object, and its segments, which are not read.

    Some facts concern an object as a whole: an id that stands twice, a job that has no place yet. They are settled
    here, and the jobs are encoded again, so that each line can be read alone, anywhere.
    """
    url = absolute(queue.url)
    try:
        view = await DirectQueue(queue.storage).view(deadline=DEADLINE)
    except StorageError as error:
        raise type(error)(f"{queue.name}: {error}") from None
    if view.absent:
        raise QueueMissingError(queue.name)
    if view.set_aside:
        lines = counted(len(view.set_aside), "line was", "lines were")
        logger.warning("%s: %s left out: not readable as jobs", queue.name, lines)
    now, statuses = SystemClock().now(), frozenset(selection.statuses)
    jobs = [encode_record(job) for job in view.records.values() if selection.matches(job, now)]
    pieces: list[Piece] = [BlobLines(queue.name, b"\n".join(jobs))]
    for name, segment in view.header.segments.items():
        status = JobStatus.IN_PROGRESS if segment.is_leased else JobStatus.QUEUED
        is_wanted = (not statuses or status in statuses) and segment.left
        if is_wanted and (not selection.entrypoints or segment.entrypoint in selection.entrypoints):
            pieces.append(SegmentRows.of_entry(queue.name, url, name, segment))
    return pieces


def read_pieces(pieces: Iterable[Piece], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of pieces. Errors are as for `SnapshotReader.read`."""
    columns = to_arrow_schema(schema, timezone="UTC")
    for piece in pieces:
        yield from piece.batches(columns)


def cut(pieces: Iterable[Piece], count: int | None) -> list[tuple[Piece, ...]]:
    """Cut pieces, and combine them into parts of about the same size.

    Args:
        pieces: of one queue or several.
        count: number of parts, if there are as many lines and chunks; None: chosen by the size.
    """
    left = [piece for piece in pieces if piece.size]
    total = sum(piece.size for piece in left)
    if count is None:
        count = max(1, min(PARTITIONS, total // SMALLEST), -(-total // LARGEST))
    parts: list[list[Piece]] = [[]]
    done = 0
    for piece in left:
        rest: Piece | None = piece
        while rest is not None:
            part, following = rest.split(total * len(parts) // count - done)
            parts[-1].append(part)
            done += rest.size - (following.size if following else 0)
            rest = following
            if done >= total * len(parts) // count:
                parts.append([])
    return [tuple(part) for part in parts if part] or [()]
