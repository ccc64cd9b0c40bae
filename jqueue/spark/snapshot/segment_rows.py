"""The rows of a segment in a snapshot. The process that plans the read names them, and each task reads its own.

A segment without a wanted row is not named, and chunks without one are not read: the manifest tells.

Segments never change, so a task reads the rows of the version that was planned, however many versions followed it. The
planning process looks at the manifest only: it reads neither a row nor an index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Protocol

from jqueue.connect import connect_storage
from jqueue.core.blob.segment_object import decode_chunk
from jqueue.core.blob.segment_reader import DAMAGED, SegmentReader
from jqueue.core.observers import Observers
from jqueue.core.tasks import retried
from jqueue.domain.errors import InvalidBlobError, JQueueError, ObjectMissingError, StorageFatalError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.segments import FOLDER, Range, Segment, SegmentIndex, Span, job_of_row
from jqueue.ports.storage import SupportsObjects, SupportsRelease
from jqueue.runtime.system import SystemClock, SystemEntropy

DEADLINE = 120.0
"""Seconds for a read of a segment, with its repetitions. A task reads up to 64 MiB of one at once by default."""

READ_FOR_ONE = 2
"""Number of bytes that a task reads for one byte of the `size` of its rows: partitions with segments are larger."""

BATCH_ROWS = 8192
"""Number of jobs that become one batch of rows, about."""

Chunks = list[tuple[int, bytes]]
"""The number and the bytes of chunks."""


class NotesUnread(Protocol):
    """Takes note of segments that a task cannot read. It may be pickled."""

    def note(self, segment: str) -> bool:
        """Note a segment. Return False if the note would not be read."""


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
        notes: takes note of the segment if chunks cannot be read, which are left out then. None: they are an error.
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

    def jobs(self) -> Iterator[list[JobRecord]]:
        """Read the chunks, and yield the wanted jobs, about as many at a time as make a batch of rows.

        Raises:
            StorageFatalError: rows cannot be read, and nothing takes note of them.
            StorageError: the store failed.
        """
        wanted = self.wanted()
        if not wanted:
            return
        found: list[tuple[SegmentIndex, Chunks]] = []  # `asyncio.run` makes a text of a returned value
        try:
            asyncio.run(self._read(wanted, found))
        except DAMAGED as error:
            self._leave_out(error)
            return
        [(index, chunks)] = found
        some: list[JobRecord] = []
        for number, data in chunks:
            try:
                rows = decode_chunk(data, number, self.segment, index)
            except InvalidBlobError as error:
                self._leave_out(error)
                break
            jobs = (job_of_row(self.segment, self.ranges, row, job) for row, job in rows)
            some += [job for job in jobs if job is not None and self._has(job.status)]
            if len(some) >= BATCH_ROWS:
                yield some
                some = []
        if some:
            yield some

    def _leave_out(self, error: JQueueError) -> None:
        """Note that the segment cannot be read.

        Raises:
            StorageFatalError: nothing takes note of them.
            JQueueError: they could not be noted.
        """
        if self.notes is None or not self.notes.note(self.name):
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

    def _has(self, status: JobStatus) -> bool:
        """Return True if jobs with a status are wanted."""
        return not self.statuses or status in self.statuses

    def wanted(self) -> list[int]:
        """Return the numbers of the chunks that may have wanted jobs."""
        rows, waits = self.segment.chunk_rows, self._has(JobStatus.QUEUED)
        claimed = [each.span for each in self.ranges] if self._has(JobStatus.IN_PROGRESS) else []
        return [
            number
            for number in range(*self.chunks)
            if (waits and not self.segment.is_chunk_taken(number))
            or any(first < (number + 1) * rows and last > number * rows for first, last in claimed)
        ]

    async def _read(self, wanted: Sequence[int], found: list[tuple[SegmentIndex, Chunks]]) -> None:
        """Read the index, and the bytes of the wanted chunks."""
        storage = connect_storage(self.url)
        assert isinstance(storage, SupportsObjects)  # so it was when the read was planned
        reader = SegmentReader(storage, Observers(SystemClock()), call_timeout=DEADLINE)

        async def read() -> tuple[SegmentIndex, Chunks]:
            index = await reader.index(self.name, self.segment)
            async with aclosing(reader.parts(self.name, index, wanted)) as parts:
                return index, [part async for part in parts]

        try:
            found.append(
                await retried(
                    DEADLINE, read, SystemEntropy(), f"{self.queue}: segment {FOLDER}{self.name} could not be read"
                )
            )
        finally:
            if isinstance(storage, SupportsRelease):
                await storage.release()
