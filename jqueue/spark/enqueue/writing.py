"""Bulk enqueue: `df.write.format("jqueue").mode("append").option("entrypoint", "resize").save(url)`.

A write adds its jobs once, even if tasks are repeated. With the options `txnAppId` and `txnVersion`, that holds even if
the program is run again. Errors in options and columns are raised before a task starts.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jqueue.domain.errors import InvalidJobError, InvalidURLError
from jqueue.domain.fields import COUNT_MAX, LARGEST, PRIORITY_MAX, PRIORITY_MIN
from jqueue.domain.limits import Limits, check_name
from jqueue.domain.operations.bulk import TRANSACTION_KEPT, StagedReceipt, Transaction
from jqueue.ports.log import logger_of
from jqueue.ports.storage import SupportsObjects
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.enqueue.columns import columns_of
from jqueue.spark.enqueue.committing import BulkEnqueue, TaskAttempt, TaskReport, left_out, log_receipt
from jqueue.spark.errors import shows_one_line
from jqueue.spark.option_parsing import INTEGER, ONE_OF, SECONDS, TEXT, OptionType, parse_options, url_of
from jqueue.spark.staging import Staging, absolute, open_store

if TYPE_CHECKING:
    import pyarrow as pa

logger = logger_of("jqueue")

DEADLINE = 120.0
"""Seconds that a call of the queue may take: a Spark job that has run for long can wait for a store."""

OWN_TRANSACTION_KEPT = 86400.0
"""Seconds to remember a write without `txnAppId`: its abort has looked by then, even if clocks differ."""

CONSTANTS = {
    "entrypoint": "entrypoint",
    "priority": "priority",
    "delay": "delay",
    "maxAttempts": "max_attempts",
    "keepResult": "keep_result",
    "uniqueFor": "unique_for",
    "concurrencyLimit": "concurrency_limit",
}
"""Options that set a value for all jobs, and the column that sets it for each."""

OPTIONS: Mapping[str, OptionType] = {
    "entrypoint": TEXT,
    "priority": INTEGER(PRIORITY_MIN, PRIORITY_MAX),
    "delay": SECONDS,
    "maxAttempts": INTEGER(1, COUNT_MAX),
    "keepResult": SECONDS,
    "uniqueFor": SECONDS,
    "concurrencyLimit": INTEGER(1, COUNT_MAX),
    "onConflict": ONE_OF("return", "raise"),
    "txnAppId": TEXT,
    "txnVersion": INTEGER(0, LARGEST),
    "txnRetention": SECONDS,
    "maxPayloadBytes": INTEGER(1, LARGEST),
    "deadline": SECONDS,
    "receiptPath": TEXT,
}

_ONE_COMMIT = "a write is one commit, whatever its rows: leave it out"
_URL = "give the URL of the queue to save or start"

ANSWERS: Mapping[str, str] = {
    "batchsize": _ONE_COMMIT,
    "isolationlevel": _ONE_COMMIT,
    "maxrecordsperfile": _ONE_COMMIT,
    "numpartitions": "call coalesce or repartition of the DataFrame before the write",
    "mode": 'call mode("append") of the writer',
    "outputmode": 'call outputMode("append") of the writer',
    "truncate": "a write only adds jobs. `jqueue purge` and `cancel` remove them",
    "replacewhere": "a write only adds jobs. `jqueue purge` and `cancel` remove them",
    "topic": "the name of a handler is the option entrypoint, or a column",
    "partitionby": "jobs are grouped by their column entrypoint",
    "sortby": "jobs have the order of the rows: call repartitionByRange and sortWithinPartitions before the write",
    "dbtable": _URL,
    "kafka.bootstrap.servers": _URL,
}
"""Advice for options of other sinks, by their names in lower case."""


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
        taken = parse_options(options, OPTIONS, answers=ANSWERS)
        app_id: str | None = taken.get("txnAppId")
        version: int = taken.get("txnVersion", 1)
        if ("txnAppId" in taken) != ("txnVersion" in taken):
            raise InvalidJobError("give txnAppId and txnVersion together: the application, and the number of its write")
        enqueue = bulk_enqueue(options, taken, schema)
        self.receipt_path = os.path.abspath(taken["receiptPath"]) if "receiptPath" in taken else None
        self.is_named = app_id is not None
        if app_id is None:
            self.transaction = Transaction(f"spark-write:{SystemEntropy().new_id()}", 1, OWN_TRANSACTION_KEPT)
        else:
            self.transaction = Transaction(app_id, version, taken.get("txnRetention", TRANSACTION_KEPT))
        self.last, self.enqueue = asyncio.run(enqueue.look(app_id))
        self.repeated = self.last is not None and self.last >= self.transaction.version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Stage the rows of a task, or nothing if the write was done before."""
        return self.stage(iterator, TaskAttempt.running())

    def stage(self, batches: Iterator[pa.RecordBatch], task: TaskAttempt) -> TaskReport:
        """Stage the rows as this attempt of a task."""
        app_id = self.transaction.app_id
        if self.repeated:
            is_late = self.last != self.transaction.version
            rows = sum(batch.num_rows for batch in batches) if is_late else 0  # rows to be left out
            return TaskReport(app_id, rows)
        return self.enqueue.stage(batches, task, app_id, self.transaction.version)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Add the jobs that the tasks have staged, in one commit of the queue."""
        rows = sum(report.jobs for report in messages if isinstance(report, TaskReport))
        if self.repeated:
            receipt = StagedReceipt(repeated=True, version=self.last)
        elif not self.is_named and not rows:
            receipt = StagedReceipt()
        else:
            receipt = asyncio.run(self.enqueue.commit(messages, self.transaction))
        log_receipt(receipt, self.transaction, rows)
        if self.receipt_path is not None:
            leave_receipt(self.receipt_path, receipt, left_out(receipt, self.transaction, rows))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the staged segments, unless the commit has succeeded after all."""
        asyncio.run(self.enqueue.abort(messages, self.transaction, alone=not self.is_named))


def leave_receipt(path: str, receipt: StagedReceipt, missing: int) -> None:
    """Write the receipt to a file for the program: the commit runs in a process that returns nothing to it.

    Args:
        path: of the file.
        receipt: of the write.
        missing: number of rows that were left out, as the queue has a later version.
    """
    try:
        Path(path).write_text(json.dumps({**asdict(receipt), "left_out": missing}), encoding="utf-8")
    except OSError as error:  # no failure of the write: the jobs are in the queue
        logger.warning("The receipt of a write could not be stored: %s", type(error).__name__)


def bulk_enqueue(options: Mapping[str, str], taken: Mapping[str, Any], schema: StructType) -> BulkEnqueue:
    """Return the settings of all writes onto a queue.

    Args:
        options: as Spark passes them.
        taken: the same, checked and converted.
        schema: of the DataFrame.

    Raises:
        InvalidJobError: a column is wrong. The message says which.
        InvalidURLError: the URL is wrong, or its store keeps no objects.
    """
    url = absolute(url_of(options))
    if not isinstance(open_store(url), SupportsObjects):
        raise InvalidURLError(
            "this store keeps no objects beside the queue, in which tasks could stage jobs: enqueue the rows without "
            "Spark, with enqueue_many"
        )
    limits = Limits(payload_bytes=taken["maxPayloadBytes"]) if "maxPayloadBytes" in taken else Limits()
    constants = {name: taken[option] for option, name in CONSTANTS.items() if option in taken}
    for name, text in (("entrypoint", constants.get("entrypoint")), ("txnAppId", taken.get("txnAppId"))):
        if text is not None:
            check_name(f"option {name}", text, limits)
    staging = Staging(url, taken.get("deadline", DEADLINE))
    return BulkEnqueue(columns_of(schema, constants), staging, limits, taken.get("onConflict", "return"))
