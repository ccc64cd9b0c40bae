"""A storage in memory whose queue objects find a broker, as those of a file do, and can be cut off from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.domain.errors import StorageError
from jqueue.ports.sharing import Handle, LinkError
from jqueue.testing.virtual_time import VirtualClock


class SharedMemory(InMemoryStorage):
    """One place for the seat of a broker. Messages are the bytes that go through a socket.

    Attributes:
        handle: answers messages; None while there is no broker.
        links: every connection that was made.
    """

    handle: Handle | None = None

    def __init__(self, **options):
        super().__init__(**options)
        self.links: list[MemoryLink] = []
        self.epoch = 0

    def broker_epoch(self) -> object:
        """Return the number of times that a broker began to serve, or was back."""
        return self.epoch

    async def dial(self) -> MemoryLink | None:
        """Return a connection to the broker, if there is one."""
        if self.handle is None:
            return None
        self.links.append(MemoryLink(self.handle))
        return self.links[-1]

    async def take_seat(self, handle: Handle) -> MemorySeat | None:
        """Begin to serve."""
        if self.handle is not None:
            return None
        self.handle = handle
        self.epoch += 1
        return MemorySeat(self)


class BrokerOnly:
    """A client of the broker of a storage that it cannot reach itself."""

    def __init__(self, storage: SharedMemory) -> None:
        self._storage = storage

    async def read(self) -> tuple[bytes, str | None]:
        """Have the broker read the object."""
        return await self._storage.read()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Refuse."""
        raise AssertionError("a client without a store has written")

    async def dial(self) -> MemoryLink | None:
        """Return a connection to the broker, if there is one."""
        return await self._storage.dial()

    def broker_epoch(self) -> object:
        """Return what the storage does."""
        return self._storage.broker_epoch()


class NetworkMemory(InMemoryStorage):
    """A storage whose clients find a broker by the seat in the queue's header.

    Attributes:
        brokers: what answers messages at each URL. One that is missing refuses connections.
        links: every connection that was made, with its URL.
    """

    def __init__(self, **options):
        super().__init__(**options)
        self.brokers: dict[str, Handle] = {}
        self.links: list[tuple[str, MemoryLink]] = []

    async def dial_url(self, url: str) -> MemoryLink:
        """Return a connection. As with HTTP, it is seen at the first message if nothing answers there."""
        link = MemoryLink(lambda message: self._answer(url, message))
        self.links.append((url, link))
        return link

    async def _answer(self, url: str, message: bytes) -> bytes:
        if url not in self.brokers:
            raise LinkError(f"connection to {url} refused", sent=False)
        return await self.brokers[url](message)


@asynccontextmanager
async def serving(storage: Any, **options: Any) -> AsyncIterator[BrokerQueue]:
    """Use a queue object that serves the others."""
    async with BrokerQueue(storage, **{"clock": VirtualClock(), **options}) as broker:
        broker.offer()
        while broker.storage.handle is None:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        yield broker


class Way:
    """The way of one process to a storage: it counts requests, and can be cut or slow.

    Attributes:
        storage: the storage.
        is_down: True while no request arrives.
        slow: seconds that a write takes longer.
        reads: number of reads.
        writes: number of writes.
    """

    def __init__(self, storage: Any) -> None:
        self.storage, self.is_down, self.slow = storage, False, 0.0
        self.forget()
        for name in {"dial", "dial_url", "take_seat", "broker_epoch", "brokers"} & {*dir(storage)}:
            setattr(self, name, getattr(storage, name))

    @property
    def handle(self) -> Any:
        """What answers messages."""
        return self.storage.handle

    def forget(self) -> None:
        """Count from 0."""
        self.reads = self.writes = 0

    async def read(self) -> Any:
        """Read the object."""
        self.reads += 1
        self._check()
        return await self.storage.read()

    async def read_if_changed(self, etag: str) -> Any:
        """Read the object if it has changed."""
        self.reads += 1
        self._check()
        return await self.storage.read_if_changed(etag)

    async def write(self, content: bytes, if_match: str | None = None) -> Any:
        """Write the object."""
        self.writes += 1
        self._check()
        await asyncio.sleep(self.slow)
        return await self.storage.write(content, if_match)

    def _check(self) -> None:
        if self.is_down:
            raise StorageError("the store cannot be reached from here")


class MemorySeat:
    """The seat of a broker in this process."""

    def __init__(self, storage: SharedMemory) -> None:
        self._storage = storage

    def is_held(self) -> bool:
        """Return True: nobody takes it away."""
        return True

    def abandon(self) -> None:
        """Free the seat."""
        self._storage.handle = None

    async def leave(self) -> None:
        """Free the seat, and end the connections."""
        self._storage.handle = None
        for link in self._storage.links:
            link.close()


class MemoryLink:
    """A connection within this process."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._exchanges: set[asyncio.Future[bytes]] = set()
        self.closed, self.token_hash = False, ""
        self.messages: list[bytes] = []

    async def exchange(self, message: bytes) -> bytes:
        """Have the message answered, in a task of the broker."""
        if self.closed:
            raise LinkError("the connection has ended", sent=False)
        self.messages.append(message)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._exchanges.add(answer)

        def tell(done: asyncio.Future[bytes]) -> None:
            if answer.done() or done.cancelled():
                return
            if (error := done.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(done.result())

        asyncio.ensure_future(self._handle(message)).add_done_callback(tell)
        try:
            return await answer
        finally:
            self._exchanges.discard(answer)

    def close(self) -> None:
        """Cut the connection: the answers under way are lost."""
        self.closed = True
        for answer in self._exchanges:
            if not answer.done():
                answer.set_exception(LinkError("the connection was cut", sent=True))
