"""The rows of segments in a draft. Loaded rows stand in its table of jobs, and all others are accounted for.

A loaded row is a queued job like any other, except that the blob has no line of it. The first change of it *takes* the
row: from then on, the job is hot. An operation that would need a row which is not loaded raises `RowsMissingError`; its
caller loads the row and applies the operation again. So a transition stays a pure function, and sees the whole queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from jqueue.domain.errors import SegmentDamagedError
from jqueue.domain.job import JobRecord
from jqueue.domain.segments import (
    FOLDER,
    KeyTable,
    Segment,
    SegmentIndex,
    Span,
    has,
    hash_of,
    object_of,
    without,
)
from jqueue.domain.transitions import Change

NEVER = -float("inf")


class Wanted(NamedTuple):
    """A part of a segment that an operation needs."""

    segment: str
    chunk: int | None
    """The number of the chunk; None is the index."""


class RowsMissingError(Exception):
    """An operation needs rows that are not loaded. It changed nothing.

    Attributes:
        wanted: the parts of segments to load.
    """

    def __init__(self, wanted: Iterable[Wanted]) -> None:
        self.wanted: frozenset[Wanted] = frozenset(wanted)
        super().__init__(f"{len(self.wanted)} parts of segments are not loaded")


class HoldsRows(Protocol):
    """A table of jobs in which loaded rows stand."""

    def __contains__(self, job_id: object, /) -> bool: ...

    def __getitem__(self, job_id: str, /) -> JobRecord: ...

    def put_row(self, job: JobRecord) -> None:
        """Add the job of a row."""

    def drop_row(self, job_id: str) -> None:
        """Remove the job of a row."""


class _Head(NamedTuple):
    """The first row of an entry that is not loaded."""

    rank: float
    """The priority; for scheduled rows, their `run_at` in seconds since 1970."""
    sequence: int
    segment: str
    chunk: int


class SegmentRows:
    """The rows of all segments of one draft.

    Args:
        jobs: the table of the draft's jobs.

    Attributes:
        segments: the manifest; the rows that the draft has taken since the last commit are not marked in it.
        committed: the manifest as of the last commit.
        of: the entry of the manifest and the row of each loaded row that waits, by job id.
        indexes: the indexes that are loaded, by segment.
    """

    def __init__(self, jobs: HoldsRows) -> None:
        self._jobs = jobs
        self.segments: Mapping[str, Segment] = {}
        self.committed: Mapping[str, Segment] = {}
        self.of: dict[str, tuple[str, int]] = {}
        self.indexes: dict[str, SegmentIndex] = {}
        self._entrypoints: dict[str, str] = {}
        self._leased: dict[str, tuple[str, int, JobRecord]] = {}
        self._left: Counter[str] = Counter()
        self._taken: dict[str, set[int]] = {}
        self._advanced: dict[str, Segment] = {}  # entries that `manifest` has made for the commit under way
        self._loaded: dict[str, set[int]] = {}
        self._damaged: dict[str, tuple[str, bool]] = {}  # why segments cannot be read, and True if that lasts
        self._head_of: dict[str, _Head | None] = {}
        self._first_due: dict[str, tuple[float, _Head]] = {}  # until the next chunk is due
        self._ready: dict[str, list[_Head]] | None = None
        self._scheduled: dict[str, list[_Head]] = {}

    # The manifest

    def adopt(self, segments: Mapping[str, Segment]) -> None:
        """Take over another manifest, and forget loaded rows that are taken in it."""
        before, draft, advanced = self.committed, self.segments, self._advanced
        self.segments, self.committed = segments, dict(segments)
        self._ready = None
        if not (before or segments):
            return
        self._leased = {job_id: place for job_id, place in self._leased.items() if self._is_leased(place[0])}
        self._taken.clear()
        self._advanced = {}
        self._entrypoints.update((object_of(name), each.entrypoint) for name, each in segments.items())
        if before:
            changed = ((name, each) for name, each in before.items() if segments.get(name) is not each)
            moved = {name for name, each in changed if segments.get(name) != each}
            ours = {  # all that this draft's commit changed of them is that rows were taken, which are not in `of`
                name
                for name in moved & advanced.keys()
                if segments.get(name) is advanced[name] and draft.get(name) is before[name]
            }
            doubtful = moved - ours
            for job_id, (name, row) in list(self.of.items()) if doubtful else ():
                if name in doubtful and not _is_unmoved(row, before[name], segments.get(name)):
                    self._forget(job_id)
            claimed = (name for name in moved & segments.keys() if segments[name].claims != before[name].claims)
            back = (name for name in moved & segments.keys() if segments[name].waiting > before[name].waiting)
            for name in {*claimed, *back, *(segments.keys() - before.keys())}:
                self.reload(object_of(name))  # its rows were loaded as rows that wait, or as leased ones
            for name in {object_of(name) for name in moved} - set(map(object_of, segments)):
                for table in (self.indexes, self._loaded, self._damaged, self._entrypoints):
                    table.pop(name, None)
            self._changed(moved)

    def _is_leased(self, name: str) -> bool:
        entry = self.segments.get(name)
        return entry is not None and entry.is_leased

    def entries_of(self, name: str) -> list[str]:
        """Return the names of the entries for a segment."""
        return [each for each in self.segments if object_of(each) == name]

    @property
    def objects(self) -> set[str]:
        """Names of the segments of the manifest."""
        return set(map(object_of, self.segments))

    def changed(self) -> None:
        """Note that the manifest, a setting or the loaded rows have changed."""
        self._head_of.clear()
        self._first_due.clear()
        self._ready = None

    def _changed(self, names: Iterable[str]) -> None:
        """Note that only these segments, or their loaded rows, have changed."""
        for name in names:
            self._head_of.pop(name, None)
            self._first_due.pop(name, None)
        self._ready = None

    def current(self, name: str) -> Segment | None:
        """Return the entry of a segment, with the rows that the draft has taken; None if there is no such segment."""
        segment = self.segments.get(name)
        taken = self._taken.get(name)
        if segment is None or not taken:
            return segment
        return self.advanced(name, segment, ((row, row + 1) for row in taken))

    def advanced(self, name: str, segment: Segment, spans: Iterable[Span]) -> Segment:
        """Return an entry with more rows taken, and with the head that follows from them."""
        after, index = segment.evolve(taken=segment.taking(spans)), self.indexes.get(object_of(name))
        chunk = min(after.chunk_of(after.next), segment.chunks - 1)
        if index is None or chunk == segment.chunk_of(segment.next):
            return after
        return after.evolve(head=index.chunks[chunk].first.moved(segment.offset), oldest=index.oldest[chunk])

    def manifest(self) -> Mapping[str, Segment]:
        """Return the manifest with the rows that the draft has taken. It is another object only if it differs."""
        if not self.segments:
            return self.segments
        if not self._taken and all(each.is_leased or each.next < each.rows for each in self.segments.values()):
            return self.segments
        current = ((name, self.current(name)) for name in self._taken)
        self._advanced = {name: entry for name, entry in current if entry is not None}
        entries = {**self.segments, **self._advanced}
        return {name: each for name, each in entries.items() if each.is_leased or each.next < each.rows}

    def waiting(self) -> Counter[str]:
        """Return the number of rows that wait and are not loaded, by entrypoint."""
        found: Counter[str] = Counter()
        for name in self.segments:
            if (segment := self.current(name)) is not None:
                found[segment.entrypoint] += segment.waiting
        for name, _ in self.of.values():
            found[self._entrypoints[object_of(name)]] -= 1
        return +found

    def has_waiting(self, entrypoint: str) -> bool:
        """Return True if a row of an entrypoint waits, loaded or not."""
        return any(
            each.entrypoint == entrypoint and each.waiting > len(self._taken.get(name, ()))
            for name, each in self.segments.items()
        )

    # Loading

    def load(self, name: str, chunk: int, rows: Sequence[JobRecord]) -> None:
        """Add the rows of a chunk to the table of jobs. The draft must have no changes.

        Args:
            name: the segment.
            chunk: the number of the chunk.
            rows: the job of each row.
        """
        entries, of, jobs = self.entries_of(name), self.of, self._jobs
        for entry in entries:
            segment = self.segments[entry]
            before, first, first_row = len(of), segment.next, chunk * segment.chunk_rows
            has_holes = len(segment.taken) > (first > 0)  # a row is looked up among the spans only behind others
            for row, job in enumerate(rows, first_row):
                if row < first or (has_holes and segment.is_taken(row)):
                    continue
                if segment.is_leased:
                    self._leased[job.id] = entry, row, job
                elif job.id not in jobs:
                    jobs.put_row(segment.job_of(job))
                    of[job.id] = entry, row
            self._left[segment.entrypoint] += len(of) - before
        if entries:
            self._loaded.setdefault(name, set()).add(chunk)
            self._changed(entries)

    def load_index(self, name: str, index: SegmentIndex) -> None:
        """Take the index of a segment."""
        if entries := self.entries_of(name):
            self.indexes[name] = index
            self._changed(entries)

    @property
    def kept(self) -> int:
        """Number of loaded rows: rows that wait, and leased rows."""
        return len(self.of) + len(self._leased)

    def unload(self) -> None:
        """Forget all loaded rows. Waiting rows leave the table of jobs. The draft must have no changes."""
        for job_id in list(self.of):
            self._forget(job_id)
        self._leased.clear()
        self._loaded.clear()
        self.changed()

    def reload(self, name: str) -> None:
        """Note that rows of a segment are no longer known: it is read again when they are needed."""
        self._loaded.pop(name, None)
        self._changed(self.entries_of(name))

    def give_back(self, name: str, changes: list[Change]) -> None:
        """Make the known rows of an entry wait again, whose lease has ended. All others are read when they are needed.

        Args:
            name: the entry, as it is now.
            changes: of the draft.
        """
        segment = self.segments[name]
        for job_id, (its, row, job) in list(self._leased.items()):
            if its == name and not segment.is_taken(row):
                self._note(job_id, changes)
                self._jobs.put_row(segment.job_of(job))
                self.of[job_id] = name, row
                self._left[segment.entrypoint] += 1
        self.changed()

    def hide(self, job_id: str, lease: str | None, changes: list[Change]) -> None:
        """Note that the loaded row of a job no longer waits. The caller marks it as taken.

        Args:
            job_id: the job.
            lease: name of the entry in which it is leased; None if it leaves the queue.
            changes: of the draft.
        """
        self._note(job_id, changes)
        if lease is not None:
            name, row = self.of[job_id]
            job, segment = self._jobs[job_id], self.segments[name]
            attempt, failures = job.attempt - segment.claims, job.failures - segment.failures
            self._leased[job_id] = lease, row, job.evolve(attempt=attempt, failures=failures)
        self.release(job_id)

    def is_loaded(self, wanted: Wanted) -> bool:
        """Return True if a part of a segment is loaded, or the segment cannot be read."""
        if wanted.segment in self._damaged:
            return True
        if wanted.chunk is None:
            return wanted.segment in self.indexes
        return wanted.chunk in self._loaded.get(wanted.segment, ())

    def damage_of(self, name: str) -> SegmentDamagedError | None:
        """Return the error that says why a segment cannot be read; None if it can be, as far as is known."""
        damage = self._damaged.get(name)
        return None if damage is None else SegmentDamagedError(FOLDER + name, damage[0], lasts=damage[1])

    def set_aside(self, name: str, why: str, *, lasts: bool = True) -> None:
        """Note that a segment cannot be read, and why. Its rows wait until it can be, and none is leased.

        Args:
            name: the segment.
            why: the reason.
            lasts: True if it must be repaired; False if the store only does not answer.
        """
        self._damaged[name] = why, lasts
        self.changed()

    def try_again(self, name: str) -> None:
        """Note that a segment may be read again."""
        if self._damaged.pop(name, None) is not None:
            self.changed()

    def next_chunks(self, name: str, number: int) -> list[int]:
        """Return the numbers of the next chunks of an entry that are not loaded, at most a certain number."""
        segment = self.segments.get(name)
        if segment is None or segment.is_leased or object_of(name) in self._damaged:
            return []
        loaded, found = self._loaded.get(object_of(name), ()), []
        for chunk in range(segment.chunk_of(segment.next), segment.chunks):
            if chunk not in loaded and not segment.is_chunk_taken(chunk):
                found.append(chunk)
                if len(found) == number:
                    break
        return found

    def _forget(self, job_id: str) -> None:
        self._jobs.drop_row(job_id)
        self.release(job_id)

    def release(self, job_id: str) -> None:
        """Note that a job is no longer the job of a row, without taking the row."""
        name, _ = self.of.pop(job_id)
        self._left[self._entrypoints[object_of(name)]] -= 1

    # Taking

    def take(self, job_id: str, changes: list[Change]) -> None:
        """Take the row of a job, if it is one: the caller changes the job."""
        if job_id in self.of:
            self._note(job_id, changes)
            name, row = self.of[job_id]
            self._taken.setdefault(name, set()).add(row)
            self.release(job_id)

    def _note(self, job_id: str, changes: list[Change]) -> None:
        """Note what is known of a row: its place, and that in a lease."""
        changes.append((self, job_id, (self.of.get(job_id), self._leased.get(job_id))))

    def restore(self, job_id: str, old: Any) -> None:
        """Undo a change of a row: see `Draft.rollback`."""
        place, leased = old
        if leased is None:
            self._leased.pop(job_id, None)
        else:
            self._leased[job_id] = leased
        if place is None:
            self._forget(job_id)
            return
        name, row = self.of[job_id] = place
        self._left[self._entrypoints[object_of(name)]] += 1
        rows = self._taken.get(name, set())
        rows.discard(row)
        if not rows:
            self._taken.pop(name, None)

    # Questions of operations

    def find(self, text: str, *, keys: bool = False) -> None:
        """Return if no row can hold a job that is not in the table.

        Args:
            text: id of the job, or its unique key.
            keys: True for a unique key.

        Raises:
            RowsMissingError: a row may hold it.
            SegmentDamagedError: a segment that may hold it cannot be read.
        """
        wanted, damaged = list[Wanted](), None
        hashed = KeyTable.hash_of(text) if keys else hash_of(text)
        for name, segment in self.segments.items():
            if keys and not segment.keys:
                continue
            index, its = self.indexes.get(object_of(name)), object_of(name)
            parts = [Wanted(its, None)]
            if index is not None:
                rows = index.keys.find_hash(hashed) if keys else index.rows_of(text, hashed)
                parts = [Wanted(its, segment.chunk_of(row)) for row in rows if self.is_there(name, segment, row)]
            if parts:
                damaged = self.damage_of(its) or damaged
            wanted += [each for each in parts if not self.is_loaded(each)]
        if wanted:
            raise RowsMissingError(wanted)
        if damaged is not None:
            raise damaged

    def is_there(self, name: str, segment: Segment, row: int) -> bool:
        """Return True if a row is one of an entry: its job waits, or is leased."""
        return row not in self._taken.get(name, ()) and not segment.is_taken(row)

    def spans_there(self, name: str) -> list[Span]:
        """Return the rows of a segment whose jobs wait, or are leased, as `is_there` does one by one."""
        found = list[Span]()
        for entry in self.entries_of(name):
            taken = ((row, row + 1) for row in self._taken.get(entry, ()))
            found += without(self.segments[entry].spans, taken)
        return sorted(found)

    def has_left(self, name: str, job_id: str) -> bool:
        """Return True if a job was in a segment, by its index, and has left the rows of it that wait or are leased."""
        index, spans = self.indexes.get(name), self.spans_there(name)
        return index is not None and any(not has(spans, row) for row in index.rows_of(job_id))

    def leases(self) -> dict[str, Segment]:
        """Return the entries that are leased, by their names, which are the ids of the leases."""
        return {name: each for name, each in self.segments.items() if each.is_leased}

    def leased_job(self, job_id: str) -> JobRecord | None:
        """Return a job that is in progress in a lease, if its row is loaded; None if it is not."""
        name, row, job = self._leased.get(job_id, ("", 0, None))
        segment = self.segments.get(name)
        if job is None or segment is None or not segment.is_leased or segment.is_taken(row) or job_id in self._jobs:
            return None
        return segment.job_of(job)

    def leased_key(self, key: str) -> str | None:
        """Return the id of a leased job that holds a unique key, if its row is loaded; None if none does."""
        its = (job_id for job_id, (*_, job) in self._leased.items() if job.unique_key == key)
        return next((job_id for job_id in its if self.leased_job(job_id) is not None), None)

    def place_in_lease(self, job_id: str) -> tuple[str, int] | None:
        """Return the lease and the row of a job in progress in it; None if it is in none whose row is loaded."""
        return None if self.leased_job(job_id) is None else self._leased[job_id][:2]

    def jobs_of(self, lease: str, rows: Iterable[int]) -> list[JobRecord]:
        """Return the jobs of some rows of a lease, in order. Those that cannot be read, or have left, are left out.

        Raises:
            RowsMissingError: not all rows are loaded.
        """
        name, rows = object_of(lease), list(rows)
        chunks = {Wanted(name, self.segments[lease].chunk_of(row)) for row in rows}
        if wanted := [each for each in chunks if not self.is_loaded(each)]:
            raise RowsMissingError(wanted)
        ids = {row: job_id for job_id, (its, row, _) in self._leased.items() if its == lease}
        found = [self.leased_job(ids[row]) for row in rows if row in ids]
        return [job for job in found if job is not None]

    def running(self, entrypoint: str) -> int:
        """Return the number of jobs of an entrypoint that are leased."""
        return sum(each.leased for each in self.segments.values() if each.entrypoint == entrypoint)

    def names_of(self, entrypoint: str | None) -> list[str]:
        """Return the names of the entries of an entrypoint, or of all, whose rows wait."""
        found = ((name, each) for name, each in self.segments.items() if not each.is_leased)
        return [name for name, each in found if entrypoint in (None, each.entrypoint)]

    def loaded_in(self, names: Collection[str], within: Sequence[Span] | None = None) -> list[str]:
        """Return the ids of the jobs of loaded rows in some entries: of all rows, or of some spans."""
        found = [(job_id, row) for job_id, (name, row) in self.of.items() if name in names]
        if within is not None:
            found = [each for each in found if any(first <= each[1] < last for first, last in within)]
        return [job_id for job_id, _ in found]

    def require(self, names: Iterable[str]) -> None:
        """Return if all rows of some entries are loaded, or cannot be read.

        Raises:
            RowsMissingError: some are not loaded.
        """
        wanted = []
        for name in names:
            its = object_of(name)
            if not self.is_loaded(Wanted(its, None)):
                wanted.append(Wanted(its, None))
            elif its in self.indexes:
                wanted += [Wanted(its, chunk) for chunk in self.next_chunks(name, self.segments[name].chunks)]
        if wanted:
            raise RowsMissingError(wanted)

    def is_due(self, entrypoints: Iterable[str], now: datetime) -> bool:
        """Return True if a scheduled row of some entrypoints is due and is not loaded."""
        return bool(self._due(entrypoints, now.timestamp()))

    def _due(self, entrypoints: Iterable[str], at: float) -> list[_Head]:
        """Return the first rows of the segments that have scheduled rows which are due and not loaded."""
        heads = self._heads()[1]
        return [head for name in entrypoints for head in heads.get(name, ()) if head.rank <= at] if heads else []

    def _first_of(self, due: _Head, at: float) -> _Head:
        """Return the chunk of due rows that may come first in a segment, and a place that none of its rows is before.

        Args:
            due: the first row of the segment.
            at: the time, in seconds since 1970.
        """
        name = due.segment
        index, segment = self.indexes.get(object_of(name)), self.segments[name]
        if index is None:  # nothing is known of the rows: all that are due must be loaded
            return due._replace(rank=NEVER, sequence=0)
        until, first = self._first_due.get(name, (NEVER, due))
        if until > at:
            return first
        found, until = [], -NEVER
        for chunk in self.next_chunks(name, segment.chunks):
            since, (priority, sequence) = index.chunks[chunk].first.since, index.chunks[chunk].best
            if since > at:
                until = since
                break
            found.append(_Head(priority, sequence + segment.offset, name, chunk))
        first = min(found, default=due._replace(rank=NEVER, sequence=0))  # the manifest may know an earlier head
        self._first_due[name] = until, first
        return first

    def check_before(
        self, entrypoints: Sequence[str], best: tuple[Any, ...] | None, through: int | None, now: datetime
    ) -> None:
        """Return if no row of some entrypoints that is ready or due, and comes before a place, is missing.

        Args:
            entrypoints: their names.
            best: priority and sequence of the place; None is the end.
            through: rows with a larger sequence do not count; None: all count.
            now: the time.

        Raises:
            RowsMissingError: the first of these rows are missing.
        """
        heads, at = self._heads()[0], now.timestamp()
        before = []
        for due in self._due(entrypoints, at):
            if through is None or self.segments[due.segment].least <= through:
                first = self._first_of(due, at)
                if best is None or first[:2] < best:
                    before.append(first)
        for name in entrypoints:
            for head in heads.get(name, ()):
                if best is not None and head[:2] >= best:
                    break
                if through is None or self.segments[head.segment].least <= through:
                    before.append(head)
                    break
        if before:  # once the first is loaded, the others may come later than a known row
            *_, name, chunk = min(before)
            raise RowsMissingError([Wanted(object_of(name), chunk)])

    def priorities_beside(
        self, segment: str, entrypoints: Sequence[str], through: int | None, now: datetime
    ) -> list[float]:
        """Return the priorities of the first rows that are ready or due and not loaded, of all segments but one.

        Args:
            segment: the name of that one.
            entrypoints: of the other segments.
            through: rows with a larger sequence do not count; None: all count.
            now: the time.
        """
        heads, at = self._heads()[0], now.timestamp()
        return [self._first_of(head, at).rank for head in self._due(entrypoints, at)] + [
            head.rank
            for name in entrypoints
            for head in heads.get(name, ())
            if head.segment != segment and (through is None or self.segments[head.segment].least <= through)
        ]

    def upcoming(self, entrypoints: Iterable[str], jobs: int) -> list[Wanted]:
        """Return the parts that are not loaded of the next segments of some entrypoints: indexes and first chunks.

        Args:
            entrypoints: their names.
            jobs: number of jobs that these segments have together, at least.
        """
        heads = self._heads()[0]
        wanted = []
        for head in sorted(head for name in entrypoints for head in heads.get(name, ())):
            wanted += [Wanted(object_of(head.segment), chunk) for chunk in (None, head.chunk)]
            jobs -= self.segments[head.segment].waiting
            if jobs <= 0:
                break
        return [each for each in wanted if not self.is_loaded(each)]

    def unloaded(self, among: Iterable[str] | None = None) -> Iterable[str]:
        """Return the entrypoints, of these or of all, that have rows which are not loaded."""
        ready, scheduled = self._heads()
        if among is None:
            return ready.keys() | scheduled.keys()
        return [name for name in among if name in ready or name in scheduled]

    def loaded_of(self, entrypoint: str) -> int:
        """Return the number of loaded rows of an entrypoint that are not taken."""
        return self._left[entrypoint]

    def next_unloaded(self, entrypoint: str) -> str | None:
        """Return the entry with the next ready row of an entrypoint that is not loaded; None if there is none."""
        heads = self._heads()[0].get(entrypoint)
        return heads[0].segment if heads else None

    def next_due(self, now: datetime) -> float | None:
        """Return the earliest `run_at` after a time of the scheduled rows that are not loaded; None if there is none.

        Rows that were due before belong to entrypoints that are closed, or that nothing asks for.
        """
        at = now.timestamp()
        return min((head.rank for heads in self._heads()[1].values() for head in heads if head.rank > at), default=None)

    def _heads(self) -> tuple[dict[str, list[_Head]], dict[str, list[_Head]]]:
        """Return the first rows of segments that are not loaded, ready ones and scheduled ones, in order."""
        if self._ready is None:
            self._ready, self._scheduled = {}, {}
            known = self._head_of
            for name, segment in self.segments.items():
                if name not in known:
                    known[name] = self._head(name, segment)
                head = known[name]
                if head is not None:
                    table = self._scheduled if segment.scheduled else self._ready
                    table.setdefault(segment.entrypoint, []).append(head)
            for heads in (*self._ready.values(), *self._scheduled.values()):
                heads.sort()
        return self._ready, self._scheduled

    def _head(self, name: str, segment: Segment) -> _Head | None:
        """Return the first row of a segment that is not loaded; None if there is none, or it cannot be read."""
        chunks = self.next_chunks(name, 1)
        if not chunks:
            return None
        chunk, index = chunks[0], self.indexes.get(object_of(name))
        key = segment.head
        if index is not None and chunk != segment.chunk_of(segment.next):
            key = index.chunks[chunk].first.moved(segment.offset)
        if segment.scheduled:
            return _Head(key.since, key.sequence, name, chunk)
        return _Head(key.priority, key.sequence, name, chunk)


def _is_unmoved(row: int, before: Segment, after: Segment | None) -> bool:
    """Return True if a row waits on, and was in no lease meanwhile: its job has the same attempt and failures."""
    was_leased = before.is_leased or after is None or after.is_leased or after.claims != before.claims
    return not was_leased and after is not None and not after.is_taken(row)
