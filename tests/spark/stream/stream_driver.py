"""A streaming query without Spark: it calls a source in the order in which Spark does, and dies where it is told to.

What Spark keeps in the checkpoint survives it, as does what the sink has finished. Everything that crosses a border
between processes is written out and read again, as it is there.
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
    """The driver, and with it the process of the source, is gone."""


@dataclasses.dataclass
class Checkpoint:
    """What Spark has written.

    Attributes:
        offsets: the end of each batch, as text.
        commits: the batches that are done.
    """

    offsets: dict[int, str] = dataclasses.field(default_factory=dict)
    commits: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Sink:
    """Keeps the rows of each batch, and passes over a batch that it has.

    Attributes:
        batches: the ids of the jobs, by batch.
        offered: the same for each time that a batch came to its end, in order.
    """

    batches: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    offered: list[tuple[int, list[str]]] = dataclasses.field(default_factory=list)

    def write(self, batch: int, ids: list[str]) -> None:
        """Take the rows of a batch."""
        self.offered.append((batch, ids))
        self.batches.setdefault(batch, ids)

    @property
    def ids(self) -> list[str]:
        """Of all jobs that it has, by batch."""
        return [job_id for batch in sorted(self.batches) for job_id in self.batches[batch]]


class Query:
    """One life of a query: from its start, or restart, to its end or its death.

    Args:
        open_reader: makes the source.
        checkpoint: what the lives before have left.
        sink: where the rows go.
        trigger: "availableNow", "once", or "default", which ends when there is nothing to do.
        step: called with its name after each step, and may raise Killed.
    """

    def __init__(
        self,
        open_reader: Callable[[], ClaimReader],
        checkpoint: Checkpoint,
        sink: Sink,
        *,
        trigger: str = "availableNow",
        step: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.reader = open_reader()
        self._planned = PICKLER.dumps(open_reader())  # by another process
        self._checkpoint = checkpoint
        self._sink = sink
        self._trigger = trigger
        self._step = step
        self._limit: Any = None
        self.polls = 0

    def run(self) -> None:
        """Live. However it ends, the process of the source has ended then."""
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
        """Whether it waits for more when there is nothing to do."""
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
        assert self.reader.reportLatestOffset() is None
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
        for partition in partitions:
            task = PICKLER.loads(self._planned)
            for rows in task.read(PICKLER.loads(PICKLER.dumps(partition))):
                ids += rows.column("id").to_pylist()
            self._step("read")
        self._sink.write(batch, ids)
        self._step("written")
        self._checkpoint.commits.add(batch)
        self._step("done")
