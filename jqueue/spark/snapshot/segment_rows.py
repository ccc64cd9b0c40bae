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

from jqueue.connect import open_storage
from jqueue.core.blob.segment_object import decode_chunk
from jqueue.core.blob.segment_reader import Rows, SegmentReader
from jqueue.core.observers import Observers
from jqueue.core.tasks import retried
from jqueue.domain.errors import InvalidBlobError, ObjectMissingError, StorageFatalError
from jqueue.domain.job import JobRecord
from jqueue.domain.segments import FOLDER, Range, Segment, SegmentIndex, Span, in_progress, with_tries
from jqueue.ports.storage import SupportsObjects, SupportsRelease
from jqueue.runtime.system import SystemClock, SystemEntropy

DEADLINE = 120.0
"""Seconds for a read of a segment, with its repetitions. A task reads up to 64 MiB of one at once by default."""

READ_FOR_ONE = 2
"""Number of bytes that a task reads for one byte of the `size` of its rows: partitions with segments are larger."""

BATCH_ROWS = 4096
"""Number of jobs that become one batch of rows, about."""

Run = tuple[int, int, Range | tuple[int, int]]
"""Rows of a segment: the first, the one behind the last, and their claim, or their numbers of claims and failures."""


@dataclass(frozen=True)
class SegmentRows:
    """Chunks of one segment that one task reads.

    Attributes:
        queue: name of the queue.
        url: any process can open the queue by it. It may hold secrets.
        name: of the segment.
        segment: its entry in the manifest.
        runs: the wanted rows, in order.
        chunks: number of the first chunk, and of the chunk behind the last.
        note: takes note of the segment if chunks cannot be read, which are left out then, and returns False if the note
            would not be read. None: they are an error.
    """

    queue: str
    url: str = field(repr=False)
    name: str
    segment: Segment = field(repr=False)
    runs: tuple[Run, ...] = field(repr=False)
    chunks: Span
    note: Callable[[str], bool] | None = field(default=None, repr=False)

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
        runs: dict[int, list[Run]] = {}
        for run in self.runs:
            for chunk in self.segment.chunks_of([run[:2]]):
                if self.chunks[0] <= chunk < self.chunks[1]:
                    runs.setdefault(chunk, []).append(run)
        jobs: list[JobRecord] = []
        try:
            for number, rows in self._chunks(sorted(runs)):
                low = number * self.segment.chunk_rows
                for first, end, state in runs[number]:
                    some = rows[max(0, first - low) : max(0, end - low)]
                    if isinstance(state, Range):
                        jobs += [in_progress(job, state) for job in some]
                    else:
                        jobs += some if state == (0, 0) else [with_tries(job, state) for job in some]
                if len(jobs) >= BATCH_ROWS:
                    yield jobs
                    jobs = []
        except StorageFatalError as error:
            if self.note is None or not self.note(self.name):
                reason, repair = f"could not be read: {error}", "restore it from a backup, or use `jqueue repair`"
                if isinstance(error, ObjectMissingError):
                    reason = f"does not exist. Load a table again that is older than an hour; otherwise {repair}"
                elif isinstance(error, InvalidBlobError):
                    reason = f"is damaged: {error}; {repair}"
                raise StorageFatalError(f"{self.queue}: segment {FOLDER}{self.name} {reason}") from None
        if jobs:
            yield jobs

    @property
    def _share_of_a_chunk(self) -> int:
        return max(1, self.segment.index // self.segment.chunks // READ_FOR_ONE)

    def _chunks(self, wanted: Sequence[int]) -> Iterator[tuple[int, Rows]]:
        """Read some chunks at once, and yield the number and the rows of each."""
        answer: list[tuple[SegmentIndex, list[tuple[int, bytes]]]] = []  # `asyncio.run` makes a text of what it returns

        async def read() -> None:
            storage = open_storage(self.url)
            assert isinstance(storage, SupportsObjects)  # so it was when the read was planned
            reader = SegmentReader(storage, Observers(SystemClock()), call_timeout=DEADLINE)

            async def once() -> None:
                index = await reader.index(self.name, self.segment)
                async with aclosing(reader.parts(self.name, index, wanted)) as parts:
                    answer[:] = [(index, [part async for part in parts])]

            failed = f"{self.queue}: segment {FOLDER}{self.name} could not be read"
            try:
                await retried(DEADLINE, once, SystemEntropy(), failed)
            finally:
                if isinstance(storage, SupportsRelease):
                    await storage.release()

        if wanted:
            asyncio.run(read())
            [(index, chunks)] = answer
            for number, data in chunks:
                yield number, decode_chunk(data, number, self.segment, index)
