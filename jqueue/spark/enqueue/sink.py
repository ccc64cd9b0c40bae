"""The streaming sink: `stream.writeStream.format("jqueue").option("checkpointLocation", ...).start(url)`.

Each micro-batch is added once, even after restarts: its transaction is the query and the number of the batch. Spark
creates the sink anew for every commit, and tells only the tasks which query they belong to. So their reports carry it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.operations.bulk import TRANSACTION_KEPT, Transaction
from jqueue.domain.printable import counted
from jqueue.ports.log import logger_of
from jqueue.spark.enqueue.committing import BATCH_ID, QUERY_ID, TaskAttempt, TaskReport, left_out, log_receipt
from jqueue.spark.enqueue.writing import ANSWERS, OPTIONS, bulk_enqueue
from jqueue.spark.errors import shows_one_line
from jqueue.spark.option_parsing import parse_options

if TYPE_CHECKING:
    import pyarrow as pa

logger = logger_of("jqueue")

STREAM_OPTIONS = {name: kind for name, kind in OPTIONS.items() if name not in ("txnVersion", "receiptPath")}
"""Options of the sink. The version of a micro-batch is its number, and no receipt fits a query of many commits."""


@shows_one_line
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
        taken = parse_options(options, STREAM_OPTIONS, answers=ANSWERS)
        self.enqueue = bulk_enqueue(options, taken, schema)
        self.app_id: str | None = taken.get("txnAppId")
        self.keep = taken.get("txnRetention", TRANSACTION_KEPT)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Stage the rows of a task."""
        return self.stage(iterator, TaskAttempt.running())

    def stage(self, batches: Iterator[pa.RecordBatch], task: TaskAttempt) -> TaskReport:
        """Stage the rows as this attempt of a task."""
        query, batch = task.properties.get(QUERY_ID), task.properties.get(BATCH_ID, "")
        if self.app_id is None and query is None:
            raise InvalidJobError("Spark does not tell its tasks which query they belong to: give the option txnAppId")
        if not batch.isdigit():
            raise InvalidJobError("Spark does not tell its tasks the number of their batch")
        app_id = self.app_id or f"spark-stream:{query}"
        return self.enqueue.stage(batches, task, app_id, int(batch))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Add the jobs that the tasks of this batch have staged, in one commit of the queue."""
        report = _first(messages)
        if report is None or not any(isinstance(found, TaskReport) and found.jobs for found in messages):
            return  # if it is repeated, it has no rows either
        transaction = Transaction(report.app_id, batchId, self.keep)
        receipt = asyncio.run(self.enqueue.commit(messages, transaction))
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

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staged segments, unless the commit has succeeded after all."""
        report = _first(messages)
        app_id = self.app_id if report is None else report.app_id
        if app_id is not None:  # otherwise the query is unknown, and the segments go by age
            asyncio.run(self.enqueue.abort(messages, Transaction(app_id, batchId, self.keep), alone=False))


def _first(messages: Sequence[WriterCommitMessage | None]) -> TaskReport | None:
    return next((report for report in messages if isinstance(report, TaskReport)), None)
