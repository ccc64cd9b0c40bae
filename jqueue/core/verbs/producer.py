"""The verbs of `Producer`: add jobs, and wait for their results."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from itertools import islice
from typing import Any, Unpack

from jqueue.core.blob.segment_staging import StagedTask
from jqueue.core.bulk import BulkEnqueue, SegmentsGoneError, StagedCommit
from jqueue.core.queue_base import BlobBase, QueueBase, first_of
from jqueue.core.values import LEAST
from jqueue.domain.durations import LONGEST, Duration, to_seconds
from jqueue.domain.errors import (
    DeadlineExceededError,
    InvalidJobError,
    JQueueError,
    ObjectMissingError,
    QueueClosedError,
    ResultTimeoutError,
)
from jqueue.domain.job import JobRecord, Step
from jqueue.domain.job_options import EnqueueOptions, OnConflict, check_conflict, takes_options
from jqueue.domain.large_values import PayloadSource
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations.bulk import EnqueueSegments, StagedReceipt, Transaction, checked, is_repeated
from jqueue.domain.operations.call import Call, NewJob, NewJobs
from jqueue.domain.operations.enqueue import LINE_BYTES, Enqueue
from jqueue.domain.operations.lookups import AwaitResult, LastTransaction
from jqueue.domain.operations.rules import Configure
from jqueue.domain.segments import STAGED_NAMED_WITHIN
from jqueue.ports.queue import Producer, SupportsLargeValues

PIECE = 256
"""Number of jobs that are taken from an iterator at once."""


class ProducerVerbs(QueueBase, Producer):
    """The verbs of `Producer`."""

    @takes_options(EnqueueOptions)
    async def enqueue(
        self,
        entrypoint: str,
        payload: PayloadSource = b"",
        priority: int = 0,
        *,
        deadline: Duration | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Job:
        operation = Enqueue.new(self._preparation, entrypoint, payload, priority, options)
        operations = (self._checked(operation),)
        if not operation.stored_separately:
            jobs: list[JobRecord] = await self._enter(operations, deadline, convert=first_of)
        else:
            jobs = await self._submit(operations, deadline, convert=first_of)
        return job_of(jobs[0])

    async def enqueue_many(self, jobs: NewJobs, *, deadline: Duration | None = None) -> Sequence[Job]:
        if isinstance(jobs, str | bytes | Mapping) or not isinstance(jobs, Iterable | AsyncIterable):
            raise InvalidJobError(f"enqueue_many takes an iterable of Enqueue(...), got {type(jobs).__name__}")
        threshold, limits = self._bulk_threshold, self.options.limits
        if not isinstance(jobs, AsyncIterable) and threshold is None:
            return await self.apply(*_checked(jobs), deadline=deadline)
        self.capabilities.require("transactions")
        async with aclosing(_pieces(jobs)) as pieces:
            most_bytes = math.inf if threshold is None else limits.enqueue_bytes
            first, complete = await _few(pieces, limits.batch_size, most_bytes)
            if threshold is None or (complete and (len(first) <= threshold or any(job.after for job in first))):
                return await self.apply(*first, deadline=deadline)
            return await self._enqueue_bulk(first, None if complete else pieces, self._seconds(deadline))

    async def _enqueue_bulk(
        self, first: Sequence[Enqueue], others: AsyncIterator[Sequence[Enqueue]] | None, seconds: float
    ) -> Sequence[Job]:
        """Enqueue any number of jobs in one commit. The deadline counts from the moment when `others` are stored."""
        raise NotImplementedError

    async def result(
        self, job_id: Job | str, *, timeout: Duration | None = None, deadline: Duration | None = None
    ) -> Any:
        reference = job_id.id if isinstance(job_id, Job) else job_id
        wait_seconds = LONGEST if timeout is None else to_seconds("timeout", timeout)
        operation = self._checked(AwaitResult(reference).prepared(self._preparation))
        until = asyncio.get_running_loop().time() + wait_seconds + self._seconds(deadline)
        jobs = await self._searched(operation, self._seconds(deadline), wait_seconds)
        if not jobs:
            raise ResultTimeoutError(reference, wait_seconds)
        left = max(LEAST, until - asyncio.get_running_loop().time())
        return await self._loaded(jobs[0].result, jobs[0].result_object, left)


def _checked(jobs: Iterable[NewJob]) -> list[Enqueue]:
    operations = [job.operation() if isinstance(job, Call) else job for job in jobs]
    for job in operations:
        if not isinstance(job, Enqueue):
            raise InvalidJobError(f"enqueue_many takes Enqueue(...) or handler.call(...), got {type(job).__name__}")
    return operations


async def _few(pieces: AsyncIterator[list[Enqueue]], most: int, most_bytes: float) -> tuple[list[Enqueue], bool]:
    """Return the first jobs, and True if they are all: not more than some number of jobs and of bytes."""
    first: list[Enqueue] = []
    size = 0
    async for several in pieces:
        first += several
        payloads = [job.payload for job in several if isinstance(job.payload, bytes | bytearray | memoryview)]
        size += LINE_BYTES * len(several) + sum(map(len, payloads))
        if len(first) > most or size > most_bytes:
            return first, False
    return first, True


async def _pieces(jobs: NewJobs) -> AsyncGenerator[list[Enqueue], None]:
    """Yield the jobs of an iterable, some at a time, with a turn of the event loop between them.

    Raises:
        InvalidJobError: a job is no `Enqueue`.
    """
    if not isinstance(jobs, AsyncIterable):
        rest = iter(jobs)
        while several := _checked(islice(rest, PIECE)):
            yield several
            await asyncio.sleep(0)
        return
    piece: list[NewJob] = []
    try:
        async for job in jobs:
            piece.append(job)
            if len(piece) == PIECE:
                yield _checked(piece)
                piece = []
                await asyncio.sleep(0)
        if piece:
            yield _checked(piece)
    finally:
        if isinstance(jobs, AsyncGenerator):
            await jobs.aclose()


class LargeValueVerbs(QueueBase, SupportsLargeValues):
    """The verbs of `SupportsLargeValues`."""

    async def step_result(self, job: Job, step: Step, *, deadline: Duration | None = None) -> Any:
        return await self._loaded(step.result, step.result_object, self._seconds(deadline))

    async def open_payload(self, job: Job) -> AsyncGenerator[bytes, None]:
        if not isinstance(job, Job):
            raise InvalidJobError(f"open_payload takes a Job from dequeue, got {type(job).__name__}")
        stored = job.payload_object
        if stored is None or not job.payload_apart:
            if job.payload:
                yield job.payload
        elif self._objects is None:
            raise InvalidJobError(f"the payload of job {job.id!r} is in an object, which this queue cannot read")
        else:
            async with aclosing(self._objects.pieces(stored, self._deadline)) as pieces:
                async for piece in pieces:
                    yield piece

    async def collect(self, *, deadline: Duration | None = None) -> int:
        self.capabilities.require("objects")
        collector = self._here().collector
        assert collector is not None
        seconds = None if deadline is None else self._seconds(deadline)
        try:
            async with asyncio.timeout(seconds) as limit:
                return await collector.collect()
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceededError(
                "the deadline passed before all objects that no job names were removed: some may be, and the next call "
                "goes on"
            ) from None


class StagingVerbs(BlobBase, ProducerVerbs):
    """The verb of staged segments.

    Attributes:
        staged_named_within: longest time from the creation of a staged segment to the commit that names it.
    """

    staged_named_within = STAGED_NAMED_WITHIN

    @property
    def takes_segments(self) -> bool:
        """True if the queue keeps waiting jobs in segments, so that `enqueue_staged` can name them."""
        return self._bulk_threshold is not None

    async def staging_time(self, *, deadline: Duration | None = None) -> datetime | None:
        """Read the queue, and return the time of an enqueue of jobs staged from now on; None if it keeps no segments.

        Raises:
            StorageError: the store failed.
        """
        if not self.takes_segments:
            return None
        await self._done(Configure(), deadline)
        return self._engine.now()

    async def enqueue_staged(
        self,
        staged: Sequence[StagedTask],
        transaction: Transaction,
        *,
        on_conflict: OnConflict = "return",
        deadline: Duration | None = None,
    ) -> StagedReceipt:
        """Add the jobs of staged segments, all or none, unless the transaction was done before.

        Args:
            staged: the segments, by task, in the order of the jobs. They are stored under names of the transaction.
            transaction: the identity of the write.
            on_conflict: see `Enqueue`.
            deadline: maximum time for the call.

        Raises:
            InvalidJobError: the queue keeps no segments, or too many unique keys are taken.
            QueueFullError: there is no room for the segments.
            DuplicateJobError: a unique key is taken, and `on_conflict` is "raise".
            StorageError: segments are gone, or the store failed. Nothing was added.
            UnknownOutcomeError: the jobs may have been added. Repeat the call with the same transaction.
        """
        if not self.takes_segments:
            raise InvalidJobError("this queue keeps no segments: its storage has no objects, or hot_bytes is None")
        check_conflict(on_conflict)
        identity, seconds = checked(transaction, self.options.limits), self._seconds(deadline)
        until = asyncio.get_running_loop().time() + seconds
        self._here().check_open()
        commit = StagedCommit(self._engine, self._objects, self._preparation, seconds, staged, identity, on_conflict)
        commit.named_within, commit.until = self.staged_named_within, until
        closed = QueueClosedError("the queue was closed before staged segments were added, and nothing was done")
        if (done := await self._done_before(identity, seconds)) is not None:
            await self._tidied(self._remove_own(commit))
            return done
        self._here().check_open()
        receipt: StagedReceipt
        try:
            operation, receipt = await self._submit_segments(commit, commit.operation(), closed)
        except (
            ObjectMissingError,
            SegmentsGoneError,
        ):  # another process may have done the same write, and removed what it did not need
            if (done := await self._done_before(identity, commit.seconds_left)) is not None:
                return done
            raise
        if not receipt.repeated:
            await self._tidied(commit.remove_others(operation))
        return receipt

    async def _enqueue_bulk(
        self, first: Sequence[Enqueue], others: AsyncIterator[Sequence[Enqueue]] | None, seconds: float
    ) -> Sequence[Job]:
        until = asyncio.get_running_loop().time() + seconds
        self._here()
        if not self._engine.loaded:
            await self._done(Configure(), seconds)  # reads it
        self._here().check_open()
        bulk = BulkEnqueue(self._engine, self._objects, self._preparation, seconds)
        closed = QueueClosedError("the queue was closed while jobs were encoded, and nothing was done")

        async def encode() -> EnqueueSegments:
            if others is None:
                bulk.until = until
            await bulk.feed(first)
            if others is not None:
                async for several in others:
                    await bulk.feed(several)
            return await bulk.operation()

        try:
            jobs: Sequence[Job]
            _, jobs = await self._submit_segments(bulk, encode(), closed)
            return jobs
        finally:
            await bulk.end()

    async def _tidied(self, removal: Coroutine[Any, Any, None]) -> None:
        """Remove segments that are no longer needed. If the queue is closed meanwhile, they go by age."""
        closed = QueueClosedError("the queue was closed")
        with suppress(QueueClosedError):
            await self._session.loading.do(removal, closed)

    async def _remove_own(self, commit: StagedCommit) -> None:
        """Remove the segments of a write that was done before. If the queue cannot be read, they go by age."""
        with suppress(JQueueError):
            await commit.remove_own((await self._view(commit.seconds_left)).header)

    async def _done_before(self, transaction: Transaction, seconds: float) -> StagedReceipt | None:
        """Return the receipt of a transaction that was done before; None if it was not."""
        late = "the store did not answer in time, and nothing was added"
        last = await self._searched(self._prepared(LastTransaction(transaction.app_id)), seconds, late=late)
        return StagedReceipt(repeated=True, version=last) if is_repeated(transaction, last) else None
