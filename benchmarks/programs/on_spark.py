"""Code shared by our programs on Spark: the session, the queues in files, rows to enqueue, and competing writers.

Run as a program, it is such a writer: it enqueues, claims and acks one job after the other until it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType
from shared import ENTRYPOINT, arguments

from jqueue import DirectQueue, Limits, LocalFileSystemStorage
from jqueue.spark import local_session
from jqueue.spark.enqueue.writing import BulkWriter

BUSY = "busy"
"""The entrypoint of the jobs of competing writers."""

PARTITIONS = 2
"""Number of partitions of the rows: one for each core."""


def session() -> Any:
    """Spark on two cores."""
    spark = local_session("jqueue benchmark", "local[2]", spark_driver_memory="2g")
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Queues:
    """Queues in files, and rows for them.

    Args:
        spark: the session.
        given: the arguments.
    """

    def __init__(self, spark: Any, given: dict[str, Any]) -> None:
        self.spark = spark
        self.folder = Path(given["folder"])
        self.payload_bytes = given["payload_bytes"]
        self._made = 0

    def new_queue(self) -> str:
        """A file that nobody has used."""
        self._made += 1
        return str(self.folder / f"queue-{self._made}.json")

    def computed(self, count: int, *options: str) -> Any:
        """Rows with random payloads, and columns of options, that are computed when they are needed."""
        text = (
            f"substring(concat(sha2(cast(id as string), 256), sha2(cast(-id as string), 256)), 1, {self.payload_bytes})"
        )
        return self.spark.range(0, count, 1, PARTITIONS).selectExpr(f"encode({text}, 'utf-8') as payload", *options)

    def rows(self, count: int, *options: str) -> Any:
        """Rows with random payloads, and columns of options, computed and in memory."""
        frame = self.computed(count, *options).cache()
        frame.count()
        return frame

    def enqueue(self, url: str, frame: Any) -> float:
        """Seconds of a bulk enqueue. The disk is at rest when it begins: nobody pays for what others have written."""
        os.sync()
        start = time.perf_counter()
        frame.write.format("jqueue").mode("append").option("entrypoint", ENTRYPOINT).save(url)
        return time.perf_counter() - start

    def commit(self, url: str, payloads: list[bytes]) -> float:
        """Return the seconds of the commit of a bulk enqueue, called as Spark does it, after all rows are staged."""
        schema = StructType([StructField("payload", BinaryType())])
        writer = BulkWriter({"path": url, "entrypoint": ENTRYPOINT}, schema, False)
        batch = pa.RecordBatch.from_arrays([pa.array(payloads, pa.binary())], names=["payload"])
        half = len(payloads) // 2
        parts = (batch.slice(0, half), batch.slice(half))
        staged = [writer.write(iter([part])) for part in parts]
        start = time.perf_counter()
        writer.commit(staged)
        return time.perf_counter() - start

    def stream(self, url: str, count: int, batch: int) -> tuple[float, float]:
        """Return the seconds of a query that takes all jobs in batches: from start to end, and of its batches alone."""
        sizes: list[int] = []
        start = time.perf_counter()
        query = (
            self.spark.readStream.format("jqueue")
            .option("max_jobs_per_trigger", batch)
            .load(url)
            .writeStream.foreachBatch(lambda frame, _: sizes.append(frame.count()))
            .option("checkpointLocation", f"{url}.checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - start
        check(sum(sizes) == count, f"a stream has {sum(sizes)} of {count} jobs")
        batches = [done for done in query.recentProgress if done.numInputRows]
        expected = -(-count // batch)  # or more: the last jobs in front of a range may be a batch of their own
        check(expected <= len(batches) <= 2 * expected, f"a stream has {len(batches)} batches")
        return seconds, sum(done.durationMs["triggerExecution"] for done in batches) / 1000


@contextlib.contextmanager
def in_the_way(url: str, writers: int) -> Iterator[None]:
    """Run `writers` processes that write as fast as they can; the block begins when each has written once."""
    told = [sys.executable, __file__, json.dumps({"url": url})]
    others = [subprocess.Popen(told, stdout=subprocess.PIPE, text=True) for _ in range(writers)]
    try:
        for other in others:
            assert other.stdout is not None
            check(other.stdout.readline() == "busy\n", "a writer did not start")
        yield
        check(all(other.poll() is None for other in others), "a writer gave up")
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


def check(holds: bool, otherwise: str) -> None:
    """Raise RuntimeError unless something holds."""
    if not holds:
        raise RuntimeError(otherwise)


if __name__ == "__main__":
    asyncio.run(be_busy(arguments()["url"]))
