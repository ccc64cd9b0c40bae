"""A call that names segments in one commit: jobs in them that may be in the queue already are added one by one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from operator import itemgetter

import msgspec

from jqueue.core.blob.segment_object import EncodedSegment, SegmentBuilder
from jqueue.core.blob.segment_reader import DAMAGED
from jqueue.core.blob.segment_staging import STAGED_BYTES, STAGED_ROWS, Group, JobGroups, StagedTask
from jqueue.core.engine import Engine
from jqueue.core.tasks import in_turns
from jqueue.core.values import ValueObjects
from jqueue.domain.draft import size_limit
from jqueue.domain.errors import InvalidJobError, JQueueError, StorageError
from jqueue.domain.header import Header
from jqueue.domain.job import JobRecord
from jqueue.domain.job_options import OnConflict
from jqueue.domain.limits import ENQUEUE_SHARE
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Preparation
from jqueue.domain.operations.bulk import (
    MOST_CONFLICTS,
    BulkAdded,
    BulkJobs,
    EnqueuedJobs,
    EnqueueSegments,
    NewSegment,
    RowNumbers,
    StagedReceipt,
    Transaction,
    comparing,
    duplicate_rows,
)
from jqueue.domain.operations.enqueue import Enqueue, stored_bytes
from jqueue.domain.printable import counted
from jqueue.domain.segments import (
    FOLDER,
    SEGMENTS_KEPT,
    STAGED_NAMED_WITHIN,
    Segment,
    SegmentIndex,
    bulk_id,
    bulk_rest,
    object_of,
    staged_name,
)
from jqueue.domain.slices import LINES_PER_SLICE
from jqueue.ports.log import Logger, logger_of

CHUNKS_AT_ONCE = 16
"""Number of chunks of a segment that are read at once."""


def _number(rows: RowNumbers) -> int:
    return sum(map(len, rows.values()))


class SegmentCommit:
    """A call that names segments in one commit.

    Args:
        engine: will commit it. It keeps segments.
        objects: stores large payloads, and repeats requests that fail.
        preparation: completes jobs, and has the limits of the queue.
        seconds: time within which the store must answer each request.
        on_conflict: see `Enqueue`.

    Attributes:
        until: time by which the call must end, on the clock of the event loop; infinite while jobs come and are stored.
    """

    def __init__(
        self,
        engine: Engine,
        objects: ValueObjects | None,
        preparation: Preparation,
        seconds: float,
        on_conflict: OnConflict = "return",
    ) -> None:
        assert engine.segments is not None
        assert objects is not None
        self._engine, self._objects = engine, objects
        self._segments, self._sizes = engine.segments, engine.segments.writer.sizes
        self._preparation = preparation
        self._seconds = seconds
        self._on_conflict = on_conflict
        self._modes: dict[int, OnConflict] = {}  # of jobs with another one, by their numbers in the call
        self.until: float = math.inf

    @property
    def seconds_left(self) -> float:
        """Seconds within which the next answer of the store must come."""
        return max(0.0, min(self._seconds, self.until - asyncio.get_running_loop().time()))

    async def _first(self, operation: EnqueueSegments) -> EnqueueSegments:
        """Return an operation for its first try: see `ready`."""
        few = [job for _, job in operation.few]
        rows = await in_turns(duplicate_rows(operation.segments, few))
        if _number(rows) > MOST_CONFLICTS:
            return await self._without(operation, await in_turns(duplicate_rows(operation.segments, few, later=True)))
        return await self.ready(operation, rows)

    async def ready(self, operation: EnqueueSegments, rows: RowNumbers) -> EnqueueSegments:
        """Return an operation for another try, which knows more jobs, and more hashes of segments in the queue.

        The commit compares hashes with those of segments that are new by then, or whose index could not be read here.

        Args:
            operation: the operation of the last try.
            rows: the rows of the jobs to read, as they must be added one by one.

        Raises:
            InvalidJobError: they are too many.
            StorageError: the store failed.
        """
        if _number(operation.read) + _number(rows) > MOST_CONFLICTS:
            return await self._without(operation, rows)
        read, common = {name: dict(some) for name, some in operation.read.items()}, dict(operation.common)
        for each in operation.segments if rows else ():
            wanted = rows.get(each.name, ())
            async for rows_read in self._jobs_of(each, {each.segment.chunk_of(row) for row in wanted}):
                read.setdefault(each.name, {}).update(
                    (row, self._single(job, each.caller_ids, each.behind, each.turn))
                    for row, job in rows_read
                    if row in wanted
                )
        there = self._engine.draft.jobs.rows
        for name, segment in {object_of(name): each for name, each in there.manifest.segments.items()}.items():
            if name in common or not operation.may_share(segment):
                continue
            if (index := there.manifest.indexes.get(name)) is None:
                with suppress(*DAMAGED):
                    index = await self._index_of(name, segment)
                    self._engine.draft.jobs.rows.load_index(name, index)
            if index is not None:
                common[name] = await in_turns(comparing(operation.segments, index))
        return msgspec.structs.replace(operation, read=read, common=common)

    async def _without(self, operation: EnqueueSegments, rows: RowNumbers) -> EnqueueSegments:
        """Return an operation without rows whose unique key is taken, and that are too many to be read."""
        raise InvalidJobError(
            f"more than {MOST_CONFLICTS} of these jobs have an id or a unique key of another one, in the queue or "
            "in the call: split the call into smaller ones, or leave these jobs out"
        )

    def _single(
        self, job: JobRecord, caller_id: bool, behind: int = 0, turn: tuple[int, str] | None = None
    ) -> tuple[int, Enqueue]:
        """Return the number of a job in the call, and the enqueue that adds it.

        Args:
            job: the job.
            caller_id: True if the caller has chosen its id.
            behind: number to add to its own number.
            turn: see `NewSegment`.
        """
        number = behind + self._number_of(job, turn)
        return number, Enqueue.of(job, caller_id, self._modes.get(number, self._on_conflict))

    def _number_of(self, job: JobRecord, turn: tuple[int, str] | None) -> int:
        """Return the number of a job in its call, or in its task."""
        return job.sequence

    async def _jobs_of(
        self, new: NewSegment, chunks: Iterable[int] | None = None
    ) -> AsyncIterator[list[tuple[int, JobRecord]]]:
        """Yield the rows, with number and job, of each of some chunks of a new segment, or of all."""
        reader, name, segment = self._segments.reader, new.name, new.segment
        numbers = sorted(range(segment.chunks) if chunks is None else chunks)
        if not numbers:
            return
        index = new.index or await self._index_of(name, segment)
        for first in range(0, len(numbers), CHUNKS_AT_ONCE):
            read = partial(reader.chunks, name, segment, index, numbers[first : first + CHUNKS_AT_ONCE])
            for number, rows in await self._objects.retried(read, self.seconds_left, reads=True):
                yield list(enumerate(rows, number * segment.chunk_rows))

    async def _index_of(self, name: str, segment: Segment) -> SegmentIndex:
        read = partial(self._segments.reader.index, name, segment)
        return await self._objects.retried(read, self.seconds_left, reads=True)

    async def _joined(self, new: Sequence[NewSegment], without: RowNumbers | None = None) -> list[NewSegment]:
        """Write the rows of several segments of a group again, as few large segments.

        Args:
            new: the segments.
            without: rows to leave out, by the name of their segment.
        """
        without = without or {}
        of_group: dict[Group, list[NewSegment]] = {}
        for each in new:
            entry = each.segment
            group = Group(entry.entrypoint, entry.scheduled, each.caller_ids, entry.group, each.created_at, each.turn)
            of_group.setdefault(group, []).append(each)
        joined: list[NewSegment] = []
        jobs = JobGroups(SegmentBuilder, STAGED_ROWS, STAGED_BYTES, STAGED_BYTES)
        for group, several in of_group.items():
            if len(several) == 1 and several[0].name not in without:
                joined += several
                continue
            for each in several:
                out = without.get(each.name, ())
                async for rows in self._jobs_of(each):
                    if part := [job.evolve(sequence=each.behind + job.sequence) for row, job in rows if row not in out]:
                        jobs.extend(group, part)
                    joined += [await self._written(*full) for full in jobs.full()]
            joined += [await self._written(*rest) for rest in jobs.rest()]
        return joined

    async def _written(self, group: Group, jobs: SegmentBuilder) -> NewSegment:
        """Encode and store a new segment."""
        return await self._create(group, await self._encoded(group, jobs))

    async def _encoded(self, group: Group, jobs: SegmentBuilder) -> EncodedSegment:
        """Return the segment of jobs, and forget them."""
        rows = self._sizes.chunk_rows
        return await in_turns(jobs.encoding(scheduled=group.scheduled, own_ids=not group.caller_ids, chunk_rows=rows))

    async def _create(self, group: Group, encoded: EncodedSegment) -> NewSegment:
        content, entry, index, _ = encoded
        name = await self._objects.retried(lambda: self._segments.writer.create(content), self.seconds_left)
        may_be_there = group.caller_ids or entry.keys
        index_of = index if may_be_there else None
        return NewSegment(name, entry, index_of, group.caller_ids, created_at=group.created_at, turn=group.turn)


BUFFER_BYTES = 32 << 20
"""Bytes of the rows of all entrypoints above which the largest group of them is written."""

MOST_TURNS = SEGMENTS_KEPT // 4
"""Number of new segments above which jobs of further fair keys are added behind all others."""

MOST_SEGMENTS = SEGMENTS_KEPT // 2
"""Number of new segments above which those of each group are joined."""


class BulkEnqueue(SegmentCommit):
    """The jobs of one bulk enqueue. Arguments are as for `SegmentCommit`."""

    def __init__(self, engine: Engine, objects: ValueObjects | None, preparation: Preparation, seconds: float) -> None:
        super().__init__(engine, objects, preparation, seconds)
        now, rest = engine.now(), bulk_rest(preparation.new_id())
        limits = preparation.limits
        self._jobs = BulkJobs(rest, now, limits.batch_size, limits.enqueue_bytes)
        self._prepared = 0  # number of jobs
        self._preparation = msgspec.structs.replace(preparation, new_id=lambda: bulk_id(self._prepared, rest))
        self._created_at, self._before = now, now + self._objects.named_within
        self._groups = JobGroups(SegmentBuilder, self._sizes.most_rows, self._sizes.most_bytes, BUFFER_BYTES)
        self._few: list[tuple[int, Enqueue]] = []
        self._new: list[NewSegment] = []
        self._creating: asyncio.Task[NewSegment] | None = None

    # Encoding

    async def feed(self, jobs: Sequence[Enqueue]) -> None:
        """Take more jobs.

        Raises:
            InvalidJobError: a job is wrong.
            StorageError: the store failed.
        """
        for start in range(0, len(jobs), LINES_PER_SLICE):
            first, several = self._prepared + 1, list[Enqueue]()
            for job in jobs[start : start + LINES_PER_SLICE]:
                self._prepared += 1
                if job.after:
                    raise InvalidJobError(
                        f"a job with `after` cannot be one of more than {self._preparation.limits.batch_size} in a call"
                    )
                several.append(job.prepared(self._preparation))
            contents = [new.payload for new in several]
            if any(new.stored_separately for new in several):
                stored, _ = await self._objects.store(several, self.seconds_left)
                for each in stored:
                    if isinstance(each, JQueueError):
                        raise each
                several = [new for new in stored if isinstance(new, Enqueue)]
            caller_ids = [new.job_id is not None for new in several]
            records = [new.job(number, self._created_at) for number, new in enumerate(several, first)]
            self._modes.update(
                (number, new.on_conflict)
                for number, new in enumerate(several, first)
                if new.on_conflict != self._on_conflict
            )
            self._groups.add(self._jobs.add(records, caller_ids, contents), caller_ids)
            for full in self._groups.full():
                await self._begin(*full)
            await asyncio.sleep(0)

    # Writing

    async def _begin(self, group: Group, jobs: SegmentBuilder) -> None:
        """Encode the jobs of a group, while the segment before it is stored, and begin to store them."""
        encoded = await self._encoded(group, jobs)
        await self._created()
        self._creating = asyncio.create_task(self._create(group, encoded))

    async def _created(self) -> None:
        """Wait until the segment that is being stored exists."""
        if self._creating is not None:
            creating, self._creating = self._creating, None
            try:
                self._new.append(await creating)
            finally:
                creating.cancel()

    async def end(self) -> None:
        """Cancel the segment that is being stored. Stored segments are litter if no commit names them."""
        if self._creating is not None:
            self._creating.cancel()
            await asyncio.gather(self._creating, return_exceptions=True)

    # The commit

    async def operation(self) -> EnqueueSegments:
        """Store the rest of the jobs but for the few that enter the blob. Return the operation that adds all."""
        room, late = self._sizes.hot_bytes or 0, []
        for group, jobs in [*self._groups.rest()]:
            if group.turn is not None and len(self._new) >= MOST_TURNS:
                late.append((group.entrypoint, *group.turn))
                several = [job.evolve(sequence=self._number_of(job, group.turn)) for job in jobs.jobs()]
                self._groups.extend(group._replace(turn=None), several)
                continue
            if len(jobs) < self._sizes.fewest_rows and (jobs.bytes <= room or len(self._new) >= MOST_SEGMENTS):
                room -= jobs.bytes
                self._few += [self._single(job, group.caller_ids, turn=group.turn) for job in jobs.jobs()]
            else:
                await self._begin(group, jobs)
        for group, jobs in self._groups.rest():
            await self._begin(group, jobs)
        await self._created()
        new = self._new if len(self._new) <= MOST_SEGMENTS else await self._joined(self._new)
        few = sorted(self._few, key=lambda pair: pair[0])
        number, features = len(self._jobs), frozenset(self._groups.features)
        if self.until == math.inf:
            self.until: float = asyncio.get_running_loop().time() + self._seconds
        numbers = {turn: each for turn, each in self._jobs.numbers.items() if turn not in late}
        return await self._first(
            EnqueueSegments(
                number, self._created_at, new, few, self._before, features, numbers=numbers, late=frozenset(late)
            )
        )

    def _number_of(self, job: JobRecord, turn: tuple[int, str] | None) -> int:
        return job.sequence if turn is None else self._jobs.numbers[job.entrypoint, *turn][job.sequence - 1]

    def answer(self, outcome: BulkAdded) -> list[Job] | EnqueuedJobs:
        """Return the answer to the caller: a list of whole jobs if they are few."""
        jobs = EnqueuedJobs(self._jobs, outcome)
        return jobs if self._jobs.whole is None else jobs[:]


logger: Logger = logger_of("jqueue")

KEPT_FREE = SEGMENTS_KEPT // 8
"""Number of entries of the manifest that a bulk enqueue leaves free, if it can."""


class SegmentsGoneError(StorageError):
    """Staged segments do not exist."""


class StagedCommit(SegmentCommit):
    """The commit of segments that tasks have staged.

    Args:
        engine, objects, preparation, seconds, on_conflict: as for `SegmentCommit`.
        staged: the segments, by task.
        transaction: the identity of the write.

    Attributes:
        jobs: number of jobs.
    """

    def __init__(
        self,
        engine: Engine,
        objects: ValueObjects | None,
        preparation: Preparation,
        seconds: float,
        staged: Sequence[StagedTask],
        transaction: Transaction,
        on_conflict: OnConflict,
    ) -> None:
        super().__init__(engine, objects, preparation, seconds, on_conflict)
        self.jobs: int = sum(task.jobs for task in staged)
        self.named_within = STAGED_NAMED_WITHIN
        self._staged = staged
        self._transaction = transaction
        self._there: set[str] = set()
        self._left_out = 0

    async def operation(self) -> EnqueueSegments:
        """Return the operation that adds all jobs.

        Raises:
            SegmentsGoneError: staged segments do not exist.
            StorageError: the store failed.
            InvalidJobError: too many unique keys are taken.
        """
        new, now = self._numbered(), self._engine.now()
        await self._check_presence(new)
        begun = min((each.created_at or now for each in new), default=now)
        before = min(now + self._objects.named_within, begun + self.named_within)
        few = await self._few_jobs(new)
        if few:
            new = []
        elif len(new) > SEGMENTS_KEPT - KEPT_FREE - len(self._engine.draft.header.segments):
            new = await self._joined(new)
        new = [
            replace(each, index=await self._index_of(each.name, each.segment)) if each.segment.keys else each
            for each in new
        ]
        features = frozenset().union(*(task.features for task in self._staged))
        operation = EnqueueSegments(self.jobs, min(begun, now), new, few, before, features, self._transaction)
        return await self._first(operation)

    def answer(self, outcome: BulkAdded | StagedReceipt) -> StagedReceipt:
        """Return the receipt of a commit that added the jobs, or had nothing to add."""
        if isinstance(outcome, StagedReceipt):
            return outcome
        taken = self._left_out + outcome.existing
        return StagedReceipt(self.jobs - taken, taken, version=outcome.version)

    async def _without(self, operation: EnqueueSegments, rows: RowNumbers) -> EnqueueSegments:
        if self._on_conflict != "return":
            return await super()._without(operation, rows)
        self._left_out += _number(rows)
        whole_segments = [each for each in operation.segments if each.name not in rows]
        some = [each for each in operation.segments if 0 < len(rows.get(each.name, ())) < each.segment.rows]
        new = [*whole_segments, *await self._joined(some, rows)]
        return await self._first(msgspec.structs.replace(operation, segments=new, read={}, common={}))

    async def _few_jobs(self, new: Sequence[NewSegment]) -> list[tuple[int, Enqueue]]:
        """Return all jobs, with their numbers, if they are few and the blob has room; otherwise none."""
        if self.jobs > self._sizes.few_staged or sum(each.segment.index for each in new) > (self._sizes.hot_bytes or 0):
            return []
        jobs = [(job, each.behind) for each in new async for rows in self._jobs_of(each) for _, job in rows]
        room = int(size_limit(self._engine.draft) * ENQUEUE_SHARE) - self._engine.draft.taken_bytes
        if sum(stored_bytes(job) for job, _ in jobs) > room:
            return []
        operations = [self._single(job, False, behind) for job, behind in jobs]
        return sorted(operations, key=itemgetter(0))  # the first row of a write gets a unique key

    def _numbered(self) -> list[NewSegment]:
        """Return the segments, with the number of jobs of the tasks before each."""
        new, behind = [], 0
        for task in self._staged:
            new += [replace(each, behind=behind) for each in task.segments]
            behind += task.jobs
        return new

    async def _check_presence(self, new: Sequence[NewSegment]) -> None:
        """Check that all segments exist: a commit that names a missing one would lose its jobs."""
        prefix = FOLDER + staged_name(self._transaction.app_id, self._transaction.version, "")
        listed = await self._objects.retried(
            lambda: self._objects.storage.list_beside(prefix), self.seconds_left, reads=True
        )
        there = {entry.suffix: entry.size for entry in listed}
        self._there = set(there)
        gone = [each for each in new if there.get(FOLDER + each.name) != each.segment.bytes]
        if gone:
            raise SegmentsGoneError(
                f"{len(gone)} of {counted(len(new), 'staged segment')} are gone: they were removed, or tasks ran on "
                "machines that do not share the store (a file is on one machine)"
            )

    async def remove_others(self, operation: EnqueueSegments) -> None:
        """Remove the segments of the transaction that its commit did not need: those of repeated tasks.

        Nothing will ever name them, as the transaction is done. If they cannot be removed, they go by age.
        """
        await self._remove(self._there - {FOLDER + each.name for each in operation.segments})

    async def remove_own(self, header: Header) -> None:
        """Remove these segments, unless the queue names them: their transaction was done before.

        Args:
            header: of a version that was read after that. The draft of the engine may be older, or empty.
        """
        record = header.transactions.get(self._transaction.app_id)
        if record is None or record.version < self._transaction.version:
            return
        own = {each.name for task in self._staged for each in task.segments}
        named = set(map(object_of, header.segments))
        await self._remove({FOLDER + name for name in own - named - header.retired.keys()})

    async def _remove(self, suffixes: set[str]) -> None:
        try:
            async with asyncio.timeout(self.seconds_left):
                await self._objects.remove(sorted(suffixes))
        except (JQueueError, OSError, TimeoutError) as error:
            logger.warning("staged segments that are no longer needed are removed later: %s", error)
