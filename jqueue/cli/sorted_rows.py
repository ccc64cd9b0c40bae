"""Rows in the order of a key, however many. Beyond some thousands they are sorted in a temporary file, bit by bit."""

from __future__ import annotations

import heapq
import pickle
import zlib
from collections.abc import Iterator
from operator import itemgetter
from tempfile import TemporaryFile
from typing import IO, Any, Generic, TypeVar

Row = TypeVar("Row")

RUN = 20_000
"""Number of rows that are sorted in memory."""

BLOCK = 200
"""Number of rows that are written to the file, and read from it, at once."""

_key = itemgetter(0)


class SortedRows(Generic[Row]):
    """Sorts what `sorted` sorts, equal rows in the order in which they came. Memory does not grow with their number.

    Args:
        reverse: True to sort in the other direction.
        run: number of rows that are sorted in memory.

    Attributes:
        number: number of rows so far.
        most_held: largest number of rows that were in memory at once, for tests.
    """

    def __init__(self, *, reverse: bool = False, run: int = RUN) -> None:
        self.number = 0
        self.most_held = 0
        self._reverse = reverse
        self._run = run
        self._held: list[tuple[Any, Row]] = []
        self._file: IO[bytes] | None = None
        self._runs: list[list[tuple[int, int]]] = []

    def add(self, key: Any, row: Row) -> None:
        """Add a row. It and its key can be pickled."""
        self.number += 1
        self._held.append((key, row))
        if len(self._held) == self._run:
            self._write_run()

    def __iter__(self) -> Iterator[Row]:
        """Iterate over all rows in order."""
        self._sort_held()
        runs = [self._read(blocks) for blocks in self._runs]
        merged = heapq.merge(*runs, iter(self._held), key=_key, reverse=self._reverse)
        return (row for _, row in merged)

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()

    def _sort_held(self) -> None:
        self.most_held = max(self.most_held, len(self._held))
        self._held.sort(key=_key, reverse=self._reverse)

    def _write_run(self) -> None:
        """Write the rows in memory to the file: blocks of rows, whose offsets and lengths are kept."""
        self._sort_held()
        if self._file is None:
            self._file = TemporaryFile(prefix="jqueue-")  # noqa: SIM115 - `close` closes it
        blocks = []
        for first in range(0, len(self._held), BLOCK):
            data = zlib.compress(pickle.dumps(self._held[first : first + BLOCK]), 1)
            blocks.append((self._file.tell(), len(data)))
            self._file.write(data)
        self._runs.append(blocks)
        self._held = []

    def _read(self, blocks: list[tuple[int, int]]) -> Iterator[tuple[Any, Row]]:
        assert self._file is not None
        for offset, length in blocks:
            self._file.seek(offset)
            yield from pickle.loads(zlib.decompress(self._file.read(length)))
