"""The jobs of rows that events of the history name, read from segments that may have left the manifest since."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from jqueue.core.blob.segment_object import decode_rows
from jqueue.core.blob.segment_reader import DAMAGED
from jqueue.core.engine.engine import read_until
from jqueue.core.engine.slices import in_turns
from jqueue.domain.events import HistoryEvent
from jqueue.domain.replay import Row
from jqueue.domain.segments import FOLDER, numbers_in
from jqueue.ports.clock import Entropy
from jqueue.ports.storage import SupportsObjects

SEGMENTS_REMEMBERED = 4
"""Number of segments whose rows are remembered: a segment has many ranges, one after the other."""


class PastRows:
    """Reads the jobs of rows. Segments are kept for an hour after they have left the manifest.

    Args:
        objects: holds the segments.
        entropy: draws the pauses between failed reads.
        deadline: maximum seconds for each request to the store, with its repetitions.
        call_timeout: seconds within which a call to the store must end.
    """

    def __init__(self, objects: SupportsObjects, entropy: Entropy, deadline: float, call_timeout: float) -> None:
        self._objects = objects
        self._entropy = entropy
        self._deadline = deadline
        self._call_timeout = call_timeout
        self._known: OrderedDict[str, Sequence[Row] | None] = OrderedDict()

    async def of(self, event: HistoryEvent) -> list[Row] | None:
        """Return the jobs of the rows of an event; None if it has no rows, or a segment is gone or damaged.

        Raises:
            StorageError: the store failed.
        """
        found: list[Row] = []
        for name, spans in event.rows:
            rows = await self._rows(name)
            if rows is None or any(last > len(rows) for _, last in spans):
                return None
            found += [rows[number] for number in numbers_in(spans)]
        return found if event.rows else None

    async def _rows(self, name: str) -> Sequence[Row] | None:
        if name in self._known:
            self._known.move_to_end(name)
        else:
            self._known[name] = await self._read(name)
            if len(self._known) > SEGMENTS_REMEMBERED:
                self._known.popitem(last=False)
        return self._known[name]

    async def _read(self, name: str) -> Sequence[Row] | None:
        async def read() -> bytes:
            async with asyncio.timeout(self._call_timeout):
                return await self._objects.read_object(FOLDER + name)

        try:
            data = await read_until(self._deadline, read, self._entropy, f"segment {FOLDER}{name}")
            entries = await in_turns(decode_rows(data))
        except DAMAGED:
            return None
        return [Row(job_id, entry[0], entry[6], entry[4]) for job_id, entry in entries]
