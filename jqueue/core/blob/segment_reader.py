"""Reads segments, and knows which of them could not be read, and why."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager

from jqueue.core.blob.segment_object import decode_chunk, decode_index
from jqueue.core.observers import Observers
from jqueue.core.tasks import Turn, one_turn
from jqueue.domain.errors import JQueueError, ObjectMissingError, StorageFatalError
from jqueue.domain.job import JobRecord
from jqueue.domain.segments import FOLDER, Segment, SegmentIndex, object_of
from jqueue.ports.storage import SupportsObjects

MISSING, CUT_OFF = "it is missing", "it is cut off"


def reason_of(error: JQueueError) -> str:
    """Return why a segment cannot be read, for a sentence that names the segment and says what to do."""
    return MISSING if isinstance(error, ObjectMissingError) else str(error)


Rows = list[JobRecord]
"""The job of each row of a chunk."""

PIECE_BYTES = 1 << 20
"""Number of bytes of rows that are read at once. A chunk is never cut."""

AT_ONCE = 16
"""Number of runs of chunks that are read at once when rows are looked up. Merges can wait, and read one by one."""

DAMAGED = (StorageFatalError,)
"""Errors of a segment that is missing or damaged, or that the store refuses to read, with or without another try."""


class SegmentReader:
    """Reads the segments of one queue, each by its own name or by that of an entry for it.

    Args:
        objects: holds them.
        observers: told of the calls to the store.
        call_timeout: seconds within which a call to the store must end.

    Attributes:
        call_timeout: the same.
        damage: the reason why a segment cannot be read, by its name. A failed read notes it, and the next good one
            removes it. So a warning costs no request.
        aside: names of the segments that are set aside. A good read of some rows of them removes nothing.
    """

    def __init__(self, objects: SupportsObjects, observers: Observers, *, call_timeout: float) -> None:
        self._objects = objects
        self._observers = observers
        self.call_timeout = call_timeout
        self.damage: dict[str, str] = {}
        self.aside: set[str] = set()

    async def index(self, name: str, segment: Segment) -> SegmentIndex:
        """Return the index of a segment.

        Raises:
            InvalidBlobError: it is damaged.
            ObjectMissingError: the segment does not exist.
            StorageError: the store failed.
        """
        with self._noting(name):
            return decode_index(await self._read(name, segment.index, segment.bytes), segment)

    async def chunks(
        self, name: str, segment: Segment, index: SegmentIndex, numbers: Sequence[int], prefix: str = ""
    ) -> list[tuple[int, Rows]]:
        """Return chunks of a segment with their numbers. Chunks that follow each other are read at once.

        Args:
            name: the segment.
            segment: its entry in the manifest.
            index: its index.
            numbers: the numbers of the chunks.
            prefix: beginning of the wanted ids. Chunks without such an id come without rows.

        Raises:
            InvalidBlobError: one of them is damaged.
            ObjectMissingError: the segment does not exist.
            StorageError: the store failed.
        """
        rows = self.rows(name, segment, index, numbers, prefix=prefix, at_once=AT_ONCE)
        return [each async for each in rows]

    async def rows(
        self,
        name: str,
        segment: Segment,
        index: SegmentIndex,
        numbers: Sequence[int],
        turn: Turn = one_turn,
        *,
        prefix: str = "",
        at_once: int = 1,
    ) -> AsyncGenerator[tuple[int, Rows]]:
        """Iterate over chunks, as `chunks` returns them at once."""
        with self._noting(name):
            async with aclosing(self.parts(name, index, numbers, turn, at_once)) as parts:
                async for number, data in parts:
                    yield number, decode_chunk(data, number, segment, index, prefix)

    async def parts(
        self, name: str, index: SegmentIndex, numbers: Sequence[int], turn: Turn = one_turn, at_once: int = 1
    ) -> AsyncGenerator[tuple[int, bytes]]:
        """Iterate over chunks: the number and the bytes of each, unchecked. The event loop has a turn between two.

        Raises:
            ObjectMissingError: the segment does not exist.
            StorageError: the store failed.
        """
        runs = _runs(numbers)
        async with aclosing(self._texts(name, index, runs, at_once)) as texts:
            for first, last in runs:
                data, (origin, _) = await anext(texts), index.bytes_of(first, last)
                for number in range(first, last + 1):
                    start, stop = index.bytes_of(number, number)
                    yield number, data[start - origin : stop - origin]
                    await turn()

    async def _texts(
        self, name: str, index: SegmentIndex, runs: Sequence[tuple[int, int]], at_once: int
    ) -> AsyncGenerator[bytes]:
        """Iterate over the bytes of runs of chunks. Some are read at once: a far store takes its time for each."""
        if at_once == 1 or len(runs) == 1:
            for first, last in runs:
                yield await self._read(name, *index.bytes_of(first, last))
            return
        tasks: deque[asyncio.Task[bytes]] = deque()
        try:
            for first, last in runs:
                tasks.append(asyncio.create_task(self._read(name, *index.bytes_of(first, last))))
                if len(tasks) == at_once:
                    yield await tasks.popleft()
            while tasks:
                yield await tasks.popleft()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def sizes(self) -> dict[str, int]:
        """Return the sizes of the segments that are there, by the ends of their names.

        Raises:
            StorageError: the store failed.
        """
        return {each.suffix: each.size for each in await self._objects.list_beside(FOLDER)}

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        """Note if a segment cannot be read, or that it can be."""
        name = object_of(name)
        try:
            yield
        except StorageFatalError as error:
            self.damage[name] = reason_of(error)
            raise
        if name not in self.aside:
            self.damage.pop(name, None)

    async def _read(self, name: str, start: int, stop: int) -> bytes:
        return await self._observers.call(
            "fetch", self.call_timeout, self._objects.read_object, FOLDER + object_of(name), start, stop
        )


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and the last number of each run of numbers that follow each other."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def pieces_of(entries: Sequence[Segment], index: SegmentIndex) -> list[list[int]]:
    """Return the numbers of the chunks that have rows of some entries for a segment, in pieces that are read at once.

    Args:
        entries: in the manifest.
        index: of the segment.
    """
    pieces: list[list[int]] = []
    size = PIECE_BYTES
    for number in range(len(index.chunks)):
        if all(each.is_chunk_taken(number) for each in entries):
            continue
        start, stop = index.bytes_of(number, number)
        if size + stop - start > PIECE_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(number)
        size += stop - start
    return pieces
