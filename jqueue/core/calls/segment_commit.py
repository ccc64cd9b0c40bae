"""A call that names segments in one commit: jobs in them that may be in the queue already are given one by one.

If they are many, they are compared with the rows of segments first: see `jqueue.core.calls.compared_rows`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeVar

from jqueue.core.blob.engine import CommitEngine
from jqueue.core.blob.segment_columns import SegmentColumns
from jqueue.core.blob.segment_object import EncodedSegment, encoding_columns
from jqueue.core.blob.segment_reader import Rows
from jqueue.core.blob.segment_writer import row_of
from jqueue.core.blob.segments import Segments
from jqueue.core.calls.compared_rows import CHUNKS_AT_ONCE, ComparedRows
from jqueue.core.calls.value_objects import ValueObjects
from jqueue.core.engine.slices import in_turns
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job_table import unpacked
from jqueue.domain.models import Job
from jqueue.domain.operations import BulkConflicts, EnqueueSegments, NewJob, NewSegment, Preparation
from jqueue.domain.operations.bulk import on_conflict_of
from jqueue.domain.operations.known_rows import Row, inside
from jqueue.domain.segment_index import SegmentIndex
from jqueue.domain.segments import Span, joined

Answer = TypeVar("Answer")

MOST_CONFLICTS = 1000
"""Number of rows whose jobs may be in the queue already above which they are compared with the rows in the queue."""

MOST_SPANS = 1000
"""Number of spans of rows that are left out of a segment above which it is written again."""


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
        compared: its jobs that are in the queue already, or repeat each other, if they are many.
        shows_jobs: True if the answer shows them.
        few: number of jobs that may be in the queue already above which they are compared.
        most_alone: largest number of jobs in segments that are looked at one by one.
        most_spans: number of spans of rows that are left out of a segment above which it is written again.
    """

    shows_jobs = True

    def __init__(
        self, engine: CommitEngine, segments: Segments, objects: ValueObjects, preparation: Preparation, seconds: float
    ) -> None:
        self._engine = engine
        self._segments, self._sizes = segments, segments.writer.sizes
        self._objects = objects
        self._preparation = preparation
        self._seconds = seconds
        self.until = math.inf
        self.compared = ComparedRows(engine, segments, self._retried, shows_jobs=self.shows_jobs)
        self.few, self.most_alone, self.most_spans = MOST_CONFLICTS, preparation.limits.batch_size, MOST_SPANS
        self._few_given = 0  # number of jobs that were never in segments

    @property
    def seconds_left(self) -> float:
        """Seconds within which the next answer of the store must come."""
        return max(0.0, min(self._seconds, self.until - asyncio.get_running_loop().time()))

    @property
    def _enqueue_bytes(self) -> int:
        return self._preparation.limits.enqueue_bytes

    async def _retried(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        return await self._objects.retried(call, self.seconds_left, reads=True)

    async def ready(self, operation: EnqueueSegments) -> EnqueueSegments:
        """Return the operation for its first try.

        Raises:
            InvalidJobError: too many jobs must be looked at one by one.
            StorageError: the store failed.
        """
        self._few_given = len(operation.one_by_one)
        ids, keys = await in_turns(operation.among_themselves())
        alone = {*ids, *keys}
        if len(alone) > self.few:
            operation, alone = await self.compared.leave_out_repeats(operation, ids, keys)
        return await self._looked_up(await self._pulled(operation, alone))

    async def again(self, operation: EnqueueSegments, why: BulkConflicts) -> EnqueueSegments:
        """Return the operation for another try. Errors are as for `ready`."""
        if why.stale:
            return await self._renewed(operation)
        if len(why.rows) <= self.few:
            return await self._pulled(operation, why.rows)
        alone = await self.compared.compare(operation, why.rows)
        return await self._divided(await self._pulled(operation, alone))

    async def _looked_up(self, operation: EnqueueSegments) -> EnqueueSegments:
        """Compare the rows with those in the queue, as it is known, if many have the same hashes."""
        await self.compared.match(operation)
        if self.compared.hashes_shared(operation) <= self.few:
            return operation
        return await self._divided(await self._pulled(operation, await self.compared.compare(operation)))

    async def _pulled(self, operation: EnqueueSegments, rows: Collection[Row]) -> EnqueueSegments:
        """Return the operation with the jobs of some rows one by one."""
        alone = len(operation.one_by_one) - self._few_given
        if rows and alone + len(rows) > max(self.few, self.most_alone):
            raise InvalidJobError(
                f"more than {max(self.few, self.most_alone)} of these jobs replace another, or have an id or a unique "
                "key of jobs in progress or of several of them: leave them out, or enqueue at most "
                f"{self._preparation.limits.batch_size} in a call"
            )
        found = {}
        for each in operation.segments if rows else ():
            wanted = {row for name, row in rows if name == each.name}
            for row, job in await self._jobs_of(each, sorted({each.segment.chunk_of(row) for row in wanted})):
                if row in wanted:
                    found[each.name, row] = self._single_of(each, row, job)
        return operation.pulling(found) if found else operation

    async def _divided(self, operation: EnqueueSegments) -> EnqueueSegments:
        """Write segments again whose rows are left out here and there: the manifest would have to name each of them.

        The jobs that are in the queue already get a segment of their own, as they may have left by the commit.
        """
        known: dict[str, list[Span]] = {}
        for (name, *_), shared in operation.shared.items():
            known.setdefault(name, []).extend(shared.row_spans)
        segments: list[NewSegment] = []
        for each in operation.segments:
            here = joined(known.get(each.name, ()))
            if len(joined([*here, *each.taken_spans])) > self.most_spans:
                segments += await self._parts(each, here)
            else:
                segments.append(each)
            await asyncio.sleep(0)
        if len(segments) == len(operation.segments):
            return operation
        divided = replace(operation, segments=segments)
        await self.compared.match(divided)
        return await self._pulled(divided, await self.compared.compare(divided))

    async def _parts(self, new: NewSegment, known: Sequence[Span]) -> list[NewSegment]:
        """Write a segment again: the jobs that are in the queue already, and the others, without the rows taken."""
        is_known = inside(known)
        parts = _columns_of(new), _columns_of(new)
        async for row, job in self._all_jobs_of(new):
            if row not in new.taken:
                parts[is_known(row)].add(row_of(job), new.modes[row] if new.modes else 0)
        made = []
        for columns in parts:
            if len(columns):
                segment, queue = new.segment, self._engine.known_queue
                encoded = await self._encoded(columns, queue, segment.entrypoint, scheduled=segment.scheduled)
                created = await self._create(encoded, queue, new.given, bytes(columns.modes))
                made.append(replace(created, behind=new.behind, created_at=new.created_at))
        return made

    async def _renewed(self, operation: EnqueueSegments) -> EnqueueSegments:
        """Write segments again: for the queue that another writer has made, or with a larger first attempt."""
        queue, floor = self._engine.known_queue, self._engine.draft.header.attempt_floor
        segments, names = [], {}
        for each in operation.segments:
            if not each.is_stale(floor, queue):
                segments.append(each)
                continue
            columns, first = _columns_of(each), each.segment
            async for row, job in self._all_jobs_of(each):
                changed = job.evolve(attempt=floor, attempts_before=floor) if each.given else job
                columns.add(row_of(changed), each.modes[row] if each.modes else 0)
            encoded = await self._encoded(columns, queue, first.entrypoint, scheduled=first.scheduled)
            made = await self._create(encoded, queue, each.given, each.modes)
            names[each.name] = made.name
            segments.append(
                replace(
                    made,
                    taken=each.taken,
                    taken_spans=each.taken_spans,
                    behind=each.behind,
                    created_at=each.created_at,
                )
            )
        shared = {(names.get(new, new), name, of_keys): rows for (new, name, of_keys), rows in operation.shared.items()}
        return replace(operation, segments=segments, shared=shared)

    async def _jobs_of(self, new: NewSegment, chunks: Sequence[int]) -> list[tuple[int, Job]]:
        """Return the number and the job of each row in some chunks of a new segment."""
        if not chunks:
            return []

        async def read() -> list[tuple[int, Rows]]:
            reader, segment = self._segments.reader, new.segment
            index = await reader.index(new.name, segment) if new.index is None else new.index
            return await reader.chunks(new.name, segment, index, chunks)

        found = await self._objects.retried(read, self.seconds_left, reads=True)
        return [(row, unpacked(job_id, entry)) for _, rows in found for row, job_id, entry in rows]

    async def _all_jobs_of(self, new: NewSegment) -> AsyncIterator[tuple[int, Job]]:
        """Yield the number and the job of each row of a new segment, which is read in parts."""
        whole = await self._with_index(new)
        for chunks in _parts_of(new):
            for found in await self._jobs_of(whole, chunks):
                yield found

    async def _lines_of(self, new: NewSegment) -> AsyncIterator[tuple[Rows, list[bytes]]]:
        """Yield the rows of each chunk of a new segment, packed, with their lines."""
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

    def _single(self, job: Job, given: bool, mode: int) -> tuple[int, NewJob]:
        """Return the number of the job of a row, and the enqueue that adds it."""
        return job.sequence, NewJob(dict(job.__dict__), given, None, on_conflict_of(mode), self._enqueue_bytes)

    def _single_of(self, new: NewSegment, row: int, job: Job) -> tuple[int, NewJob]:
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
