"""A call that names segments in one commit: jobs in them that may be in the queue already are given one by one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from functools import partial

from jqueue.core.blob.segment_object import EncodedSegment, encoding_segment
from jqueue.core.blob.segment_reader import DAMAGED
from jqueue.core.blob.segment_staging import STAGED_BYTES, STAGED_ROWS, Group, JobGroups
from jqueue.core.blob.segments import Segments
from jqueue.core.engine import Engine
from jqueue.core.tasks import in_turns
from jqueue.core.values import ValueObjects
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job import JobRecord
from jqueue.domain.job_options import OnConflict
from jqueue.domain.operations import BulkConflicts, Enqueue, EnqueueSegments, NewSegment, Preparation
from jqueue.domain.operations.bulk import MOST_CONFLICTS, Row
from jqueue.domain.segment_index import SegmentIndex

CONFLICTS_LATE = "ids or unique keys of these jobs were taken, and nothing was done: repeat the call"
"""The error of a commit that added nothing, if that was not known in time for another try."""

CHUNKS_AT_ONCE = 16
"""Number of chunks of a segment that are read at once."""


class SegmentCommit:
    """A call that names segments in one commit.

    Args:
        engine: will commit it.
        segments: the segments of the engine.
        objects: repeats requests that fail.
        preparation: has the limits of the queue.
        seconds: time within which the store must take an object.
        on_conflict: see `Enqueue`.

    Attributes:
        until: time by which the call must end, on the clock of the event loop; infinite while jobs still come.
    """

    def __init__(
        self,
        engine: Engine,
        segments: Segments,
        objects: ValueObjects,
        preparation: Preparation,
        seconds: float,
        on_conflict: OnConflict = "return",
    ) -> None:
        self._engine = engine
        self._segments, self._sizes = segments, segments.writer.sizes
        self._objects = objects
        self._preparation = preparation
        self._seconds = seconds
        self._on_conflict = on_conflict
        self._modes: dict[int, OnConflict] = {}  # of jobs with another one, by their numbers in the call
        self.until = math.inf
        self._few_given = 0  # number of jobs that were never in segments

    @property
    def seconds_left(self) -> float:
        """Seconds within which the next answer of the store must come."""
        return max(0.0, min(self._seconds, self.until - asyncio.get_running_loop().time()))

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
        return await self._compared(await self._pulled(operation, why.rows))

    async def _compared(self, operation: EnqueueSegments) -> EnqueueSegments:
        """Compare hashes with those of segments in the queue, with turns for the event loop.

        The commit does the same for segments that are new by then, or whose index could not be read.
        """
        if any(each.index is not None for each in operation.segments):
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
            async for row, job in self._jobs_of(each, {each.segment.chunk_of(row) for row in wanted}):
                if row in wanted:
                    found[each.name, row] = self._single(job, each.given, each.behind)
        return operation.pulling(found)

    def _single(self, job: JobRecord, given: bool, behind: int = 0) -> tuple[int, Enqueue]:
        """Return the number of a job in the call, and the enqueue that adds it.

        Args:
            job: the job.
            given: True if the caller has chosen its id.
            behind: number to add to its own number.
        """
        number, most = behind + job.sequence, self._preparation.limits.enqueue_bytes
        return number, Enqueue.of(job, given, self._modes.get(number, self._on_conflict), most)

    async def _jobs_of(
        self, new: NewSegment, chunks: Iterable[int] | None = None
    ) -> AsyncIterator[tuple[int, JobRecord]]:
        """Yield the number and the job of each row in some chunks of a new segment, or in all."""
        reader, name, segment = self._segments.reader, new.name, new.segment
        numbers = sorted(range(segment.chunks) if chunks is None else chunks)
        if not numbers:
            return
        index = new.index or await self._index_of(new)
        for first in range(0, len(numbers), CHUNKS_AT_ONCE):
            read = partial(reader.chunks, name, segment, index, numbers[first : first + CHUNKS_AT_ONCE])
            for _, rows in await self._objects.retried(read, self.seconds_left, reads=True):
                for found in rows:
                    yield found

    async def _index_of(self, new: NewSegment) -> SegmentIndex:
        read = partial(self._segments.reader.index, new.name, new.segment)
        return await self._objects.retried(read, self.seconds_left, reads=True)

    async def _joined(self, new: Sequence[NewSegment]) -> list[NewSegment]:
        """Write the rows of several segments of a group again, as few large segments."""
        of_group: dict[Group, list[NewSegment]] = {}
        for each in new:
            group = Group(each.segment.entrypoint, each.segment.scheduled, each.given, each.created_at)
            of_group.setdefault(group, []).append(each)
        joined: list[NewSegment] = []
        jobs = JobGroups(STAGED_ROWS, STAGED_BYTES, STAGED_BYTES)
        for group, several in of_group.items():
            if len(several) == 1:
                joined += several
                continue
            for each in several:
                async for _, job in self._jobs_of(each):
                    jobs.extend(group, [job.evolve(sequence=each.behind + job.sequence) if each.behind else job])
                    for full in jobs.full():
                        joined.append(await self._written(*full))
            for rest in jobs.rest():
                joined.append(await self._written(*rest))
        return joined

    async def _written(self, group: Group, jobs: list[JobRecord]) -> NewSegment:
        """Encode and store a new segment."""
        return await self._create(group, await self._encoded(group, jobs))

    async def _encoded(self, group: Group, jobs: list[JobRecord]) -> EncodedSegment:
        """Encode jobs as a segment, and forget them."""
        rows = self._sizes.chunk_rows
        encoding = encoding_segment(jobs, scheduled=group.scheduled, own_ids=not group.given, chunk_rows=rows)
        encoded = await in_turns(encoding)
        jobs.clear()
        return encoded

    async def _create(self, group: Group, encoded: EncodedSegment) -> NewSegment:
        content, entry, index, _ = encoded
        name = await self._objects.retried(lambda: self._segments.writer.create(content), self.seconds_left)
        may_be_there = group.given or entry.keys
        return NewSegment(name, entry, index if may_be_there else None, group.given, created_at=group.created_at)
