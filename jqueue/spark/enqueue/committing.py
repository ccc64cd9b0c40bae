"""One write of a DataFrame or a micro-batch, from its tasks to its commit. Repeated tasks or commits add nothing twice.

Each attempt of a task stages segments of its own, in their final form. The commit is given the reports of some
attempts, and names their segments in one commit of the queue, together with a record of the transaction. A repeated
commit finds that record. An abort can follow a commit that has succeeded, or whose outcome is unknown, so it looks
before it removes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from jqueue.core.blob.segment_object import EncodedSegment
from jqueue.core.blob.segment_staging import SegmentStager, StagedTask
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import JQueueError, UnknownOutcomeError
from jqueue.domain.job_options import OnConflict
from jqueue.domain.limits import Limits
from jqueue.domain.operations.bulk import NewSegment, StagedReceipt, Transaction
from jqueue.domain.operations.lookups import LastTransaction
from jqueue.domain.operations.operator import Fence
from jqueue.domain.printable import counted
from jqueue.domain.segments import FOLDER, staged_name
from jqueue.ports.log import logger_of
from jqueue.spark.enqueue.columns import Columns
from jqueue.spark.staging import StagedObjects, Staging

if TYPE_CHECKING:
    import pyarrow as pa

logger = logger_of("jqueue")

CALL_TIMEOUT = 60.0
"""Seconds that one request of a commit may take: the object may be large."""


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """The report of an attempt of a task to the commit.

    Attributes:
        app_id: of the transaction.
        jobs: number of rows.
        staged: the segments that were staged; None if there are none, as the write was done before.
    """

    app_id: str
    jobs: int
    staged: StagedTask | None = None


Messages = Sequence[WriterCommitMessage | None]


def reports_of(messages: Messages) -> list[TaskReport]:
    """Return the reports among the messages that Spark has of its tasks."""
    return [message for message in messages if isinstance(message, TaskReport)]


@dataclass(frozen=True)
class BulkEnqueue:
    """The settings of all writes onto a queue. They may be pickled.

    Attributes:
        columns: the use of each column.
        staging: the queue, beside which tasks leave encoded rows.
        limits: the limits of the queue, with the larger payload that this write may set.
        on_conflict: the action if a unique key is taken.
        created_at: the time of the enqueue; None: each task reads its own clock.
    """

    columns: Columns
    staging: Staging
    limits: Limits
    on_conflict: OnConflict
    created_at: datetime | None = None

    async def stage(self, batches: Iterable[pa.RecordBatch], app_id: str, version: int) -> TaskReport:
        """Encode the rows of a task as segments, and create each while the next is encoded.

        Args:
            batches: the rows.
            app_id: of the transaction.
            version: of the transaction.

        Raises:
            InvalidJobError: a row cannot be a job. Segments that were staged before it are litter.
            StorageError: the store failed until the deadline.
        """
        from jqueue.spark.enqueue.encoding import RowEncoder

        context = TaskContext.get()  # None if it is not called by Spark
        partition, attempt = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
        entropy = self.staging.entropy
        created_at = self.staging.clock.now() if self.created_at is None else self.created_at
        stager = SegmentStager(self.limits, created_at, entropy.new_id())
        encoder = RowEncoder(self.columns, stager, partition)
        new: list[NewSegment] = []
        creating: asyncio.Task[None] | None = None
        async with self.staging.opened() as staged:

            async def create(encoded: Iterable[EncodedSegment]) -> None:
                nonlocal creating
                for content, entry, *_ in encoded:
                    if creating is not None:
                        await creating
                    name = staged_name(app_id, version, f"{partition}-{attempt}-{entropy.new_id()[:8]}")
                    creating = asyncio.create_task(staged.create(FOLDER + name, content))
                    new.append(NewSegment(name, entry, created_at=created_at))
                await asyncio.sleep(0)  # lets it go on

            for batch in batches:
                encoder.add(batch)
                await create(stager.full())
            await create(stager.rest())
            if creating is not None:
                await creating
        return TaskReport(app_id, stager.jobs, StagedTask(stager.jobs, new, frozenset(stager.features)))

    async def look(self, app_id: str | None) -> tuple[int | None, datetime | None]:
        """Read the queue once, before the first task starts.

        Returns:
            The version of the last transaction of the application, or None if the queue remembers none; and the time of
            the enqueue.
        """
        async with self._opened() as (queue, _):
            last = None if app_id is None else (await queue.apply(LastTransaction(app_id)))[0]
            return last, await queue.staging_time()

    async def commit(self, messages: Messages, transaction: Transaction) -> StagedReceipt:
        """Add the jobs that the tasks have staged, unless that was done before, and remove what was not needed.

        Raises:
            UnknownOutcomeError: the jobs may have been added or not; the staged segments stay.
            JQueueError: the jobs were not added; the staged segments are removed.
        """
        tasks = [report.staged for report in reports_of(messages) if report.staged is not None]
        async with self._opened() as (queue, staged):
            try:
                try:
                    return await queue.enqueue_staged(tasks, transaction, on_conflict=self.on_conflict)
                except UnknownOutcomeError as error:
                    receipt: StagedReceipt = await error.resolve()
                    return receipt
            except UnknownOutcomeError:
                raise
            except JQueueError:
                await _discard(queue, staged, messages, transaction)
                raise

    async def abort(self, messages: Messages, transaction: Transaction, *, alone: bool) -> None:
        """Remove the staged segments, if the write has not been committed and never will be. Log jqueue errors.

        Args:
            messages: of the tasks; None for a task that has failed, so that no commit was tried.
            transaction: of the write.
            alone: True if no other driver can do the same write, so that all segments of the transaction are its own.
        """
        async with self._opened() as (queue, staged):
            if not await _discard(queue, staged, messages, transaction, alone=alone):
                jobs = counted(sum(report.jobs for report in reports_of(messages)), "job")
                logger.warning("A write of %s that Spark gave up is in the queue: its commit succeeded", jobs)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[DirectQueue, StagedObjects]]:
        """Open the queue and the staged objects, which share one client of the store."""
        storage, deadline = self.staging.open_storage(self.staging.url), self.staging.deadline
        async with (
            DirectQueue(storage, limits=self.limits, deadline=deadline, call_timeout=CALL_TIMEOUT) as queue,
            self.staging.opened(storage) as staged,
        ):
            yield queue, staged


async def _discard(
    queue: DirectQueue, staged: StagedObjects, messages: Messages, transaction: Transaction, *, alone: bool = False
) -> bool:
    """Remove the staged segments of a write, unless its commit has landed. Return False if it has."""
    tasks = [report.staged for report in reports_of(messages) if report.staged is not None]
    segments = {FOLDER + each.name for task in tasks for each in task.segments}
    try:
        if alone:
            segments.update(await staged.names_with(FOLDER + staged_name(*transaction[:2], "")) or ())
        if segments and None not in messages:  # else no commit was tried
            look = LastTransaction(transaction.app_id)
            [last] = await queue.apply(look)
            if last is None or last < transaction.version:
                _, last = await queue.apply(Fence(), look)  # a write sent before it has landed by then, or never will
            if last is not None and last >= transaction.version:
                return False
        await staged.remove_created(segments)
    except JQueueError as error:
        logger.warning("A write that failed leaves staged jobs behind, which are removed later: %s", error)
    return True
