"""The operation that adds any number of jobs in one commit: it names segments that hold them.

The jobs are encoded before the commit, with sequence numbers from 1 on and the time at which the call began. The commit
moves their numbers behind all others. A job with an id of its caller's or a unique key may be in the queue already.
Hashes tell which jobs of the segments that can be: the operation then names their rows instead of adding anything, and
its caller gives these jobs to the next try one by one.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice, product

from jqueue.domain.draft import Draft
from jqueue.domain.errors import InvalidJobError, QueueFullError
from jqueue.domain.fields import LARGEST
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.job_options import CONFLICTS, OnConflict
from jqueue.domain.large_values import check_named_in_time
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.enqueue import FLOOR_AT_END, NewJob, drop_outlived
from jqueue.domain.operations.transactions import Given, StagedReceipt, is_repeated, last_version, remember
from jqueue.domain.printable import counted
from jqueue.domain.segment_index import HashTable, SegmentIndex, hash_of
from jqueue.domain.segment_rows import RowsMissingError, SegmentRows, Wanted
from jqueue.domain.segments import SEGMENTS_KEPT, Segment, Span, joined, size_of, without
from jqueue.domain.slices import Slices, exhaust
from jqueue.domain.transitions import BulkMove, RowsOf, Verb

MOST_CONFLICTS = 10_000
"""Largest number of jobs in segments that are added one by one."""

HASHES_PER_SLICE = 4096
"""Number of hashes that are compared in one slice."""

Row = tuple[str, int]
"""The name of a new segment, and the number of a row in it."""

Tables = Sequence[tuple["NewSegment", HashTable | None]]
"""New segments, each with the table of the ids or of the keys that may be in the queue already."""

Pairs = tuple[Sequence[int], Sequence[int]]
"""Rows of a new segment, and the row with the same hash beside each of them, in a segment in the queue."""


def conflict_mode(on_conflict: OnConflict) -> int:
    """Return the number that stands for an answer to a conflict, beside a row that may have one."""
    return CONFLICTS.index(on_conflict)


def on_conflict_of(mode: int) -> OnConflict:
    """Return the answer to a conflict that a number stands for."""
    found: OnConflict = CONFLICTS[mode]
    return found


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment that a commit is to name.

    Attributes:
        name: of the segment, which exists.
        queue: id of the queue that it names; empty if its writer did not know the queue.
        segment: its entry in the manifest, with sequence numbers from 1 on.
        index: its index, if a job in it may be in the queue already: if it has an id of its caller's or a unique key.
        given: True if the caller has chosen the ids of its jobs.
        modes: `conflict_mode` of each row; empty if all are 0.
        taken: rows whose jobs are added one by one instead.
        behind: number to add to a row number, for the number of the job in the call.
        created_at: the time of the enqueue of its jobs; None: that of the call.
        ids_as_own: the table of its ids with the hashes that segments with `own_ids` have, if `given`.
    """

    name: str
    queue: str
    segment: Segment
    index: SegmentIndex | None = field(default=None, repr=False)
    given: bool = False
    modes: bytes = field(default=b"", repr=False)
    taken: Collection[int] = field(default=frozenset(), repr=False)
    behind: int = 0
    created_at: datetime | None = None
    ids_as_own: HashTable | None = field(default=None, repr=False)

    def is_stale(self, floor: int, queue: str) -> bool:
        """Return True if it must be written again for a queue with this `attempt_floor` and id."""
        is_foreign = "" not in (queue, self.queue) and queue != self.queue
        return is_foreign or (self.given and self.segment.attempts < floor)

    @property
    def taken_spans(self) -> list[Span]:
        """The rows taken, as spans."""
        return joined((row, row + 1) for row in self.taken)

    @property
    def tables(self) -> tuple[HashTable | None, HashTable | None]:
        """The tables of the ids and the keys that may be in the queue already."""
        if self.index is None:
            return None, None
        return self.index.ids if self.given else None, self.index.keys if self.index.keys.rows else None

    def table_beside(self, index: SegmentIndex, *, of_keys: bool) -> HashTable | None:
        """Return its table of ids or keys with the hashes that a segment in the queue has; None if it needs none.

        Args:
            index: of the segment in the queue.
            of_keys: True for the keys.
        """
        ids, keys = self.tables
        if of_keys or ids is None:
            return keys if of_keys else None
        return self.ids_as_own if index.ids.own else ids


@dataclass(frozen=True, slots=True)
class BulkAdded:
    """The outcome of a bulk enqueue.

    Attributes:
        offset: the sequence number of a new job is its number in the call, from 1 on, plus this.
        attempt: the attempt of new jobs with an id of their caller's.
        one_by_one: the jobs that were not added as rows, by their number in the call: the new job, or that which is
            there already.
        version: see `StagedReceipt`.
    """

    offset: int
    attempt: int
    one_by_one: Mapping[int, JobRecord]
    version: int | None = None

    @property
    def existing(self) -> int:
        """Number of jobs that were there already."""
        return sum(job.sequence != self.offset + number for number, job in self.one_by_one.items())


@dataclass(frozen=True, slots=True)
class BulkConflicts:
    """The reason why nothing was added, and another try is needed.

    Attributes:
        rows: rows of new segments whose jobs may be in the queue already. There may be more if they are very many.
        stale: True if the segments must be written again, as they have an old `attempt_floor`, or name another queue.
    """

    rows: frozenset[Row] = frozenset()
    stale: bool = False


@dataclass(frozen=True, slots=True)
class EnqueueSegments(Operation):
    """Add jobs, all or none: those in segments, and some one by one.

    Its result is a `BulkAdded` or `BulkConflicts`; or a `StagedReceipt`, if its transaction was done before.

    Attributes:
        jobs: number of all jobs.
        created_at: the time of their enqueue.
        segments: the segments that hold them.
        one_by_one: the jobs that are added to the blob, with their numbers in the call, in order.
        before: time until which a commit may name the segments and the objects of their jobs.
        features: the critical features that the jobs in the segments need.
        transaction: the identity of this write; a repeated write adds nothing. None: it is not remembered.
        pairs: the rows of a new segment and of a segment in the queue that share a hash, by the names of both, and by
            True for keys and False for ids. Segments never change, so they are noted here for the next try.
    """

    jobs: int
    created_at: datetime
    segments: Sequence[NewSegment]
    one_by_one: Sequence[tuple[int, NewJob]]
    before: datetime
    features: Collection[str] = ()
    transaction: Given = None
    pairs: dict[tuple[str, str, bool], Pairs] = field(default_factory=dict, repr=False, compare=False)

    def change(self, draft: Draft, now: datetime) -> BulkAdded | BulkConflicts | StagedReceipt:
        """Name the segments and add the other jobs, unless rows of the segments must be looked at first."""
        last = last_version(draft, self.transaction)
        if is_repeated(self.transaction, last):
            return StagedReceipt(repeated=True, version=last)
        drop_outlived(draft, now)
        check_named_in_time(self.before, now)
        floor = draft.header.attempt_floor
        if any(each.is_stale(floor, draft.header.queue) for each in self.segments):
            return BulkConflicts(stale=True)
        if conflicts := frozenset(islice(self._conflicts(draft, now), MOST_CONFLICTS + 1)):
            return BulkConflicts(conflicts)
        waiting = {each.name: without([(0, each.segment.rows)], each.taken_spans) for each in self.segments}
        named = [each for each in self.segments if waiting[each.name]]
        if len(draft.header.segments) + len(named) > SEGMENTS_KEPT:
            there = len(draft.header.segments)
            raise QueueFullError(
                f"no room for {counted(len(named), 'more segment')} of jobs: the queue has {there} of at most "
                f"{SEGMENTS_KEPT}. Wait until workers have caught up, or enqueue jobs of fewer entrypoints at a time"
            )
        if floor >= LARGEST and any(each.given for each in named):
            raise InvalidJobError(FLOOR_AT_END)
        remember(draft, self.transaction, now)
        offset = draft.jobs.last_sequence
        found = {}
        missing: list[Wanted] = []
        for number, job in self.one_by_one:
            draft.jobs.last_sequence = offset + number - 1
            try:
                found[number] = job.change(draft, now, self.created_at)
            except RowsMissingError as error:  # the rows of all jobs are loaded at once
                missing += error.wanted
        if missing:
            raise RowsMissingError(missing)
        draft.jobs.last_sequence = offset + self.jobs
        added: dict[tuple[str, datetime], list[RowsOf]] = {}
        for each in named:
            self._name(each, draft, offset, now)
            group = each.segment.entrypoint, each.created_at or self.created_at
            added.setdefault(group, []).append((each.name, waiting[each.name]))
        for (entrypoint, created_at), rows_of in added.items():
            jobs = sum(size_of(spans) for _, spans in rows_of)
            draft.move_rows(
                BulkMove(Verb.ENQUEUE, entrypoint, None, JobStatus.QUEUED, jobs, 0, None, (), created_at, rows_of)
            )
        for feature in self.features if named else ():
            draft.require(feature)
        return BulkAdded(offset, floor, found, last)

    def _name(self, new: NewSegment, draft: Draft, offset: int, now: datetime) -> None:
        segment, offset = new.segment, offset + new.behind
        first, spans = segment.taking_spans(new.taken_spans)
        changes = {
            "next": first,
            "taken": spans,
            "offset": offset,
            "head": segment.head.moved(offset),
            "least": segment.least + offset,
            "largest": segment.largest and segment.largest + offset,
            "at": round(min(new.created_at or self.created_at, now).timestamp(), 3),
        }
        draft.name_segment(new.name, segment.evolve(**changes))

    def _conflicts(self, draft: Draft, now: datetime) -> Iterator[Row]:
        """Yield the rows that have an id or a key which is in the queue, by its hash.

        Raises:
            RowsMissingError: the indexes of segments are not loaded.
            SegmentDamagedError: an index cannot be read.
        """
        jobs, header, rows = draft.jobs, draft.header, draft.jobs.rows
        ids = [(each, each.tables[0]) for each in self.segments]
        keys = [(each, each.tables[1]) for each in self.segments]
        if not any(table is not None for _, table in (*ids, *keys)):
            return
        _check_indexes(rows)
        for name in rows.segments:
            exhaust(self.comparing(name, rows.indexes[name]))
            bounds = [bound for span in rows.spans_there(name) for bound in span]
            for new in self.segments:
                for of_keys in (False, True):
                    several, others = self.pairs.get((new.name, name, of_keys), ((), ()))
                    for row, other in zip(several, others, strict=True):
                        if bisect_right(bounds, other) % 2 == 1 and row not in new.taken:  # the other is in a span
                            yield new.name, row
        here = (job_id for job_id in jobs if job_id not in rows.of)
        yield from _rows_with(ids, (*here, *header.finished, *draft.aside_keys))
        held = (key for key, hold in header.holds.items() if hold.until > now.timestamp())
        yield from _rows_with(keys, (*jobs.keys_held, *held))

    def comparing(self, name: str, index: SegmentIndex) -> Slices[None]:
        """Note the rows that share a hash with rows of a segment in the queue, in slices."""
        for of_keys, there in ((False, index.ids), (True, index.keys)):
            hashes: set[int] | None = None
            for new in self.segments:
                table = new.table_beside(index, of_keys=of_keys)
                if table is None or (new.name, name, of_keys) in self.pairs:
                    continue
                if hashes is None:
                    hashes = yield from _hashes_in(there)
                self.pairs[new.name, name, of_keys] = yield from _matching(table, there, hashes)

    def pulling(self, rows: Mapping[Row, tuple[int, NewJob]]) -> EnqueueSegments:
        """Return the operation that adds some rows of its segments one by one.

        Args:
            rows: the number and the job of each row.
        """
        taken: dict[str, set[int]] = {}
        for name, row in rows:
            taken.setdefault(name, set()).add(row)
        segments = [
            replace(each, taken=frozenset({*each.taken, *taken[each.name]})) if each.name in taken else each
            for each in self.segments
        ]
        one_by_one = sorted([*self.one_by_one, *rows.values()], key=lambda pair: pair[0])
        return replace(self, segments=segments, one_by_one=one_by_one)

    def among_themselves(self) -> Slices[frozenset[Row]]:
        """Return the rows with the id or the key of another row or single job of the call, in slices."""
        ids = yield from self._sharing(0, [new.job.id for _, new in self.one_by_one if new.id_given])
        held = (new.job.unique_key for _, new in self.one_by_one)
        keys = yield from self._sharing(1, [key for key in held if key is not None])
        return ids | keys

    def _sharing(self, number: int, alone: Sequence[str]) -> Slices[frozenset[Row]]:
        """Return the rows that share a text of their ids (0) or keys (1) with other rows, or with jobs one by one."""
        tables = [(each, each.tables[number]) for each in self.segments]
        found = set(_rows_with(tables, alone))
        last = -1
        hashes = heapq.merge(*(table.hashes for _, table in tables if table is not None))
        for count, hashed in enumerate(hashes, 1):
            if hashed == last:
                found.update(_rows_of(tables, hashed))
            last = hashed
            if count % HASHES_PER_SLICE == 0:
                yield
        return frozenset(found)


def _check_indexes(rows: SegmentRows) -> None:
    missing = [Wanted(name, None) for name in rows.segments if name not in rows.indexes]
    if wanted := [each for each in missing if not rows.is_loaded(each)]:
        raise RowsMissingError(wanted)
    if missing and (damage := rows.damage_of(missing[0].segment)) is not None:
        raise damage


def _rows_with(tables: Tables, texts: Iterable[str]) -> Iterator[Row]:
    if any(table is not None for _, table in tables):
        for text in texts:
            yield from _rows_of(tables, hash_of(text))


def _rows_of(tables: Tables, hashed: int) -> Iterator[Row]:
    for new, table in tables:
        for row in () if table is None else table.find_hash(hashed):
            if row not in new.taken:
                yield new.name, row


def _hashes_in(table: HashTable) -> Slices[set[int]]:
    """Return the hashes of a table, in slices."""
    found: set[int] = set()
    for first in range(0, len(table.hashes), HASHES_PER_SLICE):
        found.update(table.hashes[first : first + HASHES_PER_SLICE])
        yield
    return found


def _matching(new: HashTable, there: HashTable, known: set[int]) -> Slices[Pairs]:
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
    return rows, others
