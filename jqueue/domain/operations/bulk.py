"""The operation that adds any number of jobs in one commit: it names segments that hold them.

The jobs are encoded before the commit, with sequence numbers from 1 on and the time at which the call began. The commit
moves their numbers behind all others. A job with an id of its caller's or a unique key may be in the queue already.
Hashes tell which jobs of the segments that can be: the operation then names their rows instead of adding anything, and
its caller gives these jobs to the next try one by one. If they are many, the caller compares them with the rows in the
queue instead: a job that is there already is then left out, as long as the row in the queue waits or is in a range.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from jqueue.domain.draft import Draft
from jqueue.domain.errors import InvalidJobError, QueueFullError
from jqueue.domain.job_options import CONFLICTS, OnConflict
from jqueue.domain.large_values import check_named_in_time
from jqueue.domain.models import LARGEST, Job, JobStatus
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.jobs import FLOOR_AT_END, NewJob, drop_outlived
from jqueue.domain.operations.known_rows import (
    HASHES_PER_SLICE,
    Row,
    SharedRows,
    hashes_in,
    inside,
    matching,
    spans_of,
)
from jqueue.domain.operations.staged import StagedReceipt
from jqueue.domain.operations.transactions import Given, is_repeated, last_version, remember
from jqueue.domain.printable import counted
from jqueue.domain.segment_index import HashTable, SegmentIndex, hash_of
from jqueue.domain.segment_rows import RowsMissingError, SegmentRows, Wanted
from jqueue.domain.segments import SEGMENTS_KEPT, Segment, Span, joined, size_of, without
from jqueue.domain.slices import Slices, exhaust
from jqueue.domain.transitions import BulkMove, RowsOf, Verb

Tables = Sequence[tuple["NewSegment", HashTable | None]]
"""New segments, each with the table of the ids or of the keys that may be in the queue already."""


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
        taken: rows whose jobs are added one by one instead, or repeat other jobs of the call.
        taken_spans: the same rows as spans.
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
    taken_spans: Sequence[Span] = field(default=(), repr=False)
    behind: int = 0
    created_at: datetime | None = None
    ids_as_own: HashTable | None = field(default=None, repr=False)

    def is_stale(self, floor: int, queue: str) -> bool:
        """Return True if it must be written again for a queue with this `attempt_floor` and id."""
        is_foreign = "" not in (queue, self.queue) and queue != self.queue
        return is_foreign or (self.given and self.segment.attempts < floor)

    def taking(self, rows: Collection[int]) -> NewSegment:
        """Return the segment with some more rows taken."""
        taken = frozenset({*self.taken, *rows})
        return replace(self, taken=taken, taken_spans=spans_of(taken))

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
        left_out: number of jobs in segments that were not added: they repeat jobs of the call, or are there already.
        known: places of the jobs that are there already: see `SharedRows.jobs`.
    """

    offset: int
    attempt: int
    one_by_one: Mapping[int, Job]
    version: int | None = None
    left_out: int = 0
    known: Sequence[int] = field(default=(), repr=False)

    @property
    def existing(self) -> int:
        """Number of jobs that were there already."""
        alone = sum(job.sequence != self.offset + number for number, job in self.one_by_one.items())
        return alone + self.left_out


@dataclass(frozen=True, slots=True)
class BulkConflicts:
    """The reason why nothing was added, and another try is needed.

    Attributes:
        rows: rows of new segments whose jobs may be in the queue already.
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
        repeats: number of jobs in segments that are left out, because an earlier job of the call has their id or key.
        shared: rows of a new segment beside those of a segment in the queue, by the names of both, and by True for
            keys and False for ids. They are noted here for the next try.
    """

    jobs: int
    created_at: datetime
    segments: Sequence[NewSegment]
    one_by_one: Sequence[tuple[int, NewJob]]
    before: datetime
    features: Collection[str] = ()
    transaction: Given = None
    repeats: int = 0
    shared: dict[tuple[str, str, bool], SharedRows] = field(default_factory=dict, repr=False, compare=False)

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
        known = _Known()
        if conflicts := frozenset(self._conflicts(draft, now, known)):
            return BulkConflicts(conflicts)
        waiting = {each.name: known.waiting(each) for each in self.segments}
        named = [each for each in self.segments if waiting[each.name]]
        if len(draft.header.segments) + len(named) > SEGMENTS_KEPT:
            there = len(draft.header.segments)
            raise QueueFullError(
                f"no room for {counted(len(named), 'more segment')} of jobs: the queue has {there} of at most "
                f"{SEGMENTS_KEPT}. Wait until workers have caught up, or enqueue jobs of fewer entrypoints at a time"
            )
        if floor >= LARGEST and any(each.given for each in named):
            raise InvalidJobError(FLOOR_AT_END)
        savepoint = draft.savepoint()
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
        if lost := frozenset(known.lost(draft.jobs.rows)):
            draft.rollback(savepoint)
            return BulkConflicts(lost)
        draft.jobs.last_sequence = offset + self.jobs
        added: dict[tuple[str, datetime], list[RowsOf]] = {}
        for each in named:
            self._name(each, waiting[each.name], draft, offset, now)
            group = each.segment.entrypoint, each.created_at or self.created_at
            added.setdefault(group, []).append((each.name, waiting[each.name]))
        for (entrypoint, created_at), rows_of in added.items():
            jobs = sum(size_of(spans) for _, spans in rows_of)
            draft.move_rows(
                BulkMove(Verb.ENQUEUE, entrypoint, None, JobStatus.QUEUED, jobs, 0, None, (), created_at, rows_of)
            )
        for feature in self.features if named else ():
            draft.require(feature)
        alone = sum(len(each.taken) for each in self.segments) - self.repeats
        left_out = sum(each.segment.rows - size_of(waiting[each.name]) for each in self.segments) - alone
        return BulkAdded(offset, floor, found, last, left_out, known.jobs)

    def _name(self, new: NewSegment, waiting: Sequence[Span], draft: Draft, offset: int, now: datetime) -> None:
        segment, offset = new.segment, offset + new.behind
        first, spans = segment.taking_spans(without([(0, segment.rows)], waiting))
        changes = {
            "next": first,
            "taken": spans,
            "offset": offset,
            "head": segment.head.moved(offset),
            "least": segment.least + offset,
            "largest": segment.largest and segment.largest + offset,
            "at": round(min(new.created_at or self.created_at, now).timestamp(), 3),
        }
        draft.name_segment(new.name, segment.model_copy(update=changes))

    def _conflicts(self, draft: Draft, now: datetime, known: _Known) -> Iterator[Row]:
        """Yield the rows that have an id or a key which is in the queue, by its hash.

        Args:
            draft: the queue.
            now: the time.
            known: to be filled with the rows whose jobs are certain to be there. They are not among the others.

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
        there = {name: rows.spans_there(name) for name in rows.segments}
        for name in there:
            yield from self._in_segment(name, rows, there[name], known, of_keys=False)
        known.ids_are_known()
        for name in there:
            yield from self._in_segment(name, rows, there[name], known, of_keys=True)
        here = (job_id for job_id in jobs.entries if job_id not in rows.of)
        yield from _rows_with(ids, (*here, *header.finished, *draft.aside_keys))
        held = (key for key, hold in header.holds.items() if hold.until > now.timestamp())
        yield from _rows_with(keys, (*jobs.keys_held, *held))

    def _in_segment(
        self, name: str, rows: SegmentRows, there: Sequence[Span], known: _Known, *, of_keys: bool
    ) -> Iterator[Row]:
        """Yield the rows with the hash of a row of a segment in the manifest whose job waits, or is in a range."""
        hashes: set[int] | None = None
        index = rows.indexes[name]
        other = index.keys if of_keys else index.ids
        for new in self.segments:
            table = new.table_beside(index, of_keys=of_keys)
            if table is None:
                continue
            between = (new.name, name, of_keys)
            if between not in self.shared:
                hashes = exhaust(hashes_in(other)) if hashes is None else hashes
                self.shared[between] = exhaust(matching(table, other, hashes))
            shared = self.shared[between]
            places = shared.places_in(there) if shared.rows else ()
            if shared.are_same:
                known.add(new, name, shared, places)
                continue
            for place in places:
                row = shared.rows[place]
                if row not in new.taken and not known.has_id(new, row):
                    yield new.name, row

    def pulling(self, rows: Mapping[Row, tuple[int, NewJob]]) -> EnqueueSegments:
        """Return the operation that adds some rows of its segments one by one.

        Args:
            rows: the number and the job of each row.
        """
        taken: dict[str, set[int]] = {}
        for name, row in rows:
            taken.setdefault(name, set()).add(row)
        segments = [each.taking(taken[each.name]) if each.name in taken else each for each in self.segments]
        one_by_one = sorted([*self.one_by_one, *rows.values()], key=lambda pair: pair[0])
        return replace(self, segments=segments, one_by_one=one_by_one)

    def among_themselves(self) -> Slices[tuple[frozenset[Row], frozenset[Row]]]:
        """Return the rows with the id of another row or single job of the call, and the rows with the key of one.

        It takes long, and yields between slices.
        """
        ids = yield from self._sharing(0, [new.values["id"] for _, new in self.one_by_one if new.id_given])
        held = (new.values["unique_key"] for _, new in self.one_by_one)
        keys = yield from self._sharing(1, [key for key in held if key is not None])
        return ids, keys

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


class _Known:
    """The rows of new segments whose jobs are in the queue already.

    Attributes:
        jobs: places of these jobs: see `SharedRows.jobs`.
    """

    def __init__(self) -> None:
        self.jobs = array("I")
        self._spans: dict[str, list[Span]] = {}
        self._has_id: dict[str, Callable[[int], bool]] = {}
        self._pairs: list[tuple[NewSegment, str, SharedRows, Sequence[int]]] = []

    def add(self, new: NewSegment, name: str, shared: SharedRows, places: Sequence[int]) -> None:
        """Add the rows of some pairs: of a new segment, and of one in the queue."""
        if places:
            self._pairs.append((new, name, shared, places))
            self._spans.setdefault(new.name, []).extend(shared.spans_at(places))
            if shared.jobs:
                are_all = len(places) == len(shared.jobs)
                self.jobs.extend(shared.jobs if are_all else [shared.jobs[place] for place in places])

    def ids_are_known(self) -> None:
        """Note that the rows so far are those whose id is there: their keys do not matter."""
        self._has_id = {name: inside(joined(spans)) for name, spans in self._spans.items()}

    def has_id(self, new: NewSegment, row: int) -> bool:
        """Return True if the id of a row is there."""
        return new.name in self._has_id and self._has_id[new.name](row)

    def lost(self, rows: SegmentRows) -> Iterator[Row]:
        """Yield the rows whose job was there before, and was replaced by a job of the same call since."""
        for new, name, shared, places in self._pairs:
            left = shared.places_in(rows.spans_there(name))
            if len(left) < len(places):
                rows_lost = (shared.rows[place] for place in {*places} - {*left})
                yield from ((new.name, row) for row in rows_lost if row not in new.taken)

    def waiting(self, new: NewSegment) -> list[Span]:
        """Return the rows of a new segment that are to be added."""
        return without([(0, new.segment.rows)], [*new.taken_spans, *self._spans.get(new.name, ())])


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
