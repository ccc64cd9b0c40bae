"""The rows of segments in a draft. Loaded rows stand in its table of jobs, and all others are accounted for.

A loaded row is a queued job like any other, except that the blob has no line of it. The first change of it *takes* the
row: from then on, the job is hot. An operation that would need a row which is not loaded raises `RowsMissingError`; its
caller loads the row and applies the operation again. So a transition stays a pure function, and sees the whole queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from jqueue.domain.errors import SegmentDamagedError
from jqueue.domain.job import JobRecord
from jqueue.domain.manifest import Manifest
from jqueue.domain.segments import FOLDER, KeyTable, Segment, SegmentIndex, hash_of, object_of
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
    entry: str
    chunk: int
    least: int
    """Smallest sequence number of a row of the entry."""


class LeasedRow(NamedTuple):
    """A loaded row of a lease."""

    lease: str
    row: int
    job: JobRecord
    """The job on its line."""


class SegmentRows:
    """The loaded rows of all segments of one draft.

    Args:
        jobs: the table of the draft's jobs.

    Attributes:
        manifest: the entries of the segments.
        of: the entry of the manifest and the row of each loaded row that waits, by job id.
        unloaded: the rows that are not loaded.
    """

    def __init__(self, jobs: HoldsRows) -> None:
        self._jobs = jobs
        self.manifest: Manifest = Manifest()
        self.unloaded: UnloadedRows = UnloadedRows(self)
        self.of: dict[str, tuple[str, int]] = {}
        self._left: Counter[str] = Counter()  # number of rows in `of`, by entry
        self._leased: dict[str, LeasedRow] = {}
        self._chunks: dict[str, set[int]] = {}  # that are loaded, by segment
        self._damaged: dict[str, tuple[str, bool]] = {}  # why segments cannot be read, and True if that lasts

    def adopt(self, segments: Mapping[str, Segment]) -> None:
        """Take over another manifest, and forget loaded rows that are taken in it."""
        before = self.manifest.committed
        if not (before or segments):
            self.manifest.segments = segments
            return
        moved, doubtful = self.manifest.adopt(segments)
        leases = self.manifest.leases()
        self._leased = {job_id: each for job_id, each in self._leased.items() if each.lease in leases}
        for job_id, (name, row) in list(self.of.items()) if doubtful else ():
            if name in doubtful and not _is_unmoved(row, before[name], segments.get(name)):
                self._forget(job_id)
        there = moved & segments.keys()
        claimed = (name for name in there if segments[name].claims != before[name].claims)
        back = (name for name in there if segments[name].waiting > before[name].waiting)
        again = set(map(object_of, {*claimed, *back, *(segments.keys() - before.keys())}))
        for name in again:
            self._chunks.pop(name, None)  # its rows were loaded as rows that wait, or as leased ones
        for name in moved - segments.keys():
            del self._left[name]
        for name in set(map(object_of, moved)) - self.manifest.objects if moved else ():
            for table in (self.manifest.indexes, self._chunks, self._damaged):
                table.pop(name, None)
        self.unloaded.changed([*moved, *(name for name in segments if object_of(name) in again)])

    # Loading

    def load(self, name: str, chunk: int, rows: Sequence[JobRecord]) -> None:
        """Add the rows of a chunk to the table of jobs. The draft must have no changes.

        Args:
            name: the segment.
            chunk: the number of the chunk.
            rows: the job of each row.
        """
        entries, of, jobs = self.manifest.entries_of(name), self.of, self._jobs
        for entry, segment in entries.items():
            before, first, first_row = len(of), segment.next, chunk * segment.chunk_rows
            has_holes = len(segment.taken) > (first > 0)  # a row is looked up among the spans only behind others
            for row, job in enumerate(rows, first_row):
                if row < first or (has_holes and segment.is_taken(row)):
                    continue
                if segment.is_leased:
                    self._leased[job.id] = LeasedRow(entry, row, job)
                elif job.id not in jobs:
                    jobs.put_row(segment.job_of(job))
                    of[job.id] = entry, row
            self._left[entry] += len(of) - before
        if entries:
            self._chunks.setdefault(name, set()).add(chunk)
            self.unloaded.changed(entries)

    def load_index(self, name: str, index: SegmentIndex) -> None:
        """Take the index of a segment."""
        if entries := self.manifest.entries_of(name):
            self.manifest.indexes[name] = index
            self.unloaded.changed(entries)

    @property
    def kept(self) -> int:
        """Number of loaded rows: rows that wait, and leased rows."""
        return len(self.of) + len(self._leased)

    def unload(self) -> None:
        """Forget all loaded rows. Waiting rows leave the table of jobs. The draft must have no changes."""
        for job_id in list(self.of):
            self._forget(job_id)
        self._leased.clear()
        self._chunks.clear()
        self.unloaded.changed()

    def is_loaded(self, wanted: Wanted) -> bool:
        """Return True if a part of a segment is loaded, or the segment cannot be read."""
        if wanted.segment in self._damaged:
            return True
        if wanted.chunk is None:
            return wanted.segment in self.manifest.indexes
        return wanted.chunk in self._chunks.get(wanted.segment, ())

    def next_chunks(self, name: str, number: int) -> list[int]:
        """Return the numbers of the next chunks of an entry that are not loaded, at most a certain number."""
        segment = self.manifest.segments.get(name)
        if segment is None or segment.is_leased or object_of(name) in self._damaged:
            return []
        loaded, numbers = self._chunks.get(object_of(name), ()), []
        for chunk in range(segment.chunk_of(segment.next), segment.chunks):
            if chunk not in loaded and not segment.is_chunk_taken(chunk):
                numbers.append(chunk)
                if len(numbers) == number:
                    break
        return numbers

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
            elif its in self.manifest.indexes:
                chunks = self.next_chunks(name, self.manifest.segments[name].chunks)
                wanted += [Wanted(its, chunk) for chunk in chunks]
        if wanted:
            raise RowsMissingError(wanted)

    def damage_of(self, name: str) -> SegmentDamagedError | None:
        """Return the error that says why a segment cannot be read; None if it can be, as far as is known."""
        damage = self._damaged.get(name)
        return None if damage is None else SegmentDamagedError(FOLDER + name, damage[0], lasts=damage[1])

    def set_aside(self, name: str, why: str | None, *, lasts: bool = True) -> None:
        """Note that a segment cannot be read, and why. Its rows wait until it can be, and none is leased.

        Args:
            name: the segment.
            why: the reason; None: it may be read again.
            lasts: True if it must be repaired; False if the store only does not answer.
        """
        if why is None:
            self._damaged.pop(name, None)
        else:
            self._damaged[name] = why, lasts
        self.unloaded.changed()

    # Changes of the draft

    def take(self, job_id: str, changes: list[Change]) -> None:
        """Take the row of a job, if it is one: the caller changes the job."""
        if job_id in self.of:
            self._note(job_id, changes)
            name, row = self.of[job_id]
            self.manifest.taken.setdefault(name, set()).add(row)
            self.release(job_id)

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
            job, segment = self._jobs[job_id], self.manifest.segments[name]
            attempt, failures = job.attempt - segment.claims, job.failures - segment.failures
            self._leased[job_id] = LeasedRow(lease, row, job.evolve(attempt=attempt, failures=failures))
        self.release(job_id)

    def give_back(self, name: str, changes: list[Change]) -> None:
        """Make the known rows of an entry wait again, whose lease has ended. All others are read when they are needed.

        Args:
            name: the entry, as it is now.
            changes: of the draft.
        """
        segment = self.manifest.segments[name]
        for job_id, (lease, row, job) in list(self._leased.items()):
            if lease == name and not segment.is_taken(row):
                self._note(job_id, changes)
                self._jobs.put_row(segment.job_of(job))
                self.of[job_id] = name, row
                self._left[name] += 1
        self.unloaded.changed()

    def release(self, job_id: str) -> None:
        """Note that a job is no longer the job of a row, without taking the row."""
        self._left[self.of.pop(job_id)[0]] -= 1

    def _forget(self, job_id: str) -> None:
        self._jobs.drop_row(job_id)
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
        self._left[name] += 1
        rows = self.manifest.taken.get(name, set())
        rows.discard(row)
        if not rows:
            self.manifest.taken.pop(name, None)

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
        wanted, damaged, manifest = list[Wanted](), None, self.manifest
        hashed = KeyTable.hash_of(text) if keys else hash_of(text)
        for name, segment in manifest.segments.items():
            if keys and not segment.keys:
                continue
            its = object_of(name)
            index, parts = manifest.indexes.get(its), [Wanted(its, None)]
            if index is not None:
                rows = index.keys.find_hash(hashed) if keys else index.rows_of(text, hashed)
                parts = [Wanted(its, segment.chunk_of(row)) for row in rows if manifest.is_there(name, row)]
            if parts:
                damaged = self.damage_of(its) or damaged
            wanted += [each for each in parts if not self.is_loaded(each)]
        if wanted:
            raise RowsMissingError(wanted)
        if damaged is not None:
            raise damaged

    def leased(self, job_id: str) -> LeasedRow | None:
        """Return the place of a job in progress in a lease, and the job, if its row is loaded; None if it is not."""
        place = self._leased.get(job_id)
        segment = None if place is None else self.manifest.segments.get(place.lease)
        if place is None or segment is None or not segment.is_leased or segment.is_taken(place.row):
            return None
        return None if job_id in self._jobs else LeasedRow(place.lease, place.row, segment.job_of(place.job))

    def leased_key(self, key: str) -> str | None:
        """Return the id of a leased job that holds a unique key, if its row is loaded; None if none does."""
        its = (job_id for job_id, each in self._leased.items() if each.job.unique_key == key)
        return next((job_id for job_id in its if self.leased(job_id) is not None), None)

    def jobs_of(self, lease: str, rows: Iterable[int]) -> list[JobRecord]:
        """Return the jobs of some rows of a lease, in order. Those that cannot be read, or have left, are left out.

        Raises:
            RowsMissingError: not all rows are loaded.
        """
        name, rows = object_of(lease), list(rows)
        chunks = {Wanted(name, self.manifest.segments[lease].chunk_of(row)) for row in rows}
        if wanted := [each for each in chunks if not self.is_loaded(each)]:
            raise RowsMissingError(wanted)
        ids = {each.row: job_id for job_id, each in self._leased.items() if each.lease == lease}
        leased_rows = [self.leased(ids[row]) for row in rows if row in ids]
        return [each.job for each in leased_rows if each is not None]

    def waiting(self) -> Counter[str]:
        """Return the number of rows that wait and are not loaded, by entrypoint."""
        counts: Counter[str] = Counter()
        for name in self.manifest.segments:
            if (segment := self.manifest.current(name)) is not None:
                counts[segment.entrypoint] += segment.waiting
        for job_id in self.of:
            counts[self._jobs[job_id].entrypoint] -= 1
        return +counts

    def has_waiting(self, entrypoint: str) -> bool:
        """Return True if a row of an entrypoint waits, loaded or not."""
        return any(
            each.entrypoint == entrypoint and each.waiting > len(self.manifest.taken.get(name, ()))
            for name, each in self.manifest.segments.items()
        )

    def loaded_of(self, entrypoint: str) -> int:
        """Return the number of loaded rows of an entrypoint that are not taken."""
        return sum(self._left[name] for name, each in self.manifest.segments.items() if each.entrypoint == entrypoint)


class UnloadedRows:
    """The rows of segments that are not loaded, by the first of each entry: they may come before a loaded job."""

    def __init__(self, rows: SegmentRows) -> None:
        self._rows, self._manifest = rows, rows.manifest
        self._head_of: dict[str, _Head | None] = {}
        self._first_due: dict[str, tuple[float, _Head]] = {}  # until the next chunk is due
        self._ready: dict[str, list[_Head]] | None = None
        self._scheduled: dict[str, list[_Head]] = {}

    def changed(self, names: Iterable[str] | None = None) -> None:
        """Note that some entries or their loaded rows have changed, or all of them, or a setting."""
        self._ready = None
        for table in (self._head_of, self._first_due):
            if names is None:
                table.clear()
            for name in names or ():
                table.pop(name, None)

    def _due(self, entrypoints: Iterable[str], through: int | None, at: float) -> list[_Head]:
        """Return a place in each entry with scheduled rows that are due and not loaded. None of these is before it."""
        heads = self._heads()[1]
        due = [head for name in entrypoints for head in heads.get(name, ()) if head.rank <= at] if heads else []
        return [self._first_of(head, at) for head in due if through is None or head.least <= through]

    def _first_of(self, due: _Head, at: float) -> _Head:
        """Return a place in an entry, given its first row. None of its rows that are due is before it."""
        name = due.entry
        index, segment = self._manifest.indexes.get(object_of(name)), self._manifest.segments[name]
        if index is None:  # nothing is known of the rows: all that are due must be loaded
            return due._replace(rank=NEVER, sequence=0)
        until, first = self._first_due.get(name, (NEVER, due))
        if until > at:
            return first
        heads, until = [], -NEVER
        for chunk in self._rows.next_chunks(name, segment.chunks):
            since, (priority, sequence) = index.chunks[chunk].first.since, index.chunks[chunk].best
            if since > at:
                until = since
                break
            heads.append(_Head(priority, sequence + segment.offset, name, chunk, due.least))
        first = min(heads, default=due._replace(rank=NEVER, sequence=0))  # the manifest may know an earlier head
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
        firsts, heads = self._due(entrypoints, through, now.timestamp()), self._heads()[0]
        for name in entrypoints:
            firsts += [head for head in heads.get(name, ()) if through is None or head.least <= through][:1]
        if before := [first for first in firsts if best is None or first[:2] < best]:
            first = min(before)  # once it is loaded, the others may come later than a known row
            raise RowsMissingError([Wanted(object_of(first.entry), first.chunk)])

    def priorities_beside(
        self, entry: str, entrypoints: Sequence[str], through: int | None, now: datetime
    ) -> list[float]:
        """Return the priorities of the first rows that are ready or due and not loaded, of all entries but one.

        Args:
            entry: the name of that one.
            entrypoints: of the other entries.
            through: rows with a larger sequence do not count; None: all count.
            now: the time.
        """
        ready = [head for name in entrypoints for head in self._heads()[0].get(name, ())]
        ready = [head for head in ready if head.entry != entry and (through is None or head.least <= through)]
        return [head.rank for head in (*self._due(entrypoints, through, now.timestamp()), *ready)]

    def upcoming(self, entrypoints: Iterable[str] | None, jobs: int) -> list[Wanted]:
        """Return the parts that are not loaded of the next segments of some entrypoints: indexes and first chunks.

        Args:
            entrypoints: their names; None: all.
            jobs: number of jobs that these segments have together, at least.
        """
        heads = self._heads()[0]
        wanted = []
        for head in sorted(head for name in self.entrypoints(entrypoints) for head in heads.get(name, ())):
            wanted += [Wanted(object_of(head.entry), chunk) for chunk in (None, head.chunk)]
            jobs -= self._manifest.segments[head.entry].waiting
            if jobs <= 0:
                break
        return [each for each in wanted if not self._rows.is_loaded(each)]

    def entrypoints(self, among: Iterable[str] | None = None) -> Iterable[str]:
        """Return the entrypoints, of these or of all, that have rows which are not loaded."""
        ready, scheduled = self._heads()
        if among is None:
            return ready.keys() | scheduled.keys()
        return [name for name in among if name in ready or name in scheduled]

    def next_entry(self, entrypoint: str) -> str | None:
        """Return the entry with the next ready row of an entrypoint that is not loaded; None if there is none."""
        heads = self._heads()[0].get(entrypoint)
        return heads[0].entry if heads else None

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
            head_of = self._head_of
            for name, segment in self._manifest.segments.items():
                if name not in head_of:
                    head_of[name] = self._head(name, segment)
                head = head_of[name]
                if head is not None:
                    table = self._scheduled if segment.scheduled else self._ready
                    table.setdefault(segment.entrypoint, []).append(head)
            for heads in (*self._ready.values(), *self._scheduled.values()):
                heads.sort()
        return self._ready, self._scheduled

    def _head(self, name: str, segment: Segment) -> _Head | None:
        """Return the first row of a segment that is not loaded; None if there is none, or it cannot be read."""
        chunks = self._rows.next_chunks(name, 1)
        if not chunks:
            return None
        chunk, index = chunks[0], self._manifest.indexes.get(object_of(name))
        key = segment.head
        if index is not None and chunk != segment.chunk_of(segment.next):
            key = index.chunks[chunk].first.moved(segment.offset)
        rank = key.since if segment.scheduled else key.priority
        return _Head(rank, key.sequence, name, chunk, segment.least)


def _is_unmoved(row: int, before: Segment, after: Segment | None) -> bool:
    """Return True if a row waits on, and was in no lease meanwhile: its job has the same attempt and failures."""
    was_leased = before.is_leased or after is None or after.is_leased or after.claims != before.claims
    return not was_leased and after is not None and not after.is_taken(row)
