"""Segments of a queue that are missing or damaged, as far as one can know without reading them all.

A listing tells which are missing or cut off. A dashboard repeats it now and then, and notices a changed row when a list
of jobs needs it. `jqueue doctor` reads all rows.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta

from jqueue.core.blob.segment_damage import CUT_OFF, MISSING, WARNING, Damage, warning
from jqueue.core.tasks import read_until
from jqueue.domain.errors import JQueueError
from jqueue.domain.header import Header
from jqueue.domain.segments import FOLDER
from jqueue.domain.stats import QueueStats
from jqueue.ports.clock import Entropy
from jqueue.ports.storage import ObjectStoragePort, SupportsObjects

LIST_EVERY = timedelta(seconds=60)
"""Time between two listings of the segments."""

LIST_DEADLINE = 10.0
"""Seconds for a listing. If it fails, the next one may succeed."""


class SegmentWatch:
    """Looks for the segments of one queue.

    Args:
        storage: of the queue.
        entropy: draws the pauses between failed requests.

    Attributes:
        damage: what is known.
    """

    def __init__(self, storage: ObjectStoragePort, entropy: Entropy) -> None:
        self.damage: Damage = {}
        self._storage = storage
        self._entropy = entropy
        self._listed_at: datetime | None = None

    async def look(self, header: Header, now: datetime) -> bool:
        """List the segments if that is due, and forget what was known before. Return True if they were listed."""
        due = self._listed_at is None or now - self._listed_at >= LIST_EVERY
        storage = self._storage
        if not header.segments or not due or not isinstance(storage, SupportsObjects):
            return False
        self._listed_at = now
        with suppress(JQueueError):
            sizes = await read_until(
                LIST_DEADLINE, lambda: storage.list_beside(FOLDER), self._entropy, "the list of segments"
            )
            there = {each.suffix: each.size for each in sizes}
            self.damage.clear()
            for name, segment in header.segments.items():
                size = there.get(FOLDER + name)
                if size is None or size < segment.bytes:
                    self.damage[FOLDER + name] = MISSING if size is None else CUT_OFF
            return True
        return False


def alerts(header: Header, stats: QueueStats, damage: Damage) -> list[str]:
    """Return a line for each damaged segment: its entrypoint, the number of its jobs, and what to do."""
    found = []
    for name, segment in header.segments.items():
        why = damage.get(FOLDER + name)
        told = next((each for each in stats.warnings if each.startswith(f"{WARNING}{name} ")), None)
        if told is None and why is not None:
            told = warning(name, segment, [each for each in header.ranges.values() if each.segment == name], why)
        if told is not None:
            found.append(told)
    return [f"{each[0].upper()}{each[1:]}. All other jobs go on." for each in found]
