"""Loads rows of segments into a draft: the rows that an operation needs, and the next rows ahead of their use."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from jqueue.core.blob.segment_reader import ALL_ROWS, DAMAGED, Rows, SegmentReader, reason_of
from jqueue.domain.draft import Draft
from jqueue.domain.errors import InvalidBlobError, JQueueError, ObjectMissingError
from jqueue.domain.segment_index import SegmentIndex
from jqueue.domain.segment_rows import SegmentRows, Wanted
from jqueue.domain.segments import FOLDER, Segment
from jqueue.ports.clock import Clock
from jqueue.ports.log import logger_of

logger = logger_of("jqueue")

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

MOST_ALONE = 8
"""Number of rows of one chunk that are loaded without the others at most: a whole chunk takes some 50 times as long."""

LATELY = 32
"""Number of chunks whose rows were looked up last. The next row of one of them brings the whole chunk: programs often
look for jobs that were enqueued together, and each row alone would be a request."""

DAMAGE_KEPT = 60.0
"""Seconds after which a damaged segment is tried again."""


class SegmentLoader:
    """Loads rows for one engine.

    Args:
        reader: reads the segments.
        clock: measures the time until a damaged segment is tried again.
    """

    def __init__(self, reader: SegmentReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self.rows_kept, self.rows_ahead, self.commits_ahead = ROWS_KEPT, ROWS_AHEAD, COMMITS_AHEAD  # tests shorten them
        self.damage_kept = DAMAGE_KEPT
        self._reported: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """Begin anew, after a fork or on another event loop."""
        self._ahead: asyncio.Task[None] | None = None
        self._arrived: list[Callable[[SegmentRows], None]] = []
        self._runs: dict[str, tuple[int, int]] = {}  # the chunks that were loaded at once, and the last of them
        self._damaged_at: float | None = None
        self._missed: set[str] = set()
        self._lately: deque[tuple[str, int]] = deque(maxlen=LATELY)
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
        """Add the rows that were loaded ahead to a draft without changes."""
        rows = draft.jobs.rows
        if self._damaged_at is not None and self._clock.monotonic() - self._damaged_at > self.damage_kept:
            self._damaged_at = None
            rows.forget_damage()
        arrived, self._arrived = self._arrived, []
        for bring in arrived:
            bring(rows)

    async def load(self, wanted: Iterable[Wanted], draft: Draft, *, fresh: bool) -> bool:
        """Load parts of segments into a draft without changes.

        Args:
            wanted: the parts.
            draft: the draft.
            fresh: True if the manifest was read since the call. A segment is damaged if it was missed before that read.

        Returns:
            False if something is missing or damaged, and the manifest must be read before that is believed.

        Raises:
            StorageError: the store failed.
        """
        if self._ahead is not None:
            await asyncio.wait([self._ahead])
        self.integrate(draft)
        rows = draft.jobs.rows
        parts = [each for each in wanted if not rows.is_loaded(each)]
        for name in sorted({each.segment for each in parts}):
            if name not in rows.segments:
                continue
            try:
                await self._load(rows, name, [each for each in parts if each.segment == name])
                self._missed.discard(name)
            except DAMAGED as error:
                if not (missing := [each for each in wanted if each.segment == name and not rows.is_loaded(each)]):
                    continue  # a chunk that nothing needs yet is damaged
                if not (fresh and name in self._missed):  # it may have left the manifest before it was removed
                    self._missed.add(name)
                    return False
                self._note_damaged(missing, rows, error)
        return True

    async def _load(self, rows: SegmentRows, name: str, parts: Iterable[Wanted]) -> None:
        segment, of_chunk = rows.segments[name], dict[int, list[int | None]]()
        for each in parts:
            if each.chunk is not None:
                of_chunk.setdefault(each.chunk, []).append(each.row)
        if name not in rows.indexes:
            rows.load_index(name, await self._reader.index(name, segment))
        alone = {chunk: some for chunk, found in of_chunk.items() if (some := self._rows_alone(name, chunk, found))}
        if alone:
            await self._load_chunks(rows, name, sorted(alone), alone)
        chunks = [each for each in of_chunk if each not in alone]
        if not chunks:
            return
        following: list[int] = []
        if not rows.are_in_ranges(name, chunks):
            number, last = self._runs.get(name, (0, -1))
            number = min(MOST_CHUNKS, 2 * number or 1) if min(chunks) <= last + 1 else 1
            following = [chunk for chunk in rows.next_chunks(name, number) if chunk >= min(chunks)]
            self._runs[name] = number, max([*chunks, *following])
        await self._load_chunks(rows, name, sorted({*chunks, *following}))

    def _rows_alone(self, name: str, chunk: int, wanted: list[int | None]) -> list[int]:
        """Return the rows of a chunk to load without the others: few rows, if none of it was needed a moment ago."""
        is_near, found = (name, chunk) in self._lately, [row for row in wanted if row is not None]
        self._lately.append((name, chunk))
        return found if len(found) == len(wanted) <= MOST_ALONE and not is_near else []

    async def _load_chunks(
        self, rows: SegmentRows, name: str, chunks: list[int], alone: Mapping[int, Collection[int]] = ALL_ROWS
    ) -> None:
        """Load chunks that are read together. If one of them is damaged, load the others, and raise the error then.

        Args:
            rows: take what is loaded.
            name: the segment.
            chunks: the numbers of the chunks.
            alone: the rows to load of some chunks, instead of all.
        """
        try:
            several = await self._reader.chunks(name, rows.segments[name], rows.indexes[name], chunks, only=alone)
        except InvalidBlobError as error:
            if len(chunks) == 1:
                raise
            for chunk in chunks:
                with suppress(InvalidBlobError):
                    await self._load_chunks(rows, name, [chunk], alone)
            raise error
        for chunk, found in several:
            rows.load(name, chunk, found, is_whole=chunk not in alone)

    def _note_damaged(self, wanted: list[Wanted], rows: SegmentRows, error: JQueueError) -> None:
        self._damaged_at = self._clock.monotonic()
        for each in wanted:
            is_whole = each.segment not in rows.indexes or isinstance(error, ObjectMissingError)
            rows.note_damaged(Wanted(each.segment, None) if is_whole else each, reason_of(error))
        name = wanted[0].segment
        if name not in self._reported:
            self._reported.add(name)
            logger.error(
                "segment %s%s of the queue cannot be read, and its jobs wait until it is restored from a backup, or "
                "given up with `jqueue drop-segment`; all other jobs go on: %s",
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
        if self._ahead is not None or self._arrived:
            return
        for entrypoint, number in claimed.items():
            ahead = min(self.rows_kept, max(self.rows_ahead, self.commits_ahead * number))
            left = rows.loaded_of(entrypoint)
            if left < ahead and (head := rows.next_wanted(entrypoint)) is not None:
                name, index = head.segment, rows.indexes.get(head.segment)
                chunks = rows.next_chunks(name, 1 + (ahead - left) // rows.segments[name].chunk_rows)
                work = self._load_ahead(name, rows.segments[name], index, chunks)
                self._ahead = asyncio.get_running_loop().create_task(work, name="jqueue-segments")
                return

    async def _load_ahead(self, name: str, segment: Segment, index: SegmentIndex | None, chunks: list[int]) -> None:
        task = asyncio.current_task()
        try:
            known = index if index is not None else await self._reader.index(name, segment)
            found = await self._reader.chunks(name, segment, known, chunks)
        except Exception as error:  # the operation that needs the rows reads them again, and tells its caller
            logger.debug("rows of segment %s could not be loaded ahead: %r", name, error)
        else:
            if self._ahead is task:
                self._arrived.append(lambda rows: _bring(rows, name, known, found))
        finally:
            if self._ahead is task:
                self._ahead = None

    async def finish(self, seconds: float) -> None:
        """End what is loaded ahead."""
        task = self._ahead
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=max(0.0, seconds))


def _bring(rows: SegmentRows, name: str, index: SegmentIndex, found: list[tuple[int, Rows]]) -> None:
    rows.load_index(name, index)
    for chunk, several in found:
        if not rows.is_loaded(Wanted(name, chunk)):
            rows.load(name, chunk, several)
