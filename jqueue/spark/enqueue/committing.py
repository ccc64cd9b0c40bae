"""One write of a DataFrame or a micro-batch, from its tasks to its commit. Repeated tasks or commits add nothing twice.

Each attempt of a task stages objects of its own: segments in their final form, which the commit names; or lines of
jobs, which it copies, if the queue keeps no segments or the staged objects are elsewhere. The commit is given the
reports of some attempts, and adds their jobs in one commit of the queue, together with a record of the transaction. A
repeated commit finds that record. An abort can follow a commit that has succeeded, or whose outcome is unknown, so it
looks before it removes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage

from jqueue.core.blob.segment_object import EncodedSegment
from jqueue.core.blob.segment_staging import SegmentPlace, StagedTask
from jqueue.core.blob.staged_object import StagedWriter, read_staged
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import JQueueError, QueueFullError, StorageError, UnknownOutcomeError
from jqueue.domain.job_options import OnConflict
from jqueue.domain.limits import Limits
from jqueue.domain.operations import (
    Configure,
    EnqueueStaged,
    Fence,
    LastTransaction,
    NewSegment,
    StagedReceipt,
    Transaction,
)
from jqueue.domain.printable import counted
from jqueue.domain.segments import FOLDER, staged_name
from jqueue.ports.clock import Entropy
from jqueue.ports.log import logger_of
from jqueue.ports.storage import SupportsScratch
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.enqueue.bad_row_files import BadRowFiles, bad_prefix, settle
from jqueue.spark.enqueue.bad_rows import BadRowPolicy, BadRows
from jqueue.spark.enqueue.columns import Columns
from jqueue.spark.enqueue.ordering import KeyRange, OrderColumn, TaskOrder, in_key_order
from jqueue.spark.option_parsing import in_options
from jqueue.spark.staging import StagedObjects, Staging, open_store, sizes_of

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


def own_app_id(write_id: str) -> str:
    """Return the application id of a write without one of its user's. No other write has it."""
    return f"spark-write:{write_id}"


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """The report of an attempt of a task to the commit.

    Attributes:
        name: of the staged object; None if nothing was staged.
        jobs: number of jobs.
        size: number of bytes, roughly, that they take in the queue.
        write_id: the start of the names of all objects that the write stages.
        app_id: of the transaction.
        segments: the segments that were staged; None if the rows are in an object that the commit copies.
        bad: the rows that cannot be jobs, and did not fail the task.
        ranges: the keys of the rows by entrypoint, if they are ordered.
    """

    name: str | None
    jobs: int
    size: int
    write_id: str
    app_id: str
    segments: StagedTask | None = None
    bad: BadRows = field(default_factory=BadRows)
    ranges: Mapping[str, KeyRange] = field(default_factory=dict)


Reports = Sequence[WriterCommitMessage | None]

Batch = tuple["pa.RecordBatch", Sequence[int] | None]
"""Rows, and the number of each in its partition if they were sorted."""


@dataclass(frozen=True)
class BulkEnqueue:
    """The settings of all writes onto a queue. They may be pickled.

    Attributes:
        url: of the queue.
        columns: the use of each column.
        staging: the place where tasks leave encoded rows.
        limits: the limits of the queue, with the larger sizes that this write may set.
        blob_bytes: the size limit to set for the queue, and so for every writer, if the rows do not fit within the
            present limit. None: they must fit.
        on_conflict: the action if a unique key is taken.
        deadline: seconds that a call of the queue may take.
        place: the queue as segments are staged for it; None: tasks stage objects that the commit copies.
        order: the columns by which jobs are ordered.
        policy: the treatment of rows that cannot be jobs; None: they are errors.
        bad_rows: the place of files that describe such rows; None: there are none.
        entropy: makes the ids of the jobs.
        open_storage: makes the storage of a URL.
    """

    url: str = field(repr=False)
    columns: Columns
    staging: Staging
    limits: Limits
    on_conflict: OnConflict
    deadline: float
    blob_bytes: int | None = None
    place: SegmentPlace | None = None
    order: Sequence[OrderColumn] = ()
    policy: BadRowPolicy | None = None
    bad_rows: Staging | None = None
    entropy: Entropy = field(default_factory=SystemEntropy, repr=False)
    open_storage: Callable[[str], SupportsScratch] = field(default=open_store, repr=False)

    def stage(
        self,
        batches: Iterable[pa.RecordBatch],
        task: TaskAttempt,
        write_id: str,
        app_id: str,
        version: int | None,
        *,
        summing: bool = False,
    ) -> TaskReport:
        """Encode the rows of a task and stage them.

        Args:
            batches: the rows.
            task: this attempt of the task.
            write_id: the start of the names of all objects that the write stages.
            app_id: of the transaction.
            version: of the transaction; None if the task does not know it, and stages no segments.
            summing: True if jobs that other tasks have staged count as well. The write id must never have been used
                before, or leftovers of an earlier try would count too.

        Raises:
            InvalidJobError: a row cannot be a job. Segments that were staged before it are litter.
            QueueFullError: these rows, with the rows that other tasks have staged, are more than the queue takes. They
                were not staged. Segments have no such limit.
            StorageError: the store failed until the deadline.
        """
        rows = TaskOrder(self.order, self.columns.places.get("entrypoint"), task.partition)
        ordered = rows.sorted(batches) if self.order else ((batch, None) for batch in batches)
        bad = BadRowFiles(self.bad_rows, bad_prefix(app_id, version), task.partition, task.attempt)
        if self.place is not None and version is not None:
            staged = asyncio.run(self._stage_segments(ordered, task, self.place, app_id, version, bad))
            return TaskReport(None, staged.jobs, 0, write_id, app_id, staged, bad.told, rows.ranges)
        from jqueue.spark.enqueue.encoding import RowEncoder

        writer = StagedWriter(self.limits)
        encoder = RowEncoder(self.columns, writer, task.partition, self.entropy, self.policy)
        for batch, numbers in ordered:
            encoder.add(batch, numbers)
            asyncio.run(bad.write(encoder.bad))
        asyncio.run(bad.write(encoder.bad, last=True))
        if not writer.jobs:
            return TaskReport(None, 0, 0, write_id, app_id, bad=bad.told)
        name = self.staging.name(write_id, task.partition, task.attempt, writer.bytes)
        asyncio.run(self._write(name, writer, task.partition, write_id if summing else None))
        return TaskReport(name, writer.jobs, writer.bytes, write_id, app_id, None, bad.told, rows.ranges)

    async def _stage_segments(
        self,
        batches: Iterable[Batch],
        task: TaskAttempt,
        place: SegmentPlace,
        app_id: str,
        version: int,
        bad: BadRowFiles,
    ) -> StagedTask:
        """Encode the rows of a task as segments, and create each while the next is encoded."""
        from jqueue.spark.enqueue.encoding import RowEncoder
        from jqueue.spark.enqueue.plain_rows import ArrowStager

        created_at = self.staging.clock.now() if place.created_at is None else place.created_at
        stager = ArrowStager(self.limits, created_at, self.entropy.new_id(), queue=place.queue)
        encoder = RowEncoder(self.columns, stager, task.partition, policy=self.policy)
        new: list[NewSegment] = []
        creating: asyncio.Task[None] | None = None
        being_stored: bytes | memoryview = b""
        async with self.staging.opened() as staged:

            async def begin(encoded: EncodedSegment) -> None:
                nonlocal creating, being_stored
                if creating is not None:
                    await creating
                    stager.reuse(being_stored)
                being_stored = encoded.content
                name = staged_name(app_id, version, f"{task.partition}-{task.attempt}-{self.entropy.new_id()[:8]}")
                creating = asyncio.create_task(staged.create(FOLDER + name, encoded.content))
                new.append(NewSegment(name, place.queue, encoded.entry, created_at=created_at))
                await asyncio.sleep(0)  # lets it begin

            for batch, numbers in batches:
                encoder.add(batch, numbers)
                await bad.write(encoder.bad)
                for encoded in stager.full():
                    await begin(encoded)
            for encoded in stager.rest():
                await begin(encoded)
            if creating is not None:
                await creating
            await bad.write(encoder.bad, last=True)
        return StagedTask(stager.jobs, new, frozenset(stager.features))

    async def look(self, app_id: str | None) -> tuple[int | None, BulkEnqueue]:
        """Read the queue once, before the first task starts.

        Returns:
            The version of the last transaction of the application, or None if the queue remembers none; and these
            settings with the size limit of the queue.
        """
        async with self._opened() as (queue, _):
            settings, *last = await queue.apply(Configure(), *([] if app_id is None else [LastTransaction(app_id)]))
            place = None if self.place is None else await queue.staging_place()
        known = replace(self, place=place)
        if settings.blob_bytes is not None:
            most = max(settings.blob_bytes, self.blob_bytes or 0)
            known = replace(known, limits=replace(self.limits, blob_bytes=most))
        return (last[0] if last else None), known

    async def commit(self, reports: Reports, write_id: str, transaction: Transaction) -> StagedReceipt:
        """Add the jobs that the tasks have staged, unless that was done before, and remove the staged objects.

        Raises:
            UnknownOutcomeError: the jobs may have been added or not; the staged objects stay.
            JQueueError: the jobs were not added; the staged objects are removed.
        """
        try:
            receipt = await self._commit(reports, write_id, transaction)
        except UnknownOutcomeError:
            raise
        except JQueueError:
            await self.settle_bad_rows(reports, transaction, kept=False)
            raise
        await self.settle_bad_rows(reports, transaction, kept=not receipt.repeated)
        return receipt

    async def settle_bad_rows(self, reports: Reports, transaction: Transaction, *, kept: bool) -> None:
        """Remove files of bad rows: all that no report names, or, if the write failed, those of the reports."""
        if self.bad_rows is not None:
            named = [name for report in reports if isinstance(report, TaskReport) for name in report.bad.files]
            prefix = bad_prefix(transaction.app_id, transaction.version)
            await settle(self.bad_rows, [] if kept else named, prefix if kept else "", named if kept else ())

    async def _commit(self, reports: Reports, write_id: str, transaction: Transaction) -> StagedReceipt:
        told = [report for report in reports if isinstance(report, TaskReport)]
        names = [report.name for report in told if report.name is not None]
        async with self._opened() as (queue, staged):
            try:
                if self.order:
                    ranges = [report.ranges for report in told]
                    told = [told[task] for task in in_key_order(ranges, [each.name for each in self.order])]
                    names = [report.name for report in told if report.name is not None]
                segments = [report.segments for report in told if report.segments is not None]
                if segments and not names:
                    receipt = await self._name(queue, segments, transaction)
                else:
                    self._check_size(told)
                    receipt = await self._add(queue, staged, names, transaction)
            except UnknownOutcomeError:
                raise
            except JQueueError as error:
                await staged.clean(write_id, names)
                await _remove_unnamed(queue, staged, _segments_of(told), transaction)
                if isinstance(error, QueueFullError) and names:  # the option has no effect on segments
                    raise QueueFullError(in_options(str(error))) from None
                raise
            await staged.clean(write_id, names)
            return receipt

    async def abort(self, reports: Reports, write_id: str, transaction: Transaction) -> None:
        """Remove the staged objects, if the write has not been committed and never will be. Log jqueue errors."""
        told = [report for report in reports if isinstance(report, TaskReport)]
        names = [report.name for report in told if report.name is not None]
        async with self._opened() as (queue, staged):
            try:
                segments = set(_segments_of(told))
                if transaction.app_id == own_app_id(write_id):  # otherwise another driver may do the same write
                    prefix = FOLDER + staged_name(transaction.app_id, transaction.version, "")
                    segments.update(await staged.names_with(prefix))
                listed = await staged.of_write(write_id)
                if not (segments or (names if listed is None else listed)):
                    await self._drop_bad_rows(told, transaction, of_all=transaction.app_id == own_app_id(write_id))
                    return
                if len(told) == len(reports) and not await _never_lands(queue, transaction):
                    jobs = counted(sum(report.jobs for report in told), "job")
                    logger.warning("A write of %s that Spark gave up is in the queue: its commit succeeded", jobs)
                    return
                await staged.clean(write_id, names)
                await staged.remove_created(segments)
                await self._drop_bad_rows(told, transaction, of_all=transaction.app_id == own_app_id(write_id))
            except JQueueError as error:
                logger.warning("An aborted write leaves staged jobs behind, which are removed later: %s", error)

    async def _drop_bad_rows(self, told: Sequence[TaskReport], transaction: Transaction, *, of_all: bool) -> None:
        """Remove the files of bad rows of a write that was given up."""
        if self.bad_rows is not None:
            prefix = bad_prefix(transaction.app_id, transaction.version) if of_all else ""
            await settle(self.bad_rows, [name for report in told for name in report.bad.files], prefix)

    async def _write(self, name: str, jobs: StagedWriter, partition: int, write_id: str | None) -> None:
        async with self.staging.opened() as staged:
            if write_id is not None:
                sizes = sizes_of(await staged.of_write(write_id) or (), write_id)
                sizes[partition] = jobs.bytes
                self._check_room(f"the jobs of the first {len(sizes)} partitions take", sum(sizes.values()))
            await staged.write(name, jobs.finish())

    async def _add(
        self, queue: DirectQueue, staged: StagedObjects, names: Sequence[str], transaction: Transaction
    ) -> StagedReceipt:
        [last] = await queue.apply(LastTransaction(transaction.app_id))
        if last is not None and last >= transaction.version:
            return StagedReceipt(repeated=True, version=last)
        contents = await staged.read(names)
        if None in contents:
            raise StorageError(
                f"{contents.count(None)} of {counted(len(contents), 'staged object')} are gone: they were removed, or "
                "tasks ran on machines that do not share the store (a file is on one machine)"
            )
        jobs = [read_staged(content) for content in contents if content is not None]
        operation = EnqueueStaged(
            jobs, transaction=transaction, on_conflict=self.on_conflict, blob_bytes=self.blob_bytes
        )
        try:
            [receipt] = await queue.apply(operation)
        except UnknownOutcomeError as error:
            [receipt] = await error.resolve()
        answer: StagedReceipt = receipt
        return answer

    async def _name(
        self, queue: DirectQueue, segments: Sequence[StagedTask], transaction: Transaction
    ) -> StagedReceipt:
        try:
            return await queue.enqueue_staged(segments, transaction, on_conflict=self.on_conflict)
        except UnknownOutcomeError as error:
            receipt: StagedReceipt = await error.resolve()
            return receipt

    def _check_size(self, told: Sequence[TaskReport]) -> None:
        self._check_room(
            counted(sum(report.jobs for report in told), "job takes", "jobs take"), sum(report.size for report in told)
        )

    def _check_room(self, what: str, size: int) -> None:
        if size > self.limits.enqueue_bytes:
            raise QueueFullError(
                f"{what} {size} bytes together, and the queue takes {self.limits.enqueue_bytes}: "
                "write fewer at a time, or raise the option maxBlobBytes"
            )

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[DirectQueue, StagedObjects]]:
        """Open the queue and the staged objects. They share one client of the store if they are beside each other."""
        storage = self.open_storage(self.url)
        staged = self.staging.opened(storage if self.staging.url == self.url else None)
        own = min(self.limits.blob_bytes, Limits().blob_bytes)  # larger ones stand in the queue
        limits = replace(self.limits, blob_bytes=own)
        settings: dict[str, Any] = {"limits": limits, "deadline": self.deadline, "call_timeout": CALL_TIMEOUT}
        async with DirectQueue(storage, **settings) as queue, staged:
            yield queue, staged


def _segments_of(told: Sequence[TaskReport]) -> list[str]:
    """Return the suffixes of the segments that tasks have staged."""
    return [FOLDER + each.name for report in told if report.segments for each in report.segments.segments]


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


def bad_rows_of(reports: Reports) -> tuple[int, str]:
    """Return the number of rows that could not become jobs, and where the first is, with the reason."""
    several = [report.bad for report in reports if isinstance(report, TaskReport) and report.bad.rows]
    return sum(bad.rows for bad in several), several[0].first if several else ""


def log_bad_rows(reports: Reports, policy: BadRowPolicy | None) -> int:
    """Log the number of rows that could not become jobs, and return it."""
    rows, first = bad_rows_of(reports)
    if rows:
        became = "left out" if policy is None or policy.mode == "skip" else f"enqueued for {policy.entrypoint!r}"
        logger.warning("%s cannot be jobs, and were %s. The first is %s", counted(rows, "row"), became, first)
    return rows
