"""What the contracts share: the handles that the tests of a storage open on one object, changes, cancellations."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from jqueue.domain.errors import CASConflictError
from jqueue.ports.storage import ObjectStoragePort, SupportsRelease

StorageFactory = Callable[[], ObjectStoragePort | Awaitable[ObjectStoragePort]]


async def rewrite(storage: ObjectStoragePort, change: Callable[[bytes], bytes]) -> str:
    """Change an object, while other writers do the same, and return its new etag."""
    while True:
        content, etag = await storage.read()
        try:
            return await storage.write(change(content), etag)
        except CASConflictError:
            continue


async def cancel_at(call: asyncio.Task[Any], number: int, of: int, duration: float) -> None:
    """Cancel the call with a number, of several, and wait until it has ended.

    It is cancelled in one of the first ticks, or at a moment spread over the time that a call takes.
    """
    if number % 2:
        await asyncio.wait([call], timeout=duration * number / of)
    else:
        for _ in range(number // 2):
            await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])


class StorageHandles:
    """Base of the contracts for a storage.

    Attributes:
        patience: seconds after which a test counts as hung.
    """

    patience: float = 120.0

    @pytest.fixture
    def make_storage(self) -> StorageFactory:
        raise NotImplementedError("give the subclass a fixture `make_storage` that returns a function of no arguments")

    @asynccontextmanager
    async def handles(self, make_storage: StorageFactory, count: int = 1) -> AsyncIterator[list[ObjectStoragePort]]:
        """Open `count` handles on the object of this test, and allow `patience` seconds to use them."""
        async with asyncio.timeout(self.patience), AsyncExitStack() as closing:
            opened = []
            for _ in range(count):
                made = make_storage()
                storage = await made if inspect.isawaitable(made) else made
                if isinstance(storage, SupportsRelease):
                    closing.push_async_callback(storage.release)
                opened.append(storage)
            yield opened
