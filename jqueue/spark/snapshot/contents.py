"""One version of each queue: the lines of the wanted jobs in its object, and the segments that may have others.

The queues of a fleet are read concurrently, and failed requests are repeated. Some facts concern an object as a whole:
an id that stands twice, a job that has no place yet. They are settled here, and the jobs are encoded again, so that
each line can be read alone, anywhere. Segments are not read here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.blob.lines import encode_job
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import BlobMissingError, InvalidURLError, StorageError
from jqueue.domain.header import Header
from jqueue.domain.selection import Selection
from jqueue.runtime.system import SystemClock
from jqueue.spark.fleet import FleetQueue, find_all, release_all
from jqueue.spark.snapshot.segment_rows import SegmentRows
from jqueue.spark.staging import absolute

DEADLINE = 30.0
"""Seconds to read a queue, as for any call of a queue."""

AT_ONCE = 16
"""Number of queues to read at a time."""


class Content(NamedTuple):
    """The content of a queue."""

    name: str
    """Its name."""
    lines: list[bytes]
    """The lines of the wanted jobs in its object."""
    set_aside: int
    """Number of its lines that cannot be read as jobs."""
    rows: list[SegmentRows]
    """The rows of its segments that may be wanted. They are not read."""


async def read_all(addresses: Sequence[str], selection: Selection) -> list[Content]:
    """Return the queues that the addresses stand for.

    Args:
        addresses: of the queues, with wildcards or without.
        selection: chooses the wanted jobs, by statuses and entrypoints.

    Raises:
        InvalidURLError: an address is wrong, or no queue matches.
        BlobMissingError: one of the queues does not exist.
        InvalidBlobError: the object is not a queue that this version can read.
        StorageError: a queue could not be read. The message names it.
    """
    queues = await find_all(addresses)
    room = asyncio.Semaphore(AT_ONCE)

    async def read(queue: FleetQueue) -> Content:
        async with room:
            return await _content(queue, selection)

    try:
        return await asyncio.gather(*map(read, queues))
    finally:
        await release_all(queues)


async def _content(queue: FleetQueue, selection: Selection) -> Content:
    """Return the wanted jobs of a queue."""
    if isinstance(queue.storage, InMemoryStorage):
        raise InvalidURLError(
            "an in-memory queue is visible only to its own process: give the URL of a file or a store"
        )
    try:
        view = await DirectQueue(queue.storage).view(deadline=DEADLINE)
    except StorageError as error:
        raise type(error)(f"{queue.name}: {error}") from None
    if view.absent:
        raise BlobMissingError(f"there is no queue at {queue.name}: check the URL; the first enqueue creates a queue")
    now = SystemClock().now()
    lines = [encode_job(job) for job in view.records.values() if selection.matches(job, now)]
    return Content(queue.name, lines, len(view.set_aside), _rows_of(queue, view.header, selection))


def _rows_of(queue: FleetQueue, header: Header, selection: Selection) -> list[SegmentRows]:
    """Return the rows of the wanted segments, as the manifest of the queue has them."""
    statuses = frozenset(selection.statuses)
    found = []
    for name, segment in header.segments.items():
        ranges = tuple(each for each in header.ranges.values() if each.segment == name)
        if selection.entrypoints and segment.entrypoint not in selection.entrypoints:
            continue
        first = min([segment.next, *(each.first for each in ranges)])
        chunks = segment.chunk_of(first), segment.chunks
        rows = SegmentRows(queue.name, absolute(queue.url), name, segment, ranges, statuses, chunks)
        if rows.counted():
            found.append(rows)
    return found
