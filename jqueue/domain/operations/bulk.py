"""Bulk enqueues: one commit names segments with any number of jobs, and adds the few others one by one.

A bulk enqueue may have a transaction. The blob remembers the last version of each application, in the commit that adds
the jobs. So a write is done whole or not at all, and a write that is repeated adds nothing.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, compress, islice
from operator import eq, itemgetter
from typing import Any, NamedTuple, overload

import msgspec

from jqueue.domain.draft import Draft, check_holds
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError, JQueueError, QueueFullError
from jqueue.domain.fields import LARGEST
from jqueue.domain.groups import check_member
from jqueue.domain.header import TransactionRecord
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.large_values import check_named_in_time
from jqueue.domain.limits import Limits, check_integer, check_name
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.enqueue import FLOOR_AT_END, Enqueue, drop_outlived
from jqueue.domain.printable import counted
from jqueue.domain.segment_rows import RowsMissingError, Wanted
from jqueue.domain.segments import (
    SEGMENTS_KEPT,
    HashTable,
    Segment,
    SegmentIndex,
    Span,
    bulk_id,
    object_of,
    size_of,
    without,
)
from jqueue.domain.slices import Slices, exhaust
from jqueue.domain.transitions import BulkMove, RowsOf, Verb
from jqueue.domain.turns import Turn, last_place, note_behind_all, note_place, step_of

TRANSACTION_KEPT = timedelta(days=30)
"""Default time for which the version of an application's last write is remembered."""


class Transaction(NamedTuple):
    """The identity of one write of an application.

    Attributes:
        app_id: id of the application, or of the streaming query.
        version: grows with every write. A write whose version is not larger than the last has already been done.
        keep: time for which the version is remembered.
    """

    app_id: str
    version: int
    keep: Duration = TRANSACTION_KEPT


@dataclass(frozen=True, slots=True)
class StagedReceipt:
    """The outcome of a bulk enqueue with a transaction.

    Attributes:
        added: number of jobs that were added.
        taken: number of jobs that were not added because their unique key is taken.
        repeated: True if the same write was done before, and nothing was added.
        version: the version of the application's last transaction before this one; None if none is known.
    """

    added: int = 0
    taken: int = 0
    repeated: bool = False
    version: int | None = None


def checked(transaction: object, limits: Limits) -> Transaction:
    """Return a transaction with its values checked.

    Raises:
        InvalidJobError: a value is wrong.
    """
    if not isinstance(transaction, tuple) or len(transaction) not in (2, 3):
        raise InvalidJobError(f"transaction must be Transaction(app_id, version), got {type(transaction).__name__}")
    app_id, version, keep = Transaction(*transaction)
    return Transaction(
        check_name("transaction's app_id", app_id, limits),
        check_integer("transaction's version", version, 0, LARGEST),
        to_seconds("transaction's keep", keep),
    )


def last_version(draft: Draft, transaction: Transaction | None) -> int | None:
    """Return the version of the last write of a transaction's application; None if none is remembered."""
    record = None if transaction is None else draft.header.transactions.get(transaction.app_id)
    return None if record is None else record.version


def is_repeated(transaction: Transaction | None, last: int | None) -> bool:
    """Return True if a transaction was done before, or a later one of its application.

    Args:
        transaction: of a write.
        last: see `last_version`.
    """
    return transaction is not None and last is not None and last >= transaction.version


def remember(draft: Draft, transaction: Transaction | None, now: datetime) -> None:
    """Record that a write is done, in the commit that does it."""
    if transaction is not None:
        app_id, version, keep = transaction
        until = now.timestamp() + to_seconds("keep", keep)
        draft.note(draft.header.transactions, app_id, TransactionRecord(version, until))


HASHES_PER_SLICE = 1024
"""Number of hashes that are compared in one slice, about."""

MOST_CONFLICTS = 10_000
"""Largest number of jobs in segments that are added one by one."""

RowNumbers = Mapping[str, Collection[int]]
"""Rows of new segments, by the name of the segment."""

Common = list[tuple[str, Sequence[int], Sequence[int]]]
"""The name of a new segment, rows of a segment in the queue, and for each the row of the new one with its hash."""


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment that a commit is to name.

    Attributes:
        name: of the segment, which exists.
        segment: its entry in the manifest, with sequence numbers from 1 on.
        index: its index, if a job in it may be in the queue already: if it has an id of its caller's or a unique key.
        caller_ids: True if the caller has chosen the ids of its jobs.
        behind: number to add to a row number, for the number of the job in the call.
        created_at: the time of the enqueue of its jobs; None: that of the call.
        turn: priority and fair key of its jobs, which are numbered among those of the key; None: in the call.
    """

    name: str
    segment: Segment
    index: SegmentIndex | None = field(default=None, repr=False)
    caller_ids: bool = False
    behind: int = 0
    created_at: datetime | None = None
    turn: tuple[int, str] | None = None

    def table(self, *, of_keys: bool) -> HashTable:
        """Return the table of the ids, or of the keys, that may be in the queue already."""
        if self.index is None or not (of_keys or self.caller_ids):
            return HashTable()
        return self.index.keys if of_keys else self.index.ids


class BulkAdded(msgspec.Struct, frozen=True):
    """The outcome of a bulk enqueue.

    Attributes:
        offset: the sequence number of a new job is its number in the call, from 1 on, plus this.
        attempt: the attempt of new jobs with an id of their caller's.
        one_by_one: the jobs that were not added as rows, by their number in the call: the new job, or that which is
            there already.
        version: see `StagedReceipt`.
        there: the numbers of those of them that were there already.
        behind: for jobs that take turns, what is added instead to their numbers among those of their key.
    """

    offset: int
    attempt: int
    one_by_one: Mapping[int, JobRecord]
    version: int | None = None
    there: Collection[int] = ()
    behind: Mapping[Turn, int] = {}

    @property
    def existing(self) -> int:
        """Number of jobs that were there already."""
        return len(self.there)


class BulkConflicts(msgspec.Struct, frozen=True):
    """The reason why nothing was added, and another try is needed.

    Attributes:
        rows: rows of new segments whose jobs may be in the queue already, and must be read.
    """

    rows: RowNumbers


class EnqueueSegments(Operation, frozen=True):
    """Add jobs, all or none: those in segments, and some one by one.

    Its result is a `BulkAdded` or `BulkConflicts`; or a `StagedReceipt`, if its transaction was done before.

    Attributes:
        jobs: number of all jobs.
        created_at: the time of their enqueue.
        segments: the segments that hold them.
        few: the jobs that are in no segment, with their numbers in the call, in order.
        before: time until which a commit may name the segments and the objects of their jobs.
        features: the critical features that the jobs in the segments need.
        transaction: the identity of this write; a repeated write adds nothing. None: it is not remembered.
        read: the numbers and the jobs of rows that were read, as they must be added one by one.
        common: by the name of a segment in the queue, the hashes that it shares with the new ones: see `comparing`.
            The commit compares only with segments that are not here.
        numbers: for each fair key whose jobs take turns, the number in the call of the job at each place, from 1 on.
            Of several places with the same number, which a weight makes, the job stands at the last.
        late: fair keys whose jobs are added behind all others, as the call has too many keys.
    """

    jobs: int
    created_at: datetime
    segments: Sequence[NewSegment]
    few: Sequence[tuple[int, Enqueue]]
    before: datetime
    features: Collection[str] = ()
    transaction: Transaction | None = None
    read: Mapping[str, Mapping[int, tuple[int, Enqueue]]] = {}
    common: Mapping[str, Common] = {}
    numbers: Mapping[Turn, Sequence[int]] = {}
    late: Collection[Turn] = ()

    def change(self, draft: Draft, now: datetime) -> BulkAdded | BulkConflicts | StagedReceipt:
        """Name the segments and add the other jobs one by one, unless rows of the segments must be read first."""
        last = last_version(draft, self.transaction)
        if is_repeated(self.transaction, last):
            return StagedReceipt(repeated=True, version=last)
        drop_outlived(draft, now)
        check_named_in_time(self.before, now)
        conflicts: dict[str, set[int]] = {}
        for name, rows in self._conflicts(draft, now):
            conflicts.setdefault(name, set()).update(rows)
        unread = {name: left for name, rows in conflicts.items() if (left := rows - self.read.get(name, {}).keys())}
        if unread:
            return BulkConflicts(unread)
        taken = {name: [(row, row + 1) for row in rows] for name, rows in self.read.items()}
        waiting = {each.name: without([(0, each.segment.rows)], taken.get(each.name, ())) for each in self.segments}
        named = [each for each in self.segments if waiting[each.name]]
        if len(draft.header.segments) + len(named) > SEGMENTS_KEPT:
            there = len(draft.header.segments)
            raise QueueFullError(
                f"no room for {counted(len(named), 'more segment')} of jobs: the queue has {there} of at most "
                f"{SEGMENTS_KEPT}. Wait until workers have caught up, or enqueue jobs of fewer entrypoints at a time"
            )
        if holds := sum(each.segment.holds for each in named):
            check_holds(draft, holds)
        for group in dict.fromkeys(each.segment.group for each in named if each.segment.group is not None):
            check_member(draft, group)
        remember(draft, self.transaction, now)
        offset = draft.jobs.last_sequence
        single_jobs, old = {}, set[int]()
        missing: list[Wanted] = []
        places = {turn: last_place(draft, *turn, now) for turn in (*self.numbers, *self.late)}
        behind = {turn: places[turn] for turn in self.numbers}
        read = chain.from_iterable(rows.values() for rows in self.read.values())
        for number, job in sorted([*self.few, *read], key=itemgetter(0)):
            turn: Any = job.entrypoint, job.priority, job.fair_key
            place = behind[turn] + self.place(turn, number) if turn in behind else offset + number
            try:
                moves = len(draft.moves)
                single_jobs[number] = job.change(draft, now, self.created_at, place)
                if len(draft.moves) == moves or draft.moves[-1][2] is not single_jobs[number]:
                    old.add(number)
            except RowsMissingError as error:  # the rows of all jobs are loaded at once
                missing += error.wanted
            except JQueueError:
                if not missing:
                    raise
                break  # a job before this one may be refused first, once its rows are loaded
        if missing:
            raise RowsMissingError(missing)
        self._note_places(draft, behind, offset + self.jobs)
        floor = draft.header.attempt_floor  # a job that another one replaced may have raised it
        if floor >= LARGEST and any(each.caller_ids for each in named):
            raise InvalidJobError(FLOOR_AT_END)
        added: dict[tuple[str, datetime, bool, str | None], list[RowsOf]] = {}
        for each in named:
            turn = None if each.turn is None else (each.segment.entrypoint, *each.turn)
            base = offset + each.behind if turn is None else behind[turn]
            self._name(each, taken.get(each.name, ()), draft, base, now)
            kind = each.segment.entrypoint, each.created_at or self.created_at, each.caller_ids, each.segment.group
            added.setdefault(kind, []).append((each.name, waiting[each.name]))
        for (entrypoint, created_at, *_), rows_of in added.items():
            jobs = sum(size_of(spans) for _, spans in rows_of)
            draft.move_rows(
                BulkMove(Verb.ENQUEUE, entrypoint, None, JobStatus.QUEUED, jobs, 0, None, (), created_at, rows_of)
            )
        for feature in sorted(self.features) if named else ():
            draft.require(feature)
        return BulkAdded(offset, floor, single_jobs, last, old, behind)

    def place(self, turn: Turn, number: int) -> int:
        """Return the number of a job among those of its fair key, from 1 on, given its number in the call."""
        return bisect_right(self.numbers[turn], number)

    def _note_places(self, draft: Draft, behind: Mapping[Turn, int], last_sequence: int) -> None:
        """Note the last place of each fair key, and of the jobs that are added behind all others."""
        ends = [base + len(self.numbers[turn]) for turn, base in behind.items()]
        draft.jobs.last_sequence = max([last_sequence, *ends])
        if draft.header.fair:
            for turn, base in behind.items():
                note_place(draft, *turn, base + len(self.numbers[turn]))
            for turn in self.late:
                note_place(draft, *turn, last_sequence)
            names = [job.entrypoint for _, job in self.few if job.fair_key is None]
            names += [each.segment.entrypoint for each in self.segments if each.turn is None]
            note_behind_all(draft, names, last_sequence)

    def _name(self, new: NewSegment, taken: Sequence[Span], draft: Draft, offset: int, now: datetime) -> None:
        segment, floor = new.segment, draft.header.attempt_floor if new.caller_ids else 0
        changes = {
            "taken": segment.taking(taken),
            "offset": offset,
            "head": segment.head.moved(offset),
            "least": segment.least + offset,
            "largest": segment.largest + offset,
            "floor": floor,
            "attempts": segment.attempts + floor,
            "at": round(min(new.created_at or self.created_at, now).timestamp(), 3),
        }
        draft.name_segment(new.name, segment.evolve(**changes))

    def _conflicts(self, draft: Draft, now: datetime) -> Iterator[tuple[str, Iterable[int]]]:
        """Yield the names of new segments with rows that have an id or a key which is in the queue, by its hash.

        Raises:
            RowsMissingError: the indexes of segments are not loaded.
            SegmentDamagedError: an index cannot be read.
        """
        jobs, header, rows = draft.jobs, draft.header, draft.jobs.rows
        names = sorted({object_of(name) for name, segment in rows.manifest.segments.items() if self.may_share(segment)})
        missing = [Wanted(name, None) for name in names if name not in rows.manifest.indexes]
        if wanted := [each for each in missing if not rows.is_loaded(each)]:
            raise RowsMissingError(wanted)
        if missing and (damage := rows.damage_of(missing[0].segment)) is not None:
            raise damage
        for name in names:
            common = self.common.get(name)
            if common is None:
                common = exhaust(comparing(self.segments, rows.manifest.indexes[name]))
            bounds = [bound for span in rows.manifest.spans_there(name) for bound in span]
            for new, places, own in common:
                if bounds == [0, rows.manifest.indexes[name].rows]:
                    yield new, own
                else:
                    pairs = zip(places, own, strict=True)
                    yield new, [row for place, row in pairs if bisect_right(bounds, place) % 2]
        here = (job_id for job_id in jobs if job_id not in rows.of)
        ids = chain(here, header.finished, draft.aside_keys)
        yield from _rows_with(self.segments, ids, of_keys=False)
        held = (key for key, hold in header.holds.items() if hold.until > now.timestamp())
        yield from _rows_with(self.segments, chain(jobs.keys_held, held), of_keys=True)

    def may_share(self, segment: Segment) -> bool:
        """Return True if the new segments may have an id or a key of a segment in the queue."""
        return any(each.index is not None and (each.caller_ids or segment.keys > 0) for each in self.segments)


def comparing(segments: Sequence[NewSegment], index: SegmentIndex) -> Slices[Common]:
    """Return the rows of new segments that share hashes with a segment in the queue, given its index, in slices."""
    matches: Common = []
    for of_keys in (False, True):
        tables = _tables(segments, of_keys=of_keys)
        there: HashTable = (index.keys if of_keys else (yield from index.table_of_ids())) if tables else HashTable()
        alike = next((each for each in tables if each[1].has_hashes_of(there)), None)
        if alike is not None:  # a row of another table with one of these hashes is a duplicate
            matches.append((alike[0], there.rows, alike[1].rows))
            continue
        words = frozenset(there.hashes)
        for name_of_new, table in tables if words else ():
            yield
            if shared := words.intersection(table.hashes):
                places: dict[int, list[int]] = {}
                for hashed, row in (yield from _listing(there, shared)):
                    places.setdefault(hashed, []).append(row)
                own = yield from _listing(table, shared)
                pairs = [(place, row) for hashed, row in own for place in places.get(hashed, ())]
                matches.append((name_of_new, [place for place, _ in pairs], [row for _, row in pairs]))
    return matches


def duplicate_rows(
    segments: Sequence[NewSegment], few: Sequence[Enqueue], *, later: bool = False
) -> Slices[RowNumbers]:
    """Return the rows of new segments with the id or the key of another row, or of a few single jobs, in slices.

    Args:
        segments: the segments.
        few: the single jobs.
        later: True to leave out the first of the rows that have the same.
    """
    duplicates: dict[str, set[int]] = {}
    keys = [job.unique_key for job in few if job.unique_key is not None]
    for of_keys, texts in ((False, [job.id for job in few]), (True, keys)):
        for name, some in _rows_with(segments, texts, of_keys=of_keys):
            duplicates.setdefault(name, set()).update(some)
        tables, words = _tables(segments, of_keys=of_keys), set[int]()
        parts, starts = 1 + sum(len(table.rows) for _, table in tables) // HASHES_PER_SLICE, [0] * len(tables)
        for part in range(1, parts + 1):  # the hashes up to a number of all tables together
            ends = [bisect_left(table.hashes, (part << 64) // parts) for _, table in tables]
            runs = [table.hashes[each] for (_, table), each in zip(tables, map(slice, starts, ends), strict=True)]
            hashes = sorted(chain.from_iterable(runs))
            words.update(compress(hashes, map(eq, hashes, islice(hashes, 1, None))))
            starts = ends
            yield
        rows: dict[int, list[tuple[str, int]]] = {}
        for name, table in tables if words else ():
            for hashed, row in (yield from _listing(table, words)):
                rows.setdefault(hashed, []).append((name, row))
        for several in rows.values():
            for name, row in several[later:] if len(several) > 1 else ():
                duplicates.setdefault(name, set()).add(row)
    return duplicates


def _listing(table: HashTable, words: Collection[int]) -> Slices[list[tuple[int, int]]]:
    """Return the hashes of a table that begin with some numbers, and the row of each, in slices."""
    entries: list[tuple[int, int]] = []
    for entry in table.among(words):
        entries.append(entry)
        if len(entries) % HASHES_PER_SLICE == 0:
            yield
    return entries


def _tables(segments: Iterable[NewSegment], *, of_keys: bool) -> list[tuple[str, HashTable]]:
    """Return the tables of new segments, of ids or of keys, that are not empty, with their names."""
    return [(each.name, table) for each in segments if (table := each.table(of_keys=of_keys)).rows]


def _rows_with(
    segments: Iterable[NewSegment], texts: Iterable[str], *, of_keys: bool
) -> Iterator[tuple[str, list[int]]]:
    """Yield the names of new segments with rows that have some ids or keys."""
    tables = _tables(segments, of_keys=of_keys)
    for text in texts if tables else ():
        hashed = tables[0][1].hash_of(text)
        yield from ((name, rows) for name, table in tables if (rows := table.find_hash(hashed)))


class BulkJobs:
    """The jobs of a bulk enqueue that is under way: whole while they are few, then a few bytes for each.

    Args:
        rest: the end of the ids of jobs without an id of their caller's: see `bulk_id`.
        created_at: the time of the call.
        most, most_bytes: numbers of jobs, and of bytes of their payloads, up to which they are few.

    Attributes:
        whole: the jobs with their payloads; None if they are not few.
        numbers: of the jobs with a fair key: see `EnqueueSegments`.
    """

    def __init__(self, rest: str, created_at: datetime, most: int, most_bytes: int) -> None:
        self._rest = rest
        self._created_at = created_at
        self._most, self._room = most, most_bytes
        self.whole: list[JobRecord] | None = []
        self._ids: dict[int, str] = {}
        self.numbers: dict[Turn, array[int]] = {}
        self._kinds: list[Any] = []  # the `Turn` of each job, with None for no key
        self._known_kinds: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._kinds)

    def add(
        self, jobs: Sequence[JobRecord], caller_ids: Sequence[bool], contents: Sequence[object]
    ) -> Sequence[JobRecord]:
        """Add jobs, whose places are their numbers, from 1 on. Return them, numbered among those of their fair key.

        Args:
            jobs: the jobs.
            caller_ids: for each, True if the caller has chosen its id.
            contents: the payload of each, which may be in an object.
        """
        kinds, shared_kinds = [(job.entrypoint, job.priority, job.fair_key) for job in jobs], self._known_kinds
        self._kinds += [shared_kinds.setdefault(kind, kind) for kind in kinds]
        self._ids.update((job.sequence, job.id) for job, own in zip(jobs, caller_ids, strict=True) if own)
        if self.whole is not None:
            payloads = [content if isinstance(content, bytes) else b"" for content in contents]
            self.whole += [job.evolve(payload=payload) for job, payload in zip(jobs, payloads, strict=True)]
            self._room -= sum(map(len, payloads))
            if len(self.whole) > self._most or self._room < 0:
                self.whole = None
        return [job if job.fair_key is None else self._in_line(job) for job in jobs]

    def _in_line(self, job: JobRecord) -> JobRecord:
        numbers = self.numbers.setdefault((job.entrypoint, job.priority, job.fair_key or ""), array("I"))
        numbers.extend([job.sequence] * step_of(job.fair_weight))
        return job.evolve(sequence=len(numbers))

    def job(self, number: int, outcome: BulkAdded) -> Job:
        """Return a job as it was added, or that which was there; without its payload and options if it is not whole.

        Args:
            number: of the job.
            outcome: of its commit.
        """
        whole = None if self.whole is None else self.whole[number - 1]
        alone, kind = outcome.one_by_one.get(number), self._kinds[number - 1]
        if alone is not None and whole is not None and number not in outcome.there:
            alone = alone.evolve(payload=whole.payload)  # which is in an object
        if alone is not None:
            return job_of(alone)
        own, (entrypoint, priority, _) = self._ids.get(number), kind
        base, sequence = outcome.behind.get(kind), outcome.offset + number
        if base is not None:
            sequence = base + bisect_right(self.numbers[kind], number)
        job_id = bulk_id(number, self._rest) if own is None else own
        job = whole or JobRecord(job_id, entrypoint, b"", JobStatus.QUEUED, number, self._created_at, priority)
        attempt = 0 if own is None else outcome.attempt
        return job_of(job.evolve(sequence=sequence, attempt=attempt, attempts_before=attempt))


class EnqueuedJobs(Sequence[Job]):
    """The jobs of a bulk enqueue, in the order in which they were given.

    A new job is shown with its id, entrypoint, priority, place and time, but without its payload and its other options:
    only the queue has them. A job that was there already is shown as it was.

    Args:
        jobs: the jobs.
        outcome: of their commit.

    Attributes:
        existing: number of jobs that were not added, because their id or their unique key was taken.
    """

    def __init__(self, jobs: BulkJobs, outcome: BulkAdded) -> None:
        self._jobs = jobs
        self._outcome = outcome
        self.existing: int = outcome.existing

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def added(self) -> int:
        """Number of jobs that were added."""
        return len(self) - self.existing

    @overload
    def __getitem__(self, index: int) -> Job: ...

    @overload
    def __getitem__(self, index: slice) -> list[Job]: ...

    def __getitem__(self, index: int | slice) -> Job | list[Job]:
        places, job = range(1, len(self) + 1)[index], self._jobs.job
        if isinstance(places, int):
            return job(places, self._outcome)
        return [job(place, self._outcome) for place in places]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(added={self.added}, existing={self.existing})"
