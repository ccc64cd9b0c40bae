"""The streaming sink: `stream.writeStream.format("jqueue").option("checkpointLocation", ...).start(url)`.

Each micro-batch is added once, through restarts: the transaction is the query and the number of the batch. Spark makes
the sink anew for every commit and tells only the tasks which query they belong to, so their reports bring it along.
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
from jqueue.domain.operations.staged import TRANSACTION_KEPT
from jqueue.ports.log import logger_of
from jqueue.spark.enqueue.committing import BATCH_ID, QUERY_ID, TaskAttempt, TaskReport, left_out, log_receipt
from jqueue.spark.enqueue.writing import OPTIONS, bulk_enqueue
from jqueue.spark.options import take

if TYPE_CHECKING:
    import pyarrow as pa

logger = logger_of("jqueue")

STREAM_OPTIONS = {name: kind for name, kind in OPTIONS.items() if name not in ("txnVersion", "receiptPath")}
"""The version of a micro-batch is its number, and a query has many commits."""


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query into a queue.

    Args:
        options: as Spark hands them over.
        schema: of the stream.
        overwrite: whether the output mode is `complete`, which is refused.

    Raises:
        InvalidJobError: an option or a column is wrong. The message says which.
        InvalidURLError: the URL is.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidJobError(
                'a queue cannot be overwritten with every batch: use outputMode("append"), or "update" for aggregates'
            )
        taken = take(options, STREAM_OPTIONS)
        self.enqueue = bulk_enqueue(options, taken, schema)
        self.app_id: str | None = taken.get("txnAppId")
        self.keep = taken.get("txnRetention", TRANSACTION_KEPT)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Stage the rows of a task."""
        return self.stage(iterator, TaskAttempt.running())

    def stage(self, batches: Iterator[pa.RecordBatch], task: TaskAttempt) -> TaskReport:
        """The same, as this attempt of a task."""
        app_id = self.app_id or _of_query(task)
        return self.enqueue.stage(batches, task, _write_id(app_id, task.properties.get(BATCH_ID, "")), app_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Add what the tasks of this batch have staged, in one commit of the queue."""
        report = _first(messages)
        if report is None or not any(isinstance(found, TaskReport) and found.jobs for found in messages):
            return  # a batch without rows stays one when it is repeated
        transaction = Transaction(report.app_id, batchId, self.keep)
        receipt = asyncio.run(self.enqueue.commit(messages, report.write_id, transaction))
        rows = sum(found.jobs for found in messages if isinstance(found, TaskReport))
        if left_out(receipt, transaction, rows):
            logger.warning(
                "Batch %d of %s was left out, and its %d rows were not written: the queue has its batch %d. If this is "
                "another stream, or its checkpoint is new, give it a txnAppId of its own",
                batchId,
                report.app_id,
                rows,
                receipt.version,
            )
        else:
            log_receipt(receipt, transaction, rows)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what was staged, unless the commit had succeeded in spite of all."""
        report = _first(messages)
        app_id = self.app_id if report is None else report.app_id
        if app_id is not None:  # otherwise nobody knows which query it was, and what is left goes by age
            write_id = _write_id(app_id, str(batchId)) if report is None else report.write_id
            asyncio.run(self.enqueue.abort(messages, write_id, Transaction(app_id, batchId, self.keep)))


def _of_query(task: TaskAttempt) -> str:
    query = task.properties.get(QUERY_ID)
    if query is None:
        raise InvalidJobError("Spark does not tell its tasks which query they belong to: give the option txnAppId")
    return f"spark-stream:{query}"


def _write_id(app_id: str, batch: str) -> str:
    """What the names of all begin with that a batch stages, however often it is tried: no longer than a name may be."""
    return f"{hashlib.sha256(app_id.encode()).hexdigest()[:16]}.{batch}"


def _first(messages: Sequence[WriterCommitMessage | None]) -> TaskReport | None:
    return next((report for report in messages if isinstance(report, TaskReport)), None)
