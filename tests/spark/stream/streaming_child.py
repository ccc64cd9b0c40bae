"""A streaming query without Spark in its own process, which may be killed. It records its work in a journal.

    python -m tests.spark.stream.streaming_child queue.json journal 20

The last argument is the size of a batch. The query continues where earlier runs have ended, and ends when the queue is
drained.
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
    """Lines of JSON in the order of the recorded events.

    Args:
        path: path of the file. An incomplete last line is removed.
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
        """The checkpoint recorded so far."""
        offsets = {key: value for what, key, value in self.lines if what == "offset"}
        return Checkpoint(offsets, {key for what, key, _ in self.lines if what == "commit"})

    def sink(self) -> Sink:
        """The finished batches of the sink."""
        sink = Sink()
        for what, key, value in self.lines:
            if what == "batch":
                sink.write(key, value)
        return sink


class _Noting(dict[int, Any]):
    """A dictionary that records each new entry in the journal."""

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


def main(url: str, path: str, size: str) -> None:
    """Run the query once."""
    journal = Journal(Path(path))
    checkpoint, sink = journal.checkpoint(), journal.sink()
    checkpoint.offsets = _Noting(journal, "offset", checkpoint.offsets)
    checkpoint.commits = _NotingCommits(journal, checkpoint.commits)
    sink.batches = _Noting(journal, "batch", sink.batches)
    options = {"path": url, "maxJobsPerTrigger": size}
    print("begins", flush=True)
    Query(lambda: ClaimReader(options, SNAPSHOT_SCHEMA), checkpoint, sink).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
