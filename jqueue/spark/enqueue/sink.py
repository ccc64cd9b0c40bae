"""The streaming sink: `stream.writeStream.format("jqueue").option("checkpointLocation", ...).start(url)`.

Each micro-batch is added once, even after restarts: its transaction is the query and the number of the batch. Spark
creates the sink anew for every commit, and tells only the tasks which query they belong to. So their reports carry it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.operations import Transaction
from jqueue.domain.operations.transactions import TRANSACTION_KEPT
from jqueue.domain.printable import counted
from jqueue.ports.log import logger_of
from jqueue.spark.enqueue.committing import (
    BATCH_ID,
    QUERY_ID,
    TaskAttempt,
    TaskReport,
    left_out,
    log_bad_rows,
    log_receipt,
)
from jqueue.spark.enqueue.writing import ANSWERS, OPTIONS, SAME, bulk_enqueue
from jqueue.spark.option_parsing import parse_options

if TYPE_CHECKING:
    import pyarrow as pa

logger = logger_of("jqueue")

STREAM_OPTIONS = {name: kind for name, kind in OPTIONS.items() if name not in ("txnVersion", "receiptPath")}
"""Options of the sink. The version of a micro-batch is its number, and no receipt fits a query of many commits."""


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query into a queue.

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
        taken = parse_options(options, STREAM_OPTIONS, SAME, ANSWERS)
        self.enqueue = bulk_enqueue(options, taken, schema)
        self.app_id: str | None = taken.get("txnAppId")
        self.keep = taken.get("txnRetention", TRANSACTION_KEPT)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Stage the rows of a task."""
        return self.stage(iterator, TaskAttempt.running())

    def stage(self, batches: Iterator[pa.RecordBatch], task: TaskAttempt) -> TaskReport:
        """Stage the rows as this attempt of a task."""
        app_id = self.app_id or _of_query(task)
        batch = task.properties.get(BATCH_ID, "")
        version = int(batch) if batch.isdigit() else None
        return self.enqueue.stage(batches, task, _write_id(app_id, batch), app_id, version)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Add the jobs that the tasks of this batch have staged, in one commit of the queue."""
        report = _first(messages)
        if report is None or not any(isinstance(found, TaskReport) and found.jobs for found in messages):
            self._tell_bad_rows(messages, None if report is None else report.app_id, batchId)
            return  # if it is repeated, it has no rows either
        transaction = Transaction(report.app_id, batchId, self.keep)
        receipt = asyncio.run(self.enqueue.commit(messages, report.write_id, transaction))
        rows = sum(found.jobs for found in messages if isinstance(found, TaskReport))
        if left_out(receipt, transaction, rows):
            logger.warning(
                "Batch %d of %s was skipped, and %s not written: the queue has its batch %d. If this is "
                "another stream, or its checkpoint is new, give it a txnAppId of its own",
                batchId,
                report.app_id,
                counted(rows, "row was", "rows were"),
                receipt.version,
            )
        else:
            log_receipt(receipt, transaction, rows)
            if not receipt.repeated:
                log_bad_rows(messages, self.enqueue.policy)

    def _tell_bad_rows(self, messages: Sequence[WriterCommitMessage | None], app_id: str | None, batch: int) -> None:
        """Note the bad rows of a batch that has no others."""
        if app_id is not None and log_bad_rows(messages, self.enqueue.policy):
            transaction = Transaction(app_id, batch, self.keep)
            asyncio.run(self.enqueue.settle_bad_rows(messages, transaction, kept=True))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staged objects, unless the commit has succeeded after all."""
        report = _first(messages)
        app_id = self.app_id if report is None else report.app_id
        if app_id is not None:  # otherwise the query is unknown, and the objects go by age
            write_id = _write_id(app_id, str(batchId)) if report is None else report.write_id
            asyncio.run(self.enqueue.abort(messages, write_id, Transaction(app_id, batchId, self.keep)))


def _of_query(task: TaskAttempt) -> str:
    query = task.properties.get(QUERY_ID)
    if query is None:
        raise InvalidJobError("Spark does not tell its tasks which query they belong to: give the option txnAppId")
    return f"spark-stream:{query}"


def _write_id(app_id: str, batch: str) -> str:
    """Return the start of the names of all objects that a batch stages, the same in every try. It fits into a name."""
    return f"{hashlib.sha256(app_id.encode()).hexdigest()[:16]}.{batch}"


def _first(messages: Sequence[WriterCommitMessage | None]) -> TaskReport | None:
    return next((report for report in messages if isinstance(report, TaskReport)), None)
