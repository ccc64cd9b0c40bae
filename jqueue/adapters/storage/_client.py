"""One long-lived client for each storage object: opened at the first call, shared by all that follow, then closed.

A client costs ten times as much to open as a request takes, and belongs to the event loop and the process that opened
it. So there is one for each loop, and a fork begins with none.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

Client = TypeVar("Client")

_of_our_parents: list[Any] = []
"""Clients of the process that we were forked from. Closing one, or letting one be collected, would end its connections
for the parent too."""


class _Lease(Generic[Client]):
    """An open client, and how many calls use it."""

    def __init__(self, client: Client, manager: AbstractAsyncContextManager[Client]) -> None:
        self.client = client
        self.users = 0
        self.retired = False
        self._manager = manager

    async def close_if_idle(self) -> None:
        """Close it if nobody will use it any more."""
        if self.retired and not self.users:
            await self._manager.__aexit__(None, None, None)


class _Home(Generic[Client]):
    """What one event loop has: a client, or none yet."""

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.lease: _Lease[Client] | None = None


class SharedClient(Generic[Client]):
    """Lends a client to one call after the other.

    Args:
        connect: makes a context manager that opens a client, and closes it.

    Attributes:
        opened: how many clients were opened, ever; for tests that count.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Client]]) -> None:
        self.opened = 0
        self._connect = connect
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._homes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Home[Client]] = WeakKeyDictionary()

    def _home(self) -> _Home[Client]:
        if self._pid != os.getpid():
            _of_our_parents.append(dict(self._homes))
            self._begin()
        loop = asyncio.get_running_loop()
        home = self._homes.get(loop)
        if home is None:
            home = self._homes[loop] = _Home()
        return home

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Client]:
        """The client of this event loop, for one call."""
        home = self._home()
        lease = home.lease
        if lease is None:
            async with home.opening:
                lease = home.lease
                if lease is None:
                    manager = self._connect()
                    lease = home.lease = _Lease(await manager.__aenter__(), manager)
                    self.opened += 1
        lease.users += 1
        try:
            yield lease.client
        finally:
            lease.users -= 1
            await lease.close_if_idle()

    async def release(self) -> None:
        """Close the client of this event loop once the calls under way have ended. The next call opens another."""
        home = self._home()
        lease, home.lease = home.lease, None
        if lease is not None:
            lease.retired = True
            await lease.close_if_idle()
