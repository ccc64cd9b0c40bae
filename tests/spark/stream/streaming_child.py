"""A streaming query without Spark in a process of its own, which may be killed: what it has done is in a journal.

    python -m tests.spark.stream.streaming_child queue.json journal

It goes on where the lives before it have ended, and ends when the queue is drained.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from jqueue.spark.rows import SNAPSHOT_SCHEMA
from jqueue.spark.stream.source import ClaimReader
from tests.spark.stream.stream_driver import Checkpoint, Query, Sink


class Journal:
    """Lines of JSON, in the order in which things were done.

    Args:
        path: of the file; a line at its end that was cut short does not count.
    """

    def __init__(self, path: Path) -> None:
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        self.lines: list[tuple[str, Any, Any]] = [tuple(json.loads(line)) for line in whole.splitlines()]
        self._file = os.open(path, os.O_CREAT | os.O_RDWR)
        os.ftruncate(self._file, len(whole))
        os.lseek(self._file, 0, os.SEEK_END)

    def note(self, what: str, key: Any = None, value: Any = None) -> None:
        """Write a line."""
        os.write(self._file, json.dumps([what, key, value]).encode() + b"\n")

    def checkpoint(self) -> Checkpoint:
        """What Spark has noted."""
        offsets = {key: value for what, key, value in self.lines if what == "offset"}
        return Checkpoint(offsets, {key for what, key, _ in self.lines if what == "commit"})

    def sink(self) -> Sink:
        """What the sink has finished."""
        sink = Sink()
        for what, key, value in self.lines:
            if what == "batch":
                sink.write(key, value)
        return sink


class _Noting(dict[int, Any]):
    """A dictionary that writes what is put into it into the journal."""

    def __init__(self, journal: Journal, what: str, given: dict[int, Any]) -> None:
        super().__init__(given)
        self._journal, self._what = journal, what

    def __setitem__(self, key: int, value: Any) -> None:
        self._journal.note(self._what, key, value)
        super().__setitem__(key, value)

    def setdefault(self, key: int, value: Any = None) -> Any:
        if key not in self:
            self[key] = value
        return self[key]


class _NotingCommits(set[int]):
    def __init__(self, journal: Journal, given: set[int]) -> None:
        super().__init__(given)
        self._journal = journal

    def add(self, batch: int) -> None:
        self._journal.note("commit", batch)
        super().add(batch)


def main(url: str, path: str) -> None:
    """One life."""
    journal = Journal(Path(path))
    checkpoint, sink = journal.checkpoint(), journal.sink()
    checkpoint.offsets = _Noting(journal, "offset", checkpoint.offsets)
    checkpoint.commits = _NotingCommits(journal, checkpoint.commits)
    sink.batches = _Noting(journal, "batch", sink.batches)
    options = {"path": url, "maxJobsPerTrigger": "20"}
    print("begins", flush=True)
    Query(lambda: ClaimReader(options, SNAPSHOT_SCHEMA), checkpoint, sink).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
