"""The data pipeline on Spark with queues of a million jobs and more, on two cores and a file: one part in a run.

Arguments: part, with rows, payload_bytes, warm_rows, and those of the part; and those of the storage.

- enqueue: few_rows, in_flight, seconds, short, pairs
- options: pairs
- first_write, first_table
- commit: writers, commits
- batch, sleep, stream (batch), snapshot
- archive: rows is the number of events
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from driver_memory import DriverMemory
from on_spark import Queues, check, in_the_way, session
from shared import ENTRYPOINT, SETTING_UP_SECONDS, arguments, report

from jqueue import BrokerQueue, LocalFileSystemStorage
from jqueue.domain.operations.ends import Ack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.spark import HISTORY_SCHEMA, run_batch
from jqueue.worker import Worker

CLAIMED_AT_ONCE = 5_000
"""Number of jobs that one call claims and another one acks, to make a history."""

FIVE_OPTIONS = (
    "cast(id % 3 as int) priority",
    "cast(id % 2 as double) * 60 delay",
    "concat('key-', cast(id as string)) unique_key",
    "map('tenant', concat('t', cast(id % 10 as string))) headers",
    "5 max_attempts",
)

worker, sleeper = Worker(concurrency=50), Worker(concurrency=1)


@worker.handler(ENTRYPOINT)
async def do_nothing(payload: bytes) -> None:
    """The smallest handler there is."""


@sleeper.handler(ENTRYPOINT)
async def sleep(payload: bytes) -> None:
    """A handler that waits, as most do."""
    await asyncio.sleep(0.001)


def handle(handler: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Call the same handler for each row of a partition of Spark, without a queue."""

    async def all_of(payloads: list[bytes]) -> None:
        for payload in payloads:
            await handler(payload)

    for batch in batches:
        asyncio.run(all_of(batch.column("payload").to_pylist()))
        yield pa.RecordBatch.from_pydict({"done": [True] * batch.num_rows})


class DeepPipeline(Queues):
    """The parts that are measured. Other arguments are as for `Queues`."""

    def __init__(self, spark: Any, given: dict[str, Any]) -> None:
        super().__init__(spark, given)
        self.given = given
        self.count: int = given["rows"]

    def enqueue_part(self) -> dict[str, float]:
        """A bulk enqueue: its rate, beside that of a Parquet table, its memory, and a worker's rate behind it."""
        memory = DriverMemory(os.getpid())
        few, many = (
            memory.peak_of(partial(self.enqueue, self.new_queue(), self.computed(rows))) + self.java_heap()
            for rows in (self.given["few_rows"], self.count)
        )
        rates, url = self.beside_parquet(self.rows(self.count))
        self.enqueue(short := self.new_queue(), self.computed(self.given["short"]))
        return {
            **rates,
            "driver_mebibytes": many / 2**20,
            "driver_mebibytes_for_few": few / 2**20,
            "worker_per_second": self.worker_rate(url),
            "worker_per_second_when_short": self.worker_rate(short),
        }

    def options_part(self) -> dict[str, float]:
        """A bulk enqueue of rows with five options, beside a Parquet table of the same columns."""
        rows = self.rows(self.count, *FIVE_OPTIONS)
        self.enqueue(self.new_queue(), rows)
        return self.beside_parquet(rows)[0]

    def first_write_part(self) -> dict[str, float]:
        """The first write of a session, onto a queue."""
        return {"first_seconds": self.enqueue(self.new_queue(), self.rows(self.count))}

    def first_table_part(self) -> dict[str, float]:
        """The first write of a session, into a Parquet table."""
        return {"first_seconds": self.parquet(self.rows(self.count))}

    def beside_parquet(self, rows: Any) -> tuple[dict[str, float], str]:
        """Return the rates of a bulk enqueue and of a Parquet table of the same rows, and the last queue."""
        self.parquet(rows)
        pairs = [(self.parquet(rows), self.enqueue(url := self.new_queue(), rows)) for _ in range(self.given["pairs"])]
        parquet, seconds = map(median, zip(*pairs, strict=True))
        rows.unpersist()
        return {"rows_per_second": self.count / seconds, "parquet_rows_per_second": self.count / parquet}, url

    def java_heap(self) -> float:
        """The bytes in Java's heap that are still in use after a collection."""
        java = self.spark._jvm
        java.System.gc()
        return float(java.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed())

    def parquet(self, frame: Any) -> float:
        """Seconds in which rows are written as a Parquet table, which is not flushed. The disk is at rest at first."""
        os.sync()
        start = time.perf_counter()
        frame.write.mode("overwrite").parquet(str(self.folder / "table"))
        return time.perf_counter() - start

    def worker_rate(self, url: str) -> float:
        """Operations per second of another process, which enqueues, claims and acks many jobs at a time."""
        given = {**self.given, "storage": "file", "path": url, "is_filled": True}
        command = [sys.executable, str(Path(__file__).with_name("deep.py")), json.dumps(given)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        found: dict[str, float] = json.loads(told)
        return found["operations_per_second"]

    def commit_part(self) -> dict[str, float]:
        """The commit of a bulk enqueue whose rows are staged, while other processes write to the same queue."""
        payloads = [bytes(row.payload) for row in self.computed(self.count).collect()]
        self.commit(url := self.new_queue(), payloads)
        with in_the_way(url, self.given["writers"]):
            seconds = [self.commit(url, payloads) for _ in range(self.given["commits"])]
        return {"commit_ms": median(seconds) * 1e3, "slowest_commit_ms": max(seconds) * 1e3}

    def batch_part(self) -> dict[str, float]:
        """`run_batch` of jobs that do nothing, beside mapInArrow."""
        return self.beside_arrow(worker, do_nothing)

    def sleep_part(self) -> dict[str, float]:
        """`run_batch` of jobs that sleep one after the other, beside mapInArrow."""
        return self.beside_arrow(sleeper, sleep)

    def beside_arrow(self, worker: Worker, handler: Any) -> dict[str, float]:
        """Return the rates of `run_batch`, and of the same handler over the same rows in a Parquet table."""
        for rows in (self.given["warm_rows"], self.count):
            self.enqueue(url := self.new_queue(), self.computed(rows))
            start = time.perf_counter()
            done = run_batch(self.spark, url, worker, entrypoint=ENTRYPOINT, max_jobs=rows)
            seconds = time.perf_counter() - start
            check(done.succeeded == rows, f"of {rows} jobs, {done.succeeded} were done")
            self.parquet(self.computed(rows))
            start = time.perf_counter()
            table = self.spark.read.parquet(str(self.folder / "table"))
            table.mapInArrow(partial(handle, handler), "done boolean").write.format("noop").mode("overwrite").save()
            without = time.perf_counter() - start
        return {"run_per_second": self.count / seconds, "in_arrow_per_second": self.count / without}

    def stream_part(self) -> dict[str, float]:
        """A streaming query that takes all jobs in batches."""
        for rows in (self.given["warm_rows"], self.count):
            self.enqueue(url := self.new_queue(), self.computed(rows))
            seconds, of_batches = self.stream(url, rows, self.given["batch"])
        return {"streamed_per_second": self.count / of_batches, "streamed_from_start_per_second": self.count / seconds}

    def snapshot_part(self) -> dict[str, float]:
        """A snapshot: the number of its rows, and each column of each row, beside the same rows in a Parquet table."""
        table = str(self.folder / "table")
        for rows in (self.given["warm_rows"], self.count):
            self.enqueue(url := self.new_queue(), self.computed(rows))
            sources = [partial(self.spark.read.format("jqueue").load, url), partial(self.spark.read.parquet, table)]
            self.parquet(sources[0]())
            rates = []
            for load in sources:  # anew each time: a DataFrame keeps its plan
                start = time.perf_counter()
                found = load().count()
                counted = time.perf_counter()
                check(found == rows, f"a snapshot has {found} of {rows} jobs")
                load().write.format("noop").mode("overwrite").save()
                rates += [rows / (counted - start), rows / (time.perf_counter() - counted)]
        names = ("counted_per_second", "read_per_second", "parquet_counted_per_second", "parquet_read_per_second")
        return dict(zip(names, rates, strict=True))

    def archive_part(self) -> dict[str, float]:
        """The history of a queue, archived as Parquet by Spark's own source of files."""
        for events in (self.given["warm_rows"], self.count):
            asyncio.run(make_history(url := self.new_queue(), events, os.urandom(self.payload_bytes)))
            start = time.perf_counter()
            stream = self.spark.readStream.schema(HISTORY_SCHEMA).json(f"{url}.history")
            writer = stream.writeStream.option("checkpointLocation", f"{url}.checkpoint").trigger(availableNow=True)
            writer.start(f"{url}.archive", "parquet").awaitTermination()
            seconds = time.perf_counter() - start
            found = self.spark.read.parquet(f"{url}.archive").count()
            check(found >= events, f"of {events} events, {found} were archived")
        return {"archive_seconds": seconds}


async def make_history(url: str, events: int, payload: bytes) -> None:
    """Make a queue with a history of so many events, and a few more: jobs that were claimed and acked."""
    jobs = -(-events // 2)
    async with BrokerQueue(LocalFileSystemStorage(url)) as queue:
        await queue.configure(history=30 * 86400.0)
        await queue.enqueue_many((Enqueue(ENTRYPOINT, payload) for _ in range(jobs)), deadline=SETTING_UP_SECONDS)
        while claimed := await queue.dequeue(ENTRYPOINT, batch_size=CLAIMED_AT_ONCE):
            await queue.apply(*map(Ack, claimed))
        await queue.configure(history=None)  # moves the rest of the events into the folder


def measure(given: dict[str, Any]) -> dict[str, float]:
    """Return the figures of one part."""
    spark = session()
    found: dict[str, float] = getattr(DeepPipeline(spark, given), f"{given['part']}_part")()
    spark.stop()
    return found


if __name__ == "__main__":
    report(measure(arguments()))
