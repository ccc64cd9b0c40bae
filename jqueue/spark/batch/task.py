"""The Spark job of a batch: its tasks have the jobs of their partitions done, and stage the outcomes.

Staged outcomes survive a failure of other partitions or of the Spark job: jobs that are done stay done.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from jqueue.connect import connect
from jqueue.core.blob.lines import encode_job, read_line
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import InvalidJobError, JQueueError, SegmentDamagedError, StorageError
from jqueue.domain.header import SetAside
from jqueue.domain.models import record_of
from jqueue.domain.operations.base import Operation
from jqueue.domain.segments import Lease
from jqueue.ports.log import Logger, logger_of
from jqueue.spark.batch.children import BatchTask, do_jobs
from jqueue.spark.claims import ClaimedJobs, Held, Staged, end_of_lease
from jqueue.spark.session import tagged, task_context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger: Logger = logger_of("jqueue.spark")

JOBS = pa.schema([("partition", pa.int32()), ("place", pa.int32()), ("line", pa.binary())])
"""Columns of the jobs sent to tasks: `place` is among all jobs of the batch, `line` as in the blob.

A row whose `line` begins as a pickle does is a lease. It is alone in its partition.
"""

PICKLE = b"\x80"
"""First byte of a pickled claim. No line of a job begins with it."""

ANSWER = pa.schema([("staged", pa.string())])
"""Columns of a task's answer: the name of the object with its outcomes. Spark may try a task several times."""

PER_CORE = 2
"""Partitions for each core: with several, a slow partition does not leave all other cores idle."""

MOST_IN_ONE = 1000
"""Largest number of jobs in a partition, unless the caller sets the number of partitions."""


class BatchTaskError(JQueueError):
    """The jobs of a partition could not be done. Spark passes the message on to the user."""


def do_partition(task: BatchTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do the jobs of a partition, and stage their outcomes. A task that has read a range ends it, too.

    If the segment of a lease cannot be read, all jobs of the lease are handed back.

    Raises:
        BatchTaskError: not all could be done. The outcomes of those done are staged.
    """
    rows = sorted(
        (place, number, line)
        for batch in batches
        for number, place, line in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    if not rows:
        return
    context = task_context()
    number, line = rows[0][1:]
    claim: Lease | None = pickle.loads(line) if line.startswith(PICKLE) else None
    jobs = ClaimedJobs([], claim, task.awaited)  # not an answer of `asyncio.run`, which makes a text of each
    unreadable = asyncio.run(_read(task, jobs, [line for _, _, line in rows]))
    if claim is not None and unreadable is not None:
        jobs.rows.clear()
    try:
        staged, failure = do_jobs(task, jobs)
    except OSError as error:
        raise BatchTaskError(f"no process can be started for the handlers: {error}") from None
    name = task.staging.name(task.write_id, number, 0 if context is None else context.taskAttemptId())
    if claim is not None and unreadable is not None:
        staged = Staged(lease_id=claim.id, left=claim.rows, unread={claim.segment: unreadable})
    end = None
    if claim is not None and staged.is_final and failure is None:
        end = end_of_lease(claim, staged)
    asyncio.run(_stage(task, name, staged.encode(), end))
    if failure is not None:
        raise BatchTaskError(failure)
    yield pa.RecordBatch.from_pydict({"staged": [name]}, schema=ANSWER)


async def _read(task: BatchTask, jobs: ClaimedJobs, lines: Sequence[bytes]) -> str | None:
    """Read the jobs of a partition. Return why their segment cannot be read. First, check that the batch goes on.

    Raises:
        BatchTaskError: the batch has ended, so that the outcomes would be lost; or this machine cannot tell.
    """
    try:
        async with task.staging.opened() as objects:
            [mark] = await objects.read([task.marker])
    except StorageError as error:
        raise BatchTaskError(f"an executor cannot reach the store of the queue: {error}") from None
    if mark is None:
        raise BatchTaskError(
            "an executor does not see the object that the driver has put beside the queue: the batch has ended,"
            " or the queue is in a file that only the driver's machine has"
        )
    if jobs.claim is None:
        for line in lines:
            job = read_line(line)
            if isinstance(job, SetAside):
                raise BatchTaskError(f"an executor cannot read a job of another version of jqueue: {job.reason}")
            jobs.rows.append(job)
        return None
    try:
        async with connect(task.staging.url, DirectQueue) as queue:
            async for rows in queue.read_packed_lease(jobs.claim):
                jobs.rows.extend(rows)
    except SegmentDamagedError as error:
        return error.why
    except JQueueError as error:
        raise BatchTaskError(f"an executor cannot read the jobs of a lease: {error}") from None
    return None


async def _stage(task: BatchTask, name: str, content: bytes, ended: Operation | None) -> None:
    async with task.staging.opened() as objects:
        await objects.write(name, content)
    if ended is not None:
        try:
            async with connect(task.staging.url, DirectQueue) as queue:
                await queue.apply(ended)
        except JQueueError as error:
            logger.info("the driver will end a lease, as a task could not: %s", error)


def parts_of(spark: SparkSession, partitions: int | None) -> int:
    """Return the least number of partitions for a batch that is large enough."""
    from pyspark.errors import PySparkAttributeError

    try:
        return PER_CORE * int(spark.sparkContext.defaultParallelism) if partitions is None else partitions
    except PySparkAttributeError:
        raise InvalidJobError(
            "Spark Connect does not report the number of cores: give the number of partitions="
        ) from None


def do_on_spark(spark: SparkSession, held: Held, number: int, task: BatchTask) -> list[str]:
    """Do jobs on executors, and return the names of the objects with their outcomes.

    If an error or an interrupt ends the wait for them, Spark is told to stop.

    Args:
        spark: the session.
        held: the claims. Each lease makes a partition.
        number: number of partitions of the other jobs; the first partition has the first jobs.
        task: does the jobs of a partition.
    """
    singles, number = len(held.jobs), min(number, len(held.jobs))
    numbers = [*(place * number // singles for place in range(singles)), *range(number, number + len(held.leases))]
    lines = [*(encode_job(record_of(job)) for job in held.jobs), *(pickle.dumps(claim) for claim in held.leases)]
    table = pa.table([numbers, range(len(lines)), lines], schema=JOBS)
    with tagged(spark, task.write_id, "jqueue: run_batch"):
        lots = spark.createDataFrame(table).repartitionById(number + len(held.leases), "partition")
        answers = lots.mapInArrow(partial(do_partition, task), from_arrow_schema(ANSWER))
        return [row.staged for row in answers.collect()]
