"""One version of each queue, as bytes. The queues of a fleet are read concurrently, and failed requests are repeated.

The object of a queue is not read by the engine, which would make a model of every job. Its segments are read one after
the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.blob.codec import parse_blob
from jqueue.core.blob.lines import encode_job
from jqueue.core.blob.pages import SEPARATOR
from jqueue.core.blob.segment_jobs import RowSource
from jqueue.core.blob.segment_reader import SegmentReader
from jqueue.core.engine.engine import TRANSIENT
from jqueue.core.engine.observers import Observers
from jqueue.core.pacing.pace import Backoff
from jqueue.domain.errors import (
    BlobMissingError,
    DeadlineExceededError,
    InvalidBlobError,
    InvalidURLError,
    JobsUnreadableError,
    StorageFatalError,
    StorageThrottledError,
)
from jqueue.domain.models import JobStatus
from jqueue.ports.storage import SupportsObjects
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.spark.fleet import FleetQueue, find_all, release_all
from jqueue.spark.snapshot.blob_lines import JobFilter

DEADLINE = 30.0
"""Seconds to read a queue, as for any call of a queue."""

AT_ONCE = 16
"""Number of queues to read at a time."""


class Content(NamedTuple):
    """The content of a queue."""

    name: str
    """Its name."""
    blob: bytes
    rows: bytes
    """The lines of the wanted jobs in its segments, joined as in the blob."""


async def read_all(addresses: Sequence[str], job_filter: JobFilter) -> list[Content]:
    """Return the queues that the addresses stand for.

    Args:
        addresses: of the queues, with wildcards or without.
        job_filter: the wanted jobs in segments. The blob is read as a whole.

    Raises:
        InvalidURLError: an address is wrong, or no queue matches.
        BlobMissingError: one of the queues does not exist.
        InvalidBlobError: the object is not a queue that this version can read.
        StorageError: a queue could not be read, or a segment of it. The message names it.
    """
    queues = await find_all(addresses)
    room = asyncio.Semaphore(AT_ONCE)

    async def read(queue: FleetQueue) -> Content:
        async with room:
            blob = await _read(queue)
            return Content(queue.name, blob, await _read_rows(queue, blob, job_filter))

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


async def _read_rows(queue: FleetQueue, blob: bytes, job_filter: JobFilter) -> bytes:
    """Return the lines of the wanted jobs in the segments of a queue."""
    if b'"segments"' not in blob:
        return b""
    try:
        header = parse_blob(blob).header
    except InvalidBlobError as error:
        raise InvalidBlobError(f"{queue.name}: {error}") from None
    if not header.segments:
        return b""
    if not isinstance(queue.storage, SupportsObjects):
        raise InvalidBlobError(f"{queue.name}: the queue keeps jobs in segments, which this storage cannot read")
    reader = SegmentReader(queue.storage, Observers(SystemClock()), call_timeout=DEADLINE)
    source = RowSource(reader, SystemEntropy()).jobs_of(header, DEADLINE)
    statuses, names = frozenset(map(JobStatus, job_filter.statuses or ())), frozenset(job_filter.entrypoints or ())
    try:
        async with aclosing(source.rows(statuses, names, "")) as jobs:
            return SEPARATOR.join([encode_job(job) async for job in jobs])
    except JobsUnreadableError as error:
        raise StorageFatalError(f"{queue.name}: {error}") from None


async def _read_with_retries(queue: FleetQueue) -> tuple[bytes, str | None]:
    """Read the queue. If the store fails, repeat it until the deadline."""
    backoff = Backoff(SystemEntropy())
    last: BaseException | None = None
    try:
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    return await queue.storage.read()
                except StorageFatalError:
                    raise
                except TRANSIENT as error:
                    last = error
                    await asyncio.sleep(backoff.failure(throttled=isinstance(error, StorageThrottledError)))
    except TimeoutError as error:
        raise DeadlineExceededError(f"{queue.name} could not be read in time", last or error) from None
