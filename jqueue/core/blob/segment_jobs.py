"""The jobs in the segments of one version of a queue, read piece by piece, and their numbers.

Segments never change, and those that have left the manifest are kept for an hour. So a version can be read to its end
while other versions follow it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

from jqueue.core.blob.segment_census import SegmentCensus
from jqueue.core.blob.segment_reader import DAMAGED, Rows, SegmentReader
from jqueue.core.engine.engine import read_until
from jqueue.domain.errors import InvalidBlobError, JobsUnreadableError
from jqueue.domain.job_table import unpacked
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.segment_index import SegmentIndex
from jqueue.domain.segments import FOLDER, Segment
from jqueue.domain.stats import Census
from jqueue.ports.clock import Entropy

PIECE_BYTES = 1 << 20
"""Number of bytes of rows that are read at once. A chunk is never cut."""

Piece = tuple[Segment, Rows]


@dataclass(slots=True)
class SegmentJobs:
    """The jobs in the segments of one version of a queue.

    Attributes:
        segments: the manifest of that version.
        reader: reads the segments.
        census: counts the rows.
        entropy: draws the pauses between failed reads.
        deadline: maximum seconds for each request to the store, with its repetitions.
    """

    segments: Mapping[str, Segment] = field(repr=False)
    reader: SegmentReader
    census: SegmentCensus
    entropy: Entropy
    deadline: float

    async def rows(
        self, statuses: frozenset[JobStatus], entrypoints: frozenset[str], prefix: str
    ) -> AsyncGenerator[Job, None]:
        """As in `JobRows`.

        Raises:
            JobsUnreadableError: at the end, if segments are missing or damaged.
            StorageError: the store failed until the deadline.
        """
        if statuses and JobStatus.QUEUED not in statuses:
            return
        chosen = {
            name: each for name, each in self.segments.items() if not entrypoints or each.entrypoint in entrypoints
        }
        damaged: dict[str, str] = {}
        async with aclosing(_one_ahead(self._pieces(chosen, damaged))) as pieces:
            async for segment, rows in pieces:
                for row, job_id, entry in rows:
                    if job_id.startswith(prefix) and not segment.is_taken(row):
                        yield unpacked(job_id, entry)
        if damaged:
            raise JobsUnreadableError(damaged)

    async def count(self, census: Census, deadline: float | None = None) -> None:
        """As in `JobRows`."""
        seconds = self.deadline if deadline is None else deadline
        await self.census.count(self.segments, census, self.entropy, seconds)

    async def _pieces(self, segments: Mapping[str, Segment], damaged: dict[str, str]) -> AsyncGenerator[Piece, None]:
        """Yield chunks of segments. Note what is missing or damaged."""
        for name, segment in segments.items():
            try:
                index = await self._index(name, segment)
                for numbers in _pieces_of(segment, index):
                    for rows in await self._chunks(name, segment, index, numbers, damaged):
                        yield segment, rows
            except DAMAGED as error:
                damaged[FOLDER + name] = str(error)

    async def _chunks(
        self, name: str, segment: Segment, index: SegmentIndex, numbers: list[int], damaged: dict[str, str]
    ) -> list[Rows]:
        """Return the rows of some chunks. If they are damaged, return the rows of those that are not."""
        what = f"segment {FOLDER}{name}"
        try:
            found = await read_until(
                self.deadline, lambda: self.reader.chunks(name, segment, index, numbers), self.entropy, what
            )
        except InvalidBlobError as error:
            damaged[FOLDER + name] = str(error)
            if len(numbers) == 1:
                return []
            return [rows for number in numbers for rows in await self._chunks(name, segment, index, [number], damaged)]
        return [rows for _, rows in found]

    async def _index(self, name: str, segment: Segment) -> SegmentIndex:
        reading = self.reader.index
        return await read_until(self.deadline, lambda: reading(name, segment), self.entropy, f"segment {FOLDER}{name}")


def _pieces_of(segment: Segment, index: SegmentIndex) -> list[list[int]]:
    """Return the numbers of the chunks that have waiting rows, in pieces that are read at once."""
    pieces: list[list[int]] = []
    size = PIECE_BYTES
    for number in range(segment.chunk_of(segment.next), segment.chunks):
        if segment.is_chunk_taken(number):
            continue
        start, stop = index.bytes_of(number, number)
        if size + stop - start > PIECE_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(number)
        size += stop - start
    return pieces


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
        await asyncio.wait([task])
        await pieces.aclose()
