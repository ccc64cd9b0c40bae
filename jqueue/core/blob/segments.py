"""The segments of one engine. Rows that an operation needs are loaded into the draft, and the next rows ahead of need.

Each segment is read by a task of its own. A commit waits for it only for a moment. Calls that need its rows wait on,
and all others are committed. A segment that cannot be read keeps its own rows back until it can be read again.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from jqueue.core.access import Access
from jqueue.core.blob.segment_reader import AT_ONCE, DAMAGED, Rows, SegmentReader, pieces_of, reason_of
from jqueue.core.blob.segment_writer import SegmentWriter
from jqueue.core.tasks import SpareTurns, as_storage_error, end_tasks, retried
from jqueue.domain.draft import Draft
from jqueue.domain.errors import JQueueError, StorageError
from jqueue.domain.header import Header
from jqueue.domain.segment_rows import SegmentRows, Wanted
from jqueue.domain.segments import FOLDER, Segment, SegmentIndex, object_of
from jqueue.ports.clock import Entropy
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.storage import SupportsObjects

logger: Logger = logger_of("jqueue")
Part = TypeVar("Part")

SOON = 16
"""Number of commits within which dropped rows are needed again if each claim has to look at them."""

MOST_CHUNKS = 16
"""Number of chunks that are loaded at once when the rows of one after the other are missing."""

PATIENCE = 0.5
"""Seconds for which a commit waits for a segment. Then the calls that need it wait on, and the others are committed."""

FAILING_FOR = 5.0
"""Seconds for which reads of a segment fail, before and after an answer of the store, until it is passed over. A third
of the time for a call, if that is more."""

FIRST_PAUSE = 1.0
"""Seconds until a segment is read again if the store did not answer reads of it. They double, up to `damage_kept`."""


class _Aside(msgspec.Struct, eq=False):
    """A segment that is set aside, as it cannot be read. It is served again once all of it can be.

    Attributes:
        lasts: True if it is missing or damaged; False if the store does not answer reads of it.
        pause: seconds until the next try.
        due: time of the next try, on the monotonic clock.
        checked: number of chunks from the beginning that can be read.
        jobs: number of its jobs at the last try. If some have left since, the next one is due: it may be repaired.
    """

    lasts: bool = True
    pause: float = 0.0
    due: float = 0.0
    checked: int = 0
    jobs: int = 0


class _Load(msgspec.Struct, eq=False):
    """The reading of parts of one segment.

    Attributes:
        parts: the parts that operations need; none if rows are read ahead of their use.
        confirmed: True if the segment was missed before, and the manifest was read after that.
        ahead: numbers of chunks to read ahead of their use.
        check: the segment as it is set aside, to read all of it and load nothing.
        task: reads it.
        late: True if a commit no longer waits for it.
        index, chunks: the parts that were read: the index, and each chunk with its rows.
        error: the error that ended it.
        failure: the error of the last try.
    """

    parts: list[Wanted]
    confirmed: bool = True
    ahead: Sequence[int] = ()
    check: _Aside | None = None
    task: asyncio.Task[None] | None = None
    late: bool = False
    index: SegmentIndex | None = None
    chunks: list[tuple[int, Rows]] = msgspec.field(default_factory=list)
    error: StorageError | None = None
    failure: StorageError | None = None

    @property
    def progress(self) -> tuple[bool, int, int]:
        """The parts that were read until now: it grows with each."""
        return self.index is not None, len(self.chunks), 0 if self.check is None else self.check.checked


class SegmentLoader:
    """Loads rows for one engine.

    Args:
        access: to the store.
        reader: reads the segments.
        ask: asks the store for something else, to learn if it answers.

    Attributes:
        reported: names of the segments of which an error was logged. Each is logged once.
    """

    def __init__(self, access: Access, reader: SegmentReader, ask: Callable[[], Awaitable[object]]) -> None:
        self._ask = ask
        self._reader = reader
        self._clock, self._entropy, self._numbers = access.clock, access.entropy, access.numbers
        self.reported: set[str] = set()
        self._loads: dict[str, _Load] = {}
        self._gate, self._check_gate = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
        self._runs: dict[str, tuple[int, int]] = {}  # the chunks that were loaded at once, and the last of them
        self._aside: dict[str, _Aside] = {}
        self._missed: set[str] = set()
        self._needed = 0  # number of rows to keep, beyond `Numbers.rows_kept`
        self._commits_left = 0  # in which rows that are loaded again count as needed

    def begin(self, draft: Draft) -> None:
        """Drop the loaded rows if they are too many, before a commit that may load others.

        During a commit none is dropped: one operation may need more rows at once than are kept. Every claim may: if the
        next thousands of jobs are held back by one concurrency key, it has to look at all of them.
        """
        rows = draft.jobs.rows
        number = rows.kept
        self._commits_left = max(0, self._commits_left - 1)
        if number <= self._numbers.rows_kept:
            self._needed = self._needed if self._commits_left else 0
        elif self._commits_left:
            self._needed, self._commits_left = max(self._needed, 2 * number), 0
        elif number > self._needed:
            rows.unload()
            self._commits_left = SOON

    def integrate(self, draft: Draft) -> None:
        """Add the rows that were loaded to a draft without changes, and try segments again that were set aside."""
        rows, now = draft.jobs.rows, self._clock.monotonic()
        for name, load in list(self._loads.items()):
            if load.task is not None and load.task.done():
                del self._loads[name]
                if not load.task.cancelled():
                    self._settle(name, load, rows)
                self._forget_except(rows.manifest.objects)
        there = rows.manifest.objects if self._aside else ()
        for name, aside in list(self._aside.items()):
            if name not in there:
                self._take_back(name, rows)
            elif name not in self._loads and (now >= aside.due or _jobs_of(name, rows) < aside.jobs):
                aside.jobs = _jobs_of(name, rows)
                self._begin(name, _Load([], check=aside, late=True), rows)

    def _forget_except(self, segments: Collection[str]) -> None:
        """Forget what is known of segments that have left the queue."""
        self._runs = {name: run for name, run in self._runs.items() if name in segments}
        self._missed.intersection_update(segments)
        self.reported.intersection_update(segments)

    def _take_back(self, name: str, rows: SegmentRows) -> None:
        """Serve a segment again that was set aside, unless it has left the queue."""
        del self._aside[name]
        self._reader.aside.discard(name)
        self._reader.damage.pop(name, None)
        rows.set_aside(name, None)

    def late(self) -> Collection[str]:
        """Return the names of the segments whose rows a commit does not wait for."""
        return [name for name, load in self._loads.items() if load.late]

    def failure(self, names: Iterable[str]) -> StorageError:
        """Return the reason why the rows of late segments are not there, for the error of a call that needs them."""
        failures = [(name, load.failure) for name in names if (load := self._loads.get(name)) is not None]
        where = ", ".join(f"{FOLDER}{name}" for name, _ in failures)
        why = next((error for _, error in failures if error is not None), None)
        return StorageError(f"the segment {where} could not be read yet", why)

    async def load(self, wanted: Iterable[Wanted], draft: Draft, *, fresh: bool) -> bool:
        """Load parts of segments into a draft without changes, or note that they are late.

        Args:
            wanted: the parts.
            draft: the draft.
            fresh: True if the manifest was read since the call. A segment is damaged if it was missed before that read.

        Returns:
            False if something is missing or damaged, and the manifest must be read before that is believed.
        """
        self.integrate(draft)
        rows, of_segment = draft.jobs.rows, dict[str, list[Wanted]]()
        there = rows.manifest.objects
        for each in wanted:
            if each.segment in there and not rows.is_loaded(each):
                of_segment.setdefault(each.segment, []).append(each)
        for name in sorted(of_segment):
            if name not in self._loads:
                self._begin(name, _Load(of_segment[name], confirmed=fresh and name in self._missed), rows)
        loads = [self._loads[name] for name in of_segment]
        if tasks := [load.task for load in loads if load.task is not None and not load.late]:
            await asyncio.wait(tasks, timeout=PATIENCE)
        for load in loads:
            load.late = load.task is not None and not load.task.done()
        self.integrate(draft)
        return not any(isinstance(load.error, DAMAGED) and load.parts and not load.confirmed for load in loads)

    def _begin(self, name: str, load: _Load, rows: SegmentRows) -> None:
        """Begin to read parts of a segment."""
        self._loads[name] = load
        work = self._read(name, load, rows, next(iter(rows.manifest.entries_of(name).values())))
        load.task = asyncio.get_running_loop().create_task(work, name="jqueue-segments")

    async def _read(self, name: str, load: _Load, rows: SegmentRows, segment: Segment) -> None:
        """Read a segment, and try again while the store fails. It has failed only if the store answers meanwhile.

        A read of many rows may take longer, as long as each try reads some of them.
        """
        seconds, what = max(FAILING_FOR, self._reader.call_timeout / 3), "it could not be read"

        async def once() -> None:
            try:
                await (self._read_parts if load.check is None else self._check)(name, load, rows, segment)
            except Exception as error:
                load.failure = as_storage_error(error)
                raise

        async def judged() -> StorageError | None:
            is_last = False
            while True:
                before = load.progress
                try:
                    async with self._gate if load.check is None else self._check_gate:
                        return await retried(seconds, once, self._entropy, what)
                except Exception as error:
                    load.failure = failure = load.failure or as_storage_error(error)
                    if isinstance(failure, DAMAGED) or (is_last and load.progress == before):
                        return failure
                try:
                    await self._ask()
                except Exception as error:
                    raise StorageError("the store does not answer", error) from error
                is_last = True

        load.error = await retried(math.inf, judged, self._entropy, what, streams=True)

    async def _check(self, name: str, load: _Load, rows: SegmentRows, segment: Segment) -> None:
        """Read all rows of a segment that wait or are leased, from the first on that could not be read.

        If it is not set aside, and only suspected, the first rows tell if the store answers: calls wait meanwhile.
        """
        aside = load.check
        assert aside is not None
        load.index = index = load.index or await self._reader.index(name, segment)
        for numbers in pieces_of([*rows.manifest.entries_of(name).values()], index):
            if numbers[-1] >= aside.checked:
                await self._reader.chunks(name, segment, index, numbers)
                aside.checked = numbers[-1] + 1
            if name not in self._aside:
                break

    async def _read_parts(self, name: str, load: _Load, rows: SegmentRows, segment: Segment) -> None:
        load.index = index = rows.manifest.indexes.get(name) or load.index or await self._reader.index(name, segment)
        needed = {each.chunk for each in load.parts if each.chunk is not None}
        following: list[int] = []
        entries = rows.manifest.entries_of(name).items()
        if needed and (waiting := [its for its, each in entries if not each.is_leased]):
            number, last = self._runs.get(name, (0, -1))
            number = min(MOST_CHUNKS, 2 * number or 1) if min(needed) <= last + 1 else 1
            coming = {chunk for each in waiting for chunk in rows.next_chunks(each, number)}
            following = [chunk for chunk in sorted(coming) if chunk >= min(needed)][:number]
            self._runs[name] = number, max([*needed, *following])
        several = sorted({*load.ahead, *needed, *following} - {chunk for chunk, _ in load.chunks})
        for first in range(0, len(several), MOST_CHUNKS):  # another try goes on where this one was cut off
            load.chunks += await self._reader.chunks(name, segment, index, several[first : first + MOST_CHUNKS])

    def _settle(self, name: str, load: _Load, rows: SegmentRows) -> None:
        """Add what was read of a segment, and note what could not be read."""
        error, aside = load.error, self._aside.get(name)
        if load.index is not None:
            rows.load_index(name, load.index)
        if load.check is not None:
            if error is not None and aside in (None, load.check):
                self.set_aside(name, error, rows, check=load.check)
            elif aside is load.check:
                self._take_back(name, rows)
                logger.info("segment %s%s of the queue can be read again", FOLDER, name)
        elif error is None:
            self._missed.discard(name)
            for chunk, chunk_jobs in load.chunks:
                if not rows.is_loaded(Wanted(name, chunk)):
                    rows.load(name, chunk, chunk_jobs)
        elif isinstance(error, DAMAGED) and not load.confirmed and aside is None:
            self._missed.add(name)  # it may have left the manifest before it was removed
        elif load.parts:
            self.set_aside(name, error, rows)

    def suspect(self, name: str, error: JQueueError, rows: SegmentRows) -> None:
        """Set a segment aside that a call has found damaged. If only the store did not answer, read it to learn more.

        Args:
            name: the segment.
            error: why the call could not read it.
            rows: the rows of a draft.
        """
        if isinstance(error, DAMAGED):
            self.set_aside(name, error, rows)
        elif name in rows.manifest.objects and name not in self._loads and name not in self._aside:
            self._begin(name, _Load([], check=_Aside(jobs=_jobs_of(name, rows)), late=True), rows)

    def set_aside(self, name: str, error: JQueueError, rows: SegmentRows, *, check: _Aside | None = None) -> None:
        """Set a segment aside until all of it can be read. All others go on.

        Args:
            name: the segment.
            error: why it cannot be read.
            rows: the rows of a draft.
            check: the segment as it was set aside before, if all of it was to be read.
        """
        if name not in rows.manifest.objects:
            return
        lasts, before, pause = isinstance(error, DAMAGED), self._aside.get(name), self._numbers.damage_kept
        if not lasts:
            pause = FIRST_PAUSE if before is None or before.lasts else min(2 * before.pause, pause)
        checked, jobs = (0, _jobs_of(name, rows)) if check is None else (check.checked, check.jobs)
        self._aside[name] = _Aside(lasts, pause, self._clock.monotonic() + pause, checked, jobs)
        self._reader.aside.add(name)
        self._reader.damage[name] = reason_of(error)
        rows.set_aside(name, reason_of(error), lasts=lasts)
        if name not in self.reported:
            self.reported.add(name)
            logger.error(
                "segment %s%s of the queue cannot be read, and its jobs wait until it can be, is restored from a "
                "backup, or repaired with `jqueue repair`; all other jobs go on: %s",
                FOLDER,
                name,
                reason_of(error),
            )

    def landed(self, draft: Draft, claimed: Mapping[str, int]) -> None:
        """Begin to load the next rows of entrypoints, after a commit that has claimed jobs of theirs.

        Args:
            draft: without changes.
            claimed: number of jobs, by entrypoint.
        """
        rows, numbers = draft.jobs.rows, self._numbers
        if any(load.ahead for load in self._loads.values()):
            return
        for entrypoint, number in claimed.items():
            ahead = min(numbers.rows_kept, max(numbers.rows_ahead, numbers.commits_ahead * number))
            left = rows.loaded_of(entrypoint)
            entry = rows.unloaded.next_entry(entrypoint) if left < ahead else None
            if entry is not None and (name := object_of(entry)) not in self._loads:
                chunks = rows.next_chunks(entry, 1 + (ahead - left) // rows.manifest.segments[entry].chunk_rows)
                self._begin(name, _Load([], confirmed=False, ahead=chunks), rows)
                return

    async def finish(self) -> None:
        """End what is loaded."""
        await end_tasks(load.task for load in self._loads.values() if load.task is not None)


def _jobs_of(name: str, rows: SegmentRows) -> int:
    """Return the number of the jobs of a segment that wait or are leased."""
    return sum(each.left for each in rows.manifest.entries_of(name).values())


PARTS_KEPT = 64
"""Number of outlines of segments, of times of chunks, and of jobs found by their ids, that are remembered: a queue may
be counted, and a page may show a job, every second."""


class SegmentParts:
    """Parts of a queue's segments that were read lately. All views of the queue share them.

    Args:
        reader: reads the segments.
        entropy: draws the pauses between failed reads.
    """

    def __init__(self, reader: SegmentReader, entropy: Entropy) -> None:
        self.reader = reader
        self.entropy = entropy
        self._parts = defaultdict[str, dict[Hashable, Any]](dict)

    def get(self, kind: str, key: Hashable) -> Any:
        """Return a part that is remembered; None if it is not."""
        parts = self._parts[kind]
        if key in parts:
            parts[key] = parts.pop(key)  # the last one is that needed most lately
        return parts.get(key)

    def keep(self, kind: str, key: Hashable, part: Part) -> Part:
        """Remember a part, and return it. The part that was used the longest ago is forgotten."""
        parts = self._parts[kind]
        parts[key] = part
        if len(parts) > PARTS_KEPT:
            del parts[next(iter(parts))]
        return part


class Segments:
    """The segments beside the blob of one engine.

    Args:
        access: to the store.
        objects: holds them.
        spare: gives turns to work that can wait.
        ask: asks the store for the queue's object, to learn if it answers.

    Attributes:
        reader, parts, loader, writer: its parts.
    """

    def __init__(
        self, access: Access, objects: SupportsObjects, spare: SpareTurns, ask: Callable[[], Awaitable[object]]
    ) -> None:
        self.reader: SegmentReader = SegmentReader(objects, access.observers, call_timeout=access.call_timeout)
        self.parts: SegmentParts = SegmentParts(self.reader, access.entropy)
        self.loader: SegmentLoader = SegmentLoader(access, self.reader, ask)
        self.writer: SegmentWriter = SegmentWriter(access, objects, self.reader, spare)

    async def objects_named_in(self, header: Header) -> set[str]:
        """Return the suffixes of the segments of a header, and of the objects that their rows name.

        Raises:
            InvalidBlobError: a segment is damaged, and may name any object.
            StorageError: the store failed, or a segment is missing.
        """
        named = {FOLDER + object_of(name) for name in (*header.segments, *header.retired)}
        for name, segment in {object_of(name): each for name, each in header.segments.items()}.items():
            if segment.objects:
                read, failed = partial(self.reader.index, name, segment), f"segment {FOLDER}{name} could not be read"
                named.update((await retried(self.reader.call_timeout, read, self.parts.entropy, failed)).objects)
        return named

    def landed(self, draft: Draft, claimed: Mapping[str, int], size: int) -> None:
        """Note a commit that has landed: load rows ahead, and begin to write a segment if that is due.

        Args:
            draft: without changes.
            claimed: number of jobs that the commit has claimed, by entrypoint.
            size: bytes of the blob.
        """
        if claimed:
            self.loader.landed(draft, claimed)
        hot_bytes = self.writer.sizes.hot_bytes
        if draft.header.segments or self.writer.under_way or (hot_bytes is not None and size >= hot_bytes):
            self.writer.landed(draft)

    async def finish(self) -> None:
        """End what is done in the background. The queue is being closed."""
        await self.loader.finish()
        await self.writer.finish()
