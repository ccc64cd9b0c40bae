"""A streaming query on a queue without Spark: it calls the source in the order of Spark, and can be killed at any step.

The checkpoint and the finished batches of the sink survive it. All that Spark sends to another process is pickled.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from pyspark.sql.datasource_internal import ReadLimitRegistry
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.spark.spark_calls import call, jobs_of, sent, source


class KilledError(Exception):
    """The driver and the process of the source have been killed."""


def query_source(url, columns=None, **options):
    """The source of a query, in a process of its own."""
    made = source(url, **{"poll_interval": 0, **options})
    return made.streamReader(made.schema() if columns is None else columns)


class Stream:
    """A query, with the checkpoint and the sink that its runs share, and an audit of its jobs.

    Attributes:
        offsets: the end of each batch in the checkpoint, as text.
        commits: the numbers of the finished batches in the checkpoint.
        batches: the ids that the sink has kept of each batch. It ignores a batch that it already has.
        offered: the number and the ids of each write to the sink, in order.
        by_others: ids of jobs that other workers have done.
    """

    def __init__(self, url: str, ids: list[str], **options: Any) -> None:
        self.url, self.ids, self.options = url, ids, options
        self.offsets: dict[int, str] = {}
        self.commits: set[int] = set()
        self.batches: dict[int, list[str]] = {}
        self.offered: list[tuple[int, list[str]]] = []
        self.by_others: set[str] = set()

    @property
    def delivered(self) -> list[str]:
        return [job_id for batch in sorted(self.batches) for job_id in self.batches[batch]]

    def run(
        self,
        *,
        kill_at: int = -1,
        trigger: str = "availableNow",
        on_step: Callable[[str], object] = lambda name: None,
        function: Callable[[int, list[dict[str, Any]]], object] = lambda batch, rows: None,
    ) -> bool:
        """Run the query until no job is left, or until it is killed. Return True if it was not.

        Args:
            kill_at: number of the step at which it is killed.
            trigger: "availableNow" or "once".
            on_step: called with the name of each step. It may raise KilledError.
            function: that of `foreachBatch`, called with the number and the rows of a batch.
        """
        left = iter(range(kill_at, -1, -1))

        def step(name: str) -> None:
            on_step(name)
            if next(left, None) == 0:
                raise KilledError(name)

        reader = query_source(self.url, **self.options)
        try:
            self._run(reader, trigger, step, function)
        except KilledError:
            return False
        finally:
            reader.stop()
        return True

    def _run(self, reader: Any, trigger: str, step: Any, function: Any) -> None:
        tasks = sent(query_source(self.url, **self.options))  # another process plans the tasks
        if trigger == "availableNow":
            reader.prepareForTriggerAvailableNow()
        limit: Any = ReadAllAvailable() if trigger == "once" else reader.getDefaultReadLimit()
        limit = ReadLimitRegistry().get({**dataclasses.asdict(limit), "_type": type(limit).__name__})
        available = committed = None
        batch, constructed = 0, False
        if self.offsets:
            batch = max(self.offsets)
            available, committed = self.offsets[batch], self.offsets.get(batch - 1)
            constructed = batch not in self.commits
            if not constructed:
                batch, committed = batch + 1, available
        step("started")
        while True:
            if not constructed:
                available = self._construct(reader, limit, batch, available, step)
                constructed = available != committed
            if not constructed:
                return
            start = json.dumps(reader.initialOffset()) if committed is None else committed
            assert available is not None
            rows = []
            for partition in reader.partitions(json.loads(start), json.loads(available)):
                rows += [row for table in tasks.read(sent(partition)) for row in table.to_pylist()]
                step("read")
            function(batch, rows)
            step("told")
            self.offered.append((batch, [row["id"] for row in rows]))
            self.batches.setdefault(batch, self.offered[-1][1])
            step("written")
            self.commits.add(batch)
            step("done")
            committed, batch, constructed = available, batch + 1, False
            if trigger == "once":
                return

    def _construct(self, reader: Any, limit: Any, batch: int, available: str | None, step: Any) -> str:
        start = json.dumps(reader.initialOffset()) if available is None else available
        end = json.dumps(reader.latestOffset(json.loads(start), limit))
        step("claimed")
        if end != available:
            self.offsets[batch] = end
            step("logged")
            if batch:
                reader.commit(json.loads(self.offsets[batch - 1]))
        return end

    @property
    def left(self) -> list[str]:
        """The ids of the jobs that are in the queue and not completed."""
        return [job.id for job in jobs_of(self.url) if job.status != "completed"]

    def audit(self) -> None:
        """Assert that each job that has left the queue is in a finished batch of the sink, or was done by others."""
        done = {job_id for batch in self.commits for job_id in self.batches[batch]}
        assert set() == set(self.ids) - set(self.left) - done - self.by_others, "acked, but not in a finished batch"

    def steal(self, count: int) -> None:
        """Revoke every claim, and do some jobs, as another worker."""

        async def work(queue: Any) -> list[Any]:
            await queue.requeue_stale(0)
            jobs: list[Any] = await queue.dequeue(batch_size=count) if count else []
            await queue.ack_many(jobs)
            return jobs

        self.by_others.update(job.id for job in call(self.url, work))
