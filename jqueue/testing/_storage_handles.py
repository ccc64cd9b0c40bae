"""The handles that the tests of a storage open on one object."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from jqueue.ports.storage import ObjectStoragePort, SupportsRelease

StorageFactory = Callable[[], ObjectStoragePort | Awaitable[ObjectStoragePort]]


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
