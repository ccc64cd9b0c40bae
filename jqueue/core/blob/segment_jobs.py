"""The jobs in the segments of one version of a queue, read piece by piece, and their numbers.

Segments never change, and a segment that has left the manifest is kept for an hour. So a version can be read to its end
while other versions follow it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Self, TypeVar

from jqueue.core.blob.segment_census import SegmentCensus
from jqueue.core.blob.segment_damage import reason_of
from jqueue.core.blob.segment_reader import DAMAGED, Rows, SegmentReader
from jqueue.core.lazy_state import Looked, Noticed
from jqueue.core.tasks import read_until
from jqueue.domain.errors import JobsUnreadableError, JQueueError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.models import QueueState
from jqueue.domain.range_jobs import in_progress, with_tries
from jqueue.domain.ranges import Range
from jqueue.domain.segment_index import SegmentIndex
from jqueue.domain.segments import FOLDER, RowKey, Segment
from jqueue.domain.stats import Census
from jqueue.ports.clock import Entropy

PIECE_BYTES = 1 << 20
"""Number of bytes of rows that are read at once. A chunk is never cut."""

MOST_AHEAD = 8
"""Largest number of chunks of each segment that are read at once when jobs come in order. The first are read alone."""

FOUND_KEPT = 64
"""Number of jobs found by their ids that are remembered: a page may show one of them every second."""

Answer = TypeVar("Answer")
Piece = tuple[str, Rows]
"""The name of a segment, and a chunk of it."""


class RowSource:
    """Reads the rows of one queue, of any of its versions.

    Args:
        reader: reads the segments.
        entropy: draws the pauses between failed reads.

    Attributes:
        census: counts the rows.
        found: the segment, the row and the job of ids that were looked up lately.
    """

    def __init__(self, reader: SegmentReader, entropy: Entropy) -> None:
        self.reader = reader
        self.entropy = entropy
        self.census = SegmentCensus(reader)
        self.found: OrderedDict[str, tuple[str, int, JobRecord]] = OrderedDict()

    def jobs_of(self, header: QueueState, deadline: float) -> SegmentJobs:
        """Return the jobs in the segments of one version.

        Args:
            header: its state without its jobs.
            deadline: maximum seconds for each request to the store, with its repetitions.
        """
        return SegmentJobs(header.segments, header.ranges, self, deadline)

    def note_found(self, name: str, row: int, job: JobRecord) -> None:
        """Remember a job that was looked up by its id."""
        self.found[job.id] = name, row, job
        while len(self.found) > FOUND_KEPT:
            self.found.popitem(last=False)


@dataclass(slots=True)
class SegmentJobs:
    """The jobs in the segments of one version of a queue.

    Attributes:
        segments: the manifest of that version.
        ranges: the claims of ranges in that version.
        source: reads the rows.
        deadline: maximum seconds for each request to the store, with its repetitions.
        looked, noticed: as in `JobRows.telling`.
    """

    segments: Mapping[str, Segment] = field(repr=False)
    ranges: Mapping[str, Range] = field(repr=False)
    source: RowSource = field(repr=False)
    deadline: float
    looked: Looked | None = field(default=None, repr=False)
    noticed: Noticed | None = field(default=None, repr=False)

    def telling(self, looked: Looked | None = None, noticed: Noticed | None = None) -> Self:
        """As in `JobRows`."""
        return replace(self, looked=looked or self.looked, noticed=noticed or self.noticed)

    async def rows(
        self, statuses: frozenset[JobStatus], entrypoints: frozenset[str], prefix: str
    ) -> AsyncGenerator[JobRecord, None]:
        """As in `JobRows`.

        Raises:
            JobsUnreadableError: at the end, if segments are missing or damaged.
            StorageError: the store failed until the deadline.
        """
        chosen = self._of(entrypoints)
        if statuses and JobStatus.QUEUED not in statuses:
            in_progress_here = {each.segment for each in self.ranges.values() if JobStatus.IN_PROGRESS in statuses}
            chosen = {name: each for name, each in chosen.items() if name in in_progress_here}
        damaged: dict[str, str] = {}
        async with aclosing(_one_ahead(self._pieces(chosen, prefix, damaged))) as pieces:
            async for name, rows in pieces:
                for row, its in rows:
                    job = self._job(name, row, its) if its.id.startswith(prefix) else None
                    if job is not None and (not statuses or job.status in statuses):
                        yield job
        if damaged:
            raise JobsUnreadableError(damaged)

    async def ids(self, prefix: str) -> AsyncGenerator[str, None]:
        """As in `JobRows`."""
        damaged: dict[str, str] = {}
        reading = self.source.reader.ids
        for name, segment in self.segments.items():
            try:
                index = await self._index(name, segment)
                for numbers in pieces_of(segment, index, self._held(name)):
                    self._tell(segment, numbers)
                    for row, job_id in await self._patiently(name, partial(reading, name, segment, index, numbers)):
                        if job_id.startswith(prefix) and self._is_there(name, row):
                            yield job_id
            except DAMAGED as error:
                self._note(damaged, name, error)
        if damaged:
            raise JobsUnreadableError(damaged)

    async def find(self, job_id: str) -> JobRecord | None:
        """As in `JobRows`.

        Raises:
            JobsUnreadableError: a segment that may hold the job is missing or damaged.
            StorageError: the store failed until the deadline.
        """
        known = self.source.found.get(job_id)
        if known is not None and (there := self._job(*known)) is not None:
            return there
        damaged: dict[str, str] = {}
        for name, segment in self.segments.items():
            try:
                index = await self._index(name, segment)
                for row in index.ids.find(job_id):
                    if not self._is_there(name, row):
                        continue
                    job = await self._row(name, segment, index, row)
                    if job.id == job_id:
                        self.source.note_found(name, row, job)
                        return self._job(name, row, job)
            except DAMAGED as error:
                self._note(damaged, name, error)
        if damaged:
            raise JobsUnreadableError(damaged)
        return None

    async def count(self, census: Census, deadline: float | None = None) -> None:
        """As in `JobRows`."""
        seconds = self.deadline if deadline is None else deadline
        await self.source.census.count(self.segments, self.ranges.values(), census, self.source.entropy, seconds)

    async def in_order(
        self, entrypoints: frozenset[str] = frozenset(), *, scheduled: bool
    ) -> AsyncGenerator[JobRecord, None]:
        """As in `JobRows`. Segments are read chunk by chunk, and only when their next row comes up."""
        chosen = {name: each for name, each in self._of(entrypoints).items() if each.scheduled == scheduled}
        heads = [(segment.head.place(scheduled=scheduled), name) for name, segment in chosen.items()]
        heapify(heads)
        following: dict[str, AsyncGenerator[tuple[RowKey, JobRecord], None]] = {}
        upcoming: dict[str, JobRecord] = {}
        damaged: dict[str, str] = {}
        try:
            while heads:
                _, name = heappop(heads)
                if name in upcoming:
                    yield upcoming.pop(name)
                else:
                    following[name] = self._keyed(name, chosen[name], damaged)
                if (found := await anext(following[name], None)) is not None:
                    upcoming[name] = found[1]
                    heappush(heads, (found[0].place(scheduled=scheduled), name))
        finally:
            for each in following.values():
                await each.aclose()
        if damaged:
            raise JobsUnreadableError(damaged)

    async def _keyed(
        self, name: str, segment: Segment, damaged: dict[str, str]
    ) -> AsyncGenerator[tuple[RowKey, JobRecord], None]:
        """Yield the waiting jobs of a segment with their keys. Note what is missing or damaged."""
        census = self.source.census
        try:
            index = await self._patiently(name, lambda: census.outline(name, segment))
            numbers = range(segment.chunk_of(segment.next), segment.chunks)
            left, several = [each for each in numbers if not segment.is_chunk_taken(each)], 1
            while left:
                read, left = left[:several], left[several:]
                several = min(2 * several, MOST_AHEAD)
                for rows in await self._chunks(name, segment, index, read):
                    for row, its in rows:
                        if not segment.is_taken(row):
                            job = with_tries(its, segment.tries_of(row))
                            since = (job.run_at or job.created_at).timestamp()
                            yield RowKey(job.priority, job.sequence, since), job
        except DAMAGED as error:
            self._note(damaged, name, error)

    def _of(self, entrypoints: frozenset[str]) -> Mapping[str, Segment]:
        """Return the segments of some entrypoints; all if there are none."""
        if not entrypoints:
            return self.segments
        return {name: each for name, each in self.segments.items() if each.entrypoint in entrypoints}

    async def _pieces(
        self, segments: Mapping[str, Segment], prefix: str, damaged: dict[str, str]
    ) -> AsyncGenerator[Piece, None]:
        """Yield chunks of segments. Note what is missing or damaged."""
        for name, segment in segments.items():
            try:
                index = await self._index(name, segment)
                for numbers in pieces_of(segment, index, self._held(name)):
                    for rows in await self._chunks(name, segment, index, numbers, prefix):
                        yield name, rows
            except DAMAGED as error:
                self._note(damaged, name, error)

    async def _chunks(
        self, name: str, segment: Segment, index: SegmentIndex, numbers: Sequence[int], prefix: str = ""
    ) -> list[Rows]:
        """Return the rows of some chunks."""
        reading = self.source.reader.chunks
        found = await self._patiently(name, lambda: reading(name, segment, index, numbers, prefix))
        self._tell(segment, numbers)
        return [rows for _, rows in found]

    def _tell(self, segment: Segment, numbers: Sequence[int]) -> None:
        if self.looked is not None:
            self.looked(sum(min(segment.chunk_rows, segment.rows - each * segment.chunk_rows) for each in numbers))

    def _note(self, damaged: dict[str, str], name: str, error: JQueueError) -> None:
        suffix, why = FOLDER + name, reason_of(error)
        damaged[suffix] = why
        if self.noticed is not None:
            self.noticed(suffix, why)

    async def _row(self, name: str, segment: Segment, index: SegmentIndex, row: int) -> JobRecord:
        """Return the job of a row."""
        reading, chunk = self.source.reader.chunks, segment.chunk_of(row)
        [(_, [(_, job)])] = await self._patiently(
            name, lambda: reading(name, segment, index, [chunk], only={chunk: [row]})
        )
        return job

    def _held(self, name: str) -> list[Range]:
        """Return the ranges of a segment that are claimed."""
        return [each for each in self.ranges.values() if each.segment == name]

    def _is_there(self, name: str, row: int) -> bool:
        """Return True if the job of a row waits, or is in progress in a range."""
        segment = self.segments.get(name)
        return segment is not None and (not segment.is_taken(row) or any(each.has(row) for each in self._held(name)))

    def _job(self, name: str, row: int, job: JobRecord) -> JobRecord | None:
        """Return the job of a row, which waits or is in progress in a range; None if it is elsewhere, or has left."""
        segment = self.segments.get(name)
        return None if segment is None else job_of_row(segment, self._held(name), row, job)

    async def _index(self, name: str, segment: Segment) -> SegmentIndex:
        reading = self.source.reader.index
        return await self._patiently(name, lambda: reading(name, segment))

    async def _patiently(self, name: str, read: Callable[[], Awaitable[Answer]]) -> Answer:
        return await read_until(self.deadline, read, self.source.entropy, f"segment {FOLDER}{name}")


def job_of_row(segment: Segment, held: Sequence[Range], row: int, job: JobRecord) -> JobRecord | None:
    """Return the job of a row, which waits or is in progress in a range; None if it is elsewhere, or has left.

    Args:
        segment: the entry of the segment in the manifest.
        held: the claims of ranges of the segment.
        row: the number of the row.
        job: the job on its line.
    """
    if not segment.is_taken(row):
        return with_tries(job, segment.tries_of(row))
    return next((in_progress(job, each) for each in held if each.has(row)), None)


def pieces_of(segment: Segment, index: SegmentIndex, ranges: Sequence[Range]) -> list[list[int]]:
    """Return the numbers of the chunks that have waiting rows or rows of ranges, in pieces that are read at once."""
    in_ranges = {
        chunk for each in ranges for chunk in range(segment.chunk_of(each.first), segment.chunk_of(each.last - 1) + 1)
    }
    pieces: list[list[int]] = []
    size = PIECE_BYTES
    for number in range(segment.chunks):
        if number not in in_ranges and segment.is_chunk_taken(number):
            continue
        start, stop = index.bytes_of(number, number)
        if size + stop - start > PIECE_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(number)
        size += stop - start
    return pieces


async def _one_ahead(pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
    """Yield what a generator yields, while it prepares the next piece."""

    async def following() -> Piece | None:
        return await anext(pieces, None)

    task = asyncio.create_task(following(), name="jqueue-rows")
    try:
        while (piece := await task) is not None:
            task = asyncio.create_task(following(), name="jqueue-rows")
            yield piece
    finally:
        task.cancel()
        await asyncio.wait([task])
        await pieces.aclose()
