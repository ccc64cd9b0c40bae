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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from jqueue.core.blob.segment_staging import SegmentPlace
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.limits import Limits, check_name
from jqueue.domain.models import COUNT_MAX, LARGEST, PRIORITY_MAX, PRIORITY_MIN
from jqueue.domain.operations import StagedReceipt, Transaction
from jqueue.domain.operations.transactions import TRANSACTION_KEPT
from jqueue.ports.log import logger_of
from jqueue.ports.storage import SupportsObjects
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.enqueue.bad_rows import BadRowPolicy
from jqueue.spark.enqueue.columns import columns_of
from jqueue.spark.enqueue.committing import (
    BulkEnqueue,
    TaskAttempt,
    TaskReport,
    left_out,
    log_bad_rows,
    log_receipt,
    own_app_id,
)
from jqueue.spark.enqueue.ordering import order_of
from jqueue.spark.option_parsing import INTEGER, NAMES, ONE_OF, SECONDS, TEXT, URL, OptionType, parse_options, url_of
from jqueue.spark.staging import Staging, absolute, open_store, url_in_folder

if TYPE_CHECKING:
    import pyarrow as pa

logger = logger_of("jqueue")

RETENTION = 7 * 86400.0
"""Seconds after which a staged object of any write is removed."""

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

DEAD_LETTERS = "dead-letters"
"""The entrypoint of the jobs that bad rows become, if none is given."""

OPTIONS: Mapping[str, OptionType] = {
    "entrypoint": TEXT,
    "priority": INTEGER(PRIORITY_MIN, PRIORITY_MAX),
    "delay": SECONDS,
    "maxAttempts": INTEGER(1, COUNT_MAX),
    "keepResult": SECONDS,
    "uniqueFor": SECONDS,
    "concurrencyLimit": INTEGER(1, COUNT_MAX),
    "onConflict": ONE_OF("return", "raise"),
    "orderBy": NAMES,
    "onBadRow": ONE_OF("fail", "skip", "deadLetter"),
    "badRowsPath": URL,
    "deadLetterEntrypoint": TEXT,
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


SAME: Mapping[str, str] = {"badrecordspath": "badRowsPath"}
"""Names that other sinks have for options of this one."""

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
    "sortby": "the order of jobs is the option orderBy",
    "dbtable": _URL,
    "kafka.bootstrap.servers": _URL,
}
"""Advice for options of other sinks, by their names in lower case."""


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
        taken = parse_options(options, OPTIONS, SAME, ANSWERS)
        app_id: str | None = taken.get("txnAppId")
        version: int = taken.get("txnVersion", 1)
        if ("txnAppId" in taken) != ("txnVersion" in taken):
            raise InvalidJobError("give txnAppId and txnVersion together: the application, and the number of its write")
        enqueue = bulk_enqueue(options, taken, schema)
        self.write_id = SystemEntropy().new_id()
        self.receipt_path = os.path.abspath(taken["receiptPath"]) if "receiptPath" in taken else None
        if app_id is None:
            self.transaction = Transaction(own_app_id(self.write_id), 1, OWN_TRANSACTION_KEPT)
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
            return TaskReport(None, rows, 0, self.write_id, app_id)
        return self.enqueue.stage(batches, task, self.write_id, app_id, self.transaction.version, summing=True)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Add the jobs that the tasks have staged, in one commit of the queue."""
        named = self.transaction.app_id != own_app_id(self.write_id)
        rows = sum(report.jobs for report in messages if isinstance(report, TaskReport))
        if self.repeated:
            receipt = StagedReceipt(repeated=True, version=self.last)
        elif not named and not rows:
            receipt = StagedReceipt()
            asyncio.run(self.enqueue.settle_bad_rows(messages, self.transaction, kept=True))
        else:
            receipt = asyncio.run(self.enqueue.commit(messages, self.write_id, self.transaction))
        log_receipt(receipt, self.transaction, rows)
        bad = 0 if receipt.repeated else log_bad_rows(messages, self.enqueue.policy)
        if self.receipt_path is not None:
            leave_receipt(self.receipt_path, receipt, left_out(receipt, self.transaction, rows), bad)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the staged objects, unless the commit has succeeded after all."""
        asyncio.run(self.enqueue.abort(messages, self.write_id, self.transaction))


def leave_receipt(path: str, receipt: StagedReceipt, missing: int = 0, bad: int = 0) -> None:
    """Write the receipt to a file for the program: the commit runs in a process that returns nothing to it.

    Args:
        path: of the file.
        receipt: of the write.
        missing: number of rows that were left out, as the queue has a later version.
        bad: number of rows that could not become jobs.
    """
    try:
        Path(path).write_text(json.dumps({**asdict(receipt), "left_out": missing, "bad": bad}), encoding="utf-8")
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
        InvalidURLError: a URL is wrong.
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
    order = order_of(taken.get("orderBy", ()), schema)
    policy = _policy_of(taken, limits)
    return BulkEnqueue(
        url,
        columns_of(schema, constants, {each.place for each in order}),
        Staging(
            beside,
            taken.get("stagingRetention", RETENTION),
            deadline,
            open_storage=partial(open_store, create=folder is not None),  # a staging folder is created
        ),
        limits,
        taken.get("onConflict", "return"),
        deadline,
        taken.get("maxBlobBytes"),
        SegmentPlace() if folder is None and isinstance(open_store(url), SupportsObjects) else None,
        order,
        policy,
        _bad_rows_at(taken["badRowsPath"], url, deadline) if "badRowsPath" in taken else None,
    )


def _policy_of(taken: Mapping[str, Any], limits: Limits) -> BadRowPolicy | None:
    """Return the treatment of rows that cannot be jobs; None: they are errors."""
    mode = taken.get("onBadRow", "fail")
    for option, needed in (("badRowsPath", "skip"), ("deadLetterEntrypoint", "deadLetter")):
        if option in taken and mode != needed:
            raise InvalidJobError(f"the option {option} has an effect only with onBadRow {needed}: give both, or none")
    entrypoint = taken.get("deadLetterEntrypoint", DEAD_LETTERS)
    check_name("option deadLetterEntrypoint", entrypoint, limits)
    return None if mode == "fail" else BadRowPolicy(mode, entrypoint, "badRowsPath" in taken)


def _bad_rows_at(folder: str, url: str, deadline: float) -> Staging:
    beside = absolute(url_in_folder(folder, url), create=True)
    return Staging(beside, RETENTION, deadline, open_storage=partial(open_store, create=True))
