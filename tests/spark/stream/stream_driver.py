"""A streaming query without Spark: it calls a source in the order of Spark, and can be killed at any step.

The checkpoint and the finished batches of the sink survive it. Everything that Spark passes between processes is
serialised and read again here, too.
"""

import dataclasses
import inspect
import json
from collections.abc import Callable
from typing import Any

from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource_internal import ReadLimitRegistry
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow

from jqueue.spark.stream.source import ClaimReader

PICKLER = CPickleSerializer()


class Killed(Exception):
    """The driver and the process of the source have been killed."""


@dataclasses.dataclass
class Checkpoint:
    """The checkpoint of a query.

    Attributes:
        offsets: the end offset of each batch, as text.
        commits: the numbers of the finished batches.
    """

    offsets: dict[int, str] = dataclasses.field(default_factory=dict)
    commits: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Sink:
    """A sink that keeps the rows of each batch, and ignores a batch that it already has.

    Attributes:
        batches: the ids of the jobs, by batch.
        offered: the batch number and the ids of each write, including repeated ones, in order.
    """

    batches: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    offered: list[tuple[int, list[str]]] = dataclasses.field(default_factory=list)

    def write(self, batch: int, ids: list[str]) -> None:
        """Write the rows of a batch."""
        self.offered.append((batch, ids))
        self.batches.setdefault(batch, ids)

    @property
    def ids(self) -> list[str]:
        """The ids of all written jobs, in the order of batches."""
        return [job_id for batch in sorted(self.batches) for job_id in self.batches[batch]]


class Query:
    """One run of a query, from its start or restart until it ends or is killed.

    Args:
        open_reader: makes the source.
        checkpoint: the checkpoint of earlier runs.
        sink: the sink for the rows.
        trigger: "availableNow", "once", or "default", which ends here when there are no new jobs.
        step: function called with the name of each step after it; it may raise Killed.
        function: the function of `foreachBatch`: called with the number and the rows of each batch.
    """

    def __init__(
        self,
        open_reader: Callable[[], ClaimReader],
        checkpoint: Checkpoint,
        sink: Sink,
        *,
        trigger: str = "availableNow",
        step: Callable[[str], None] = lambda name: None,
        function: Callable[[int, list[dict[str, Any]]], None] | None = None,
    ) -> None:
        self._function = function
        self.reader = open_reader()
        self._planned = PICKLER.dumps(open_reader())  # another process plans the tasks
        self._checkpoint = checkpoint
        self._sink = sink
        self._trigger = trigger
        self._step = step
        self._limit: Any = None
        self.polls = 0
        self.progress: list[dict[str, Any] | None] = []

    def run(self) -> None:
        """Run the query. The source is stopped in any case."""
        try:
            self._run()
        finally:
            self.reader.stop()

    def _run(self) -> None:
        checkpoint = self._checkpoint
        assert len(inspect.signature(self.reader.latestOffset).parameters) == 2
        assert isinstance(self.reader, SupportsTriggerAvailableNow)
        self._limit = self._read_limit()
        available = committed = None
        batch, constructed = 0, False
        if checkpoint.offsets:
            batch = max(checkpoint.offsets)
            available, committed = checkpoint.offsets[batch], checkpoint.offsets.get(batch - 1)
            assert [] == self.reader.partitions(json.loads(available), json.loads(available))
            constructed = batch not in checkpoint.commits
            if not constructed:
                batch, committed = batch + 1, available
        self._step("started")
        while True:
            if not constructed:
                available = self._construct(batch, available)
                constructed = available != committed
            if constructed:
                assert available is not None
                self._run_batch(batch, committed, available)
                committed, batch, constructed = available, batch + 1, False
                if self._trigger == "once":
                    return
            elif not self._goes_on():
                return

    def _goes_on(self) -> bool:
        """True if the query waits for more jobs when there are none."""
        return False

    def _read_limit(self) -> Any:
        if self._trigger == "once":
            return ReadAllAvailable()
        if self._trigger == "availableNow":
            self.reader.prepareForTriggerAvailableNow()
        limit = self.reader.getDefaultReadLimit()
        told = json.loads(json.dumps({**dataclasses.asdict(limit), "_type": type(limit).__name__}))  # type: ignore[call-overload]
        return ReadLimitRegistry().get(told)

    def _construct(self, batch: int, available: str | None) -> str:
        start = json.dumps(self.reader.initialOffset()) if available is None else available
        end = json.dumps(self.reader.latestOffset(json.loads(start), self._limit))
        self.polls += 1
        self.progress.append(json.loads(json.dumps(self.reader.reportLatestOffset())))
        self._step("claimed")
        if end != available:
            self._checkpoint.offsets[batch] = end
            self._step("logged")
            if batch:
                self.reader.commit(json.loads(self._checkpoint.offsets[batch - 1]))
        return end

    def _run_batch(self, batch: int, committed: str | None, end: str) -> None:
        start = json.dumps(self.reader.initialOffset()) if committed is None else committed
        partitions = self.reader.partitions(json.loads(start), json.loads(end))
        self._step("planned")
        ids: list[str] = []
        all_rows: list[dict[str, Any]] = []
        for partition in partitions:
            task = PICKLER.loads(self._planned)
            for rows in task.read(PICKLER.loads(PICKLER.dumps(partition))):
                ids += rows.column("id").to_pylist()
                all_rows += rows.to_pylist() if self._function is not None else []
            self._step("read")
        if self._function is not None:
            self._function(batch, all_rows)
            self._step("told")
        self._sink.write(batch, ids)
        self._step("written")
        self._checkpoint.commits.add(batch)
        self._step("done")
