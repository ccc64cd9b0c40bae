"""One version of each queue, as bytes, with the names of its segments.

The queues of a fleet are read concurrently, and failed requests are repeated. The object of a queue is not read by the
engine, which would make a model of every job. Its segments are not read here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.blob.codec import parse_blob
from jqueue.core.engine.engine import ask_until
from jqueue.domain.errors import (
    BlobMissingError,
    InvalidBlobError,
    InvalidURLError,
)
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.fleet import FleetQueue, find_all, release_all
from jqueue.spark.snapshot.blob_lines import JobFilter
from jqueue.spark.snapshot.segment_rows import SegmentRows, rows_of

DEADLINE = 30.0
"""Seconds to read a queue, as for any call of a queue."""

AT_ONCE = 16
"""Number of queues to read at a time."""


class Content(NamedTuple):
    """The content of a queue."""

    name: str
    """Its name."""
    blob: bytes
    rows: list[SegmentRows]
    """The rows of its segments that may be wanted. They are not read."""


async def read_all(addresses: Sequence[str], job_filter: JobFilter) -> list[Content]:
    """Return the queues that the addresses stand for.

    Args:
        addresses: of the queues, with wildcards or without.
        job_filter: the wanted jobs in segments. The blob is read as a whole.

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
            blob = await _read(queue)
            return Content(queue.name, blob, _segments(queue, blob, job_filter))

    try:
        return await asyncio.gather(*map(read, queues))
    finally:
        await release_all(queues)


async def _read(queue: FleetQueue) -> bytes:
    if isinstance(queue.storage, InMemoryStorage):
        raise InvalidURLError(
            "an in-memory queue is visible only to its own process: give the URL of a file or a store"
        )
    data, etag = await _read_with_retries(queue)
    if etag is None:
        raise BlobMissingError(f"there is no queue at {queue.name}: check the URL; the first enqueue creates a queue")
    return data


def _segments(queue: FleetQueue, blob: bytes, job_filter: JobFilter) -> list[SegmentRows]:
    """Return the rows of the wanted segments, as the manifest of the queue has them."""
    if b'"segments"' not in blob:
        return []
    try:
        header = parse_blob(blob).header
    except InvalidBlobError as error:
        raise InvalidBlobError(f"{queue.name}: {error}") from None
    return rows_of(queue, header, job_filter)


async def _read_with_retries(queue: FleetQueue) -> tuple[bytes, str | None]:
    """Read the queue. If the store fails, repeat it until the deadline."""
    return await ask_until(DEADLINE, queue.storage.read, SystemEntropy(), f"{queue.name} could not be read in time")
