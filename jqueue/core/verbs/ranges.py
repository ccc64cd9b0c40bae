"""The verbs of `SupportsRanges`: claim thousands of jobs of a segment as one, read them, and end their claim as one."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from jqueue.core.blob.engine import CommitEngine
from jqueue.core.blob.segment_reader import UNREADABLE, Rows, SegmentReader, reason_of
from jqueue.core.engine.engine import read_until
from jqueue.core.queue_base import QueueBase, nothing
from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidBlobError, InvalidJobError, JQueueError, SegmentDamagedError
from jqueue.domain.job_table import Packed, unpacked
from jqueue.domain.models import Job
from jqueue.domain.operations.ranges import ClaimRange, EndRange
from jqueue.domain.range_jobs import RangeClaim, RangeFailure, in_progress
from jqueue.domain.segment_index import SegmentIndex
from jqueue.domain.segments import FOLDER, Span, common, joined
from jqueue.ports.queue import SupportsRanges

T = TypeVar("T")

CHUNKS_AT_ONCE = 16
"""Number of chunks that are read at once."""


class RangeVerbs(QueueBase, SupportsRanges):
    """The verbs of `SupportsRanges`, for queues on one blob."""

    _engine: CommitEngine

    async def claim_range(
        self,
        entrypoint: str,
        rows: int,
        *,
        least: int = 1,
        inline: bool = False,
        claim_timeout: Duration | None = None,
        holder: str | None = None,
        deadline: Duration | None = None,
    ) -> RangeClaim | None:
        self.capabilities.require("ranges")
        operation = self._prepared(
            ClaimRange(entrypoint, rows, least=least, inline=inline, claim_timeout=claim_timeout, holder=holder)
        )
        [found] = await self._submit((operation,), deadline)
        return found[0] if found else None

    async def end_range(
        self,
        claim: RangeClaim,
        *,
        failed: Mapping[str, RangeFailure | BaseException | str | None] | None = None,
        returned: Iterable[str] = (),
        kept: Iterable[str] = (),
        nothing_done: bool = False,
        jobs: int | None = None,
        deadline: Duration | None = None,
    ) -> None:
        self.capabilities.require("ranges")
        operation = self._prepared(
            EndRange(claim, {} if failed is None else failed, returned, nothing_done, kept=kept, jobs=jobs)
        )
        await self._submit((operation,), deadline, convert=nothing)

    async def read_range(self, claim: RangeClaim, *, deadline: Duration | None = None) -> AsyncGenerator[Job, None]:
        seconds, held = self._seconds(deadline), _checked(claim).held
        async for rows in self.read_packed_range(claim, deadline=deadline):
            for job_id, packed in rows:
                job = in_progress(unpacked(job_id, packed), held)
                yield job if job.payload_object is None else await self._with_payload(job, seconds)

    async def read_packed_range(
        self, claim: RangeClaim, *, deadline: Duration | None = None
    ) -> AsyncGenerator[Sequence[tuple[str, Packed]], None]:
        """Yield the rows of a range, chunk by chunk: the id and the packed job of each, as before the claim.

        It is much faster than `read_range`, and loads no payloads from objects of their own. Errors are the same.
        """
        entry = _checked(claim).entry

        def read(reader: SegmentReader, index: SegmentIndex, numbers: range) -> Awaitable[list[tuple[int, Rows]]]:
            return reader.chunks(claim.segment, entry, index, numbers)

        async for chunks in self._read_chunks(claim, deadline, CHUNKS_AT_ONCE, read):
            for number, rows in chunks:
                yield _rows_in(claim.spans, rows, number * entry.chunk_rows)

    async def read_range_rows(
        self,
        claim: RangeClaim,
        chunks: int,
        parse: Callable[[int, bytes, Sequence[bytes]], T],
        *,
        deadline: Duration | None = None,
    ) -> AsyncGenerator[T, None]:
        """Yield what `parse` makes of the rows of a few chunks of a range. Errors are as for `read_range`.

        Args:
            claim: the claim of the range.
            chunks: number of chunks to read at once.
            parse: takes the number of their first row, the rows as they are stored, whose checksums are right, and
                the texts that `MARKS` stand for in them. Rows that are not in the range are among them. Chunks for
                which it raises InvalidBlobError cannot be read.
            deadline: as for `read_range`.
        """

        async def read(reader: SegmentReader, index: SegmentIndex, numbers: range) -> T:
            text = await reader.checked_text(claim.segment, index, numbers)
            return parse(numbers[0] * claim.entry.chunk_rows, text, index.texts)

        async for found in self._read_chunks(claim, deadline, chunks, read):
            yield found

    async def _read_chunks(
        self,
        claim: RangeClaim,
        deadline: Duration | None,
        at_once: int,
        read: Callable[[SegmentReader, SegmentIndex, range], Awaitable[T]],
    ) -> AsyncGenerator[T, None]:
        """Yield what `read` makes of the chunks of a range, given the numbers of a few of them.

        Chunks that cannot be read are left out. The error at the end tells their rows.
        """
        self.capabilities.require("ranges")
        assert self._engine.segments is not None
        name, entry, seconds = claim.segment, claim.entry, self._seconds(deadline)
        reader, entropy, what = self._engine.segments.reader, self.options.entropy, f"segment {FOLDER}{name}"
        groups, damaged = _groups_of(claim, at_once), list[range]()
        cause: JQueueError | None = None
        try:
            index = await read_until(seconds, partial(reader.index, name, entry, tables=False), entropy, what)
        except UNREADABLE as error:
            raise self._unreadable(claim, groups, error) from error
        while groups:
            numbers = groups.popleft()
            try:
                found = await read_until(seconds, partial(read, reader, index, numbers), entropy, what)
            except InvalidBlobError as error:
                if len(numbers) == 1:
                    damaged, cause = [*damaged, numbers], error
                else:
                    groups.extendleft(range(each, each + 1) for each in reversed(numbers))
            except UNREADABLE as error:
                raise self._unreadable(claim, [*damaged, numbers, *groups], error) from error
            else:
                yield found
        if cause is not None:
            raise self._unreadable(claim, damaged, cause) from cause

    def _unreadable(self, claim: RangeClaim, chunks: Iterable[range], cause: JQueueError) -> SegmentDamagedError:
        """Return the error that tells which rows of a range cannot be read. The next ranges are claimed without them.

        A missing segment need not be looked for again, as for a dequeue: while the claim lasts, the queue names it.
        """
        rows, found = claim.entry.chunk_rows, list(chunks)
        self._engine.draft.jobs.rows.doubt(claim.segment, (number for numbers in found for number in numbers))
        spans = [(numbers.start * rows, numbers.stop * rows) for numbers in found]
        return SegmentDamagedError(FOLDER + claim.segment, common(claim.spans, spans), reason_of(cause))

    async def _with_payload(self, job: Job, seconds: float) -> Job:
        """Return a job with its payload, if that is in an object and not too large to be handed out."""
        stored = job.payload_object
        if stored is None or stored.size > self.options.limits.most_payload(objects=True):
            return job
        assert self._objects is not None
        return job.evolve(payload=await self._objects.read(stored, seconds))


def _groups_of(claim: RangeClaim, most: int) -> deque[range]:
    """Return the numbers of the chunks of a range, in order and in groups of at most a number of neighbours."""
    entry, found = claim.entry, deque[range]()
    for first, last in joined((entry.chunk_of(start), entry.chunk_of(end - 1) + 1) for start, end in claim.spans):
        found += (range(start, min(start + most, last)) for start in range(first, last, most))
    return found


def _checked(claim: RangeClaim) -> RangeClaim:
    if not isinstance(claim, RangeClaim):
        raise InvalidJobError(f"pass what claim_range returned, got {type(claim).__name__}")
    return claim


def _rows_in(spans: Sequence[Span], rows: Rows, first: int) -> list[tuple[str, Packed]]:
    """Return the rows of a chunk that are in spans, given the number of its first row."""
    found: list[tuple[str, Packed]] = []
    for start, end in spans:
        found += [(job_id, packed) for _, job_id, packed in rows[max(0, start - first) : max(0, end - first)]]
    return found
