"""Bulk enqueue, and the streaming sink: `df.write.format("jqueue").mode("append").option("entrypoint", "a").save(url)`.

A write adds its jobs once, even if tasks are repeated. With the options `txn_app_id` and `txn_version`, that holds even
if the program is run again. A micro-batch is added once even after restarts: its transaction is the query and the
number of the batch. Errors in options and columns are raised before a task starts.

Each attempt of a task stages segments of its own, in their final form. The commit is given the reports of some
attempts, and names their segments in one commit of the queue, together with a record of the transaction. A repeated
commit finds that record. An abort can follow a commit that has succeeded, or whose outcome is unknown, so it looks
before it removes anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jqueue.connect import connect
from jqueue.core.blob.segment_object import EncodedSegment
from jqueue.core.blob.segment_staging import StagedTask
from jqueue.domain.errors import DeadlineExceededError, InvalidJobError, JQueueError, UnknownOutcomeError
from jqueue.domain.fields import COUNT_MAX, LARGEST, PRIORITY_MAX, PRIORITY_MIN
from jqueue.domain.job_options import OnConflict
from jqueue.domain.limits import Limits, check_name
from jqueue.domain.operations.bulk import TRANSACTION_KEPT, NewSegment, StagedReceipt, Transaction
from jqueue.domain.operations.lookups import LastTransaction
from jqueue.domain.operations.operator import EmptyCommit
from jqueue.domain.printable import counted
from jqueue.domain.segments import FOLDER, staged_name
from jqueue.ports.log import Logger, logger_of
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.spark.enqueue.columns import EXPECTED, Columns, columns_of
from jqueue.spark.errors import shows_one_line
from jqueue.spark.option_parsing import INTEGER, ONE_OF, SECONDS, TEXT, OptionType, parse_options, url_of
from jqueue.spark.session import task_context
from jqueue.spark.staging import Staging, absolute

if TYPE_CHECKING:
    import pyarrow as pa

    from jqueue.core.direct import DirectQueue

logger: Logger = logger_of("jqueue")

DEADLINE = 120.0
"""Seconds that a call of the queue may take: a Spark job that has run for long can wait for a store."""

CALL_TIMEOUT = 60.0
"""Seconds that one request of a commit may take: the object may be large."""

OWN_TRANSACTION_KEPT = 86400.0
"""Seconds to remember a write without `txn_app_id`: its abort has looked by then, even if clocks differ."""

OPTIONS: Mapping[str, OptionType] = {
    "entrypoint": TEXT,
    "priority": INTEGER(PRIORITY_MIN, PRIORITY_MAX),
    "delay": SECONDS,
    "max_attempts": INTEGER(1, COUNT_MAX),
    "keep_result": SECONDS,
    "unique_for": SECONDS,
    "concurrency_limit": INTEGER(1, COUNT_MAX),
    "on_conflict": ONE_OF("return", "raise"),
    "txn_app_id": TEXT,
    "txn_version": INTEGER(0, LARGEST),
    "max_payload_bytes": INTEGER(1, LARGEST),
    "deadline": SECONDS,
}
"""The options of a write. One that is named like a column sets it for all jobs."""

STREAM_OPTIONS = {name: kind for name, kind in OPTIONS.items() if name != "txn_version"}
"""Options of the sink. The version of a micro-batch is its number."""


@dataclass(frozen=True)
class TaskReport(WriterCommitMessage):
    """The report of an attempt of a task to the commit.

    Attributes:
        app_id: of the transaction.
        staged: the number of rows, and the segments; none if the write was done before.
    """

    app_id: str
    staged: StagedTask


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

        context = task_context()
        partition, attempt = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
        entropy = SystemEntropy()
        created_at = SystemClock().now() if self.created_at is None else self.created_at
        encoder = RowEncoder(self.columns, self.limits, created_at, partition, entropy.new_id)
        new: list[NewSegment] = []
        creating: asyncio.Task[None] | None = None
        with _naming(lambda: f"partition {partition} was staged up to its row {encoder.jobs:,}"):
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
                    await create(encoder.full())
                await create(encoder.rest())
                if creating is not None:
                    await creating
        return TaskReport(app_id, StagedTask(encoder.jobs, new, frozenset(encoder.features)))

    async def look(self, app_id: str | None) -> tuple[int | None, datetime | None]:
        """Read the queue once, before the first task starts.

        Returns:
            The version of the last transaction of the application, or None if the queue remembers none; and the time of
            the enqueue.
        """
        async with self._queue() as queue:
            last = None if app_id is None else (await queue.apply(LastTransaction(app_id)))[0]
            return last, await queue.staging_time()

    async def commit(self, messages: Messages, transaction: Transaction) -> StagedReceipt:
        """Add the jobs that the tasks have staged, unless that was done before. After an error, Spark calls `abort`.

        Raises:
            UnknownOutcomeError: the jobs may have been added or not.
            JQueueError: the jobs were not added.
        """
        tasks = [report.staged for report in reports_of(messages)]
        jobs, segments = sum(task.jobs for task in tasks), sum(len(task.segments) for task in tasks)
        phase = f"{counted(jobs, 'row')} in {counted(segments, 'segment')} were staged, and none was committed"
        with _naming(lambda: phase):
            async with self._queue() as queue:
                try:
                    return await queue.enqueue_staged(tasks, transaction, on_conflict=self.on_conflict)
                except UnknownOutcomeError as error:
                    receipt: StagedReceipt = await error.resolve()
                    return receipt

    async def abort(self, messages: Messages, transaction: Transaction, *, alone: bool) -> None:
        """Remove the staged segments, if the write has not been committed and never will be. Log jqueue errors.

        Args:
            messages: of the tasks; None for a task that has failed, so that no commit was tried.
            transaction: of the write.
            alone: True if no other driver can do the same write, so that all segments of the transaction are its own.
        """
        reports = reports_of(messages)
        segments = {FOLDER + each.name for report in reports for each in report.staged.segments}
        async with self._queue() as queue, self.staging.opened() as staged:
            try:
                if alone:
                    segments.update(await staged.names_with(FOLDER + staged_name(*transaction[:2], "")) or ())
                if segments and None not in messages and not await _never_lands(queue, transaction):
                    jobs = counted(sum(report.staged.jobs for report in reports), "job")
                    logger.warning("A write of %s that Spark gave up is in the queue: its commit succeeded", jobs)
                else:
                    await staged.remove_created(segments)
            except JQueueError as error:
                logger.warning("An aborted write leaves staged jobs behind, which are removed later: %s", error)

    def _queue(self) -> DirectQueue:
        from jqueue.core.direct import DirectQueue  # tasks do without

        return connect(
            self.staging.url, DirectQueue, limits=self.limits, deadline=self.staging.deadline, call_timeout=CALL_TIMEOUT
        )


@contextmanager
def _naming(phase: Callable[[], str]) -> Iterator[None]:
    """Have the error for a passed deadline say how far the write was."""
    try:
        yield
    except DeadlineExceededError as error:
        raise DeadlineExceededError(f"{phase()}: {error}") from None


async def _never_lands(queue: DirectQueue, transaction: Transaction) -> bool:
    """Return True if a commit that may have been tried has had no effect, and cannot have any in the future."""
    look = LastTransaction(transaction.app_id)
    [last] = await queue.apply(look)
    if last is None or last < transaction.version:
        _, last = await queue.apply(EmptyCommit(), look)  # a write sent before it has landed by then, or never will
    return last is None or last < transaction.version


def bulk_enqueue(options: Mapping[str, str], values: Mapping[str, Any], schema: StructType) -> BulkEnqueue:
    """Return the settings of all writes onto a queue.

    Args:
        options: as Spark passes them.
        values: the same, checked and converted.
        schema: of the DataFrame.

    Raises:
        InvalidJobError: a column is wrong. The message says which.
        InvalidURLError: the URL is wrong.
    """
    url = absolute(url_of(options))
    limits = Limits(payload_bytes=values.get("max_payload_bytes"))
    for name in ("entrypoint", "txn_app_id"):
        if name in values:
            check_name(f"option {name}", values[name], limits)
    constants = {name: value for name, value in values.items() if name in EXPECTED}
    staging = Staging(url, values.get("deadline", DEADLINE))
    return BulkEnqueue(columns_of(schema, constants), staging, limits, values.get("on_conflict", "return"))


@shows_one_line
class BulkWriter(DataSourceArrowWriter):
    """Writes a DataFrame into a queue. Spark creates it on the driver, and pickles it for the tasks, commit and abort.

    Args:
        options: as Spark passes them.
        schema: of the DataFrame.
        overwrite: True if the mode is `overwrite`, which is refused.

    Raises:
        InvalidJobError: an option or a column is wrong. The message says which.
        InvalidURLError: the URL is wrong.
        StorageError: the queue could not be read for its size limit and its last transaction.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidJobError(
                'a queue cannot be overwritten: that would lose jobs that others work on. Use mode("append"), and '
                "`jqueue purge` or `cancel` for jobs to remove"
            )
        values = parse_options(options, OPTIONS)
        if ("txn_app_id" in values) != ("txn_version" in values):
            raise InvalidJobError(
                "give txn_app_id and txn_version together: the application, and the number of its write"
            )
        enqueue = bulk_enqueue(options, values, schema)
        self.is_named: bool = "txn_app_id" in values
        if self.is_named:
            self.transaction: Transaction = Transaction(values["txn_app_id"], values["txn_version"], TRANSACTION_KEPT)
        else:
            self.transaction = Transaction(f"spark-write:{SystemEntropy().new_id()}", 1, OWN_TRANSACTION_KEPT)
        self.last: int | None
        self.last, created_at = asyncio.run(enqueue.look(values.get("txn_app_id")))
        self.enqueue: BulkEnqueue = replace(enqueue, created_at=created_at)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Stage the rows of a task, or nothing if the write was done before."""
        app_id, version, _ = self.transaction
        if self.last is None or self.last < version:
            return asyncio.run(self.enqueue.stage(iterator, app_id, version))
        rows = sum(batch.num_rows for batch in iterator) if self.last > version else 0
        return TaskReport(app_id, StagedTask(rows, ()))

    def commit(self, messages: Messages) -> None:
        """Add the jobs that the tasks have staged, in one commit of the queue."""
        rows = sum(report.staged.jobs for report in reports_of(messages))
        if self.last is not None and self.last >= self.transaction.version:
            receipt = StagedReceipt(repeated=True, version=self.last)
        elif not self.is_named and not rows:
            receipt = StagedReceipt()
        else:
            receipt = asyncio.run(self.enqueue.commit(messages, self.transaction))
        _log(receipt, self.transaction, rows)

    def abort(self, messages: Messages) -> None:
        """Remove the staged segments, unless the commit has succeeded after all."""
        asyncio.run(self.enqueue.abort(messages, self.transaction, alone=not self.is_named))


@shows_one_line
class StreamSink(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query into a queue.

    Spark creates it anew for every commit, and tells only the tasks which query they belong to. So their reports carry
    it.

    Args:
        options: as Spark passes them.
        schema: of the stream.
        overwrite: True if the output mode is `complete`, which is refused.

    Raises:
        InvalidJobError: an option or a column is wrong. The message says which.
        InvalidURLError: the URL is wrong.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidJobError(
                'a queue cannot be overwritten with every batch: use outputMode("append"), or "update" for aggregates'
            )
        values = parse_options(options, STREAM_OPTIONS)
        self.enqueue: BulkEnqueue = bulk_enqueue(options, values, schema)
        self.app_id: str | None = values.get("txn_app_id")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Stage the rows of a task."""
        context = TaskContext.get()
        query, batch = (
            None if context is None else context.getLocalProperty(name)
            for name in ("sql.streaming.queryId", "streaming.sql.batchId")
        )
        if self.app_id is None and query is None:
            raise InvalidJobError(
                "Spark does not tell its tasks which query they belong to: give the option txn_app_id"
            )
        if batch is None or not batch.isdigit():
            raise InvalidJobError("Spark does not tell its tasks the number of their batch")
        return asyncio.run(self.enqueue.stage(iterator, self.app_id or f"spark-stream:{query}", int(batch)))

    def commit(self, messages: Messages, batchId: int) -> None:
        """Add the jobs that the tasks of this batch have staged, in one commit of the queue."""
        rows = sum(report.staged.jobs for report in reports_of(messages))
        if rows:  # a repeated batch has the same rows
            transaction = Transaction(reports_of(messages)[0].app_id, batchId, TRANSACTION_KEPT)
            _log(asyncio.run(self.enqueue.commit(messages, transaction)), transaction, rows)

    def abort(self, messages: Messages, batchId: int) -> None:
        """Remove the staged segments, unless the commit has succeeded after all."""
        app_id = next((report.app_id for report in reports_of(messages)), self.app_id)
        if app_id is not None:  # otherwise the query is unknown, and the segments go by age
            asyncio.run(self.enqueue.abort(messages, Transaction(app_id, batchId, TRANSACTION_KEPT), alone=False))


def _log(receipt: StagedReceipt, transaction: Transaction, rows: int) -> None:
    """Log what became of a write of some rows. They are left out if the queue has a later version."""
    app_id, version, _ = transaction
    if rows and receipt.version is not None and receipt.version > version:
        logger.warning(
            "%s not written: the write is version %d of %s, and the queue has version %d. Give each write a higher "
            "txn_version, and each application or stream with a new checkpoint a txn_app_id of its own",
            counted(rows, "row was", "rows were"),
            version,
            app_id,
            receipt.version,
        )
    elif receipt.repeated:
        logger.info("Version %d of %s was already written: nothing was added", version, app_id)
    elif receipt.taken:
        logger.info("%s added; %d left out: unique key already taken", counted(receipt.added, "job"), receipt.taken)
    else:
        logger.info("%s added", counted(receipt.added, "job"))
