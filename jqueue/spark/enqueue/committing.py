"""One write of a DataFrame or a micro-batch, from its tasks to its commit. Repeated tasks or commits add nothing twice.

Each attempt of a task stages segments of its own, in their final form. The commit is given the reports of some
attempts, and names their segments in one commit of the queue, together with a record of the transaction. A repeated
commit finds that record. An abort can follow a commit that has succeeded, or whose outcome is unknown, so it looks
before it removes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

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
class TaskAttempt:
    """An attempt of a task.

    Attributes:
        partition: the number of the task's partition.
        attempt: a number that no other attempt of the application has.
        properties: the query that the task belongs to, as Spark tells it.
    """

    partition: int
    attempt: int
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def running(cls) -> TaskAttempt:
        """Return the attempt that this process works on."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:  # `write` is not called by Spark
            return cls(0, 0)
        asked = {name: context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID)}
        told = {name: value for name, value in asked.items() if value is not None}
        return cls(context.partitionId(), context.taskAttemptId(), told)


QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


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


Reports = Sequence[WriterCommitMessage | None]


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

    def stage(self, batches: Iterable[pa.RecordBatch], task: TaskAttempt, app_id: str, version: int) -> TaskReport:
        """Encode the rows of a task and stage them.

        Args:
            batches: the rows.
            task: this attempt of the task.
            app_id: of the transaction.
            version: of the transaction.

        Raises:
            InvalidJobError: a row cannot be a job. Segments that were staged before it are litter.
            StorageError: the store failed until the deadline.
        """
        staged = asyncio.run(self._stage(batches, task, app_id, version))
        return TaskReport(app_id, staged.jobs, staged)

    async def _stage(
        self, batches: Iterable[pa.RecordBatch], task: TaskAttempt, app_id: str, version: int
    ) -> StagedTask:
        """Encode the rows of a task as segments, and create each while the next is encoded."""
        from jqueue.spark.enqueue.encoding import RowEncoder

        entropy = self.staging.entropy
        created_at = self.staging.clock.now() if self.created_at is None else self.created_at
        stager = SegmentStager(self.limits, created_at, entropy.new_id())
        encoder = RowEncoder(self.columns, stager, task.partition)
        new: list[NewSegment] = []
        creating: asyncio.Task[None] | None = None
        async with self.staging.opened() as staged:

            async def begin(encoded: EncodedSegment) -> None:
                nonlocal creating
                if creating is not None:
                    await creating
                name = staged_name(app_id, version, f"{task.partition}-{task.attempt}-{entropy.new_id()[:8]}")
                creating = asyncio.create_task(staged.create(FOLDER + name, encoded.content))
                new.append(NewSegment(name, encoded.entry, created_at=created_at))
                await asyncio.sleep(0)  # lets it begin

            for batch in batches:
                encoder.add(batch)
                for encoded in stager.full():
                    await begin(encoded)
            for encoded in stager.rest():
                await begin(encoded)
            if creating is not None:
                await creating
        return StagedTask(stager.jobs, new, frozenset(stager.features))

    async def look(self, app_id: str | None) -> tuple[int | None, BulkEnqueue]:
        """Read the queue once, before the first task starts.

        Returns:
            The version of the last transaction of the application, or None if the queue remembers none; and these
            settings with the time of the enqueue.
        """
        async with self._opened() as (queue, _):
            last = None if app_id is None else (await queue.apply(LastTransaction(app_id)))[0]
            created_at = await queue.staging_time()
        assert created_at is not None  # the store keeps objects
        return last, replace(self, created_at=created_at)

    async def commit(self, reports: Reports, transaction: Transaction) -> StagedReceipt:
        """Add the jobs that the tasks have staged, unless that was done before, and remove what was not needed.

        Raises:
            UnknownOutcomeError: the jobs may have been added or not; the staged segments stay.
            JQueueError: the jobs were not added; the staged segments are removed.
        """
        tasks = [report.staged for report in reports if isinstance(report, TaskReport) and report.staged is not None]
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
                await _remove_unnamed(queue, staged, _segments_of(reports), transaction)
                raise

    async def abort(self, reports: Reports, transaction: Transaction, *, alone: bool) -> None:
        """Remove the staged segments, if the write has not been committed and never will be. Log jqueue errors.

        Args:
            reports: of the tasks.
            transaction: of the write.
            alone: True if no other driver can do the same write, so that all segments of the transaction are its own.
        """
        async with self._opened() as (queue, staged):
            try:
                segments = set(_segments_of(reports))
                if alone:
                    prefix = FOLDER + staged_name(transaction.app_id, transaction.version, "")
                    segments.update(await staged.names_with(prefix))
                if not segments:
                    return
                if None not in reports and not await _never_lands(queue, transaction):
                    jobs = counted(sum(report.jobs for report in reports if isinstance(report, TaskReport)), "job")
                    logger.warning("A write of %s that Spark gave up is in the queue: its commit succeeded", jobs)
                    return
                await staged.remove_created(segments)
            except JQueueError as error:
                logger.warning("An aborted write leaves staged jobs behind, which are removed later: %s", error)

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[DirectQueue, StagedObjects]]:
        """Open the queue and the staged objects, which share one client of the store."""
        storage, deadline = self.staging.open_storage(self.staging.url), self.staging.deadline
        async with (
            DirectQueue(storage, limits=self.limits, deadline=deadline, call_timeout=CALL_TIMEOUT) as queue,
            self.staging.opened(storage) as staged,
        ):
            yield queue, staged


def _segments_of(reports: Reports) -> list[str]:
    """Return the suffixes of the segments that tasks have staged."""
    tasks = [report.staged for report in reports if isinstance(report, TaskReport) and report.staged is not None]
    return [FOLDER + each.name for task in tasks for each in task.segments]


async def _remove_unnamed(
    queue: DirectQueue, staged: StagedObjects, segments: Sequence[str], transaction: Transaction
) -> None:
    """Remove segments after a commit that failed, unless an earlier commit of the same reports names them."""
    try:
        if segments and await _never_lands(queue, transaction):
            await staged.remove_created(segments)
    except JQueueError as error:
        logger.warning("A failed write leaves staged jobs behind, which are removed later: %s", error)


async def _never_lands(queue: DirectQueue, transaction: Transaction) -> bool:
    """Return True if a commit that may have been tried has had no effect, and cannot have any in the future."""
    look = LastTransaction(transaction.app_id)
    [last] = await queue.apply(look)
    if last is None or last < transaction.version:
        _, last = await queue.apply(Fence(), look)  # a write sent before it has landed by then, or never will
    return last is None or last < transaction.version


def left_out(receipt: StagedReceipt, transaction: Transaction, rows: int) -> int:
    """Return the number of rows left out because the queue has a later version of the application.

    A repeated version counts none: its rows were added when it was first written.

    Args:
        receipt: of the write.
        transaction: of the write.
        rows: number of rows that the tasks were given.
    """
    return rows if receipt.version is not None and receipt.version > transaction.version else 0


def log_receipt(receipt: StagedReceipt, transaction: Transaction, rows: int) -> None:
    """Log what became of a write.

    Args:
        receipt: of the write.
        transaction: of the write.
        rows: number of rows that the tasks were given.
    """
    missing = left_out(receipt, transaction, rows)
    if missing:
        logger.warning(
            "%s not written: the write is version %d of %s, and the queue has version %d. Give each write a "
            "higher txnVersion, and each application a txnAppId of its own",
            counted(missing, "row was", "rows were"),
            transaction.version,
            transaction.app_id,
            receipt.version,
        )
    elif receipt.repeated:
        logger.info("Version %d of %s was already written: nothing was added", transaction.version, transaction.app_id)
    elif receipt.taken:
        logger.info("%s added; %d left out: unique key already taken", counted(receipt.added, "job"), receipt.taken)
    else:
        logger.info("%s added", counted(receipt.added, "job"))
