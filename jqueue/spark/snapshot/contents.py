"""One version of each queue, as bytes. The queues of a fleet are read concurrently, and failed requests are repeated.

It bypasses the engine of the queue, which would make a model of every job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.engine.engine import TRANSIENT
from jqueue.core.pacing.pace import Backoff
from jqueue.domain.errors import (
    BlobMissingError,
    DeadlineExceededError,
    InvalidURLError,
    StorageFatalError,
    StorageThrottledError,
)
from jqueue.runtime.system import SystemEntropy
from jqueue.spark.fleet import FleetQueue, find_all, release_all

DEADLINE = 30.0
"""Seconds to read a queue, as for any call of a queue."""

AT_ONCE = 16
"""Number of queues to read at a time."""


async def read_all(addresses: Sequence[str]) -> list[tuple[str, bytes]]:
    """Return the queues that the addresses stand for: the name of each, and the content of its blob.

    Raises:
        InvalidURLError: an address is wrong, or no queue matches.
        BlobMissingError: one of the queues does not exist.
        StorageError: a queue could not be read. The message names it.
    """
    queues = await find_all(addresses)
    room = asyncio.Semaphore(AT_ONCE)

    async def read(queue: FleetQueue) -> tuple[str, bytes]:
        async with room:
            return queue.name, await _read(queue)

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
