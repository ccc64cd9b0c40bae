"""A call that names segments in one commit: jobs in them that may be in the queue already are given one by one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import chain

from jqueue.core.blob.segment_columns import SegmentColumns
from jqueue.core.blob.segment_object import EncodedSegment, encoding_columns
from jqueue.core.blob.segment_reader import DAMAGED, Rows
from jqueue.core.blob.segment_writer import row_of
from jqueue.core.blob.segments import Segments
from jqueue.core.engine import Engine
from jqueue.core.tasks import in_turns
from jqueue.core.values import ValueObjects
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job import JobRecord
from jqueue.domain.operations import BulkConflicts, EnqueueSegments, NewJob, NewSegment, Preparation
from jqueue.domain.operations.bulk import MOST_CONFLICTS, Row, on_conflict_of
from jqueue.domain.segment_index import SegmentIndex

CHUNKS_AT_ONCE = 16
"""Number of chunks of a segment that are read at once."""

MOST_SPANS = 1000
"""Number of spans of rows taken from a segment above which it is written again: the manifest has each of them."""


class SegmentCommit:
    """A call that names segments in one commit.

    Args:
        engine: will commit it.
        segments: the segments of the engine.
        objects: repeats requests that fail.
        preparation: has the limits of the queue.
        seconds: time within which the store must take an object.

    Attributes:
        until: time by which the call must end, on the clock of the event loop; infinite while jobs still come.
    """

    def __init__(
        self, engine: Engine, segments: Segments, objects: ValueObjects, preparation: Preparation, seconds: float
    ) -> None:
        self._engine = engine
        self._segments, self._sizes = segments, segments.writer.sizes
        self._objects = objects
        self._preparation = preparation
        self._seconds = seconds
        self.until = math.inf
        self._few_given = 0  # number of jobs that were never in segments

    @property
    def seconds_left(self) -> float:
        """Seconds within which the next answer of the store must come."""
        return max(0.0, min(self._seconds, self.until - asyncio.get_running_loop().time()))

    @property
    def _enqueue_bytes(self) -> int:
        return self._preparation.limits.enqueue_bytes

    async def ready(self, operation: EnqueueSegments) -> EnqueueSegments:
        """Return the operation for its first try.

        Raises:
            InvalidJobError: too many jobs must be added one by one.
            StorageError: the store failed.
        """
        self._few_given = len(operation.one_by_one)
        return await self._compared(await self._pulled(operation, await in_turns(operation.among_themselves())))

    async def again(self, operation: EnqueueSegments, why: BulkConflicts) -> EnqueueSegments:
        """Return the operation for another try. Errors are as for `ready`."""
        if not why.stale:
            return await self._compared(await self._pulled(operation, why.rows))
        queue, floor = self._engine.known_queue, self._engine.draft.header.attempt_floor
        several = [
            await self._rewritten(each) if each.is_stale(floor, queue) else [each] for each in operation.segments
        ]
        return await self._compared(replace(operation, segments=list(chain.from_iterable(several))))

    async def _compared(self, operation: EnqueueSegments) -> EnqueueSegments:
        """Compare hashes with those of segments in the queue, with turns for the event loop.

        The commit does the same for segments that are new by then, or whose index could not be read.
        """
        if any(table is not None for each in operation.segments for table in each.tables):
            rows, reader = self._engine.draft.jobs.rows, self._segments.reader
            for name, segment in list(rows.segments.items()):
                index = rows.indexes.get(name)
                if index is None:
                    read = partial(reader.index, name, segment)
                    try:
                        index = await self._objects.retried(read, self.seconds_left, reads=True)
                    except DAMAGED:
                        continue
                    self._engine.draft.jobs.rows.load_index(name, index)
                await in_turns(operation.comparing(name, index))
        return operation

    async def _pulled(self, operation: EnqueueSegments, rows: Collection[Row]) -> EnqueueSegments:
        """Return the operation with the jobs of some rows one by one."""
        if not rows:
            return operation
        if len(operation.one_by_one) - self._few_given + len(rows) > MOST_CONFLICTS:
            raise InvalidJobError(
                f"more than {MOST_CONFLICTS} of these jobs have an id or a unique key of another one, in the queue or "
                "in the call: split the call into smaller ones, or leave these jobs out"
            )
        found = {}
        for each in operation.segments:
            wanted = {row for name, row in rows if name == each.name}
            for row, job in await self._jobs_of(each, sorted({each.segment.chunk_of(row) for row in wanted})):
                if row in wanted:
                    found[each.name, row] = self._single_of(each, row, job)
        pulled = operation.pulling(found)
        several = [
            await self._rewritten(each) if len(each.taken_spans) > MOST_SPANS else [each] for each in pulled.segments
        ]
        return replace(pulled, segments=list(chain.from_iterable(several)))

    async def _rewritten(self, new: NewSegment) -> list[NewSegment]:
        """Write a segment again without the rows taken, for the queue as it is known now; none if no row is left."""
        columns, first = _columns_of(new), new.segment
        queue, floor = self._engine.known_queue, self._engine.draft.header.attempt_floor
        async for row, job in self._all_jobs_of(new):
            if row not in new.taken:
                changed = job.evolve(attempt=floor, attempts_before=floor) if new.given else job
                columns.add(row_of(changed), new.modes[row] if new.modes else 0)
        if not len(columns):
            return []
        encoded = await self._encoded(columns, queue, first.entrypoint, scheduled=first.scheduled)
        made = await self._create(encoded, queue, new.given, bytes(columns.modes))
        return [replace(made, behind=new.behind, created_at=new.created_at)]

    async def _jobs_of(self, new: NewSegment, chunks: Sequence[int]) -> list[tuple[int, JobRecord]]:
        """Return the number and the job of each row in some chunks of a new segment."""
        if not chunks:
            return []

        async def read() -> list[tuple[int, Rows]]:
            reader, segment = self._segments.reader, new.segment
            index = await reader.index(new.name, segment) if new.index is None else new.index
            return await reader.chunks(new.name, segment, index, chunks)

        found = await self._objects.retried(read, self.seconds_left, reads=True)
        return [row for _, rows in found for row in rows]

    async def _all_jobs_of(self, new: NewSegment) -> AsyncIterator[tuple[int, JobRecord]]:
        """Yield the number and the job of each row of a new segment, which is read in parts."""
        whole = await self._with_index(new)
        for chunks in _parts_of(new):
            for found in await self._jobs_of(whole, chunks):
                yield found

    async def _lines_of(self, new: NewSegment) -> AsyncIterator[tuple[Rows, list[bytes]]]:
        """Yield the rows of each chunk of a new segment, with their lines."""
        index = (await self._with_index(new)).index
        assert index is not None
        for chunks in _parts_of(new):
            read = partial(self._read_lines, new, index, chunks)
            for found in await self._objects.retried(read, self.seconds_left, reads=True):
                yield found

    async def _read_lines(
        self, new: NewSegment, index: SegmentIndex, chunks: Sequence[int]
    ) -> list[tuple[Rows, list[bytes]]]:
        async with aclosing(self._segments.reader.lines(new.name, new.segment, index, chunks)) as several:
            return [each async for each in several]

    async def _with_index(self, new: NewSegment) -> NewSegment:
        """Return a new segment with its index."""
        if new.index is not None:
            return new
        reader = self._segments.reader
        index = await self._objects.retried(lambda: reader.index(new.name, new.segment), self.seconds_left, reads=True)
        return replace(new, index=index)

    def _single(self, job: JobRecord, given: bool, mode: int) -> tuple[int, NewJob]:
        """Return the number of the job of a row, and the enqueue that adds it."""
        return job.sequence, NewJob(job, given, None, on_conflict_of(mode), self._enqueue_bytes)

    def _single_of(self, new: NewSegment, row: int, job: JobRecord) -> tuple[int, NewJob]:
        """Return the number of the job of a row of a new segment, and the enqueue that adds it."""
        number, single = self._single(job, new.given, new.modes[row] if new.modes else 0)
        return new.behind + number, single

    async def _encoded(
        self, columns: SegmentColumns, queue: str, entrypoint: str, *, scheduled: bool
    ) -> EncodedSegment:
        rows = self._sizes.chunk_rows
        return await in_turns(encoding_columns(columns, queue, entrypoint, scheduled=scheduled, chunk_rows=rows))

    async def _create(self, encoded: EncodedSegment, queue: str, given: bool, modes: bytes) -> NewSegment:
        content, segment = bytes(encoded.content), encoded.entry
        index = encoded.table if given or segment.keys else None
        name = await self._objects.retried(lambda: self._segments.writer.create(content), self.seconds_left)
        return NewSegment(name, queue, segment, index, given, modes, ids_as_own=encoded.ids_as_own)


def _columns_of(new: NewSegment) -> SegmentColumns:
    """Return columns for the rows of a new segment, which is written again."""
    return SegmentColumns(0.0, own_ids=new.segment.own_ids, given=new.given)


def _parts_of(new: NewSegment) -> Iterator[Sequence[int]]:
    """Yield the numbers of the chunks of a new segment, some at a time."""
    chunks = new.segment.chunks
    return (range(first, min(first + CHUNKS_AT_ONCE, chunks)) for first in range(0, chunks, CHUNKS_AT_ONCE))
