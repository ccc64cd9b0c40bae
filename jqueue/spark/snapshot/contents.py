"""One version of each queue, as bytes: those of a fleet are read side by side, and a store that fails is asked again.

It goes past the queue's engine, which would make a model of every job.
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
from jqueue.spark.fleet import Member, find_all, release_all

DEADLINE = 30.0
"""Seconds within which a queue has to be read, as for any call of a queue."""

AT_ONCE = 16
"""So many queues are read at a time."""


async def read_all(addresses: Sequence[str]) -> list[tuple[str, bytes]]:
    """The queues that the addresses stand for: the name of each, and what is in its blob now.

    Raises:
        InvalidURLError: an address is wrong, or there is no queue whose name fits.
        BlobMissingError: there is no queue by one of the names.
        StorageError: one could not be read. The message says which.
    """
    members = await find_all(addresses)
    room = asyncio.Semaphore(AT_ONCE)

    async def read(member: Member) -> tuple[str, bytes]:
        async with room:
            return member.name, await _read(member)

    try:
        return await asyncio.gather(*map(read, members))
    finally:
        await release_all(members)


async def _read(member: Member) -> bytes:
    if isinstance(member.storage, InMemoryStorage):
        raise InvalidURLError("a queue in memory can be seen only by the process that has it: name a file or a store")
    data, etag = await _patiently(member)
    if etag is None:
        raise BlobMissingError(f"there is no queue at {member.name}: it is made with the first job")
    return data


async def _patiently(member: Member) -> tuple[bytes, str | None]:
    """Read, and again if the store fails, until the deadline."""
    backoff = Backoff(SystemEntropy())
    last: BaseException | None = None
    try:
        async with asyncio.timeout(DEADLINE):
            while True:
                try:
                    return await member.storage.read()
                except StorageFatalError:
                    raise
                except TRANSIENT as error:
                    last = error
                    await asyncio.sleep(backoff.failure(throttled=isinstance(error, StorageThrottledError)))
    except TimeoutError as error:
        raise DeadlineExceededError(f"{member.name} could not be read in time", last or error) from None
