"""Rows of new segments with an id or a unique key of rows in the queue, and the jobs that the queue has already.

A segment never changes, so it holds for good that two rows have the same id. A commit then only asks whether the row in
the queue is still there, for thousands of rows at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product

from jqueue.domain.job_table import Packed
from jqueue.domain.models import Job, JobStatus, trusted_job
from jqueue.domain.operations.jobs import PLAIN
from jqueue.domain.segment_index import HashTable
from jqueue.domain.segments import Span, joined
from jqueue.domain.slices import Slices

HASHES_PER_SLICE = 4096
"""Number of hashes that are compared in one slice."""

Row = tuple[str, int]
"""The name of a new segment, and the number of a row in it."""


class Texts:
    """Texts in a row, without an object for each."""

    def __init__(self) -> None:
        self._ends = array("Q")
        self._content = bytearray()

    def add(self, text: str) -> None:
        """Add a text behind the others."""
        self._content += text.encode()
        self._ends.append(len(self._content))

    def __getitem__(self, place: int) -> str:
        start = self._ends[place - 1] if place else 0
        return self._content[start : self._ends[place]].decode()


class KnownJobs:
    """Jobs that are in segments already, with ids or keys of a bulk enqueue. Each takes some 40 bytes and its id.

    Attributes:
        numbers: for each of them, the number of the job in the call that has its id or key.
    """

    def __init__(self) -> None:
        self.numbers = array("I")
        self._ids = Texts()
        self._entrypoints: dict[str, int] = {}
        self._entrypoint_of = array("I")
        self._priorities = array("i")
        self._sequences = array("Q")
        self._created = array("d")

    def add(self, number: int, job_id: str, entry: Packed) -> int:
        """Add the packed job of a row in the queue, and return its place."""
        entrypoint, _, _, priority, created_at, sequence, *_ = entry
        self.numbers.append(number)
        self._ids.add(job_id)
        self._entrypoint_of.append(self._entrypoints.setdefault(entrypoint, len(self._entrypoints)))
        self._priorities.append(priority)
        self._sequences.append(sequence)
        self._created.append(created_at.timestamp())
        return len(self.numbers) - 1

    def job(self, place: int) -> Job:
        """Return a job, without its payload and its other options."""
        values = {
            **PLAIN,
            "id": self._ids[place],
            "entrypoint": list(self._entrypoints)[self._entrypoint_of[place]],
            "payload": b"",
            "status": JobStatus.QUEUED,
            "priority": self._priorities[place],
            "sequence": self._sequences[place],
            "created_at": datetime.fromtimestamp(self._created[place], UTC),
        }
        return trusted_job(values)


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Rows of a new segment, each beside a row of a segment in the queue with the same hash.

    Attributes:
        rows: of the new segment.
        others: the row beside each of them.
        are_same: True if each pair has the same text, and the job in the queue makes the new one needless.
        jobs: the place of the job of each other row in a `KnownJobs`, if the pairs are the same and jobs are shown.
        row_spans, other_spans: all rows as spans.
    """

    rows: Sequence[int]
    others: Sequence[int]
    are_same: bool = False
    jobs: Sequence[int] = ()
    row_spans: Sequence[Span] = ()
    other_spans: Sequence[Span] = ()

    def places_in(self, there: Sequence[Span]) -> Sequence[int]:
        """Return the places of the pairs whose other row is in some spans."""
        if self.other_spans and _are_in(self.other_spans, there):
            return range(len(self.rows))
        is_there = inside(there)
        return [place for place, other in enumerate(self.others) if is_there(other)]

    def spans_at(self, places: Sequence[int]) -> Sequence[Span]:
        """Return the new rows of some pairs as spans."""
        if self.row_spans and len(places) == len(self.rows):
            return self.row_spans
        return spans_of([self.rows[place] for place in places])


def _are_in(spans: Sequence[Span], others: Sequence[Span]) -> bool:
    """Return True if all rows of some spans are in others. Both are in order, and do not overlap."""
    place = 0
    for first, last in spans:
        while place < len(others) and others[place][1] < last:
            place += 1
        if place == len(others) or others[place][0] > first:
            return False
    return True


def same_rows(rows: Sequence[int], others: Sequence[int], jobs: Sequence[int]) -> Slices[SharedRows]:
    """Return rows that were compared with the rows beside them, and have the same texts, in slices."""
    row_spans = yield from _spanning(rows)
    other_spans = yield from _spanning(others)
    return SharedRows(rows, others, True, jobs, row_spans, other_spans)


def _spanning(rows: Sequence[int]) -> Slices[list[Span]]:
    """Return rows as spans, in slices."""
    found: list[Span] = []
    first = last = -1
    for count, row in enumerate(sorted(rows)):
        if row > last:
            if last >= 0:
                found.append((first, last))
            first = row
        last = row + 1
        if count % HASHES_PER_SLICE == 0:
            yield
    return [*found, (first, last)] if last >= 0 else []


def spans_of(rows: Iterable[int]) -> list[Span]:
    """Return rows as spans."""
    return joined((row, row + 1) for row in rows)


def inside(spans: Sequence[Span]) -> Callable[[int], bool]:
    """Return a function that tells if a row is in some spans, which are in order."""
    bounds = [bound for span in spans for bound in span]
    return lambda row: bisect_right(bounds, row) % 2 == 1


def hashes_in(table: HashTable) -> Slices[set[int]]:
    """Return the hashes of a table, in slices."""
    found: set[int] = set()
    for first in range(0, len(table.hashes), HASHES_PER_SLICE):
        found.update(table.hashes[first : first + HASHES_PER_SLICE])
        yield
    return found


def matching(new: HashTable, there: HashTable, known: set[int]) -> Slices[SharedRows]:
    """Return the rows of two tables that have the same hash, in slices.

    Args:
        new: of the new segment.
        there: of the segment in the queue.
        known: the hashes of `there`.
    """
    assert new.own == there.own  # or a job in the queue would not be found
    rows, others, last = array("I"), array("I"), -1
    for first in range(0, len(new.hashes), HASHES_PER_SLICE):
        for hashed in sorted(known.intersection(new.hashes[first : first + HASHES_PER_SLICE])):
            if hashed != last:
                for row, other in product(new.find_hash(hashed), there.find_hash(hashed)):
                    rows.append(row)
                    others.append(other)
            last = hashed
        yield
    return SharedRows(rows, others)
