"""One version of a queue to look at: its jobs, in the queue's object and in segments, in one order, and their numbers.

Segments never change, and a segment that has left the manifest is kept for an hour. So a version can be read to its end
while other versions follow it.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from operator import attrgetter
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace as replace_fields

from jqueue.core.blob.lines import encode_job, encode_json
from jqueue.core.blob.segment_reader import CUT_OFF, DAMAGED, MISSING, pieces_of, reason_of
from jqueue.core.blob.segments import SegmentParts
from jqueue.core.tasks import retried, some_at_once
from jqueue.domain.errors import HistoryDamagedError, JobsUnreadableError, JQueueError
from jqueue.domain.header import Header, SetAside
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, QueueState, job_of, state_of
from jqueue.domain.printable import counted
from jqueue.domain.segments import FOLDER, RowKey, Segment, SegmentIndex, object_of
from jqueue.domain.selection import EVERY_JOB, PHASES, Phase, Selection, phase_of, place_of
from jqueue.domain.slices import JOBS_PER_SLICE
from jqueue.domain.stats import QueueStats, StatsBuilder, why_job_waits

MOST_AHEAD = 8
"""Largest number of chunks of each segment that are read at once when jobs come in order. The first are read alone."""

WARNING = f"segment {FOLDER}"
"""The beginning of the warnings of `stats()` about segments."""

PARTS_OF_HEADER: Mapping[str, Sequence[str]] = {
    "unique keys of done jobs": ("holds",),
    "ids of done jobs": ("finished", "finished_minutes", "cancelled"),
    "writers and workers": ("commits", "clients", "workers"),
    "manifest of segments": ("segments", "retired"),
    "latest history": ("history",),
    "cron entries": ("schedules",),
    "limits and counters": ("entrypoints", "recent", "turns", "fair", "counters", "transactions"),
}
"""The parts of a header whose sizes are told, each with its fields."""

LIST_DEADLINE = 10.0
"""Seconds for a listing of the segments."""

CHUNK = 1000
"""Number of jobs of a long list that are shown or changed at once."""

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Rows = list[tuple[int, JobRecord]]
Piece = tuple[Sequence[Segment], Rows]
"""Entries for a segment, and a chunk of it."""

Enough = tuple[float, float]
"""The number of jobs, and the bytes of their payloads after which there are enough."""

Place = tuple[int, int]
"""The priority and the sequence number of a job."""

Held = tuple[Place, str, int, JobRecord]
"""A due row: its place, its segment, its number and its job."""

Source = tuple[tuple[float, ...], AsyncGenerator[JobRecord, None]]
"""Jobs in order, and a place that none of them is before."""

FIRST = (-math.inf,)
"""The place before all others."""


class FirstJobs(NamedTuple):
    """The first of some jobs.

    Attributes:
        jobs: the jobs, in order.
        more: True if there are more.
        damage: segments that could not be read, with the reasons.
    """

    jobs: list[Job]
    more: bool
    damage: dict[str, str]


@dataclass(frozen=True, slots=True)
class QueueView:
    """One version of a queue. Memory is taken by the jobs of the queue's object alone, and only while it is kept.

    Attributes:
        header: the state without its jobs.
        records: the jobs of the queue's object by id.
        set_aside: the lines that cannot be read as jobs.
        size: bytes of the blob; 0 if there is none. In the formats of older queues, bytes of the payloads.
        taken: bytes that count against the limit of enqueue.
        etag: the store's token of this version; None if the store has none.
        absent: True if there is no queue yet.
        limits: of the queue object that has read it.
        parts: reads segments; None if the store cannot hold any.
        deadline: maximum seconds for each request for a segment, with its repetitions.
        until: time of the event loop by which all requests must have ended; None for no such time.
        looked: called with the number of jobs after each read of some of them from a segment.
    """

    header: Header
    records: Mapping[str, JobRecord] = field(repr=False)  # payloads must not appear in a repr or a log
    set_aside: tuple[SetAside, ...] = field(default=(), repr=False)
    size: int = 0
    taken: int = field(default=0, repr=False)
    etag: str | None = None
    absent: bool = False
    limits: Limits = field(default_factory=Limits, repr=False)
    parts: SegmentParts | None = field(default=None, repr=False)
    deadline: float = field(default=0.0, repr=False)
    until: float | None = field(default=None, repr=False)
    looked: Callable[[int], None] | None = field(default=None, repr=False)

    # Questions

    async def jobs(
        self, now: datetime, selection: Selection = EVERY_JOB, *, in_order: bool = False, hot: bool = False
    ) -> AsyncGenerator[Job, None]:
        """Iterate over the chosen jobs. Parts of the queue that cannot have such jobs are not read.

        Args:
            now: the time at which phases and ages are looked at.
            selection: chooses the jobs.
            in_order: True for jobs in progress first, then ready ones as they will be served, and so on, in the order
                of `place_of`. False for those of the queue's object first, by their sequence numbers.
            hot: True for the jobs of the queue's object alone, by their sequence numbers.

        Raises:
            JobsUnreadableError: at the end, if segments are missing or damaged.
            StorageError: the store failed.
        """
        damage: dict[str, str] = {}
        jobs = self._in_order if in_order else self._hot if hot else self._as_kept
        async with aclosing(jobs(now, selection, damage)) as records:
            async for job in records:
                yield job_of(job)
        _raise(damage)

    async def first_jobs(
        self, number: int, now: datetime, selection: Selection = EVERY_JOB, most_bytes: int | None = None
    ) -> FirstJobs:
        """Return the first of the chosen jobs in order, such as the next to be served. Few others are read.

        Args:
            number: maximum number of jobs.
            now: the time at which phases and ages are looked at.
            selection: chooses the jobs.
            most_bytes: bytes of payloads after which there are enough.

        Raises:
            StorageError: the store failed.
        """
        first, size, enough = FirstJobs([], False, {}), 0, math.inf if most_bytes is None else most_bytes
        async with aclosing(self._in_order(now, selection, first.damage, (number, enough))) as records:
            async for job in records:
                if len(first.jobs) == number or size > enough:
                    return first._replace(more=True)
                first.jobs.append(job_of(job))
                size += len(job.payload)
        return first

    async def find(self, job_id: str) -> Job | None:
        """Return the job with an id; None if there is none. Few requests find it, whatever the number of jobs.

        Raises:
            JobsUnreadableError: a segment that may hold it is missing or damaged.
            StorageError: the store failed.
        """
        if (record := self.records.get(job_id)) is not None:
            return job_of(record)
        if not self.header.segments:
            return None
        parts = self._parts
        if (cached_row := parts.get("job", job_id)) is not None and (there := self._job(*cached_row)) is not None:
            return job_of(there)
        damage: dict[str, str] = {}
        for name, entries in _by_object(self.header.segments).items():
            segment = entries[0]
            try:
                index = await self._index(name, segment)
                for row in index.rows_of(job_id):
                    if all(each.is_taken(row) for each in entries):
                        continue
                    [rows] = await self._chunks(name, segment, index, [segment.chunk_of(row)])
                    row_job = dict(rows)[row]
                    if row_job.id == job_id and (there := self._job(*parts.keep("job", job_id, (name, row, row_job)))):
                        return job_of(there)
            except DAMAGED as error:
                _note(damage, name, error)
        _raise(damage)
        return None

    async def count(self, now: datetime, selection: Selection = EVERY_JOB) -> int:
        """Return the number of chosen jobs.

        If they are chosen by phases and entrypoints alone, rows of segments are counted by the manifest. Those that
        have expired then count as ready.

        Args:
            now: the time at which phases and ages are looked at.
            selection: chooses the jobs.

        Raises:
            JobsUnreadableError: segments are missing or damaged, and their rows must be read.
            StorageError: the store failed.
        """
        phases = selection.phases or frozenset(Phase)
        if selection != Selection(selection.phases, selection.entrypoints) or phases == {Phase.EXPIRED}:
            return sum([1 async for _ in self.jobs(now, selection)])
        number = sum([1 async for _ in self._hot(now, selection, {})])
        segments = self._segments(selection)
        for name, segment in segments.items():
            due = await self._due(name, segment, now.timestamp()) if phases & {Phase.READY, Phase.SCHEDULED} else 0
            number += due * (Phase.READY in phases) + (segment.waiting - due) * (Phase.SCHEDULED in phases)
        return number + sum(each.leased for each in segments.values()) * (Phase.IN_PROGRESS in phases)

    async def stats(self, now: datetime, deadline: float | None = None) -> QueueStats:
        """Return the statistics of this version at a time.

        A segment is counted by its entry in the manifest, even if it is missing or damaged. If a read of the same
        queue object has failed because of that, now or earlier, the figures carry a warning. It stays until the segment
        is read again; if it was set aside, until all of it can be read. Damage that no read has met is not noticed.

        Args:
            now: the time.
            deadline: maximum seconds for reads of segments; None: that of the call that has read the queue.

        Raises:
            StorageError: the store failed.
        """
        builder = StatsBuilder(now)
        for some in self._slices():
            builder.count(some)
            await asyncio.sleep(0)
        if segments := self._segments():
            seconds = self.deadline if deadline is None else deadline
            timed = replace(self, until=asyncio.get_running_loop().time() + seconds)

            async def count(entrypoint: str) -> None:
                await timed._count_rows(builder, timed._segments(Selection(entrypoints=frozenset({entrypoint}))))

            await some_at_once(count, sorted({each.entrypoint for each in segments.values()}))
            builder.warnings += self.damage()
        return builder.figures(self.header, self.set_aside, self.size, self.taken, self.limits)

    def bytes_by_part(self, now: datetime) -> dict[str, int]:
        """Return the bytes of the object by part, the largest first: of jobs by state, and of tables of the header."""
        parts = Counter[str]()
        for job in self.records.values():
            parts[f"{phase_of(job, now).replace('_', ' ')} jobs"] += len(encode_job(job)) + 2
        for part, names in PARTS_OF_HEADER.items():
            parts[part] += sum(len(encode_json(value)) for name in names if (value := getattr(self.header, name)))
        parts["the rest"] = max(0, self.size - parts.total())
        return {part: size for part, size in parts.most_common() if size}

    async def why_waits(self, job: Job, now: datetime) -> list[str]:
        """Return all reasons why a job of this version is not claimed; none if it does not wait.

        Raises:
            StorageError: the store failed.
        """
        if job.status is not JobStatus.QUEUED:
            return []
        return why_job_waits(job, self.header, await self.stats(now), now, self.records.values())

    def children_of(self, job: Job) -> list[str]:
        """Return the ids of the jobs that wait for a job, or need its result."""
        return [each.id for each in self.records.values() if job.id in each.after]

    def holders(self) -> dict[str, tuple[int, datetime]]:
        """Return the number of jobs in progress and the time of the oldest claim, by holder. No row is read."""
        leases = self.header.segments.values()
        claims = [(each.holder, each.left, each.claimed_at) for each in leases if each.claimed_at is not None]
        for job in self.records.values():
            if job.status is JobStatus.IN_PROGRESS:
                claims.append((job.holder, 1, job.claimed_at or job.created_at))
        tallies: dict[str, tuple[int, datetime]] = {}
        for holder, number, at in claims:
            before, oldest = tallies.get(holder or "?", (0, at))
            tallies[holder or "?"] = before + number, min(oldest, at)
        return tallies

    async def state(self, now: datetime, *, hot: bool = False) -> QueueState:
        """Return this version as one value.

        Args:
            now: the present time.
            hot: True for the queue's object alone. It names its segments, and lacks their jobs.

        Raises:
            JobsUnreadableError: segments are missing or damaged.
            StorageError: the store failed.
        """
        jobs: list[Job] = []
        for some in self._slices():
            jobs += map(job_of, some)
            await asyncio.sleep(0)
        header = self.header
        if not hot and header.segments:
            damage: dict[str, str] = {}
            header = replace_fields(header, segments={}, retired={})
            jobs += [job_of(job) async for job in self._rows(now, EVERY_JOB, damage)]
            _raise(damage)
        return state_of(header, tuple(jobs), self.set_aside)

    async def list_segments(self) -> None:
        """Learn by a listing which segments are missing or cut off.

        What was known of damage before is forgotten, but for segments that are set aside: their jobs still wait.
        If the store fails, nothing is learned: a later listing may succeed.
        """
        if not self.header.segments:
            return
        reader = self._parts.reader
        with suppress(JQueueError):
            sizes = await retried(
                LIST_DEADLINE, reader.sizes, self._parts.entropy, "the list of segments could not be read"
            )
            for name in reader.damage.keys() - reader.aside:
                del reader.damage[name]
            for name, segment in self.header.segments.items():
                size = sizes.get(FOLDER + object_of(name))
                if size is None or size < segment.bytes:
                    reader.damage[object_of(name)] = MISSING if size is None else CUT_OFF

    def damage(self) -> list[str]:
        """Return a sentence for each segment that is known to be missing or damaged: its jobs, and what to do."""
        sentences = []
        for name, entries in _by_object(self.header.segments).items():
            if (why := self._parts.reader.damage.get(name)) is not None:
                wait = counted(sum(each.waiting for each in entries), "job in it waits", "jobs in it wait")
                leased = sum(each.leased for each in entries)
                more = f" ({leased:,} more {'is' if leased == 1 else 'are'} leased)" if leased else ""
                sentences.append(
                    f"{WARNING}{name} ({entries[0].entrypoint}) cannot be read, and {wait}{more} until it is "
                    f"restored from a backup, or repaired with `jqueue repair`: {why}"
                )
        return sentences

    # Jobs as they are kept

    def _slices(self, jobs: Iterable[JobRecord] | None = None) -> Iterator[list[JobRecord]]:
        """Yield the jobs of the queue's object, some at a time."""
        left = iter(self.records.values() if jobs is None else jobs)
        while some := list(islice(left, JOBS_PER_SLICE)):
            yield some

    async def _hot(
        self, now: datetime, selection: Selection, damage: dict[str, str]
    ) -> AsyncGenerator[JobRecord, None]:
        """Yield the chosen jobs of the queue's object, by their sequence numbers. They need no read of a segment."""
        for some in self._slices(sorted(self.records.values(), key=attrgetter("sequence"))):
            for job in some:
                if selection.matches(job, now):
                    yield job
            await asyncio.sleep(0)

    async def _as_kept(
        self, now: datetime, selection: Selection, damage: dict[str, str]
    ) -> AsyncGenerator[JobRecord, None]:
        """Yield the chosen jobs of the queue's object, and then those of segments."""
        for source in (self._hot, self._rows):
            async with aclosing(source(now, selection, damage)) as jobs:
                async for job in jobs:
                    yield job

    async def _rows(
        self, now: datetime, selection: Selection, damage: dict[str, str]
    ) -> AsyncGenerator[JobRecord, None]:
        """Yield the chosen jobs of segments. If only jobs in progress are chosen, they come in the order of claims."""
        segments, statuses = self._segments(selection), frozenset(selection.statuses or JobStatus)
        leases = [(name, each) for name, each in segments.items() if each.is_leased]
        if JobStatus.QUEUED not in statuses:
            leases = leases if JobStatus.IN_PROGRESS in statuses else []
            sources = [(name, [each]) for name, each in sorted(leases, key=lambda lease: lease[1].claimed_at or now)]
        elif JobStatus.IN_PROGRESS in statuses:
            sources = [*_by_object(segments).items()]
        else:
            sources = [*_by_object(dict(each for each in segments.items() if not each[1].is_leased)).items()]
        prefix = selection.id_prefix or ""

        async def pieces() -> AsyncGenerator[Piece, None]:
            for name, entries in sources:
                try:
                    index = await self._index(name, entries[0])
                    for numbers in pieces_of(entries, index):
                        chunks = await self._chunks(name, entries[0], index, numbers, prefix)
                        for number, rows in zip(numbers, chunks, strict=True):
                            yield [each for each in entries if not each.is_chunk_taken(number)], rows
                except DAMAGED as error:
                    _note(damage, name, error)

        async with aclosing(_one_ahead(pieces())) as pieces_ahead:
            async for entries, rows in pieces_ahead:
                for row, its in rows:
                    job = _job_in(entries, row, its)
                    if job is not None and selection.matches(job, now):
                        yield job

    # Jobs in order

    async def _in_order(
        self, now: datetime, selection: Selection, damage: dict[str, str], enough: Enough = (math.inf, math.inf)
    ) -> AsyncGenerator[JobRecord, None]:
        """Yield the chosen jobs phase by phase, those of the queue's object and of segments merged.

        Rows are read when they come up.

        Args:
            now: the time at which phases and ages are looked at.
            selection: chooses the jobs.
            damage: takes note of segments that are missing or damaged.
            enough: what the caller takes at most. Other jobs need not be yielded.
        """
        wanted = selection.phases or frozenset(Phase)
        hot: dict[Phase, list[JobRecord]] = {phase: [] for phase in Phase}
        async for job in self._hot(now, selection, damage):
            hot[phase_of(job, now)].append(job)
        expired = Phase.READY not in wanted  # if ready rows are read, they tell if some have expired

        def is_chosen(job: JobRecord, phase: Phase) -> bool:
            nonlocal expired
            its = phase_of(job, now)
            expired |= its is Phase.EXPIRED
            return its is phase and selection.matches(job, now)

        async def rows(phase: Phase) -> AsyncGenerator[JobRecord, None]:
            if phase is Phase.IN_PROGRESS:
                source = self._rows(now, msgspec.structs.replace(selection, phases=frozenset({phase})), damage)
            elif phase is Phase.SCHEDULED:
                source = self._waiting(selection, damage, after=now.timestamp())
            elif phase is Phase.READY or (phase is Phase.EXPIRED and expired):
                due = self._due_rows(now, selection, damage, partial(is_chosen, phase=phase), enough)
                source = self._waiting(selection, damage, due=due)
            else:
                return
            async with aclosing(source) as records:
                async for job in records:
                    if is_chosen(job, phase):
                        yield job

        def place(job: JobRecord) -> tuple[float, ...]:
            return place_of(job, now)

        for phase in PHASES:
            if phase in wanted:
                sources = [(FIRST, rows(phase)), (FIRST, _these(sorted(hot.pop(phase), key=place)))]
                async with aclosing(_merged(sources, place)) as merged:
                    async for job in merged:
                        yield job

    def _waiting(
        self,
        selection: Selection,
        damage: dict[str, str],
        *,
        after: float | None = None,
        due: AsyncGenerator[JobRecord, None] | None = None,
    ) -> AsyncGenerator[JobRecord, None]:
        """Return the waiting jobs of segments with ready rows, in the order of their rows, merged with due ones.

        Segments are read chunk by chunk, and only when their next row comes up. With `after`, those of scheduled rows
        are read instead, but for chunks whose rows are all due at that time.
        """
        scheduled, prefix = after is not None, selection.id_prefix or ""
        sources: list[Source] = [] if due is None else [(FIRST, due)]
        for name, segment in self._segments(selection).items():
            if segment.scheduled == scheduled and segment.waiting:
                jobs = self._waiting_in(name, segment, prefix, damage, after)
                sources.append((segment.head.place(scheduled=scheduled), jobs))

        def place(job: JobRecord) -> tuple[float, ...]:
            key = RowKey(job.priority, job.sequence, (job.run_at or job.created_at).timestamp())
            return key.place(scheduled=scheduled)

        return _merged(sources, place)

    async def _due_rows(
        self,
        now: datetime,
        selection: Selection,
        damage: dict[str, str],
        is_chosen: Callable[[JobRecord], bool],
        enough: Enough,
    ) -> AsyncGenerator[JobRecord, None]:
        """Yield chosen jobs of scheduled rows that are due, as ready ones are served, until there are enough of them.

        A chunk is read when its best row comes up, and the rows that may be yielded are held.
        """
        chunks: list[tuple[Place, str, int]] = []
        segments, at, prefix = self._segments(selection), now.timestamp(), selection.id_prefix or ""
        for name, segment in segments.items():
            if segment.scheduled and segment.waiting and segment.head.since <= at:
                try:
                    index = await self._outline(name, segment)
                except DAMAGED as error:
                    _note(damage, name, error)
                    continue
                due = bisect_right(index.chunks, at, key=lambda each: each.first.since)
                for chunk in range(segment.chunk_of(segment.next), due):
                    if not segment.is_chunk_taken(chunk):
                        priority, sequence = index.chunks[chunk].best
                        chunks.append(((priority, sequence + segment.offset), name, chunk))
        chunks.sort(reverse=True)
        held, several = list[Held](), 1  # a heap, and the number of chunks to read next
        number, size = enough
        most = number if size == math.inf else 0  # number of held jobs above which the last ones are dropped
        while chunks or held:
            if held and not (chunks and chunks[-1][0] <= held[0][0]):
                yield heappop(held)[-1]
                continue
            name, numbers = chunks[-1][1], list[int]()
            while chunks and chunks[-1][1] == name and len(numbers) < several:
                numbers.append(chunks.pop()[-1])
            segment, several = segments[name], min(2 * several, MOST_AHEAD)
            try:
                read = await self._chunks(name, segment, await self._outline(name, segment), sorted(numbers), prefix)
            except DAMAGED as error:
                _note(damage, name, error)
                chunks = [each for each in chunks if each[1] != name]
                continue
            for row, job in chain.from_iterable(read):
                if not segment.is_taken(row) and is_chosen(due_job := segment.job_of(job)):
                    heappush(held, ((job.priority, job.sequence), name, row, due_job))
            if len(held) > most:
                held = _first_of(held, number, size)
                most = len(held) * 3 // 2 + segment.chunk_rows

    async def _waiting_in(
        self, name: str, segment: Segment, prefix: str, damage: dict[str, str], after: float | None
    ) -> AsyncGenerator[JobRecord, None]:
        """Yield the waiting jobs of a segment. See `_waiting`."""
        try:
            index = await self._outline(name, segment)
            first = segment.chunk_of(segment.next)
            if after is not None:
                first = max(first, bisect_right(index.chunks, after, key=lambda each: each.first.since) - 1)
            left, several = [each for each in range(first, segment.chunks) if not segment.is_chunk_taken(each)], 1
            while left:
                read, left = left[:several], left[several:]
                several = min(2 * several, MOST_AHEAD)
                for rows in await self._chunks(name, segment, index, read, prefix):
                    for row, job in rows:
                        if not segment.is_taken(row):
                            yield segment.job_of(job)
        except DAMAGED as error:
            _note(damage, name, error)

    # Numbers of rows

    async def _count_rows(self, builder: StatsBuilder, segments: Mapping[str, Segment]) -> None:
        """Count the waiting rows of segments of one entrypoint. All other jobs have been counted before."""
        now, with_ready = builder.now.timestamp(), []
        for name, segment in segments.items():
            ready = await self._due(name, segment, now)
            builder.count_waiting(segment.entrypoint, ready, segment.waiting - ready, None)
            if ready:
                with_ready.append((segment.oldest, name))
        for oldest, name in sorted(with_ready):
            segment = segments[name]
            oldest_so_far = builder.oldest_of(segment.entrypoint)
            if oldest_so_far is not None and oldest >= oldest_so_far.timestamp():
                break
            ready_time = datetime.fromtimestamp(await self._oldest(name, segment), UTC)
            builder.count_waiting(segment.entrypoint, 0, 0, ready_time)

    async def _due(self, name: str, segment: Segment, now: float) -> int:
        """Return the number of waiting rows that are not scheduled for later.

        Of scheduled rows, only the last chunk that has a row whose time has come is read.
        """
        if not segment.scheduled:
            return segment.waiting
        if segment.head.since > now:
            return 0
        try:
            index = await self._outline(name, segment)
            chunk = max(0, bisect_right(index.chunks, now, key=lambda each: each.first.since) - 1)
            if segment.is_chunk_taken(chunk):
                return segment.waiting_before(chunk * segment.chunk_rows)
            times = await self._times(name, segment, index, chunk)
            return segment.waiting_before(chunk * segment.chunk_rows + bisect_right(times, now))
        except DAMAGED:
            return 0

    async def _oldest(self, name: str, segment: Segment) -> float:
        """Return the earliest time at which a waiting row became ready. Chunks without holes need not be read."""
        oldest = float("inf")
        if not segment.taken:
            return segment.oldest
        try:
            index = await self._outline(name, segment)
            for chunk in sorted(range(segment.chunks), key=lambda number: index.chunks[number].oldest):
                if index.chunks[chunk].oldest >= oldest:
                    break
                if segment.is_chunk_taken(chunk):
                    continue
                first, last = chunk * segment.chunk_rows, min((chunk + 1) * segment.chunk_rows, segment.rows)
                if segment.waiting_before(last) - segment.waiting_before(first) == last - first:
                    return min(oldest, index.chunks[chunk].oldest)
                times = await self._times(name, segment, index, chunk)
                oldest = min(oldest, *(at for row, at in enumerate(times, first) if not segment.is_taken(row)))
        except DAMAGED:
            return segment.oldest
        return oldest

    # Segments

    def _segments(self, selection: Selection = EVERY_JOB) -> Mapping[str, Segment]:
        """Return the segments that may hold jobs of a selection, by its entrypoints and its group."""
        names, group = selection.entrypoints, selection.group
        fitting = (
            (name, each)
            for name, each in self.header.segments.items()
            if (not names or each.entrypoint in names) and group in (None, each.group)
        )
        return dict(fitting)

    def _job(self, name: str, row: int, job: JobRecord) -> JobRecord | None:
        """Return the job of a row of a segment; None if it is elsewhere, or has left."""
        return _job_in([each for entry, each in self.header.segments.items() if object_of(entry) == name], row, job)

    @property
    def _parts(self) -> SegmentParts:
        assert self.parts is not None  # a store that cannot hold segments has no rows to read
        return self.parts

    async def _index(self, name: str, segment: Segment) -> SegmentIndex:
        return await self._patiently(name, partial(self._parts.reader.index, name, segment))

    async def _outline(self, name: str, segment: Segment) -> SegmentIndex:
        """Return the index of a segment without its tables."""
        its = object_of(name)
        outline: SegmentIndex | None = self._parts.get("outline", its)
        if outline is None:
            outline = self._parts.keep("outline", its, (await self._index(name, segment)).without_tables())
        return outline

    async def _times(self, name: str, segment: Segment, index: SegmentIndex, chunk: int) -> Sequence[float]:
        """Return the time at which each row of a chunk becomes ready, in seconds since 1970."""
        key = object_of(name), chunk
        row_times: Sequence[float] | None = self._parts.get("times", key)
        if row_times is None:
            [rows] = await self._chunks(name, segment, index, [chunk])
            times = array("d", [(job.run_at or job.created_at).timestamp() for _, job in rows])
            row_times = self._parts.keep("times", key, times)
        return row_times

    async def _chunks(
        self, name: str, segment: Segment, index: SegmentIndex, numbers: Sequence[int], prefix: str = ""
    ) -> list[Rows]:
        """Return the number and the job of each row of some chunks."""
        read = partial(self._parts.reader.chunks, name, segment, index, numbers, prefix)
        numbered_chunks = await self._patiently(name, read)
        self._tell(segment, numbers)
        return [list(enumerate(rows, number * segment.chunk_rows)) for number, rows in numbered_chunks]

    def _tell(self, segment: Segment, numbers: Sequence[int]) -> None:
        if self.looked is not None:
            self.looked(sum(min(segment.chunk_rows, segment.rows - each * segment.chunk_rows) for each in numbers))

    async def _patiently(self, name: str, read: Callable[[], Awaitable[Answer]]) -> Answer:
        seconds = self.deadline if self.until is None else self.until - asyncio.get_running_loop().time()
        return await retried(seconds, read, self._parts.entropy, f"segment {FOLDER}{object_of(name)} could not be read")


async def in_chunks(
    items: AsyncGenerator[Item, None], most: int = CHUNK, apart: Callable[[Item, Item], bool] = lambda *_: False
) -> AsyncGenerator[list[Item], None]:
    """Yield items, some at a time. An error that says which are missing is raised after all others.

    Args:
        items: the items.
        most: largest number of items in a chunk.
        apart: takes the first item of a chunk and the next item; returns True if the next item begins a new chunk.
    """
    chunk, missing = list[Item](), None
    try:
        async with aclosing(items):
            async for item in items:
                if chunk and (len(chunk) == most or apart(chunk[0], item)):
                    yield chunk
                    chunk = []
                chunk.append(item)
    except (JobsUnreadableError, HistoryDamagedError) as error:
        missing = error
    if chunk:
        yield chunk
    if missing is not None:
        raise missing


def _first_of(held: list[Held], number: float, size: float) -> list[Held]:
    """Return the first jobs, and one more: not more than a number, or than take some bytes of payload."""
    held.sort()
    for count, (*_, job) in enumerate(held, 1):
        if count > number or size < 0:
            return held[:count]
        size -= len(job.payload)
    return held


def _by_object(entries: Mapping[str, Segment]) -> dict[str, list[Segment]]:
    """Return the entries of a manifest by the names of their segments."""
    segment_entries: dict[str, list[Segment]] = {}
    for name, each in entries.items():
        segment_entries.setdefault(object_of(name), []).append(each)
    return segment_entries


def _job_in(entries: Sequence[Segment], row: int, job: JobRecord) -> JobRecord | None:
    """Return the job of a row that one of some entries has, given the job on its line; None if none has the row."""
    return next((each.job_of(job) for each in entries if not each.is_taken(row)), None)


def _note(damage: dict[str, str], name: str, error: JQueueError) -> None:
    damage[FOLDER + object_of(name)] = reason_of(error)


def _raise(damage: dict[str, str]) -> None:
    if damage:
        raise JobsUnreadableError(damage)


async def _one_ahead(pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
    """Yield what a generator yields, while it prepares the next piece."""

    async def following() -> Piece | None:
        return await anext(pieces, None)

    task = asyncio.create_task(following(), name="jqueue-rows")
    try:
        while (piece := await task) is not None:
            task = asyncio.create_task(following(), name="jqueue-rows")
            yield piece
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pieces.aclose()


async def _these(jobs: Iterable[JobRecord]) -> AsyncGenerator[JobRecord, None]:
    for job in jobs:
        yield job


async def _merged(
    sources: Sequence[Source], place: Callable[[JobRecord], tuple[float, ...]]
) -> AsyncGenerator[JobRecord, None]:
    """Yield the jobs of several sources by their places. A source begins when the least place it may have comes up.

    Args:
        sources: each in order, with a place that none of its jobs is before.
        place: returns the place of a job.
    """
    heads = [(least, number) for number, (least, _) in enumerate(sources)]
    heapify(heads)
    upcoming: dict[int, JobRecord] = {}
    try:
        while heads:
            _, number = heappop(heads)
            if number in upcoming:
                yield upcoming.pop(number)
            if (job := await anext(sources[number][1], None)) is not None:
                upcoming[number] = job
                heappush(heads, (place(job), number))
    finally:
        for _, jobs in sources:
            await jobs.aclose()
