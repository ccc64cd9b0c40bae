"""A Spark task of a batch: it has the jobs of one partition done, and stages their outcomes.

Staged outcomes survive a failure of other partitions or of the Spark job: jobs that are done stay done.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext

from jqueue.connect import connect
from jqueue.core.blob.lines import read_line
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import JQueueError, StorageError
from jqueue.domain.models import Job
from jqueue.domain.operations.ranges import EndRange
from jqueue.domain.range_jobs import RangeClaim
from jqueue.ports.log import logger_of
from jqueue.ports.queue import JobQueue
from jqueue.spark.batch.child import WorkInstructions
from jqueue.spark.batch.children import WorkFailed, do_rows, in_order
from jqueue.spark.batch.outcomes import Outcome, encode_outcomes
from jqueue.spark.batch.partition_rows import PartitionRows
from jqueue.spark.batch.range_results import RangeResult
from jqueue.spark.batch.worker_pickle import WorkerPickle
from jqueue.spark.staging import Staging

logger = logger_of("jqueue.spark")

JOBS = pa.schema([("partition", pa.int32()), ("place", pa.int32()), ("line", pa.binary())])
"""Columns of the jobs sent to tasks: `place` is among all jobs of the batch, `line` as in the blob.

A row whose `line` begins as a pickle does is the claim of a range. It is alone in its partition.
"""

PICKLE = b"\x80"
"""First byte of a pickled claim. No line of a job begins with it."""

STAGED = pa.schema([("staged", pa.string())])
"""Columns of a task's answer: the name of the object that it has staged."""

STAGED_DDL = "staged string"


class BatchTaskError(JQueueError):
    """The jobs of a partition could not be done. Spark passes the message on to the user."""


@dataclass(frozen=True)
class BatchTask:
    """The function that Spark calls with the rows of a partition.

    Attributes:
        worker: the worker that does the jobs.
        url: of the queue.
        staging: the place of the outcomes.
        write_id: the id of the batch, in the names of its staged objects.
        timeout: seconds that a handler may take that has no timeout of its own; None for no limit.
    """

    worker: WorkerPickle
    url: str = field(repr=False)
    staging: Staging
    write_id: str
    timeout: float | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the jobs.

        Raises:
            BatchTaskError: not all could be done. The outcomes of those done are staged.
        """
        rows = sorted(
            (place, number, line)
            for batch in batches
            for number, place, line in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        )
        if rows:
            context = TaskContext.get()
            attempt = 0 if context is None else context.taskAttemptId()
            _, partition, line = rows[0]
            if line.startswith(PICKLE):
                name = self.do_range(pickle.loads(line), partition, attempt)
            else:
                name = self.do([line for _, _, line in rows], partition, attempt)
            yield pa.record_batch([[name]], schema=STAGED)

    def do(self, lines: Sequence[bytes], partition: int, attempt: int) -> str:
        """Do the jobs of one partition, and return the name of the object with their outcomes.

        Args:
            lines: the jobs.
            partition: its number.
            attempt: a number that no other attempt on any partition has.

        Raises:
            BatchTaskError: they could not be done.
        """
        self._check_batch()
        rows = PartitionRows.of_jobs([_job_of(line) for line in lines])
        outcomes, failure = self._outcomes(rows)
        name = self.staging.name(self.write_id, partition, attempt)
        asyncio.run(self._stage(name, encode_outcomes(in_order(rows, outcomes))))
        if failure is not None:
            raise BatchTaskError(str(failure)) from None
        return name

    def do_range(self, claim: RangeClaim, partition: int, attempt: int) -> str:
        """Read the jobs of a range, do them, and end the range. Return the name of the object with the outcomes.

        Raises:
            BatchTaskError: they could not be done.
        """
        self._check_batch()
        try:
            rows = asyncio.run(self._read_range(claim))
        except JQueueError as error:
            raise BatchTaskError(f"an executor cannot read the jobs of a range: {error}") from None
        outcomes, failure = self._outcomes(rows)
        result = RangeResult.of(claim, rows, outcomes)
        name = self.staging.name(self.write_id, partition, attempt)
        asyncio.run(self._stage(name, result.encode()))
        if failure is not None:
            raise BatchTaskError(str(failure)) from None
        if (ended := result.operation(claim)) is not None:
            try:
                asyncio.run(self._end_range(ended))
            except JQueueError as error:
                logger.info("the driver will end a range, as a task could not: %s", error)
        return name

    def _outcomes(self, rows: PartitionRows) -> tuple[Collection[Outcome], WorkFailed | None]:
        """Do jobs. Return the outcomes of those that are not marked as done, and the reason if some were not done."""
        try:
            return do_rows(WorkInstructions(self.worker.load, self._queue, timeout=self.timeout), rows).values(), None
        except WorkFailed as error:
            return error.outcomes, error
        except OSError as error:
            raise BatchTaskError(f"no process can be started for the handlers: {error}") from None

    async def _read_range(self, claim: RangeClaim) -> PartitionRows:
        async with connect(self.url, DirectQueue) as queue:
            found = [row async for rows in queue.read_packed_range(claim) for row in rows]
        return PartitionRows.of_range(claim, found)

    async def _end_range(self, ended: EndRange) -> None:
        async with connect(self.url, DirectQueue) as queue:
            await queue.apply(ended)

    def _check_batch(self) -> None:
        """Check that the batch goes on, before any job is done whose outcome would be lost.

        Raises:
            BatchTaskError: the batch has ended, or this machine cannot tell.
        """
        try:
            content = asyncio.run(self._read(marker_of(self.write_id)))
        except StorageError as error:
            raise BatchTaskError(f"an executor cannot reach the store of the queue: {error}") from None
        if content is None:
            raise BatchTaskError(
                "an executor does not see the object that the driver has put beside the queue: the batch has ended,"
                " or the queue is in a file that only the driver's machine has"
            )

    async def _stage(self, name: str, content: bytes) -> None:
        async with self.staging.opened() as objects:
            await objects.write(name, content)

    async def _read(self, name: str) -> bytes | None:
        async with self.staging.opened() as objects:
            [content] = await objects.read([name])
        return content

    def _queue(self) -> JobQueue:
        return connect(self.url, DirectQueue)


def marker_of(write_id: str) -> str:
    """Return the name of an object that exists while a batch goes on."""
    return f".staged-{write_id}-open"


def _job_of(line: bytes) -> Job:
    job = read_line(line)
    if not isinstance(job, Job):
        raise BatchTaskError(f"an executor cannot read a job, perhaps for another version of jqueue: {job.reason}")
    return job
