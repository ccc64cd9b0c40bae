"""The operation that adds any number of jobs in one commit: it names segments that hold them.

The jobs are encoded before the commit, with sequence numbers from 1 on and the time at which the call began. The commit
moves their numbers behind all others. A job with an id of its caller's or a unique key may be in the queue already.
Hashes tell which jobs of the segments that can be: the operation then names their rows instead of adding anything, and
its caller gives these jobs to the next try one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from jqueue.domain.counting import counted
from jqueue.domain.draft import Draft
from jqueue.domain.errors import InvalidJobError, QueueFullError, SegmentDamagedError
from jqueue.domain.job_options import CONFLICTS, OnConflict
from jqueue.domain.large_values import check_named_in_time
from jqueue.domain.models import LARGEST, Job, JobStatus
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.jobs import FLOOR_AT_END, NewJob, drop_outlived
from jqueue.domain.operations.staged import StagedReceipt
from jqueue.domain.operations.transactions import Given, is_repeated, last_version, remember
from jqueue.domain.segment_index import HashTable, SegmentIndex, hash_of
from jqueue.domain.segment_rows import RowsMissingError, SegmentRows, Wanted
from jqueue.domain.segments import FOLDER, SEGMENTS_KEPT, Segment, Span, size_of, without
from jqueue.domain.transitions import BulkMove, RowsOf, Verb

HASHES_PER_SLICE = 4096
"""Number of hashes that are compared in one slice."""

Row = tuple[str, int]
"""The name of a new segment, and the number of a row in it."""


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
        behind: number of jobs of the call before the first one that its row numbers count.
        created_at: the time of the enqueue of its jobs; None: that of the call.
    """

    name: str
    queue: str
    segment: Segment
    index: SegmentIndex | None = field(default=None, repr=False)
    given: bool = False
    modes: bytes = field(default=b"", repr=False)
    taken: Collection[int] = field(default=(), repr=False)
    behind: int = 0
    created_at: datetime | None = None

    def is_stale(self, floor: int, queue: str) -> bool:
        """Return True if it must be written again for a queue with this `attempt_floor` and id."""
        is_foreign = "" not in (queue, self.queue) and queue != self.queue
        return is_foreign or (self.given and self.segment.attempts < floor)

    @property
    def spans(self) -> list[Span]:
        """The rows that are not taken."""
        return without([(0, self.segment.rows)], ((row, row + 1) for row in self.taken))

    @property
    def tables(self) -> tuple[HashTable | None, HashTable | None]:
        """The tables of the ids and the keys that may be in the queue already."""
        if self.index is None:
            return None, None
        return self.index.ids if self.given else None, self.index.keys if self.index.keys.rows else None


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
    one_by_one: Mapping[int, Job]
    version: int | None = None

    @property
    def existing(self) -> int:
        """Number of jobs that were there already."""
        return sum(job.sequence != self.offset + number for number, job in self.one_by_one.items())


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
    """

    jobs: int
    created_at: datetime
    segments: Sequence[NewSegment]
    one_by_one: Sequence[tuple[int, NewJob]]
    before: datetime
    features: Collection[str] = ()
    transaction: Given = None
    shared: dict[tuple[str, str, bool], tuple[tuple[int, int], ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

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
        rows = frozenset(self._conflicts(draft, now))
        if rows:
            return BulkConflicts(rows)
        named = [each for each in self.segments if len(each.taken) < each.segment.rows]
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
            added.setdefault(group, []).append((each.name, each.spans))
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
        first, spans = segment.taking(new.taken)
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

    def _conflicts(self, draft: Draft, now: datetime) -> Iterator[Row]:
        """Yield the rows that have an id or a key which is in the queue, by its hash.

        Raises:
            RowsMissingError: the indexes of segments are not loaded.
            SegmentDamagedError: an index cannot be read.
        """
        jobs, header, rows = draft.jobs, draft.header, draft.jobs.rows
        ids = [(each, each.tables[0]) for each in self.segments]
        keys = [(each, each.tables[1]) for each in self.segments]
        if any(table is not None for _, table in (*ids, *keys)):
            _check_indexes(rows)
            here = (job_id for job_id in jobs.entries if job_id not in rows.of)
            yield from _rows_with(ids, (*here, *header.finished, *draft.aside_keys))
            held = (key for key, hold in header.holds.items() if hold.until > now.timestamp())
            yield from _rows_with(keys, (*jobs.keys_held, *held))
            for name in rows.segments:
                yield from self._in_segment(ids, name, rows, of_keys=False)
                yield from self._in_segment(keys, name, rows, of_keys=True)

    def _in_segment(
        self,
        tables: Iterable[tuple[NewSegment, HashTable | None]],
        name: str,
        rows: SegmentRows,
        *,
        of_keys: bool,
    ) -> Iterator[Row]:
        """Yield the rows with the hash of a row of a segment in the manifest whose job waits, or is in a range."""
        known: set[int] | None = None
        segment = rows.segments[name]
        for new, table in tables:
            if table is None:
                continue
            cached = (new.name, name, of_keys)
            there = rows.indexes[name].keys if of_keys else rows.indexes[name].ids
            if cached not in self.shared:
                known = set(there.hashes) if known is None else known
                self.shared[cached] = tuple(
                    (row, other)
                    for hashed in known.intersection(table.hashes)
                    for row in table.find_hash(hashed)
                    for other in there.find_hash(hashed)
                )
            for row, other in self.shared[cached]:
                if row not in new.taken and rows.is_there(name, segment, other):
                    yield new.name, row

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

    def among_themselves(self) -> Generator[None, None, frozenset[Row]]:
        """Return the rows that share an id or a key with another row, or with a job that is added one by one.

        It takes long, and yields between slices.
        """
        found: set[Row] = set()
        for number in (0, 1):
            tables = [(each, each.tables[number]) for each in self.segments]
            name = ("id", "unique_key")[number]
            alone = (new.values[name] for _, new in self.one_by_one if number or new.id_given)
            found.update(_rows_with(tables, (text for text in alone if text is not None)))
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
    if missing:
        raise SegmentDamagedError(f"{FOLDER}{missing[0].segment}")


def _rows_with(tables: Sequence[tuple[NewSegment, HashTable | None]], texts: Iterable[str]) -> Iterator[Row]:
    if any(table is not None for _, table in tables):
        for text in texts:
            yield from _rows_of(tables, hash_of(text))


def _rows_of(tables: Iterable[tuple[NewSegment, HashTable | None]], hashed: int) -> Iterator[Row]:
    for new, table in tables:
        for row in () if table is None else table.find_hash(hashed):
            if row not in new.taken:
                yield new.name, row
