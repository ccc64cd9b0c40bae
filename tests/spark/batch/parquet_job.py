"""An imitation of the way in which Spark writes a folder of Parquet files: in tasks, and committed as a whole.

Each attempt of a task writes a file of its own, below `_temporary`. An attempt that has written it commits it in place
of what an earlier attempt has committed. When a file of each task is committed, the driver commits the job: it moves
one file after the other into the folder, removes `_temporary`, and adds `_SUCCESS`. So a driver that dies in between
leaves a part of the files, without `_SUCCESS`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

SUCCESS = "_SUCCESS"
"""Name of the file that says that a folder is complete."""

MOVE = "move"
"""Name of the step in which the driver moves a file into the folder."""


@dataclass(frozen=True)
class ParquetJob:
    """The write of a folder.

    Attributes:
        folder: must not exist.
        step: called with the name of each step of the driver or of a task before it is taken.
    """

    folder: Path
    step: Callable[[str], object]

    @property
    def _temporary(self) -> Path:
        return self.folder / "_temporary" / "0"

    def begin(self) -> None:
        """Make the folder, in the driver."""
        self.step("begin")
        self._temporary.mkdir(parents=True)

    def write(self, partition: int, attempt: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Write the rows of an attempt of a task, and commit them, in the process of the task."""
        rows = pa.Table.from_batches(batches)
        self.step("write")
        own = self._temporary / "_temporary" / f"attempt_{partition}_{attempt}"
        own.mkdir(parents=True)
        pq.write_table(rows, own / f"part-{partition:05}-{attempt}.parquet")
        self.step("commit")
        committed = self._temporary / f"task_{partition}"
        shutil.rmtree(committed, ignore_errors=True)
        own.rename(committed)
        self.step("answer")

    def commit(self) -> None:
        """Commit the job, in the driver."""
        for file in sorted(self._temporary.glob("task_*/*")):
            self.step(MOVE)
            file.rename(self.folder / file.name)
        self.step("clean")
        shutil.rmtree(self._temporary.parent)
        self.step("succeed")
        (self.folder / SUCCESS).touch()

    def abort(self) -> None:
        """Remove what is not committed, in the driver."""
        shutil.rmtree(self._temporary.parent, ignore_errors=True)


def files_of(folder: Path) -> list[Path]:
    """Return the files in a folder that Spark would read."""
    return sorted(folder.glob("[!._]*.parquet"))


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    rows: list[dict[str, Any]] = pq.ParquetFile(file).read(use_threads=False).to_pylist()
    return rows
