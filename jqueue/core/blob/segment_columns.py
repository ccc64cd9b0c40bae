"""The rows of a segment that is being made, in columns: a row takes about 40 bytes of memory besides its line."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter, le, lt
from typing import NamedTuple

from jqueue.core.blob.lines import PlainTexts, encode_plain_rows
from jqueue.core.blob.shared_texts import usable
from jqueue.domain.enqueued_jobs import bulk_hashes
from jqueue.domain.segment_index import MARKS, hash_of, id_hash, whole_lines
from jqueue.domain.segments import RowKey
from jqueue.domain.slices import JOBS_PER_SLICE, Slices


class Row(NamedTuple):
    """A row to write."""

    job_id: str
    line: bytes
    """The line of its job in the blob."""
    key: RowKey
    unique_key: str | None = None
    objects: Sequence[str] = ()
    """The suffixes of the objects that it names."""
    single: bool = False
    """True if it is never a part of a range: it keeps its result, or has a concurrency key or a time of expiry."""
    attempt: int = 0
    spare: int | None = None
    """Number of failures after which its job is dead."""


class SegmentColumns:
    """Rows of one entrypoint, all ready or all scheduled.

    Args:
        since: `since` of rows that `add_plain` adds.
        own_ids: True if jqueue makes the ids of all jobs.
        given: True if callers have chosen the ids of all jobs, and the queue may have jobs with them already.

    Attributes:
        own_ids: as in the arguments.
        lines: the line of each job, in which bytes may stand for `texts`.
        texts: the texts that `MARKS` stand for in the lines.
        are_short: True if they do so in all lines, wherever the texts occur.
        ids: hash of the id of each job.
        ids_as_own: the hash that it has in segments with `own_ids`, to look for it there. Only if `given`.
        sequences: sequence number of each row.
        modes: for each row a number that its creator knows the meaning of; empty if no row has one.
        keys: hash of the unique key and number of each row that has a key.
        objects: number of a row and the suffix of an object that it names, for each of them.
        single: numbers of the rows that are never a part of a range.
        attempts: largest `attempt` of a row.
        spare: smallest `spare` of a row.
        size: bytes of the lines, if they are whole.
    """

    def __init__(self, since: float, *, own_ids: bool = False, given: bool = False) -> None:
        self.own_ids = own_ids
        self.lines: list[bytes] = []
        self.texts: Sequence[bytes] = ()
        self.are_short = False
        self.ids = array("Q")
        self.ids_as_own = array("Q")
        self.sequences = array("Q")
        self.modes = bytearray()
        self.keys: list[tuple[int, int]] = []
        self.objects: list[tuple[int, str]] = []
        self.single: list[int] = []
        self.attempts = 0
        self.spare: int | None = None
        self.size = 0
        self._since = since
        self._given = given
        self._priorities = array("q")  # these two are shorter than the others if the last rows are plain
        self._sinces = array("d")

    def __len__(self) -> int:
        return len(self.lines)

    def add_plain(self, lines: Sequence[bytes], ids: array[int], sequences: Iterable[int]) -> None:
        """Add rows of priority 0 without a unique key, with growing sequence numbers behind all others.

        No caller has chosen their ids.

        Args:
            lines: the lines.
            ids: the hashes of the ids: see `id_hash`.
            sequences: the sequence numbers.
        """
        self.are_short = False
        self.lines += lines
        self.ids += ids
        self.sequences.extend(sequences)
        self.size += sum(map(len, lines))

    def add_bulk(self, numbers: Sequence[int], payloads: Sequence[bytes], rest: str, texts: PlainTexts) -> None:
        """Add jobs of a bulk enqueue without options, as `add_plain` does. Their rows are encoded short.

        Args:
            numbers: of the jobs. They are their sequence numbers, too.
            payloads: of the jobs.
            rest: the end of their ids: see `bulk_id`.
            texts: the texts of their lines.
        """
        if not self.lines:
            self.texts, self.are_short = usable(texts), True
        marks = PlainTexts(*(self._mark_of(text) for text in texts))
        rows = encode_plain_rows(numbers, payloads, marks)
        self.lines += rows
        self.ids += bulk_hashes(numbers, rest)
        self.sequences.extend(numbers)
        left_out = sum(map(len, texts)) - sum(map(len, marks))
        self.size += sum(map(len, rows)) + left_out * len(rows)

    def _mark_of(self, text: bytes) -> bytes:
        return MARKS[self.texts.index(text)] if text in self.texts else text

    def whole_lines(self) -> list[bytes]:
        """Return the lines of the jobs, whole."""
        return [whole_lines(line, self.texts) for line in self.lines]

    def add(self, row: Row, mode: int = 0) -> None:
        """Add a row, in any order.

        Args:
            row: the row.
            mode: see `modes`.
        """
        self._fill()
        number, key = len(self.lines), row.key
        self.are_short = False
        self.lines.append(row.line)
        self.ids.append(id_hash(row.job_id, own=self.own_ids))
        if self._given:
            self.ids_as_own.append(id_hash(row.job_id, own=True))
        self.sequences.append(key.sequence)
        self._priorities.append(key.priority)
        self._sinces.append(key.since)
        self.size += len(row.line)
        if row.objects:
            self.objects += [(number, suffix) for suffix in row.objects]
        self.attempts = max(self.attempts, row.attempt)
        if row.unique_key is not None:
            self.keys.append((hash_of(row.unique_key), number))
        if row.single:
            self.single.append(number)
        if row.spare is not None:
            self.spare = row.spare if self.spare is None else min(self.spare, row.spare)
        if mode:
            self.modes += bytes(number - len(self.modes))
            self.modes.append(mode)

    def sorting(self, *, scheduled: bool) -> Slices[Sequence[int]]:
        """Put the rows in the order in which they are served, in slices. Return the new place of each."""
        self._fill()
        if self._are_in_order(by_time=scheduled):
            return range(len(self))
        keyed: list[tuple[tuple[float, ...], int]] = []
        for row in range(len(self)):
            keyed.append((self.key(row).place(scheduled=scheduled), row))
            if len(keyed) % JOBS_PER_SLICE == 0:
                keyed[-JOBS_PER_SLICE:] = sorted(keyed[-JOBS_PER_SLICE:])  # the sort of all is quicker then
                yield
        keyed.sort()
        yield
        order = [row for _, row in keyed]
        places = array("I", bytes(4 * len(order)))
        for place, row in enumerate(order):
            places[row] = place
        self.lines = [self.lines[row] for row in order]
        self.ids = array("Q", [self.ids[row] for row in order])
        self.ids_as_own = array("Q", [self.ids_as_own[row] for row in order] if self.ids_as_own else [])
        self.sequences = array("Q", [self.sequences[row] for row in order])
        self._priorities = array("q", [self._priorities[row] for row in order])
        self._sinces = array("d", [self._sinces[row] for row in order])
        self.modes = bytearray([self.modes[row] for row in order]) if self.modes else self.modes
        self.keys = [(hashed, places[row]) for hashed, row in self.keys]
        self.single = [places[row] for row in self.single]
        self.objects = sorted(((places[row], suffix) for row, suffix in self.objects), key=itemgetter(0))
        return places

    def _are_in_order(self, *, by_time: bool) -> bool:
        """Return True if rows of one priority are in order, as they nearly always come. Others may be in order, too."""
        first = self._priorities[0] if self._priorities else 0
        return (
            len(self._priorities) == self._priorities.count(first)
            and all(map(lt, self.sequences, islice(self.sequences, 1, None)))
            and (not by_time or all(map(le, self._sinces, islice(self._sinces, 1, None))))
        )

    def key(self, row: int) -> RowKey:
        """Return the place of a row. Only after `sorting`, all rows have one."""
        return RowKey(self._priorities[row], self.sequences[row], self._sinces[row])

    def oldest(self, first: int, last: int) -> float:
        """Return the earliest `since` of the rows from one up to, but not including, another."""
        return min(self._sinces[first:last])

    @property
    def latest(self) -> float:
        """The latest `since` of the rows. There must be some."""
        return max(self._sinces, default=self._since)

    def best(self, first: int, last: int) -> tuple[int, int]:
        """Return the priority and the sequence number that come first of some rows, from one up to another."""
        return min(zip(self._priorities[first:last], self.sequences[first:last], strict=True))

    def _fill(self) -> None:
        """Give plain rows their priority and `since`."""
        missing = len(self.lines) - len(self._priorities)
        if missing:
            self._priorities.frombytes(bytes(8 * missing))
            self._sinces.extend([self._since] * missing)
        if self.modes:
            self.modes += bytes(len(self.lines) - len(self.modes))
