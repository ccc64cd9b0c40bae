"""`run_batch`: jobs claimed by the driver, done by a worker's handlers on executors, and ended in a few commits.

Delivery is at least once, as everywhere: a job is done again if its task is tried again, or if the driver dies. The
outcomes of jobs are staged when their partition is finished. Jobs in segments are claimed by ranges: each is a
partition, whose task reads the jobs, and ends them in one operation. The outcomes of all other jobs reach the queue in
one commit, in which every job stands for itself. Even if a batch fails, jobs that are known to be done are acked, and
no job is charged for the failure of another.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyspark

from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidBlobError, InvalidJobError, JQueueError
from jqueue.domain.limits import check_integer
from jqueue.domain.models import Job
from jqueue.ports.log import logger_of
from jqueue.runtime.system import SystemClock, SystemEntropy, process_name
from jqueue.spark.batch.batch_claims import BatchClaims, queue_for
from jqueue.spark.batch.outcomes import Outcome, decode_outcomes
from jqueue.spark.batch.progress import Progress, call_progress, finished, report_progress
from jqueue.spark.batch.range_results import RangeResult
from jqueue.spark.batch.report import BatchFailedError, BatchReport
from jqueue.spark.batch.settling import best_of, best_results, settle_all
from jqueue.spark.batch.spark_job import do_on_spark, parts_of, sizes_of
from jqueue.spark.batch.task import BatchTask, marker_of
from jqueue.spark.batch.worker_pickle import WorkerPickle
from jqueue.spark.errors import one_line
from jqueue.spark.session import require_spark
from jqueue.spark.staging import Staging, absolute, open_store
from jqueue.sync.background import Call, background
from jqueue.worker import Worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["BatchFailedError", "BatchReport", "run_batch"]

Answer = TypeVar("Answer")

logger = logger_of("jqueue.spark")

TIMEOUT = 3600.0
"""Seconds that a handler may take that has no timeout of its own, by default."""

MOST = 10_000_000
"""Largest number of jobs in a batch: as many as its ranges may have."""

DEADLINE = 60.0
"""Seconds to write or read a staged object, repetitions included."""


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
    progress: Progress | None = None,
    results: str | os.PathLike[str] | None = None,
) -> BatchReport:
    """Claim jobs that are ready, have the worker's handlers do them on executors, and tell the queue.

    Args:
        spark: the session.
        url: of the queue. Executors must reach it: a file must be on a disk that all machines share.
        worker: has the handlers. A worker at the top of a module is imported by its name on executors, which must be
            able to import the module. Any other worker is pickled.
        entrypoint: one or several of the worker's entrypoints; all of them by default.
        max_jobs: largest number of jobs.
        partitions: number of partitions, of which the first has the first jobs. The default is two for each core, or
            more, so that no partition has more than a thousand jobs; of a deep queue, 100,000 jobs.
        claim_timeout: time that a claim lasts if the driver dies; by default as the worker says, or five minutes.
        timeout: time that a handler may take that has no timeout of its own; an hour by default. None for no limit: a
            handler that hangs then hangs the batch.
        progress: called now and then, in a thread of its own, with the number of jobs whose partitions are finished,
            and of all jobs.
        results: path of a folder, as Spark writes it, to which executors add what handlers return, as Parquet: a row
            with `job_id`, `entrypoint`, `attempt` and `result` (JSON) for each job that is done. The jobs are acked
            once Spark has committed all rows. If it cannot, these jobs are handed back, and done again in another
            batch. If a job has several rows, the one with the newest `attempt` counts.

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
    open_store(url)  # a store that executors cannot reach is refused
    check_integer("max_jobs", max_jobs, 1, MOST)
    if partitions is not None:
        check_integer("partitions", partitions, 1, MOST)
    parts = parts_of(spark, partitions)  # raises before any job is claimed
    limit = None if timeout is None else to_seconds("timeout", timeout)
    lasts = worker.settings.claim_timeout if claim_timeout is None else claim_timeout
    write_id = f"outcomes-{SystemEntropy().new_id()[:13]}"
    seconds = None if lasts is None else to_seconds("claim_timeout", lasts)
    staging, place = Staging(url, DEADLINE), None if results is None else os.fspath(results).rstrip("/")
    task = BatchTask(WorkerPickle.of(worker), url, staging, write_id, limit, place is not None)
    holder = f"{worker.settings.name}@{process_name()} {write_id}"
    claims = BatchClaims(queue_for(url, max_jobs), names, max_jobs, seconds, holder, parts)
    return _run(spark, _Batch(worker, claims, task, place), partitions, progress)


def names_of(worker: Worker, entrypoint: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the entrypoints whose jobs a batch does.

    Raises:
        InvalidJobError: the worker has no handler for one of them, or none at all.
    """
    if not isinstance(worker, Worker):
        raise InvalidJobError(f"run_batch needs a jqueue.worker.Worker, got {type(worker).__name__}")
    wanted = (
        (entrypoint,) if isinstance(entrypoint, str) else tuple(worker.handlers if entrypoint is None else entrypoint)
    )
    missing = [name for name in wanted if name not in worker.handlers]
    if missing or not wanted:
        there_are = ", ".join(map(repr, worker.handlers)) or "none"
        of = f" for {missing[0]!r}" if missing else ""
        raise InvalidJobError(f"the worker has no handler{of} (its handlers: {there_are})")
    return wanted


def _run(spark: SparkSession, batch: _Batch, partitions: int | None, progress: Progress | None) -> BatchReport:
    """Claim jobs, have them done, and tell the queue, even after an error in between."""
    clock = SystemClock()
    began = clock.monotonic()
    failure: BaseException | None = None
    staged: list[str] | None = None
    try:
        try:
            jobs = _wait_for(batch.begin)
            ranges = batch.claims.ranges
            if not jobs and not ranges:
                return BatchReport(seconds=clock.monotonic() - began)
            sizes = sizes_of(spark, len(jobs), partitions) if jobs else []
            _wait_for(lambda: batch.open([*sizes, *(claim.rows for claim in ranges)], progress))
            staged = do_on_spark(spark, jobs, sizes, batch.task, ranges, batch.results)
        except BaseException as error:
            if not batch.claims.number:
                raise
            failure = error
        report, problem = _wait_for(lambda: batch.finish(staged))
    finally:
        _wait_for(batch.claims.close)
    report = replace(report, seconds=clock.monotonic() - began)
    failure = failure or problem
    if failure is None:
        return report
    if not isinstance(failure, Exception):
        logger.warning("a batch was interrupted: %s", report)
        raise failure
    raise BatchFailedError(one_line(failure), report, failure) from None


class _Batch:
    """The work of the driver beside Spark. All of it runs on one event loop, except the calls of `progress`."""

    def __init__(self, worker: Worker, claims: BatchClaims, task: BatchTask, results: str | None = None) -> None:
        self.claims = claims
        self.results = results
        self.task = task
        self._worker = worker
        self._progress: Progress | None = None
        self._telling: asyncio.Task[None] | None = None

    async def begin(self) -> list[Job]:
        """Claim jobs."""
        return await self.claims.begin(self._worker)

    async def open(self, sizes: Sequence[int], progress: Progress | None) -> None:
        """Stage the mark by which tasks know that the batch goes on, and tell its progress from now on."""
        staging, write_id = self.task.staging, self.task.write_id
        async with staging.opened() as objects:
            await objects.write(marker_of(write_id), b"{}")
        if progress is not None:
            self._progress = progress
            self._telling = asyncio.create_task(report_progress(progress, staging, write_id, sizes))

    async def finish(self, staged: Sequence[str] | None) -> tuple[BatchReport, Exception | None]:
        """End the claims, and remove the staged objects. Return the report, and the error if not all is known.

        Args:
            staged: the names of the objects with the outcomes; None if Spark has not told.
        """
        if self._telling is not None:
            self._telling.cancel()
        known, results, problem = await self._known(staged)
        claims, entropy, timeout = self.claims, self.claims.queue.options.entropy, self.task.timeout
        outcomes, ranges = best_of(known), best_results(results)
        async with self.task.staging.opened() as objects:
            report, _ = await asyncio.gather(
                settle_all(claims.jobs, claims.ranges, outcomes, ranges, self._worker, claims.end, entropy, timeout),
                objects.clean(self.task.write_id),
            )
        if self._progress is not None and staged is not None:
            await call_progress(self._progress, report.claimed, report.claimed)
        return report, problem

    async def _known(self, staged: Sequence[str] | None) -> tuple[list[Outcome], list[RangeResult], Exception | None]:
        """Return the outcomes and results that can be read, and the error if some that were staged cannot be."""
        known: list[Outcome] = []
        results: list[RangeResult] = []
        problem: Exception | None = None
        staging, write_id, names = self.task.staging, self.task.write_id, staged or ()
        try:
            async with staging.opened() as objects:
                if staged is None or self.task.results:
                    found = finished(await objects.of_write(write_id) or (), write_id)
                    names = [name for several in found.values() for name in several]
                contents = await objects.read(names)
        except JQueueError as error:
            return known, results, error
        for name, content in zip(names, contents, strict=True):
            counts = not self.task.results or name in (staged or ())  # Spark has written the results of its jobs
            try:
                if content is not None and content.startswith(b'{"range'):
                    result = RangeResult.decode(content)
                    results += [result] if counts or not result.all_done else []
                else:
                    outcomes = decode_outcomes(content or b"")
                    known += [outcome for outcome in outcomes if counts or outcome.kind != "done"]
            except InvalidBlobError as error:
                problem = error
        return known, results, problem


def _wait_for(work: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
    """Run a coroutine on the background event loop, which keeps the claims alive, and wait for its answer."""
    answer: Answer = background().run(Call(work, endless=True), Call.begin)
    return answer
