"""One version of each queue: the lines of the wanted jobs in its object, and the segments that may have others.

The queues of a fleet are read concurrently, and failed requests are repeated. Some facts concern an object as a whole:
an id that stands twice, a job that has no place yet. They are settled here, and the jobs are encoded again, so that
each line can be read alone, anywhere. Segments are not read here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.blob.codec import parse_blob, reading_lines
from jqueue.core.blob.lines import encode_job
from jqueue.core.tasks import ask_until
from jqueue.domain.errors import BlobMissingError, InvalidBlobError, InvalidURLError
from jqueue.domain.header import Header
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.sequence_numbers import number_unnumbered
from jqueue.domain.slices import exhaust
from jqueue.ports.storage import SupportsObjects
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.fleet import FleetQueue, find_all, release_all
from jqueue.spark.snapshot.segment_rows import SegmentRows
from jqueue.spark.staging import absolute

DEADLINE = 30.0
"""Seconds to read a queue, as for any call of a queue."""

AT_ONCE = 16
"""Number of queues to read at a time."""


@dataclass(frozen=True)
class JobFilter:
    """The jobs that a reader asks for.

    Attributes:
        entrypoints: the wanted entrypoints; None for any.
        statuses: the wanted statuses; None for any.
    """

    entrypoints: Collection[str] | None = None
    statuses: Collection[str] | None = None

    def matches(self, job: JobRecord) -> bool:
        """Return True if a job is wanted."""
        return (self.entrypoints is None or job.entrypoint in self.entrypoints) and (
            self.statuses is None or job.status in self.statuses
        )


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


async def read_all(addresses: Sequence[str], job_filter: JobFilter) -> list[Content]:
    """Return the queues that the addresses stand for.

    Args:
        addresses: of the queues, with wildcards or without.
        job_filter: the wanted jobs.

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
            data = await _read(queue)
        try:
            return _content(queue, data, job_filter)
        except InvalidBlobError as error:
            raise InvalidBlobError(f"{queue.name}: {error}") from None

    try:
        return await asyncio.gather(*map(read, queues))
    finally:
        await release_all(queues)


async def _read(queue: FleetQueue) -> bytes:
    if isinstance(queue.storage, InMemoryStorage):
        raise InvalidURLError(
            "an in-memory queue is visible only to its own process: give the URL of a file or a store"
        )
    what = f"{queue.name} could not be read in time"
    data, etag = await ask_until(DEADLINE, queue.storage.read, SystemEntropy(), what)
    if etag is None:
        raise BlobMissingError(f"there is no queue at {queue.name}: check the URL; the first enqueue creates a queue")
    return data


def _content(queue: FleetQueue, data: bytes, job_filter: JobFilter) -> Content:
    """Return the wanted jobs of a queue, given the bytes of its object."""
    parsed = parse_blob(data)
    read = exhaust(reading_lines(parsed, {}, {}))
    jobs = number_unnumbered([*parsed.jobs, *read.jobs.values()])
    lines = [encode_job(job) for job in jobs if job_filter.matches(job)]
    return Content(queue.name, lines, len(read.set_aside), _rows_of(queue, parsed.header, job_filter))


def _rows_of(queue: FleetQueue, header: Header, job_filter: JobFilter) -> list[SegmentRows]:
    """Return the rows of the wanted segments, as the manifest of the queue has them.

    Raises:
        InvalidBlobError: the storage of the queue cannot hold segments.
    """
    if header.segments and not isinstance(queue.storage, SupportsObjects):
        raise InvalidBlobError("the queue keeps jobs in segments, which this storage cannot read")
    statuses = frozenset(map(JobStatus, job_filter.statuses or ()))
    found = []
    for name, segment in header.segments.items():
        ranges = tuple(each for each in header.ranges.values() if each.segment == name)
        if job_filter.entrypoints is not None and segment.entrypoint not in job_filter.entrypoints:
            continue
        first = min([segment.next, *(each.first for each in ranges)])
        chunks = segment.chunk_of(first), segment.chunks
        rows = SegmentRows(queue.name, absolute(queue.url), name, segment, ranges, statuses, chunks)
        if rows.counted():
            found.append(rows)
    return found
