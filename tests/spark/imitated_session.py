"""An imitation of a Spark session for batches: it runs each task in this process, or in a process of its own.

It repeats tasks that fail, and runs speculative copies of them.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa


class Session:
    """The session.

    Args:
        before: called with the number of each partition before its task, or before an attempt of it.
        tries: number of times that a task is tried.
        copies: number of times that each task is done, of which the last counts.
        forking: True to run each task in a process of its own.
        cores: number of cores; None if it is not known, as with Spark Connect.
    """

    version = "4.2.0"

    def __init__(
        self,
        before: Callable[[int], object] = lambda number: None,
        *,
        tries: int = 1,
        copies: int = 1,
        forking: bool = False,
        cores: int | None = 2,
    ) -> None:
        self.before, self.tries, self.copies, self.forking, self.cores = before, tries, copies, forking, cores
        self.tags: list[str] = []
        self.interrupted: list[str] = []
        self.partitions: list[int] = []
        self.properties: dict[str, str | None] = {}

    @property
    def sparkContext(self) -> Any:
        if self.cores is None:
            from pyspark.errors import PySparkAttributeError

            raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "x"})
        return SimpleNamespace(
            defaultParallelism=self.cores,
            getLocalProperty=self.properties.get,
            setLocalProperty=self.properties.__setitem__,
        )

    def addTag(self, tag: str) -> None:
        self.tags.append(tag)

    def removeTag(self, tag: str) -> None:
        self.tags.remove(tag)

    def interruptTag(self, tag: str) -> None:
        self.interrupted.append(tag)

    def createDataFrame(self, table: pa.Table) -> _Frame:
        return _Frame(self, table)


class _Frame:
    def __init__(self, session: Session, table: pa.Table) -> None:
        self.session, self.table = session, table
        self.count, self.task = 0, lambda batches: batches

    def repartitionById(self, count: int, column: str) -> _Frame:
        self.count, self.column = count, column
        return self

    def mapInArrow(self, task: Any, schema: str) -> _Frame:
        self.task = task
        return self

    def collect(self) -> list[Any]:
        return [SimpleNamespace(**row) for answers in self._run() for row in answers]

    def _run(self) -> list[list[dict[str, Any]]]:
        """Run all tasks, and return the rows of each."""
        found = []
        for number in range(self.count):
            mask = [value == number for value in self.table.column(self.column).to_pylist()]
            self.session.partitions.append(sum(mask))
            batches = self.table.filter(mask).to_batches()
            for _ in range(self.session.copies):
                rows = self._attempts(number, batches)
            found.append(rows)
        return found

    def _attempts(self, number: int, batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
        for _ in range(self.session.tries):
            self.session.before(number)
            if not self.session.forking:
                return _rows(self.task, batches)
            answers = _in_a_process(self.task, batches)
            if answers:
                return answers[0]
        raise RuntimeError("Job aborted due to stage failure:\na task was lost")


def _rows(task: Any, batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for answer in task(iter(batches)) for row in answer.to_pylist()]


def _in_a_process(task: Any, batches: list[pa.RecordBatch]) -> list[list[dict[str, Any]]]:
    """Return a list with the rows of a task; an empty list if its process ended early."""
    forked = multiprocessing.get_context("fork")
    ours, theirs = forked.Pipe(duplex=False)
    process = forked.Process(target=lambda: theirs.send(_rows(task, batches)))
    process.start()
    theirs.close()
    try:
        return [ours.recv()]
    except EOFError:
        return []
    finally:
        ours.close()
        process.join()
