"""The segments of one engine. Rows are loaded into the draft: those that an operation needs, and the next ones ahead.

Each segment is read by a task of its own. A commit waits for it only for a moment. Calls that need its rows wait on,
and all others are committed. A segment that cannot be read keeps its own rows back until it can be read again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from jqueue.core.blob.segment_reader import AT_ONCE, DAMAGED, Rows, SegmentReader, reason_of
from jqueue.core.blob.segment_writer import SegmentWriter
from jqueue.core.observers import Observers
from jqueue.core.tasks import Backoff, SpareTurns, as_storage_error, end_tasks
from jqueue.domain.draft import Draft
from jqueue.domain.errors import JQueueError, StorageError
from jqueue.domain.header import Header
from jqueue.domain.segment_rows import SegmentRows, Wanted
from jqueue.domain.segments import FOLDER, Segment, SegmentIndex
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.log import logger_of
from jqueue.ports.storage import SupportsObjects

logger = logger_of("jqueue")
Part = TypeVar("Part")

ROWS_KEPT = 16_384
"""Number of loaded rows, those in ranges included, above which all are dropped. If they are soon needed again, twice as
many are kept."""

SOON = 16
"""Number of commits within which dropped rows are needed again if each claim has to look at them."""

ROWS_AHEAD = 512
"""Smallest number of rows that are kept loaded ahead of the claims."""

COMMITS_AHEAD = 4
"""Number of commits like the last one for which rows are kept loaded."""

MOST_CHUNKS = 16
"""Number of chunks that are loaded at once when the rows of one after the other are missing."""

DAMAGE_KEPT = 60.0
"""Seconds after which a damaged segment is read again when an operation needs it."""

PATIENCE = 0.5
"""Seconds for which a commit waits for a segment. Then the calls that need it wait on, and the others are committed."""

FAILURES, FAILING_FOR = 3, 5.0
"""Number of reads of a segment that fail one after the other, and the seconds for which they fail, until it is passed
over. The store answers reads of the queue's object between them."""

FIRST_PAUSE = 1.0
"""Seconds until a segment is read again if the store did not answer reads of it. They double, up to `DAMAGE_KEPT`."""


class _Load(msgspec.Struct, eq=False):
    """The reading of parts of one segment.

    Attributes:
        parts: the parts that operations need; none if rows are read ahead of their use.
        confirmed: True if the segment was missed before, and the manifest was read after that.
        tries: True to try again while the store fails.
        ahead: numbers of chunks to read ahead of their use.
        task: reads it.
        late: True if a commit no longer waits for it.
        index, chunks: the parts that were read: the index, and each chunk with its rows.
        error: the error that ended it.
        failure: the error of the last try.
    """

    parts: list[Wanted]
    confirmed: bool
    tries: bool
    ahead: Sequence[int] = ()
    task: asyncio.Task[None] | None = None
    late: bool = False
    index: SegmentIndex | None = None
    chunks: list[tuple[int, Rows]] = msgspec.field(default_factory=list)
    error: StorageError | None = None
    failure: StorageError | None = None


class _Aside(msgspec.Struct):
    """A segment that is set aside, as it cannot be read.

    Attributes:
        parts: the parts that could not be read. It is set aside again if they still cannot be.
        lasts: True if it is missing or damaged; False if the store does not answer reads of it.
        pause: seconds until the next try.
        due: time of the next try, on the monotonic clock.
    """

    parts: list[Wanted]
    lasts: bool
    pause: float
    due: float


class SegmentLoader:
    """Loads rows for one engine.

    Args:
        reader: reads the segments.
        clock: measures the time until a damaged segment is tried again.
        entropy: draws the pauses between failed reads.
        ask: asks the store for something else, to learn if it answers.

    Attributes:
        rows_kept, rows_ahead, commits_ahead, damage_kept: the numbers above. Tests shorten them.
        reported: names of the segments of which an error was logged. Each is logged once.
    """

    def __init__(
        self, reader: SegmentReader, clock: Clock, entropy: Entropy, ask: Callable[[], Awaitable[object]]
    ) -> None:
        self._ask = ask
        self._reader = reader
        self._clock = clock
        self._entropy = entropy
        self.rows_kept, self.rows_ahead, self.commits_ahead = ROWS_KEPT, ROWS_AHEAD, COMMITS_AHEAD
        self.damage_kept = DAMAGE_KEPT
        self.reported: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """Begin anew, after a fork or on another event loop."""
        self._loads: dict[str, _Load] = {}
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._runs: dict[str, tuple[int, int]] = {}  # the chunks that were loaded at once, and the last of them
        self._aside: dict[str, _Aside] = {}
        self._missed: set[str] = set()
        self._needed = 0  # number of rows to keep, beyond `rows_kept`
        self._commits_left = 0  # in which rows that are loaded again count as needed

    def begin(self, draft: Draft) -> None:
        """Drop the loaded rows if they are too many, before a commit that may load others.

        During a commit none is dropped: one operation may need more rows at once than are kept. Every claim may: if the
        next thousands of jobs are held back by one concurrency key, it has to look at all of them.
        """
        rows = draft.jobs.rows
        number = rows.kept
        self._commits_left = max(0, self._commits_left - 1)
        if number <= self.rows_kept:
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
        for name, aside in list(self._aside.items()):
            if not self._parts_aside(name, rows):
                del self._aside[name]
                rows.try_again(name)
            elif now >= aside.due and aside.lasts:
                rows.try_again(name)
            elif now >= aside.due and name not in self._loads:
                self._begin(name, _Load(aside.parts, confirmed=False, tries=False, late=True), rows)

    def _parts_aside(self, name: str, rows: SegmentRows) -> list[Wanted]:
        """Return the parts for which a segment was set aside, without those whose jobs have all left."""
        aside, segment = self._aside.get(name), rows.segments.get(name)
        if segment is None:
            return []
        parts = [] if aside is None else aside.parts
        return [
            each
            for each in parts
            if each.chunk is None or not segment.is_chunk_taken(each.chunk) or rows.are_in_ranges(name, [each.chunk])
        ]

    def late(self) -> Collection[str]:
        """Return the names of the segments whose rows a commit does not wait for."""
        return [name for name, load in self._loads.items() if load.late]

    def failure(self, names: Iterable[str]) -> StorageError:
        """Return the reason why the rows of late segments are not there, for the error of a call that needs them."""
        found = [(name, load.failure) for name in names if (load := self._loads.get(name)) is not None]
        where = ", ".join(f"{FOLDER}{name}" for name, _ in found)
        why = next((error for _, error in found if error is not None), None)
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
        for each in wanted:
            if each.segment in rows.segments and not rows.is_loaded(each):
                of_segment.setdefault(each.segment, []).append(each)
        for name in sorted(of_segment):
            if name not in self._loads:
                parts = list(dict.fromkeys([*of_segment[name], *self._parts_aside(name, rows)]))
                self._begin(name, _Load(parts, confirmed=fresh and name in self._missed, tries=True), rows)
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
        work = self._read(name, load, rows, rows.segments[name])
        load.task = asyncio.get_running_loop().create_task(work, name="jqueue-segments")

    async def _read(self, name: str, load: _Load, rows: SegmentRows, segment: Segment) -> None:
        """Read a segment, and try again while the store fails. Failures count only while it answers other requests."""
        backoff, failures, begun = Backoff(self._entropy), 0, 0.0
        reader = self._reader.within(1 / FAILURES) if load.tries else self._reader
        while True:
            tried = self._clock.monotonic()
            try:
                async with self._gate:
                    await self._read_parts(reader, name, load, rows, segment)
                return
            except Exception as error:
                load.failure = failure = as_storage_error(error)
                failures, begun = failures + 1, begun if failures else tried
                are_enough = failures >= FAILURES and self._clock.monotonic() - begun >= FAILING_FOR
                if isinstance(error, DAMAGED) or are_enough or not load.tries:
                    load.error = failure
                    return
                pause = backoff.after(error)
            await asyncio.sleep(pause)
            try:
                await self._ask()
            except Exception as error:
                load.failure, failures = as_storage_error(error), 0

    async def _read_parts(
        self, reader: SegmentReader, name: str, load: _Load, rows: SegmentRows, segment: Segment
    ) -> None:
        load.index = index = rows.indexes.get(name) or load.index or await reader.index(name, segment)
        needed = {each.chunk for each in load.parts if each.chunk is not None}
        following: list[int] = []
        if needed and name in rows.segments and not rows.are_in_ranges(name, needed):
            number, last = self._runs.get(name, (0, -1))
            number = min(MOST_CHUNKS, 2 * number or 1) if min(needed) <= last + 1 else 1
            following = [chunk for chunk in rows.next_chunks(name, number) if chunk >= min(needed)]
            self._runs[name] = number, max([*needed, *following])
        if several := sorted({*load.ahead, *needed, *following}):
            load.chunks += await reader.chunks(name, segment, index, several)

    def _settle(self, name: str, load: _Load, rows: SegmentRows) -> None:
        """Add what was read of a segment, and note what could not be read."""
        error = load.error
        if load.index is not None:
            rows.load_index(name, load.index)
        if error is None:
            self._missed.discard(name)
            if name in self._aside and {*self._parts_aside(name, rows)} <= {*load.parts}:
                del self._aside[name]
                rows.try_again(name)
                logger.info("segment %s%s of the queue can be read again", FOLDER, name)
            for chunk, found in load.chunks:
                if not rows.is_loaded(Wanted(name, chunk)):
                    rows.load(name, chunk, found)
        elif isinstance(error, DAMAGED) and not load.confirmed and name not in self._aside:
            self._missed.add(name)  # it may have left the manifest before it was removed
        elif load.parts:
            self.set_aside(name, load.parts, error, rows)

    def set_aside(self, name: str, parts: list[Wanted], error: JQueueError, rows: SegmentRows) -> None:
        """Set a segment aside for a while, as parts of it cannot be read. All others go on.

        Args:
            name: the segment.
            parts: parts of it that were to be read.
            error: why they, or some of them, cannot be read.
            rows: the rows of a draft.
        """
        if name not in rows.segments:
            return
        lasts, before = isinstance(error, DAMAGED), self._aside.get(name)
        pause = self.damage_kept
        if not lasts:
            self._reader.damage.note(name, reason_of(error))
            pause = FIRST_PAUSE if before is None or before.lasts else min(2 * before.pause, DAMAGE_KEPT)
        damaged = [Wanted(name, chunk) for chunk in self._reader.damage.chunks_of(name)]
        self._aside[name] = _Aside(damaged or parts, lasts, pause, self._clock.monotonic() + pause)
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
        rows = draft.jobs.rows
        if any(not load.parts for load in self._loads.values()):
            return
        for entrypoint, number in claimed.items():
            ahead = min(self.rows_kept, max(self.rows_ahead, self.commits_ahead * number))
            left = rows.loaded_of(entrypoint)
            if left < ahead and (head := rows.next_wanted(entrypoint)) is not None and head.segment not in self._loads:
                name = head.segment
                chunks = rows.next_chunks(name, 1 + (ahead - left) // rows.segments[name].chunk_rows)
                self._begin(name, _Load([], confirmed=False, tries=False, ahead=chunks), rows)
                return

    async def finish(self) -> None:
        """End what is loaded."""
        await end_tasks(load.task for load in self._loads.values() if load.task is not None)


PARTS_KEPT = 64
"""Number of outlines of segments, of times of chunks, and of jobs found by their ids, that are remembered: a queue may
be counted, and a page may show a job, every second."""


class SegmentParts:
    """What was read of a queue's segments lately. All views of the queue share it.

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
        """Remember a part, and return it. The one that was needed least lately is forgotten."""
        parts = self._parts[kind]
        parts[key] = part
        if len(parts) > PARTS_KEPT:
            del parts[next(iter(parts))]
        return part


class Segments:
    """The segments beside the blob of one engine.

    Args:
        objects: holds them.
        clock: measures pauses.
        entropy: draws the pauses between failed reads.
        now: tells the time, by the store's clock if it has one.
        new_name: makes the name of a segment.
        observers: told of the calls to the store.
        spare: gives turns to work that can wait.
        ask: asks the store for the queue's object, to learn if it answers.
        call_timeout: seconds within which a call to the store must end.

    Attributes:
        reader, parts, loader, writer: its parts.
    """

    def __init__(
        self,
        objects: SupportsObjects,
        clock: Clock,
        entropy: Entropy,
        now: Callable[[], datetime],
        new_name: Callable[[], str],
        observers: Observers,
        spare: SpareTurns,
        ask: Callable[[], Awaitable[object]],
        *,
        call_timeout: float,
    ) -> None:
        self.reader = SegmentReader(objects, observers, call_timeout=call_timeout)
        self.parts = SegmentParts(self.reader, entropy)
        self.loader = SegmentLoader(self.reader, clock, entropy, ask)
        self.writer = SegmentWriter(
            objects, self.reader, clock, now, new_name, observers, spare, call_timeout=call_timeout
        )

    def forget(self) -> None:
        """Begin anew, after a fork or on another event loop."""
        self.loader.forget()
        self.writer.forget()

    async def objects_named_in(self, header: Header) -> set[str]:
        """Return the suffixes of the segments of a header, and of the objects that their rows name.

        Raises:
            InvalidBlobError: a segment is damaged, and may name any object.
            StorageError: the store failed, or a segment is missing.
        """
        named = {FOLDER + name for name in (*header.segments, *header.retired)}
        for name, segment in header.segments.items():
            if segment.objects:
                named.update((await self.reader.index(name, segment)).objects)
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
