"""The data pipeline on Spark, part by part, on two cores and a file, each part a few times to warm up.

Arguments: rows, payload_bytes, batch, batch_jobs, standing, writers, rounds to warm up, and those of the storage.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType
from shared import ENTRYPOINT, arguments, report

from jqueue import DirectQueue, Limits, LocalFileSystemStorage
from jqueue.spark import local_session, run_batch
from jqueue.spark.enqueue.committing import TaskAttempt
from jqueue.spark.enqueue.writing import BulkWriter
from jqueue.worker import Worker

Seconds = TypeVar("Seconds", float, tuple[float, float])

BUSY = "busy"
"""The entrypoint of the jobs of competing writers."""

worker = Worker(concurrency=50)


@worker.handler(ENTRYPOINT)
async def do_nothing(payload: bytes) -> None:
    """The smallest handler there is."""


class Pipeline:
    """The parts that are measured.

    Args:
        spark: the session.
        given: the arguments.
    """

    def __init__(self, spark: Any, given: dict[str, Any]) -> None:
        self.spark = spark
        self.folder = Path(given["folder"])
        self.payload_bytes = given["payload_bytes"]
        self._queues = 0

    def new_queue(self) -> str:
        """A file that nobody has used."""
        self._queues += 1
        return str(self.folder / f"queue-{self._queues}.json")

    def rows(self, count: int) -> Any:
        """Rows with random payloads, computed and in memory."""
        text = (
            f"substring(concat(sha2(cast(id as string), 256), sha2(cast(-id as string), 256)), 1, {self.payload_bytes})"
        )
        frame = self.spark.range(0, count, 1, 2).selectExpr(f"encode({text}, 'utf-8') as payload").cache()
        frame.count()
        return frame

    def enqueue(self, url: str, frame: Any) -> float:
        """Seconds of a bulk enqueue."""
        start = time.perf_counter()
        frame.write.format("jqueue").mode("append").option("entrypoint", ENTRYPOINT).save(url)
        return time.perf_counter() - start

    def snapshot(self, url: str, count: int) -> float:
        """Seconds in which every column of every job is read."""
        start = time.perf_counter()
        self.spark.read.format("jqueue").load(url).write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - start
        found = self.spark.read.format("jqueue").load(url).count()
        _check(found == count, f"a snapshot has {found} of {count} jobs")
        return seconds

    def commit(self, url: str, payloads: list[bytes]) -> float:
        """Return the seconds of the commit of a bulk enqueue, called as Spark does it, after all rows are staged."""
        schema = StructType([StructField("payload", BinaryType())])
        writer = BulkWriter({"path": url, "entrypoint": ENTRYPOINT}, schema, False)
        batch = pa.RecordBatch.from_arrays([pa.array(payloads, pa.binary())], names=["payload"])
        half = len(payloads) // 2
        parts = (batch.slice(0, half), batch.slice(half))
        staged = [writer.stage(iter([part]), TaskAttempt(number, number)) for number, part in enumerate(parts)]
        start = time.perf_counter()
        writer.commit(staged)
        return time.perf_counter() - start

    def stream(self, url: str, count: int, batch: int) -> tuple[float, float]:
        """Return the seconds of a query that takes all jobs in batches: from start to end, and of its batches alone."""
        sizes: list[int] = []
        start = time.perf_counter()
        query = (
            self.spark.readStream.format("jqueue")
            .option("maxJobsPerTrigger", batch)
            .load(url)
            .writeStream.foreachBatch(lambda frame, _: sizes.append(frame.count()))
            .option("checkpointLocation", f"{url}.checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - start
        _check(sum(sizes) == count, f"a stream has {sum(sizes)} of {count} jobs")
        batches = [done for done in query.recentProgress if done.numInputRows]
        _check(len(batches) == count // batch, f"a stream has {len(batches)} batches")
        return seconds, sum(done.durationMs["triggerExecution"] for done in batches) / 1000

    def run(self, url: str, count: int) -> float:
        """Seconds in which jobs that do nothing are claimed, run and acked."""
        start = time.perf_counter()
        done = run_batch(self.spark, url, worker, entrypoint=ENTRYPOINT, max_jobs=count)
        seconds = time.perf_counter() - start
        _check(done.done == count, f"of {count} jobs, {done.done} were done")
        return seconds

    def contended(self, frame: Any, standing: int, writers: int) -> float:
        """Return the seconds of a bulk enqueue while other processes write to a queue with many jobs."""
        url = self.new_queue()
        self.enqueue(url, self.rows(standing))
        with _in_the_way(url, writers):
            return self.enqueue(url, frame)


def measure(given: dict[str, Any]) -> dict[str, float]:
    """Return rows or jobs per second of each part, and the seconds of parts with a deadline."""
    rows, batch, jobs = given["rows"], given["batch"], given["batch_jobs"]
    spark = local_session("jqueue benchmark", "local[2]", spark_driver_memory="2g")
    spark.sparkContext.setLogLevel("ERROR")
    pipeline = Pipeline(spark, given)
    many, some = pipeline.rows(rows), pipeline.rows(jobs)

    def warm(part: Callable[[], Seconds]) -> Seconds:
        for _ in range(given["rounds"]):
            part()
        return part()

    url = pipeline.new_queue()
    seconds = {"enqueue": warm(lambda: pipeline.enqueue(pipeline.new_queue(), many))}
    pipeline.enqueue(url, many)
    seconds["snapshot"] = warm(lambda: pipeline.snapshot(url, rows))

    def stream() -> tuple[float, float]:
        pipeline.enqueue(streamed := pipeline.new_queue(), many)
        return pipeline.stream(streamed, rows, batch)

    def run() -> float:
        pipeline.enqueue(worked := pipeline.new_queue(), some)
        return pipeline.run(worked, jobs)

    seconds["stream"], seconds["batches"] = warm(stream)
    seconds["run"] = warm(run)
    payloads = [bytes(row.payload) for row in many.collect()]
    seconds["commit"] = warm(lambda: pipeline.commit(pipeline.new_queue(), payloads))
    seconds["contended"] = warm(lambda: pipeline.contended(some, given["standing"], given["writers"]))
    spark.stop()
    return {
        "rows_per_second": rows / seconds["enqueue"],
        "rows_committed_per_second": rows / seconds["commit"],
        "snapshot_seconds": seconds["snapshot"],
        "streamed_per_second": rows / seconds["batches"],
        "streamed_from_start_per_second": rows / seconds["stream"],
        "run_per_second": jobs / seconds["run"],
        "contended_seconds": seconds["contended"],
    }


@contextlib.contextmanager
def _in_the_way(url: str, writers: int) -> Iterator[None]:
    """Run `writers` processes that write as fast as they can; the block begins when each has written once."""
    told = [sys.executable, __file__, json.dumps({"busy": url})]
    others = [subprocess.Popen(told, stdout=subprocess.PIPE, text=True) for _ in range(writers)]
    try:
        for other in others:
            assert other.stdout is not None
            _check(other.stdout.readline() == "busy\n", "a writer did not start")
        yield
        _check(all(other.poll() is None for other in others), "a writer gave up")
    finally:
        for other in others:
            other.terminate()
            other.wait(30)


async def be_busy(url: str) -> None:
    """Enqueue, claim and ack one job after the other."""
    queue = DirectQueue(LocalFileSystemStorage(url), limits=Limits())
    first = True
    while True:
        await queue.enqueue(BUSY, b"")
        for job in await queue.dequeue(BUSY):
            await queue.ack(job)
        if first:
            print("busy", flush=True)
            first = False


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(otherwise)


if __name__ == "__main__":
    told = arguments()
    if "busy" in told:
        asyncio.run(be_busy(told["busy"]))
    else:
        report(measure(told))
