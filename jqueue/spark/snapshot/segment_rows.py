"""The rows of a segment in a snapshot. The process that plans the read names them, and each task reads its own.

A segment without a wanted row is not named, and chunks without one are not read: the manifest tells.

Segments never change, so a task reads the rows of the version that was planned, however many versions followed it. The
planning process looks at the manifest only: it reads neither a row nor an index.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple, Protocol

from jqueue.connect import connect_storage
from jqueue.core.blob.lines import encode_job
from jqueue.core.blob.pages import SEPARATOR
from jqueue.core.blob.segment_jobs import job_of_row
from jqueue.core.blob.segment_object import CHANGED, decode_chunk
from jqueue.core.blob.segment_reader import DAMAGED, SegmentReader
from jqueue.core.engine.engine import read_until
from jqueue.core.engine.observers import Observers
from jqueue.domain.errors import InvalidBlobError, JQueueError, ObjectMissingError, StorageFatalError
from jqueue.domain.models import JobStatus, QueueState
from jqueue.domain.ranges import Range
from jqueue.domain.segment_index import SegmentIndex
from jqueue.domain.segments import FOLDER, Segment, Span, joined
from jqueue.ports.storage import SupportsObjects, SupportsRelease
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.spark.fleet import FleetQueue
from jqueue.spark.snapshot.blob_lines import BATCH_BYTES, JobFilter
from jqueue.spark.snapshot.counted_rows import CountedRows
from jqueue.spark.staging import absolute

DEADLINE = 120.0
"""Seconds for a read of a segment, with its repetitions. A task reads up to 64 MiB of one at once by default."""

READ_FOR_ONE = 2
"""Number of bytes that a task reads for one byte of the `size` of its rows: partitions with segments are larger."""

PLAIN_LINES, CHANGED_LINES = -1, -2
"""Kinds of the lines of a chunk: those of jobs that wait, and those of which some are no longer true."""


Texts = dict[int, memoryview]
"""Bytes of chunks, by their numbers."""


class NotesUnread(Protocol):
    """Takes note of chunks that a task cannot read. It may be pickled."""

    def note(self, segment: str, chunks: Sequence[int]) -> bool:
        """Note chunks of a segment. Return False if the note would not be read."""


class Lines(NamedTuple):
    """Lines of jobs."""

    text: bytes
    """The lines, joined as in the blob, or rows of a segment as they are stored."""
    offset: int
    """Number to add to their sequence numbers."""
    held: Range | None = None
    """The claim under which they are in progress; None if the lines tell the whole state."""
    texts: Sequence[bytes] | None = None
    """The texts that `MARKS` stand for in rows of a segment, with a line break behind each; None for other lines."""


@dataclass(frozen=True)
class SegmentRows:
    """Chunks of one segment that one task reads.

    Attributes:
        queue: name of the queue.
        url: any process can open the queue by it. It may hold secrets.
        name: of the segment.
        segment: its entry in the manifest.
        ranges: the current claims of its rows.
        statuses: the wanted statuses; empty for any.
        chunks: number of the first chunk, and of the chunk behind the last.
        notes: takes note of chunks that cannot be read, which are left out then. None: they are an error.
    """

    queue: str
    url: str = field(repr=False)
    name: str
    segment: Segment = field(repr=False)
    ranges: tuple[Range, ...] = field(repr=False)
    statuses: frozenset[JobStatus]
    chunks: Span
    notes: NotesUnread | None = field(default=None, repr=False)

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

    def lines(self) -> Iterator[Lines]:
        """Read the chunks, and yield the lines of the wanted jobs.

        Raises:
            StorageFatalError: rows cannot be read, and nothing takes note of them.
            StorageError: the store failed.
        """
        segment, wanted = self.segment, self._wanted()
        if not wanted:
            return
        found: list[tuple[SegmentIndex, Texts]] = []  # `asyncio.run` makes a text of a returned value
        try:
            asyncio.run(self._read(wanted, found))
        except DAMAGED as error:
            self._leave_out(wanted, error)
            return
        [(index, texts)] = found
        if changed := [number for number in wanted if zlib.crc32(texts[number]) != index.chunks[number].crc]:
            self._leave_out(changed, InvalidBlobError(CHANGED))
            wanted = [number for number in wanted if number not in changed]
        for kind, numbers in groupby(wanted, self._kind):
            some = [(number, texts[number]) for number in numbers]
            if kind == CHANGED_LINES:
                yield Lines(self._as_they_are(some, index), 0)
                continue
            held = None if kind == PLAIN_LINES else self.ranges[kind]
            for text in _portions(text for _, text in some):
                yield Lines(text, segment.offset, held, index.texts)

    def _leave_out(self, chunks: Sequence[int], error: JQueueError) -> None:
        """Note the rows of chunks that cannot be read.

        Raises:
            StorageFatalError: nothing takes note of them.
            JQueueError: they could not be noted.
        """
        if self.notes is None or not self.notes.note(self.name, chunks):
            raise self._failed(error) from None

    def _failed(self, error: JQueueError) -> StorageFatalError:
        reason = "does not exist" if isinstance(error, ObjectMissingError) else f"is damaged: {error}"
        return StorageFatalError(
            f"{self.queue}: segment {FOLDER}{self.name} {reason}. A table that was loaded more than an hour ago "
            "must be loaded again; otherwise restore the segment from a backup, or use `jqueue repair`"
        )

    @property
    def _share_of_a_chunk(self) -> int:
        return max(1, self.segment.index // self.segment.chunks // READ_FOR_ONE)

    def counted(self) -> list[CountedRows]:
        """Return the same rows by the manifest alone. The chunks must be those of the whole segment."""
        waiting, claimed = self.segment.waiting, sum(each.rows for each in self.ranges)
        counts = ((JobStatus.QUEUED, waiting), (JobStatus.IN_PROGRESS, claimed))
        return [
            CountedRows(self.queue, self.segment.entrypoint, status, rows)
            for status, rows in counts
            if rows and self._has(status)
        ]

    def _has(self, status: JobStatus) -> bool:
        """Return True if jobs with a status are wanted."""
        return not self.statuses or status in self.statuses

    def _wanted(self) -> list[int]:
        """Return the numbers of the chunks that may have wanted jobs."""
        waiting = self._has(JobStatus.QUEUED)
        claimed = [each.span for each in self.ranges] if self._has(JobStatus.IN_PROGRESS) else []
        return [
            number
            for number in range(*self.chunks)
            if (waiting and not self.segment.is_chunk_taken(number)) or self._meets(claimed, number)
        ]

    def _kind(self, number: int) -> int:
        """Return the number of the range that has all rows of a chunk, or the kind of its lines."""
        segment = self.segment
        first = number * segment.chunk_rows
        last = min(first + segment.chunk_rows, segment.rows)
        for place, held in enumerate(self.ranges):
            if held.first <= first and last <= held.last:
                return place
        tried = [(start, end) for start, end, *_ in segment.tried]
        changed = self._meets([(0, segment.next), *segment.taken, *tried], number)
        return CHANGED_LINES if changed else PLAIN_LINES

    def _meets(self, spans: Collection[Span], number: int) -> bool:
        """Return True if a row of a chunk is in one of the spans."""
        first = number * self.segment.chunk_rows
        return any(start < first + self.segment.chunk_rows and end > first for start, end in spans)

    def _as_they_are(self, texts: list[tuple[int, memoryview]], index: SegmentIndex) -> bytes:
        """Return the lines of the wanted jobs of chunks, with the changes that the manifest has."""
        names: dict[str, str] = {}
        try:
            found = [
                job_of_row(self.segment, self.ranges, *row)
                for number, text in texts
                for row in decode_chunk(bytes(text), number, self.segment, index, names)
            ]
        except InvalidBlobError as error:
            raise self._failed(error) from None
        wanted = [job for job in found if job is not None and (not self.statuses or job.status in self.statuses)]
        return SEPARATOR.join(map(encode_job, wanted))

    async def _read(self, wanted: Sequence[int], found: list[tuple[SegmentIndex, Texts]]) -> None:
        """Read the index, and the bytes of the wanted chunks."""
        storage = connect_storage(self.url)
        assert isinstance(storage, SupportsObjects)  # so it was when the read was planned
        reader = SegmentReader(storage, Observers(SystemClock()), call_timeout=DEADLINE)

        async def read() -> tuple[SegmentIndex, Texts]:
            index, texts = await reader.index(self.name, self.segment), {}
            for first, last in joined((number, number + 1) for number in wanted):
                data = memoryview(await reader.text(self.name, index, first, last - 1))
                start = index.chunks[first].offset
                for number in range(first, last):
                    begin, end = index.bytes_of(number, number)
                    texts[number] = data[begin - start : end - start]
            return index, texts

        try:
            found.append(
                await read_until(DEADLINE, read, SystemEntropy(), f"{self.queue}: segment {FOLDER}{self.name}")
            )
        finally:
            if isinstance(storage, SupportsRelease):
                await storage.release()


def _portions(texts: Iterable[memoryview]) -> Iterator[bytes]:
    """Join texts that follow each other to texts of about the size of a batch."""
    some: list[memoryview] = []
    size = 0
    for text in texts:
        some.append(text)
        size += len(text)
        if size >= BATCH_BYTES:
            yield b"".join(some)
            some, size = [], 0
    if some:
        yield b"".join(some)


def rows_of(queue: FleetQueue, header: QueueState, job_filter: JobFilter) -> list[SegmentRows]:
    """Return the rows of the wanted segments of a queue.

    Args:
        queue: the queue.
        header: of one of its versions.
        job_filter: the wanted jobs.

    Raises:
        InvalidBlobError: the storage of the queue cannot hold segments.
    """
    if header.segments and not isinstance(queue.storage, SupportsObjects):
        raise InvalidBlobError(f"{queue.name}: the queue keeps jobs in segments, which this storage cannot read")
    statuses = frozenset(map(JobStatus, job_filter.statuses or ()))
    found = []
    for name, segment in header.segments.items():
        ranges = tuple(each for each in header.ranges.values() if each.segment == name)
        if job_filter.entrypoints is not None and segment.entrypoint not in job_filter.entrypoints:
            continue
        first = min([segment.next, *(each.first for each in ranges)])
        chunks = segment.chunk_of(first), segment.chunks
        rows = SegmentRows(queue.name, absolute(queue.url), name, segment, ranges, statuses, chunks)
        if rows.counted():
            found.append(rows)
    return found
