"""The option `onBadRow`: rows that cannot become jobs fail the write, are left out, or become dead letters.

A row is bad if its task can tell: a null entrypoint or payload, a payload that is too large, a value that no job can
have. Each is described as one JSON object with its partition, its number, the reason, and its columns. With
`badRowsPath` it goes into a file of such lines; as a dead letter, it is the payload of a job. It is in no log or error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

OnBadRow = Literal["fail", "skip", "deadLetter"]

FILE_BYTES = 16 << 20
"""Bytes of described rows that a task holds before it writes a file of them."""


@dataclass(frozen=True)
class BadRowPolicy:
    """The treatment of bad rows. It may be pickled.

    Attributes:
        mode: `skip` or `deadLetter`.
        entrypoint: of the jobs that dead letters become.
        kept: True if rows that are left out are written to files.
    """

    mode: OnBadRow
    entrypoint: str
    kept: bool = False


@dataclass(frozen=True)
class BadRows:
    """The bad rows of one task, for its report.

    Attributes:
        rows: number of rows.
        first: where the first of them is, and the reason.
        files: the staged objects that describe them.
    """

    rows: int = 0
    first: str = ""
    files: tuple[str, ...] = ()


@dataclass
class BadRowCollector:
    """Collects the bad rows of one task.

    Args:
        policy: the treatment.
        partition: the number of the task.
        write: makes the JSON form of a value that JSON lacks.

    Attributes:
        rows, first: as in `BadRows`.
        letters: payloads of dead letters to enqueue.
    """

    policy: BadRowPolicy
    partition: int
    write: Callable[[Any], Any]
    rows: int = 0
    first: str = ""
    letters: list[bytes] = field(default_factory=list)
    _lines: list[bytes] = field(default_factory=list)
    _size: int = 0

    def add(self, batch: pa.RecordBatch, number: int, row: int, reason: str, most: int) -> None:
        """Add a row.

        Args:
            batch: has the row.
            number: of the row in the batch.
            row: number of the row in the task.
            reason: why it is bad.
            most: largest number of bytes of a payload.
        """
        self.rows += 1
        if self.rows == 1:
            self.first = f"row {row} of partition {self.partition}: {reason}"
        if self.policy.mode == "skip" and not self.policy.kept:
            return
        described = {"partition": self.partition, "row": row, "reason": reason}
        columns = {name: _plain(batch.column(place)[number]) for place, name in enumerate(batch.schema.names)}
        text = json.dumps({**described, "columns": columns}, default=self.write, ensure_ascii=False).encode()
        if self.policy.mode == "skip":
            self._lines.append(text + b"\n")
            self._size += len(text)
        elif len(text) <= most:
            self.letters.append(text)
        else:
            self.letters.append(json.dumps({**described, "bytes": len(text)}).encode())

    def file(self, *, last: bool = False) -> bytes | None:
        """Return the content of the next file, and forget its rows; None if it is not complete.

        Args:
            last: True if no more rows follow.
        """
        if not self._lines or (self._size < FILE_BYTES and not last):
            return None
        content = b"".join(self._lines)
        self._lines, self._size = [], 0
        return content

    def told(self, files: Sequence[str]) -> BadRows:
        """Return the part of the report."""
        return BadRows(self.rows, self.first, tuple(files))


def _plain(value: pa.Scalar) -> Any:
    """Return a value as JSON can hold it; None if Python cannot read it."""
    try:
        found = value.as_py()
        json.dumps(found, default=str, allow_nan=False)
    except (ValueError, OverflowError, TypeError):
        return None
    return found
