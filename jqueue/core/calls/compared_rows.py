"""Compares the jobs of a bulk enqueue with those in segments, and with each other, if many have the same hashes.

Ids and keys are read chunk by chunk and compared as texts. A job that is in the queue already is then left out of the
commit, which asks whether its row is still there. So a call may repeat as many jobs as it adds, and one job after the
other is looked at only if it meets a job outside of segments.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from jqueue.core.blob.engine import CommitEngine
from jqueue.core.blob.segment_reader import DAMAGED
from jqueue.core.blob.segments import Segments
from jqueue.core.engine.slices import in_turns
from jqueue.domain.job_table import Packed
from jqueue.domain.operations import EnqueueSegments, NewSegment
from jqueue.domain.operations.known_rows import KnownJobs, Row, SharedRows, hashes_in, matching, same_rows
from jqueue.domain.segment_index import SegmentIndex
from jqueue.domain.segments import Segment
from jqueue.domain.slices import Slices

CHUNKS_AT_ONCE = 16
"""Number of chunks of a segment that are read at once."""

ROWS_PER_SLICE = 1024
"""Number of rows after which the event loop gets a turn."""

Answer = TypeVar("Answer")


class Retried(Protocol):
    """A function that calls the store until it answers."""

    def __call__(self, call: Callable[[], Awaitable[Answer]]) -> Awaitable[Answer]:
        """Send one request until it is answered: see `ValueObjects.retried`."""


class ComparedRows:
    """The comparisons of one bulk enqueue.

    Args:
        engine: will commit it.
        segments: the segments of the engine.
        retried: calls the store.
        shows_jobs: True if the answer shows the jobs that are there already.

    Attributes:
        known: the jobs that were found in segments.
        repeats: number of the first job of the call with the same id or key, by the number of each later one.
    """

    def __init__(self, engine: CommitEngine, segments: Segments, retried: Retried, *, shows_jobs: bool) -> None:
        self._engine = engine
        self._reader = segments.reader
        self._retried = retried
        self._shows_jobs = shows_jobs
        self.known = KnownJobs()
        self.repeats: dict[int, int] = {}

    # Hashes

    async def match(self, operation: EnqueueSegments) -> None:
        """Note in an operation which of its rows share a hash with rows of segments, with turns for the event loop.

        A commit does the same for segments that are new by then.
        """
        if all(table is None for each in operation.segments for table in each.tables):
            return
        for name, segment in list(self._engine.draft.jobs.rows.segments.items()):
            index = await self._index(name, segment)
            if index is None:
                continue
            for of_keys, there in ((False, index.ids), (True, index.keys)):
                tables = [(each, each.table_beside(index, of_keys=of_keys)) for each in operation.segments]
                wanted = [(new, table) for new, table in tables if table is not None]
                hashes = await in_turns(hashes_in(there)) if wanted else set()
                for new, table in wanted:
                    if (new.name, name, of_keys) not in operation.shared:
                        found = await in_turns(matching(table, there, hashes))
                        operation.shared[new.name, name, of_keys] = found

    async def _index(self, name: str, segment: Segment) -> SegmentIndex | None:
        """Return the index of a segment in the queue; None if it cannot be read. The commit then looks again."""
        known = self._engine.draft.jobs.rows.indexes.get(name)
        if known is not None:
            return known
        try:
            index = await self._retried(partial(self._reader.index, name, segment))
        except DAMAGED:
            return None
        rows = self._engine.draft.jobs.rows
        if name in rows.segments:
            rows.load_index(name, index)
        return index

    # Texts

    def hashes_shared(self, operation: EnqueueSegments) -> int:
        """Return the number of pairs of rows with the same hash that were not compared."""
        return sum(len(shared.rows) for shared in operation.shared.values() if not shared.are_same)

    async def compare(self, operation: EnqueueSegments, among: Collection[Row] = ()) -> set[Row]:
        """Compare the rows that share a hash, and note in the operation those whose job is there already.

        Args:
            operation: of the call.
            among: rows that a commit has named.

        Returns:
            The rows whose job must be looked at by itself: it is taken for a repeat, and `on_conflict` is not "return";
            or the job in the queue may expire, or cannot be read; or it is not in a segment.
        """
        left, alone = set(among), set[Row]()
        segments = {each.name: each for each in operation.segments}
        for (new_name, name, of_keys), shared in list(operation.shared.items()):
            if shared.are_same or not shared.rows or new_name not in segments:
                continue
            if left:
                left.difference_update((new_name, row) for row in shared.rows)
            segment = self._engine.draft.jobs.rows.segments.get(name)
            del operation.shared[new_name, name, of_keys]
            if segment is None:
                continue  # it has left the manifest; if it comes back, the commit finds its rows
            try:
                found, rest = await self._compared(segments[new_name], name, segment, shared, of_keys=of_keys)
            except DAMAGED:
                alone.update((new_name, row) for row in shared.rows)
            else:
                operation.shared[new_name, name, of_keys] = found
                alone.update((new_name, row) for row in rest)
        return left | alone

    async def _compared(
        self, new: NewSegment, name: str, segment: Segment, shared: SharedRows, *, of_keys: bool
    ) -> tuple[SharedRows, list[int]]:
        """Return the rows whose job is in the other segment, and the rows that must be compared one by one."""
        mine = {
            row: (_text(job_id, entry, of_keys), entry[5])
            async for row, job_id, entry in self._new_rows(new, shared.rows)
        }
        beside = await in_turns(_beside(shared))
        index = self._engine.draft.jobs.rows.indexes.get(name)
        if index is None:
            index = await self._retried(partial(self._reader.index, name, segment))
        rows, others, jobs, rest = array("I"), array("I"), array("I"), []
        async for other, job_id, entry in self._read(name, segment, index, beside):
            text = _text(job_id, entry, of_keys)
            for row in beside[other]:
                if mine[row][0] != text:
                    continue
                if _option(entry, "expires_at") is not None or (new.modes and new.modes[row]):
                    rest.append(row)
                    continue
                rows.append(row)
                others.append(other)
                if self._shows_jobs:
                    jobs.append(self.known.add(new.behind + mine[row][1], job_id, entry))
        return await in_turns(same_rows(rows, others, jobs)), rest

    async def _new_rows(self, new: NewSegment, rows: Iterable[int]) -> AsyncIterator[tuple[int, str, Packed]]:
        """Yield some rows of a new segment. It has an index if a job in it may be in the queue already."""
        if new.index is None:
            return
        async for found in self._read(new.name, new.segment, new.index, rows):
            yield found

    async def _read(
        self, name: str, segment: Segment, index: SegmentIndex, rows: Iterable[int]
    ) -> AsyncIterator[tuple[int, str, Packed]]:
        """Yield some rows of a segment, which is read in parts."""
        wanted = set(rows)
        chunks = sorted({segment.chunk_of(row) for row in wanted})
        for first in range(0, len(chunks), CHUNKS_AT_ONCE):
            some = chunks[first : first + CHUNKS_AT_ONCE]
            for _, several in await self._retried(partial(self._reader.chunks, name, segment, index, some)):
                for each in several:
                    if each[0] in wanted:
                        yield each
                await asyncio.sleep(0)

    # Repeats

    async def leave_out_repeats(
        self, operation: EnqueueSegments, ids: Collection[Row], keys: Collection[Row]
    ) -> tuple[EnqueueSegments, set[Row]]:
        """Take the jobs out of an operation that repeat an earlier job of the call.

        That is certain of a job with the same id, if none of them has a unique key and no job of the call replaces
        another, which may be the job that has the id in the queue; and of a job with the same key, if none of them has
        an id of its caller's or replaces another.

        Args:
            operation: of the call.
            ids: the rows that may share an id with others.
            keys: the rows that may share a unique key.

        Returns:
            The operation, and the rows whose jobs must be looked at by themselves.
        """
        alone: set[Row] = set()
        repeated: dict[str, list[int]] = defaultdict(list)
        replaces = any(any(each.modes) for each in operation.segments if each.modes)
        replaces = replaces or any(new.on_conflict == "replace" for _, new in operation.one_by_one)
        for of_keys, rows in ((False, ids), (True, keys)):
            groups, doubtful = await self._groups(operation, rows, of_keys=of_keys)
            for count, (text, several) in enumerate(groups.items(), 1):
                if text in doubtful or (replaces and not of_keys):
                    alone.update((name, row) for _, name, row in several)
                    continue
                first, *others = sorted(several)
                for number, name, row in others:
                    self.repeats[number] = first[0]
                    repeated[name].append(row)
                if count % ROWS_PER_SLICE == 0:
                    await asyncio.sleep(0)
        segments = [each.taking(repeated[each.name]) if each.name in repeated else each for each in operation.segments]
        return replace(operation, segments=segments, repeats=len(self.repeats)), alone

    async def _groups(
        self, operation: EnqueueSegments, rows: Collection[Row], *, of_keys: bool
    ) -> tuple[dict[str, list[tuple[int, str, int]]], set[str]]:
        """Return the number, the segment and the row of the jobs with each text, and the texts that are doubtful."""
        groups: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
        name = "unique_key" if of_keys else "id"
        doubtful = {new.values[name] for _, new in operation.one_by_one}
        wanted: dict[str, list[int]] = defaultdict(list)
        for new_name, row in rows:
            wanted[new_name].append(row)
        for new in operation.segments:
            async for row, job_id, entry in self._new_rows(new, wanted[new.name]):
                text = _text(job_id, entry, of_keys)
                groups[text].append((new.behind + entry[5], new.name, row))
                replaces = bool(new.modes and new.modes[row])
                if (new.given or replaces) if of_keys else _option(entry, "unique_key") is not None:
                    doubtful.add(text)
        return groups, doubtful


def _beside(shared: SharedRows) -> Slices[dict[int, list[int]]]:
    """Return the new rows beside each row in the queue, in slices."""
    found: dict[int, list[int]] = defaultdict(list)
    for count, (row, other) in enumerate(zip(shared.rows, shared.others, strict=True), 1):
        found[other].append(row)
        if count % ROWS_PER_SLICE == 0:
            yield
    return found


def _option(entry: Packed, name: str) -> Any:
    """Return the value of an option of a packed job."""
    return next((value for option, value in entry[8] if option == name), None)


def _text(job_id: str, entry: Packed, of_keys: bool) -> str:
    """Return the id or the unique key of a packed job."""
    return str(_option(entry, "unique_key")) if of_keys else job_id
