"""The data pipeline on Spark, part by part, on two cores and a file, each part a few times to warm up.

Arguments: rows, payload_bytes, batch, batch_jobs, standing, writers, rounds to warm up, and those of the storage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from on_spark import Queues, check, in_the_way, session
from shared import ENTRYPOINT, arguments, report

from jqueue.spark import run_batch
from jqueue.worker import Worker

Seconds = TypeVar("Seconds", float, tuple[float, float])

worker = Worker(concurrency=50)


@worker.handler(ENTRYPOINT)
async def do_nothing(payload: bytes) -> None:
    """The smallest handler there is."""


class Pipeline(Queues):
    """The parts that are measured. Arguments are as for `Queues`."""

    def snapshot(self, url: str, count: int) -> float:
        """Seconds in which every column of every job is read."""
        start = time.perf_counter()
        self.spark.read.format("jqueue").load(url).write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - start
        found = self.spark.read.format("jqueue").load(url).count()
        check(found == count, f"a snapshot has {found} of {count} jobs")
        return seconds

    def run(self, url: str, count: int) -> float:
        """Seconds in which jobs that do nothing are claimed, run and acked."""
        start = time.perf_counter()
        done = run_batch(self.spark, url, worker, entrypoint=ENTRYPOINT, max_jobs=count)
        seconds = time.perf_counter() - start
        check(done.succeeded == count, f"of {count} jobs, {done.succeeded} were done")
        return seconds

    def contended(self, frame: Any, standing: int, writers: int) -> float:
        """Return the seconds of a bulk enqueue while other processes write to a queue with many jobs."""
        url = self.new_queue()
        self.enqueue(url, self.rows(standing))
        with in_the_way(url, writers):
            return self.enqueue(url, frame)


def measure(given: dict[str, Any]) -> dict[str, float]:
    """Return rows or jobs per second of each part, and the seconds of parts with a deadline."""
    rows, batch, jobs = given["rows"], given["batch"], given["batch_jobs"]
    spark = session()
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


if __name__ == "__main__":
    report(measure(arguments()))
