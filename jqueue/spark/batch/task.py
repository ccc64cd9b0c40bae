"""A Spark task of a batch: it has the jobs of one partition done, and stages their outcomes.

Staged outcomes survive a failure of other partitions or of the Spark job: jobs that are done stay done.
"""

from __future__ import annotations

import asyncio
import gc
import json
import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext

from jqueue.connect import connect
from jqueue.core.blob.lines import read_line
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import JQueueError, SegmentDamagedError, StorageError
from jqueue.domain.header import SetAside
from jqueue.domain.job import JobRecord
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations.base import Operation
from jqueue.domain.segments import RangeClaim
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

RESULTS = pa.schema(
    [
        ("job_id", pa.string()),
        ("entrypoint", pa.string()),
        ("attempt", pa.int64()),
        ("result", pa.string()),
        ("staged", pa.string()),
    ]
)
"""Columns of a task's answer in a batch with a place for results: a row for each job that is done.

`result` is JSON. `staged` names the object with the outcomes of the same attempt: Spark may try a task several times,
and those outcomes count whose results it has written.
"""

RESULTS_DDL = "job_id string, entrypoint string, attempt long, result string, staged string"


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
        results: True to answer with the results of jobs, and to leave the end of ranges to the driver.
    """

    worker: WorkerPickle
    url: str = field(repr=False)
    staging: Staging
    write_id: str
    timeout: float | None = None
    results: bool = False

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
            if context is not None and not gc.get_freeze_count():
                gc.freeze()  # PySpark collects garbage after each task: 70 ms for modules that nothing will unload
            _, partition, line = rows[0]
            done: list[Outcome] = []
            if line.startswith(PICKLE):
                claim: RangeClaim = pickle.loads(line)
                name = self.do_range(claim, partition, attempt, done)
                names = {outcome.job_id: claim.entrypoint for outcome in done}
            else:
                name = self.do([line for _, _, line in rows], partition, attempt, done)
                names = {job.id: job.entrypoint for job in (_job_of(line) for _, _, line in rows if done)}
            yield result_rows(done, names, name) if self.results else pa.record_batch([[name]], schema=STAGED)

    def do(self, lines: Sequence[bytes], partition: int, attempt: int, done: list[Outcome] | None = None) -> str:
        """Do the jobs of one partition, and return the name of the object with their outcomes.

        Args:
            lines: the jobs.
            partition: its number.
            attempt: a number that no other attempt on any partition has.
            done: gets the outcomes of jobs that are done, if this batch has a place for results.

        Raises:
            BatchTaskError: they could not be done.
        """
        self._check_batch()
        rows = PartitionRows.of_jobs([_job_of(line) for line in lines])
        outcomes, failure = self._outcomes(rows, done)
        name = self.staging.name(self.write_id, partition, attempt)
        asyncio.run(self._stage(name, encode_outcomes(in_order(rows, outcomes))))
        if failure is not None:
            raise BatchTaskError(str(failure)) from None
        return name

    def do_range(self, claim: RangeClaim, partition: int, attempt: int, done: list[Outcome] | None = None) -> str:
        """Read the jobs of a range, do them, and end the range. Return the name of the object with the outcomes.

        If the segment cannot be read, all jobs of the range are handed back.

        Raises:
            BatchTaskError: they could not be done.
        """
        self._check_batch()
        failure = None
        try:
            rows = asyncio.run(self._read_range(claim))
        except SegmentDamagedError as error:
            result = RangeResult(claim.id, 0, left=claim.rows, unreadable=error.why)
        except JQueueError as error:
            raise BatchTaskError(f"an executor cannot read the jobs of a range: {error}") from None
        else:
            outcomes, failure = self._outcomes(rows, done)
            result = RangeResult.of(claim, rows, outcomes)
        name = self.staging.name(self.write_id, partition, attempt)
        asyncio.run(self._stage(name, result.encode()))
        if failure is not None:
            raise BatchTaskError(str(failure)) from None
        if not self.results and (ended := result.operation(claim)) is not None:
            try:
                asyncio.run(self._end_range(ended))
            except JQueueError as error:
                logger.info("the driver will end a range, as a task could not: %s", error)
        return name

    def _outcomes(
        self, rows: PartitionRows, done: list[Outcome] | None
    ) -> tuple[Collection[Outcome], WorkFailed | None]:
        """Do jobs. Return the outcomes of jobs that are not marked as done, and the reason if some were not done."""
        instructions = WorkInstructions(self.worker.load, self._queue, timeout=self.timeout, results=self.results)
        failure = None
        try:
            outcomes: Collection[Outcome] = do_rows(instructions, rows).values()
        except WorkFailed as error:
            outcomes, failure = error.outcomes, error
        except OSError as error:
            raise BatchTaskError(f"no process can be started for the handlers: {error}") from None
        if done is not None and self.results:
            done += [outcome for outcome in outcomes if outcome.kind == "done"]
        return [outcome.for_queue() for outcome in outcomes], failure

    async def _read_range(self, claim: RangeClaim) -> PartitionRows:
        """Return the jobs of a range."""
        jobs: list[JobRecord] = []
        async with connect(self.url, DirectQueue) as queue:
            async for rows in queue.read_packed_range(claim):
                jobs += rows
        return PartitionRows.of_range(claim, jobs)

    async def _end_range(self, ended: Operation) -> None:
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


def result_rows(done: Sequence[Outcome], entrypoints: Mapping[str, str], staged: str) -> pa.RecordBatch:
    """Return the rows with the results of jobs, given their entrypoints, and the name of the staged outcomes."""
    results = [None if outcome.result is None else json.dumps(outcome.result, ensure_ascii=False) for outcome in done]
    ids = [outcome.job_id for outcome in done]
    columns = [ids, [entrypoints[each] for each in ids], [outcome.attempt for outcome in done], results]
    return pa.record_batch([*columns, [staged] * len(done)], schema=RESULTS)


def marker_of(write_id: str) -> str:
    """Return the name of an object that exists while a batch goes on."""
    return f".staged-{write_id}-open"


def _job_of(line: bytes) -> Job:
    job = read_line(line)
    if isinstance(job, SetAside):
        raise BatchTaskError(f"an executor cannot read a job, perhaps for another version of jqueue: {job.reason}")
    return job_of(job)
