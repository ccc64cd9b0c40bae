"""Writes segments in the background: the last of the waiting jobs, when the blob holds too many, and merged segments.

A segment is created, whole and durable, under a fresh name. The next commit that is made anyway names it. If it finds
that jobs have changed meanwhile, their rows are taken from the beginning. If the process dies before, the object is
litter, which `jqueue.core.values` removes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from string import ascii_letters, digits
from typing import NamedTuple

from jqueue.core.access import Access, Numbers
from jqueue.core.blob.segment_object import EncodedSegment, encoding_segment, key_of, since_of
from jqueue.core.blob.segment_reader import SegmentReader
from jqueue.core.tasks import SHORTEST_PAUSE, Background, SpareTurns, as_storage_error, end_tasks, in_turns, one_turn
from jqueue.domain.draft import Draft
from jqueue.domain.errors import StorageError
from jqueue.domain.job import JobRecord, JobStatus, may_kill
from jqueue.domain.manifest import Manifest
from jqueue.domain.operations.base import perform
from jqueue.domain.operations.enqueue import stored_bytes
from jqueue.domain.operations.segments import Merge, MergedSegment, Spill
from jqueue.domain.segments import FOLDER, SEGMENTS_KEPT, RowKey, Segment, SegmentIndex, object_of, sorting
from jqueue.domain.slices import JOBS_PER_SLICE, Slices
from jqueue.ports.clock import Clock
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.storage import SupportsObjects

logger: Logger = logger_of("jqueue")

SUFFIX_LETTERS = frozenset(f"{ascii_letters}{digits}-_")
"""Letters that the names of objects may have."""

UNREADABLE_FOR = 600.0
"""Seconds for which a segment that could not be read for a merge is left out of all merges."""

MOST_WAITING = 1.25
"""Waiting jobs of the blob, as a part of `hot_bytes`, above which a spill no longer stands back for commits."""

MOST_FULL = SEGMENTS_KEPT // 4
"""Number of the largest merged segments that hold all waiting jobs. One merge may read this part of all bytes, even if
it is more than `most_bytes`: otherwise large jobs would need more than `SEGMENTS_KEPT` segments."""


class Stored(NamedTuple):
    """A segment that exists."""

    operation: Spill | Merge
    """Names it."""
    encoded: EncodedSegment
    until: float
    """Time on the monotonic clock after which no commit names it: a clock that is set back must not keep it young."""


class _Storing(Background):
    """Writes one segment after the other, and keeps each until a commit has named it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, "jqueue-segment", "a segment could not be written beside the queue")
        self._stored: Stored | None = None
        self._tried = False

    @property
    def under_way(self) -> bool:
        """True while it writes a segment, or has written a segment that no commit names yet."""
        return self.task is not None or self._stored is not None

    @property
    def is_free(self) -> bool:
        """True if the next segment may be written."""
        return self._stored is None and super().is_free

    def keep(self, stored: Stored | None) -> None:
        """Keep a segment that was written."""
        self._stored, self._tried = stored, False

    def name_stored(self, draft: Draft, now: datetime) -> None:
        """Name the segment that was stored, if there is one."""
        if self._stored is not None and self._clock.monotonic() > self._stored.until:
            self._stored = None  # it is litter, and may be removed
        if self._stored is not None:
            perform([self._stored.operation], draft, now)
            self._tried = True

    def landed(self, draft: Draft) -> None:
        """Note a commit that has landed. It has named the segment, unless it found no use for it."""
        if self._stored is not None and self._tried:
            draft.jobs.rows.load_index(self._stored.operation.name, self._stored.encoded.table)
            self._stored = None


class SegmentWriter:
    """Writes the segments of one engine.

    Args:
        access: to the store.
        objects: holds them.
        reader: reads the segments that are merged.
        spare: gives turns to work that can wait.

    Attributes:
        sizes: the numbers that decide when segments are written.
        under_way: True if a segment may be under way, since the last commit that landed.
    """

    def __init__(self, access: Access, objects: SupportsObjects, reader: SegmentReader, spare: SpareTurns) -> None:
        self._access, self._objects, self._reader, self._turn = access, objects, reader, spare.next
        self._clock, self._now = access.clock, access.now
        self.sizes: Numbers = access.numbers
        self._spills, self._merges = _Storing(self._clock), _Storing(self._clock)
        self.under_way: bool = False
        self._waiting = 0, 0.0
        self._unreadable: dict[str, float] = {}  # segments that could not be read for a merge, and until when
        self._due_at: dict[str, float] = {}  # scheduled segments that were read, and when the last of their rows is due

    def name_stored(self, draft: Draft, now: datetime) -> None:
        """Name the segments that were stored, in a commit that is made anyway."""
        for background in (self._spills, self._merges):
            background.name_stored(draft, now)

    def landed(self, draft: Draft) -> None:
        """Note a commit that has landed, and begin to write segments if that is due."""
        self._waiting = _waiting_in(draft)
        for background in (self._spills, self._merges):
            background.landed(draft)
        rows, hot_bytes, (waiting, taken) = draft.jobs.rows, self.sizes.hot_bytes, self._waiting
        manifest = rows.manifest
        is_full = hot_bytes is not None and waiting > 0 and taken >= hot_bytes
        if is_full and len(manifest.segments) < SEGMENTS_KEPT and self._spills.is_free:
            hot = [job for job in draft.jobs.values() if job.id not in rows.of]
            self._spills.begin(partial(self._spill, hot, waiting, taken), self._spills.keep)
        if manifest.segments and self._merges.is_free and (names := self._to_merge(manifest)):
            segments = {name: (manifest.segments[name], manifest.indexes.get(object_of(name))) for name in names}
            self._merges.begin(partial(self._merge, segments), self._merges.keep)
        self.under_way = self._spills.under_way or self._merges.under_way

    async def finish(self) -> None:
        """Cancel spills and merges. Their objects without a commit are litter."""
        await end_tasks(task for each in (self._spills, self._merges) if (task := each.task) is not None)

    async def _store(self, encoded: EncodedSegment, naming: Callable[[str, datetime], Spill | Merge]) -> Stored:
        """Create a segment. `naming` returns the operation that names it, given its name and the time until it may."""
        within = self.sizes.segment_named_within
        before, until = self._now() + within, self._clock.monotonic() + within.total_seconds()
        return Stored(naming(await self.create(encoded.content), before), encoded, until)

    async def create(self, content: bytes) -> str:
        """Create a segment under a fresh name, and return the name.

        Raises:
            StorageError: the store failed. The segment may exist, and is litter then.
        """
        access, drawn = self._access, self._access.entropy.new_id()[:18]
        name = "".join(letter if letter in SUFFIX_LETTERS else "-" for letter in drawn)
        create = self._objects.create_object
        await access.observers.call("create", access.call_timeout, create, FOLDER + name, content)
        return name

    # Spilling

    async def _spill_turn(self) -> None:
        """Stand back for a commit, but not for long: the blob grows until the spill is named."""
        if self._waiting[1] <= MOST_WAITING * (self.sizes.hot_bytes or 0):
            await self._turn()
        else:
            await one_turn()

    async def _spill(self, jobs: Sequence[JobRecord], waiting: int, taken: float) -> Stored | None:
        """Write a segment of the last of some waiting jobs, given their number and about their bytes."""
        hot_bytes = self.sizes.hot_bytes or 0
        number = min(math.ceil(waiting * (1 - hot_bytes / 4 / taken)), self.sizes.most_rows)
        scheduled, chosen = await in_turns(_last_of(jobs, number, self._now()), self._spill_turn)
        are_few = len(chosen) < min(number, self.sizes.fewest_rows)
        if are_few and 4 * sum(map(stored_bytes, chosen)) <= hot_bytes:
            self._spills.wait(SHORTEST_PAUSE)  # there are many entrypoints, with few jobs each
            return None
        encoding = encoding_segment([*chosen], scheduled=scheduled, chunk_rows=self.sizes.chunk_rows)
        encoded = await in_turns(encoding, self._spill_turn)
        rows = {job.id: job for job in map(chosen.__getitem__, encoded.order)}
        return await self._store(encoded, lambda name, before: Spill(name, encoded.entry, rows, before))

    # Merging

    def _to_merge(self, manifest: Manifest) -> list[str]:
        """Return the names of segments to merge: many small ones, one with many holes, or one whose rows are due."""
        now = self._clock.monotonic()
        self._unreadable = {name: until for name, until in self._unreadable.items() if until > now}
        return _to_merge(manifest, self.sizes, self._unreadable) or self._due(manifest)

    def _due(self, manifest: Manifest) -> list[str]:
        """Return the name of a scheduled segment whose rows may all be due. If they are, it becomes a ready one."""
        at = self._now().timestamp()
        self._due_at = {name: due_at for name, due_at in self._due_at.items() if name in manifest.segments}
        for name, segment in manifest.segments.items():
            its = object_of(name)
            if segment.scheduled and its in manifest.indexes and its not in self._unreadable:
                last = manifest.indexes[its].chunks[-1].first.since  # later rows of the chunk may be due much later
                if max(last, self._due_at.get(name, last)) <= at and segment.waiting >= self.sizes.fewest_rows:
                    return [name]
        return []

    async def _merge(self, segments: dict[str, tuple[Segment, SegmentIndex | None]]) -> Stored | None:
        jobs, numbers = list[JobRecord](), {}
        for name, (segment, index) in segments.items():
            try:
                numbers[name] = await self._add_rows(jobs, name, segment, index)
            except (StorageError, OSError, TimeoutError) as error:
                self._merges.wait(SHORTEST_PAUSE)
                self._unreadable[object_of(name)] = self._clock.monotonic() + UNREADABLE_FOR
                logger.warning(
                    "segment %s%s cannot be merged with others: %s", FOLDER, object_of(name), as_storage_error(error)
                )
                return None
        name, (first, _) = next(iter(segments.items()))
        latest = max((since_of(job) for job in jobs), default=0.0) if first.scheduled else 0.0
        scheduled = latest > self._now().timestamp()
        if scheduled and len(segments) == 1 and len(first.taken) <= self.sizes.holes:  # it was taken for due
            self._due_at[name] = latest
            return None
        are_own = all(segment.own_ids for segment, _ in segments.values())
        encoding = encoding_segment(jobs, scheduled=scheduled, own_ids=are_own, chunk_rows=self.sizes.chunk_rows)
        encoded = await in_turns(encoding, self._turn)
        places = array("q", bytes(8 * encoded.entry.rows))
        for row, place in enumerate(encoded.order):
            places[place] = row
        following, sources = iter(places), []
        for name, (segment, _) in segments.items():
            rows = array("q", [-1]) * segment.rows
            for number in numbers[name]:
                rows[number] = next(following)
            sources.append(MergedSegment(name, rows))
        return await self._store(encoded, lambda name, before: Merge(name, encoded.entry, sources, before))

    async def _add_rows(
        self, jobs: list[JobRecord], name: str, segment: Segment, index: SegmentIndex | None
    ) -> Sequence[int]:
        """Add the jobs of the rows of a segment that wait, and return the numbers of the rows."""
        segment_index = index if index is not None else await self._reader.index(name, segment)
        chunks, numbers = [chunk for chunk in range(segment.chunks) if not segment.is_chunk_taken(chunk)], array("q")
        async with aclosing(self._reader.rows(name, segment, segment_index, chunks, self._turn)) as several:
            async for chunk, rows in several:
                for number, job in enumerate(rows, chunk * segment.chunk_rows):
                    if not segment.is_taken(number):
                        numbers.append(number)
                        jobs.append(segment.job_of(job))
        return numbers


def _waiting_in(draft: Draft) -> tuple[int, float]:
    """Return the number of the waiting jobs that the blob holds, and about the number of bytes that they take."""
    jobs = draft.jobs
    hot = len(jobs) - len(jobs.rows.of)
    waiting = jobs.order.queued - len(jobs.rows.of)
    return waiting, draft.taken_bytes * waiting / hot if hot else 0.0


def _last_of(jobs: Sequence[JobRecord], number: int, now: datetime) -> Slices[tuple[bool, list[JobRecord]]]:
    """Return the last queued jobs of the entrypoint and group with most, in slices, and True if they are scheduled."""
    groups: dict[tuple[str, str | None, bool], list[tuple[tuple[float, ...], int]]] = {}
    for place, job in enumerate(jobs):
        if (place + 1) % JOBS_PER_SLICE == 0:
            yield
        if job.status is not JobStatus.QUEUED or job.error_dropped or job.result_dropped or job.after:
            continue  # figures count dropped texts, and a job with parents is found by them
        if may_kill(job):
            continue  # the order must know it before its row is loaded
        scheduled = job.run_at is not None and job.run_at > now
        groups.setdefault((job.entrypoint, job.group, scheduled), []).append(
            (key_of(job).place(scheduled=scheduled), place)
        )
    (*_, later), places = max(groups.items(), key=lambda group: len(group[1]), default=(("", None, False), []))
    yield from sorting(places)
    return later, [jobs[place] for _, place in places[-number:]] if number else []


def _to_merge(manifest: Manifest, sizes: Numbers, unreadable: Collection[str] = ()) -> list[str]:
    """Return the names of segments to merge into one: small ones of one entrypoint and group, or one with holes."""
    groups: dict[tuple[str, str | None, bool, int], list[tuple[RowKey, str]]] = {}
    crowded = len(manifest.segments) > SEGMENTS_KEPT * 3 // 4
    bytes_of = {name: _waiting_bytes(segment) for name, segment in manifest.segments.items()}
    most_bytes = max(sizes.most_bytes, sum(bytes_of.values()) // MOST_FULL)
    for name, segment in manifest.segments.items():
        if segment.is_leased or object_of(name) in unreadable:
            continue
        if len(segment.taken) > sizes.holes:
            return [name]
        level = 0 if crowded else _level(segment.waiting, sizes)
        if segment.waiting <= sizes.most_rows // 2 and bytes_of[name] <= most_bytes // 2:
            kind = segment.entrypoint, segment.group, segment.scheduled, level
            groups.setdefault(kind, []).append((segment.head, name))
    if not groups:
        return []
    largest = max(groups.values(), key=len)
    if len(largest) < (2 if crowded else sizes.merged):
        return []
    segment_names: list[str] = []
    number = taken = 0
    for _, name in sorted(largest):
        number, taken = number + manifest.segments[name].waiting, taken + bytes_of[name]
        if segment_names and (number > sizes.most_rows or taken > most_bytes):
            break
        segment_names.append(name)
    return segment_names if len(segment_names) > 1 else []


def _waiting_bytes(segment: Segment) -> int:
    """Return about the number of bytes that the waiting rows of a segment take."""
    return segment.bytes * segment.waiting // segment.rows


def _level(waiting: int, sizes: Numbers) -> int:
    """Return the size class of a segment. Each class holds segments `merged` times as large as the one below."""
    level, size = 0, sizes.fewest_rows * sizes.merged
    while waiting > size:
        level, size = level + 1, size * sizes.merged
    return level
