"""The rows of a range in blocks: in columns if their lines are alike, and otherwise read one by one.

A block of columns makes no object for a row until somebody asks for it. So a process of handlers makes its payloads by
itself, and does not copy the memory of its parent by touching them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeVar, overload

import pyarrow as pa
import pyarrow.compute as pc

from jqueue.core.blob.lines import read_entry
from jqueue.core.blob.segment_object import decode_lines
from jqueue.domain.job_table import Packed
from jqueue.domain.models import SetAside
from jqueue.domain.segment_index import whole_lines
from jqueue.domain.segments import Segment, Span
from jqueue.spark.plain_lines import PlainLines, read_plain_lines

T = TypeVar("T")

BYTES_AT_ONCE = 8 << 20
"""Bytes of rows to read at once, about. Their lines are twice as long."""


class Block(ABC):
    """Rows that follow each other."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def part(self, first: int, last: int) -> Block:
        """Return some of the rows."""

    @abstractmethod
    def entry(self, row: int) -> tuple[str, Packed]:
        """Return the id and the packed job of a row, as before the claim."""

    @abstractmethod
    def ids(self) -> list[str]:
        """Return the ids of the jobs."""

    @abstractmethod
    def payloads(self) -> list[bytes]:
        """Return the payloads."""

    @abstractmethod
    def rows_where(self, holds: Callable[[Packed], bool]) -> list[int]:
        """Return the rows for which a condition holds. It must not look at payloads and sequence numbers."""


@dataclass(frozen=True)
class Entries(Block):
    """Rows that were read one by one.

    Attributes:
        entries: the id and the packed job of each.
    """

    entries: Sequence[tuple[str, Packed]]

    def __len__(self) -> int:
        return len(self.entries)

    def part(self, first: int, last: int) -> Entries:
        """See `Block`."""
        return Entries(self.entries[first:last])

    def entry(self, row: int) -> tuple[str, Packed]:
        """See `Block`."""
        return self.entries[row]

    def ids(self) -> list[str]:
        """See `Block`."""
        return [job_id for job_id, _ in self.entries]

    def payloads(self) -> list[bytes]:
        """See `Block`."""
        return [packed[1] for _, packed in self.entries]

    def rows_where(self, holds: Callable[[Packed], bool]) -> list[int]:
        """See `Block`."""
        return [row for row, (_, packed) in enumerate(self.entries) if holds(packed)]


@dataclass(frozen=True)
class Columns(Block):
    """Rows whose lines are alike.

    Attributes:
        lines: the columns.
        examples: the packed job of the example of each kind.
        offset: number to add to sequence numbers.
    """

    lines: PlainLines
    examples: Sequence[Packed]
    offset: int

    def __len__(self) -> int:
        return len(self.lines)

    def part(self, first: int, last: int) -> Columns:
        """See `Block`."""
        lines, count = self.lines, last - first
        part = PlainLines(
            ids=lines.ids.slice(first, count),
            payloads=lines.payloads.slice(first, count),
            sequences=lines.sequences.slice(first, count),
            examples=lines.examples,
            kinds=None if lines.kinds is None else lines.kinds.slice(first, count),
        )
        return replace(self, lines=part)

    def entry(self, row: int) -> tuple[str, Packed]:
        """See `Block`."""
        lines = self.lines
        packed = self.examples[0 if lines.kinds is None else lines.kinds[row].as_py()]
        payload, sequence = lines.payloads[row].as_py(), lines.sequences[row].as_py() + self.offset
        return lines.ids[row].as_py(), (packed[0], payload, *packed[2:5], sequence, *packed[6:])

    def ids(self) -> list[str]:
        """See `Block`."""
        found: list[str] = self.lines.ids.to_pylist()
        return found

    def payloads(self) -> list[bytes]:
        """See `Block`."""
        found: list[bytes] = self.lines.payloads.to_pylist()
        return found

    def rows_where(self, holds: Callable[[Packed], bool]) -> list[int]:
        """See `Block`."""
        kinds = [kind for kind, packed in enumerate(self.examples) if holds(packed)]
        if not kinds or self.lines.kinds is None:
            return list(range(len(self))) if kinds else []
        found: list[int] = pc.indices_nonzero(pc.is_in(self.lines.kinds, pa.array(kinds))).to_pylist()
        return found


def chunks_at_once(segment: Segment) -> int:
    """Return the number of chunks of a segment to read at once."""
    return max(1, BYTES_AT_ONCE * segment.chunks // max(1, segment.index))


def blocks_of(
    segment: Segment, spans: Sequence[Span], first: int, text: bytes, texts: Sequence[bytes], names: dict[str, str]
) -> list[Block]:
    """Return the rows of some chunks that are in spans.

    Args:
        segment: the entry of their segment in the manifest.
        spans: the wanted rows.
        first: the number of the first row of the chunks.
        text: the rows of the chunks as they are stored, whose checksums are right.
        texts: the texts that `MARKS` stand for in them.
        names: entrypoints seen before; all jobs that have one share it.

    Raises:
        InvalidBlobError: a row is not a queued job.
    """
    block: Block | None = _in_columns(segment, text, texts, names)
    if block is None:
        lines = whole_lines(text, texts)
        block = Entries(list(zip(*decode_lines(lines, first, segment.offset, names), strict=True)))
    parts = ((max(0, start - first), min(len(block), end - first)) for start, end in spans)
    return [block if (start, end) == (0, len(block)) else block.part(start, end) for start, end in parts if start < end]


def _in_columns(segment: Segment, text: bytes, texts: Sequence[bytes], names: dict[str, str]) -> Columns | None:
    """Return rows whose lines are alike; None if they must be read one by one."""
    lines = read_plain_lines(text, texts)
    if lines is None:
        return None
    examples = []
    for line in lines.examples:
        found = read_entry(line, names)
        if isinstance(found, SetAside) or found[1][2] != "queued":
            return None
        examples.append(found[1])
    return Columns(lines, examples, segment.offset)


class BlockList(Sequence[T]):
    """A value of each row of some blocks. The values of a block are made when one of them is asked for.

    Args:
        blocks: the blocks.
        values_of: makes the values of a block.
    """

    def __init__(self, blocks: Sequence[Block], values_of: Callable[[Block], Sequence[T]]) -> None:
        self._blocks = blocks
        self._values_of = values_of
        self._ends = list(accumulate(map(len, blocks)))
        self._at_hand: tuple[int, int, Sequence[T]] = (0, 0, ())  # replaced as a whole: threads read it

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if isinstance(place, slice):
            begin, end, step = place.indices(len(self))
            first, last, values = self._at_hand
            if first <= begin < end <= last and step == 1:
                return values[begin - first : end - first]
            return [self[each] for each in range(begin, end, step)]
        first, last, values = self._at_hand
        if not first <= place < last:
            first, last, values = self._at_hand = self._values_around(place)
        return values[place - first]

    def __iter__(self) -> Iterator[T]:
        for block in self._blocks:
            yield from self._values_of(block)

    def _values_around(self, place: int) -> tuple[int, int, Sequence[T]]:
        """Return the place of the first row of a block, the place behind its last row, and its values."""
        number = block_of(self._ends, place)
        values = self._values_of(self._blocks[number])
        return self._ends[number] - len(values), self._ends[number], values


def block_of(ends: Sequence[int], place: int) -> int:
    """Return the number of the block that has a row, given the places behind the last rows of blocks.

    Raises:
        IndexError: there is no such row.
    """
    if not 0 <= place < (ends[-1] if ends else 0):
        raise IndexError(place)
    return bisect_right(ends, place)
