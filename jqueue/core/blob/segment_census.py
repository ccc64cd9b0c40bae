"""Counts the rows of segments by the manifest. Rows are read only if an age, or the number of due rows, needs them."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from jqueue.core.blob.segment_reader import DAMAGED, SegmentReader
from jqueue.core.tasks import read_until
from jqueue.domain.ranges import Range
from jqueue.domain.segment_index import HashTable, SegmentIndex
from jqueue.domain.segments import FOLDER, Segment
from jqueue.domain.stats import Census
from jqueue.ports.clock import Entropy

PARTS_KEPT = 64
"""Number of outlines of segments, and of chunks, that are remembered: a queue may be counted every second."""

AT_ONCE = 8
"""Number of entrypoints whose segments are read at the same time."""

Answer = TypeVar("Answer")
Part = TypeVar("Part")


class SegmentCensus:
    """Counts the rows of the segments of one queue.

    Args:
        reader: reads the segments.
    """

    def __init__(self, reader: SegmentReader) -> None:
        self._reader = reader
        self._outlines: OrderedDict[str, SegmentIndex] = OrderedDict()
        self._times: OrderedDict[tuple[str, int], Sequence[float]] = OrderedDict()

    async def count(
        self,
        segments: Mapping[str, Segment],
        ranges: Iterable[Range],
        census: Census,
        entropy: Entropy,
        deadline: float,
    ) -> None:
        """Count the waiting rows of segments. All other jobs have been counted before.

        A segment is counted by its entry in the manifest, even if it is missing or damaged. If a read of the same
        reader has failed because of that, now or earlier, the figures carry a warning. It stays until the damaged
        part is read again, or its jobs have left. Damage that no read has met is not noticed.

        Args:
            segments: the manifest.
            ranges: the claims of ranges.
            census: counts.
            entropy: draws the pauses between failed reads.
            deadline: maximum seconds.

        Raises:
            StorageError: the store failed until the deadline.
        """
        entrypoints: dict[str, dict[str, Segment]] = {}
        for name, segment in segments.items():
            entrypoints.setdefault(segment.entrypoint, {})[name] = segment
        turns, count = asyncio.Semaphore(AT_ONCE), _Count(self, census, entropy, _time() + deadline)

        async def in_turn(several: Mapping[str, Segment]) -> None:
            async with turns:
                await count.add(several)

        tasks = [asyncio.create_task(in_turn(several)) for several in entrypoints.values()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        census.warnings += self._reader.damage.warnings(segments, ranges)

    async def outline(self, name: str, segment: Segment) -> SegmentIndex:
        """Return the index of a segment without its tables."""

        async def read() -> SegmentIndex:
            index = await self._reader.index(name, segment)
            nothing = HashTable(array("Q"), array("I"))
            return SegmentIndex(index.chunks, index.end, nothing, nothing, texts=index.texts)

        return await _remembered(self._outlines, name, read)

    async def times(self, name: str, segment: Segment, index: SegmentIndex, chunk: int) -> Sequence[float]:
        """Return the time at which each row of a chunk becomes ready, in seconds since 1970."""

        async def read() -> Sequence[float]:
            [(_, rows)] = await self._reader.chunks(name, segment, index, [chunk])
            return array("d", [(job.run_at or job.created_at).timestamp() for _, job in rows])

        return await _remembered(self._times, (name, chunk), read)


class _Count:
    """Counts the rows of one version.

    Args:
        memory: remembers what was read.
        census: counts.
        entropy: draws the pauses between failed reads.
        until: time of the event loop by which the store must have answered.
    """

    def __init__(self, memory: SegmentCensus, census: Census, entropy: Entropy, until: float) -> None:
        self._memory = memory
        self._census = census
        self._entropy = entropy
        self._until = until

    async def add(self, segments: Mapping[str, Segment]) -> None:
        """Count the waiting rows of segments of one entrypoint."""
        census, now = self._census, self._census.now.timestamp()
        with_ready = []
        for name, segment in segments.items():
            ready = segment.waiting
            if segment.scheduled:
                ready = 0 if segment.head.since > now else await self._due(name, segment, now)
            census.count_waiting(segment.entrypoint, ready, segment.waiting - ready, None)
            if ready:
                with_ready.append((segment.oldest, name))
        for oldest, name in sorted(with_ready):
            segment = segments[name]
            known = census.oldest_of(segment.entrypoint)
            if known is not None and oldest >= known.timestamp():
                break
            found = datetime.fromtimestamp(await self._oldest(name, segment), UTC)
            census.count_waiting(segment.entrypoint, 0, 0, found)

    async def _due(self, name: str, segment: Segment, now: float) -> int:
        """Return the number of scheduled rows whose time has come. Only the last chunk that has such rows is read."""
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
        if not segment.next and not segment.taken:
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
                waiting = (at for row, at in enumerate(times, first) if not segment.is_taken(row))
                oldest = min(oldest, *waiting)
        except DAMAGED:
            return segment.oldest
        return oldest

    async def _outline(self, name: str, segment: Segment) -> SegmentIndex:
        return await self._patiently(name, lambda: self._memory.outline(name, segment))

    async def _times(self, name: str, segment: Segment, index: SegmentIndex, chunk: int) -> Sequence[float]:
        return await self._patiently(name, lambda: self._memory.times(name, segment, index, chunk))

    async def _patiently(self, name: str, read: Callable[[], Awaitable[Answer]]) -> Answer:
        return await read_until(self._until - _time(), read, self._entropy, f"segment {FOLDER}{name}")


def _time() -> float:
    return asyncio.get_running_loop().time()


async def _remembered(memory: OrderedDict[Part, Answer], part: Part, read: Callable[[], Awaitable[Answer]]) -> Answer:
    found = memory.get(part)
    if found is None:
        found = await read()
        memory[part] = found
        while len(memory) > PARTS_KEPT:
            memory.popitem(last=False)
    else:
        memory.move_to_end(part)
    return found
