"""`run_batch`: jobs claimed by the driver, done by a worker's handlers on executors, and ended in a few commits.

Delivery is at least once, as everywhere: a job is done again if its task is tried again, or if the driver dies. The
outcomes of jobs are staged when their partition is finished. Jobs in segments are leased: each lease is a
partition, whose task reads the jobs, and ends them in one operation. The outcomes of all other jobs reach the queue in
one commit, in which every job stands for itself. Even if a batch fails, jobs that are known to be done are acked, and
no job is charged for the failure of another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyspark

from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError, JQueueError
from jqueue.domain.limits import check_integer
from jqueue.domain.printable import counted
from jqueue.ports.log import Logger, logger_of
from jqueue.runtime.system import SystemClock, SystemEntropy, process_name
from jqueue.spark.batch.children import BatchTask
from jqueue.spark.batch.settling import HOLDERS, BatchClaims
from jqueue.spark.batch.task import MOST_IN_ONE, do_on_spark, parts_of
from jqueue.spark.batch.worker_pickle import pickled
from jqueue.spark.claims import open_queue
from jqueue.spark.errors import one_line
from jqueue.spark.session import require_spark
from jqueue.spark.staging import Staging, absolute
from jqueue.sync.background import wait_for
from jqueue.worker import Worker
from jqueue.worker.retries import OutcomeCounts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger: Logger = logger_of("jqueue.spark")

TIMEOUT = 3600.0
"""Seconds that a handler may take that has no timeout of its own, by default."""

CLAIM_TIMEOUT = 30.0
"""Seconds that a claim lasts if the driver dies, by default."""

MOST = 10_000_000
"""Largest number of jobs in a batch."""

DEADLINE = 60.0
"""Seconds to write or read a staged object, repetitions included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport(OutcomeCounts):
    """Number of jobs that a batch claimed, by outcome.

    Attributes:
        killed: jobs among `failed` and `dead` whose handler ended its process, or did not stop.
        held_by_others: jobs in progress elsewhere, if none was ready.
        seconds: from the first call of the queue to the last.
    """

    killed: int = 0
    held_by_others: int = 0
    seconds: float = 0.0

    @property
    def claimed(self) -> int:
        """Number of all jobs of the batch."""
        return self.total

    def __str__(self) -> str:
        others = f"; others hold {counted(self.held_by_others, 'job')}" if self.held_by_others else ""
        if not self.claimed:
            return f"no jobs were ready{others}"
        whose = "its" if self.killed == 1 else "their"
        killed = f" ({self.killed:,} ended {whose} process)" if self.killed else ""
        return f"{counted(self.claimed, 'job')} in {self.seconds:,.1f} s: {self.describe()}{killed}{others}"


class BatchFailedError(JQueueError):
    """A batch could not be finished. Jobs that were done are acked, the others are handed back unharmed.

    Attributes:
        report: what became of the jobs.
        cause: the error that ended it.
    """

    def __init__(self, why: str, report: BatchReport, cause: BaseException | None = None) -> None:
        super().__init__(f"{why} ({report})")
        self.report = report
        self.cause = cause


def run_batch(
    spark: SparkSession,
    url: str | os.PathLike[str],
    worker: Worker,
    *,
    entrypoint: str | Sequence[str] | None = None,
    max_jobs: int = 10_000,
    partitions: int | None = None,
    claim_timeout: Duration | None = None,
    timeout: Duration | None = TIMEOUT,
) -> BatchReport:
    """Claim jobs that are ready, have the worker's handlers do them on executors, and end them in the queue.

    Args:
        spark: the session.
        url: of the queue. Executors must reach it: a file must be on a disk that all machines share.
        worker: has the handlers. A worker at the top of a module is imported by its name on executors, which must be
            able to import the module. Any other worker is pickled.
        entrypoint: one or several of the worker's entrypoints; all of them by default.
        max_jobs: largest number of jobs, of which at most 100,000 are claimed one by one.
        partitions: number of partitions, of which the first has the first jobs. The default is two for each core, or
            more, so that no partition has more than a thousand jobs; of a deep queue, 100,000 jobs.
        claim_timeout: time that a claim lasts if the driver dies; 30 seconds by default, with a heartbeat every ten. If
            no job is ready, and another batch sends no heartbeat for its claims, this batch waits for them so long.
        timeout: time that a handler may take that has no timeout of its own; an hour by default. None for no limit: a
            handler that hangs then hangs the batch.

    Returns:
        A report of what became of the jobs.

    Raises:
        BatchFailedError: Spark could not finish it. Jobs that were done are acked, the others handed back unharmed.
        ImportError: Spark is too old. No job was claimed.
        InvalidJobError: an argument is wrong, or the worker cannot be sent. No job was claimed.
        StorageError: the queue cannot be used. If it failed at the end, the claims become stale, and the jobs are
            done again.
    """
    require_spark(pyspark.__version__, spark.version)
    names, url = names_of(worker, entrypoint), absolute(os.fspath(url))
    check_integer("max_jobs", max_jobs, 1, MOST)
    if partitions is not None:
        check_integer("partitions", partitions, 1, MOST)
    parts = parts_of(spark, partitions)  # raises before any job is claimed
    limit = None if timeout is None else to_seconds("timeout", timeout)
    lasts = CLAIM_TIMEOUT if claim_timeout is None else to_seconds("claim_timeout", claim_timeout)
    write_id = f"outcomes-{SystemEntropy().new_id()[:13]}"
    task = BatchTask(pickled(worker), Staging(url, DEADLINE), write_id, limit)
    holder = f"{HOLDERS}{worker.settings.name}@{process_name()} {write_id}"
    claims = BatchClaims(open_queue(url, lasts), worker, names, lasts, holder)
    return _run(spark, claims, task, max_jobs, partitions, parts)


def _run(
    spark: SparkSession,
    claims: BatchClaims,
    task: BatchTask,
    max_jobs: int,
    partitions: int | None,
    parts: int,
) -> BatchReport:
    """Claim jobs, have them done, and end them in the queue, even after an error in between."""
    clock = SystemClock()
    began = clock.monotonic()
    failure: BaseException | None = None
    names: list[str] | None = None
    try:
        try:
            wait_for(lambda: claims.begin(max_jobs, parts))
            held = claims.held
            if not held.number:
                return BatchReport(held_by_others=claims.others, seconds=clock.monotonic() - began)
            wait_for(task.mark)
            number = partitions or max(parts, -(-len(held.jobs) // MOST_IN_ONE))
            names = do_on_spark(spark, held, number, replace(task, awaited=claims.awaited))
        except BaseException as error:
            if not claims.held.number:
                raise
            failure = error
        counts, problem = wait_for(lambda: claims.finish(task, names))
    finally:
        wait_for(claims.close)
    report = BatchReport(seconds=clock.monotonic() - began, **counts)
    failure = failure or problem
    if failure is None:
        return report
    if not isinstance(failure, Exception):
        logger.warning("a batch was interrupted: %s", report)
        raise failure
    raise BatchFailedError(one_line(failure), report, failure) from None


def names_of(worker: Worker, entrypoint: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the entrypoints whose jobs a batch does.

    Raises:
        InvalidJobError: the worker has no handler for one of them, or none at all.
    """
    if not isinstance(worker, Worker):
        raise InvalidJobError(f"run_batch needs a jqueue.worker.Worker, got {type(worker).__name__}")
    names = worker.handlers if entrypoint is None else entrypoint
    wanted = (names,) if isinstance(names, str) else tuple(names)
    missing = [name for name in wanted if name not in worker.handlers]
    if missing or not wanted:
        there_are = ", ".join(map(repr, worker.handlers)) or "none"
        of = f" for {missing[0]!r}" if missing else ""
        raise InvalidJobError(f"the worker has no handler{of} (its handlers: {there_are})")
    return wanted
