"""Bulk enqueue: `df.write.format("jqueue").mode("append").option("entrypoint", "resize").save(url)`.

A write adds its jobs once, whatever tasks are repeated. With the options `txnAppId` and `txnVersion` that holds for a
program that is run again, too. What is wrong with options and columns is said before a task starts.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import Limits, check_name
from jqueue.domain.models import COUNT_MAX, LARGEST, PRIORITY_MAX, PRIORITY_MIN
from jqueue.domain.operations import StagedReceipt, Transaction
from jqueue.domain.operations.staged import TRANSACTION_KEPT
from jqueue.ports.log import logger_of
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.enqueue.columns import columns_of
from jqueue.spark.enqueue.committing import BulkEnqueue, TaskAttempt, TaskReport, left_out, log_receipt
from jqueue.spark.options import INTEGER, ONE_OF, SECONDS, TEXT, URL, Kind, take, url_of
from jqueue.spark.staging import Staging, absolute, open_store, url_in_folder

if TYPE_CHECKING:
    import pyarrow as pa

logger = logger_of("jqueue")

RETENTION = 7 * 86400.0
"""Seconds after which a staged object is removed, whoever has left it."""

DEADLINE = 120.0
"""Seconds that a call of the queue may take: a job of Spark's that has run for long can wait for a store."""

OWN_TRANSACTION_KEPT = 86400.0
"""Seconds for which a write without a name is remembered: until its abort has looked, by any clock."""

CONSTANTS = {
    "entrypoint": "entrypoint",
    "priority": "priority",
    "delay": "delay",
    "maxAttempts": "max_attempts",
    "keepResult": "keep_result",
}
"""Options that say of all jobs what a column says of each."""

OPTIONS: Mapping[str, Kind] = {
    "entrypoint": TEXT,
    "priority": INTEGER(PRIORITY_MIN, PRIORITY_MAX),
    "delay": SECONDS,
    "maxAttempts": INTEGER(1, COUNT_MAX),
    "keepResult": SECONDS,
    "onConflict": ONE_OF("return", "raise"),
    "txnAppId": TEXT,
    "txnVersion": INTEGER(0, LARGEST),
    "txnRetention": SECONDS,
    "stagingPath": URL,
    "stagingRetention": SECONDS,
    "maxBlobBytes": INTEGER(1, LARGEST),
    "maxPayloadBytes": INTEGER(1, LARGEST),
    "deadline": SECONDS,
    "receiptPath": TEXT,
}


class BulkWriter(DataSourceArrowWriter):
    """Writes a DataFrame into a queue. Spark makes it on the driver and pickles it to the tasks, commit and abort.

    Args:
        options: as Spark hands them over.
        schema: of the DataFrame.
        overwrite: whether the mode is `overwrite`, which is refused.

    Raises:
        InvalidJobError: an option or a column is wrong. The message says which.
        InvalidURLError: the URL is.
        StorageError: the queue could not be read, which tells its size limit and its last transaction.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidJobError(
                'a queue cannot be overwritten: that would lose jobs that others work on. Use mode("append"), and '
                "`jqueue purge` or `cancel` for what shall go"
            )
        taken = take(options, OPTIONS)
        app_id: str | None = taken.get("txnAppId")
        version: int = taken.get("txnVersion", 1)
        if ("txnAppId" in taken) != ("txnVersion" in taken):
            raise InvalidJobError("txnAppId and txnVersion go together: which write of which application this is")
        enqueue = bulk_enqueue(options, taken, schema)
        self.write_id = SystemEntropy().new_id()
        self.receipt_path = os.path.abspath(taken["receiptPath"]) if "receiptPath" in taken else None
        if app_id is None:
            self.transaction = Transaction(f"spark-write:{self.write_id}", 1, OWN_TRANSACTION_KEPT)
        else:
            self.transaction = Transaction(app_id, version, taken.get("txnRetention", TRANSACTION_KEPT))
        self.last, self.enqueue = asyncio.run(enqueue.look(app_id))
        self.repeated = self.last is not None and self.last >= self.transaction.version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """Stage the rows of a task; none of a write that was done before."""
        return self.stage(iterator, TaskAttempt.running())

    def stage(self, batches: Iterator[pa.RecordBatch], task: TaskAttempt) -> TaskReport:
        """The same, as this attempt of a task."""
        app_id = self.transaction.app_id
        if self.repeated:
            is_late = self.last != self.transaction.version
            rows = sum(batch.num_rows for batch in batches) if is_late else 0  # that are not in the queue
            return TaskReport(None, rows, 0, self.write_id, app_id)
        return self.enqueue.stage(batches, task, self.write_id, app_id, summing=True)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Add what the tasks have staged, in one commit of the queue."""
        named = self.transaction.app_id != f"spark-write:{self.write_id}"
        rows = sum(report.jobs for report in messages if isinstance(report, TaskReport))
        if self.repeated:
            receipt = StagedReceipt(repeated=True, version=self.last)
        elif not named and not rows:
            receipt = StagedReceipt()
        else:
            receipt = asyncio.run(self.enqueue.commit(messages, self.write_id, self.transaction))
        log_receipt(receipt, self.transaction, rows)
        if self.receipt_path is not None:
            leave_receipt(self.receipt_path, receipt, left_out(receipt, self.transaction, rows))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what was staged, unless the commit had succeeded in spite of all."""
        asyncio.run(self.enqueue.abort(messages, self.write_id, self.transaction))


def leave_receipt(path: str, receipt: StagedReceipt, missing: int = 0) -> None:
    """Tell the program that writes what became of it: its commit runs in a process that gives nothing back.

    Args:
        path: of the file.
        receipt: of the write.
        missing: number of rows that were left out, as the queue has a later version.
    """
    try:
        Path(path).write_text(json.dumps({**asdict(receipt), "left_out": missing}), encoding="utf-8")
    except OSError as error:  # the jobs are in the queue, and it must not look as if they were not
        logger.warning("The receipt of a write could not be left: %s", type(error).__name__)


def bulk_enqueue(options: Mapping[str, str], taken: Mapping[str, Any], schema: StructType) -> BulkEnqueue:
    """What all writes onto a queue are told.

    Args:
        options: as Spark hands them over.
        taken: the same, checked and converted.
        schema: of the DataFrame.

    Raises:
        InvalidJobError: a column is wrong. The message says which.
        InvalidURLError: a URL is.
    """
    url = absolute(url_of(options))
    folder = taken.get("stagingPath")
    beside = url if folder is None else absolute(url_in_folder(folder, url), create=True)
    sizes = {"blob_bytes": taken.get("maxBlobBytes"), "payload_bytes": taken.get("maxPayloadBytes")}
    limits = Limits(**{name: size for name, size in sizes.items() if size is not None})
    constants = {name: taken[option] for option, name in CONSTANTS.items() if option in taken}
    for name, text in (("entrypoint", constants.get("entrypoint")), ("txnAppId", taken.get("txnAppId"))):
        if text is not None:
            check_name(f"option {name}", text, limits)
    deadline = taken.get("deadline", DEADLINE)
    return BulkEnqueue(
        url,
        columns_of(schema, constants),
        Staging(
            beside,
            taken.get("stagingRetention", RETENTION),
            deadline,
            open_storage=partial(open_store, create=folder is not None),  # a folder for passing things is made
        ),
        limits,
        taken.get("onConflict", "return"),
        deadline,
        taken.get("maxBlobBytes"),
    )
