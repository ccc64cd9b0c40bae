"""One long-lived client for each storage object: opened at the first call, shared by all that follow, then closed.

A client costs ten times as much to open as a request takes, and belongs to the event loop and the process that opened
it. So there is one for each loop, and a fork begins with none.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from jqueue.ports.log import logger_of

try:
    import ctypes
except ImportError:  # a Python that was built without it
    ctypes = None  # type: ignore[assignment]

Client = TypeVar("Client")

logger = logger_of("jqueue")


class _Lease(Generic[Client]):
    """The client of one event loop, opened when it is first asked for, and how many calls use it.

    Args:
        connect: makes a context manager that opens a client, and closes it.
        opened: called when a client was opened.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Client]], opened: Callable[[], None]) -> None:
        self.users = 0
        self._retired = False
        self._connect = connect
        self._opened = opened
        self._loop: Any = asyncio.get_running_loop()
        self._opening = asyncio.Lock()
        self._manager: Any = None  # while the client is open
        self._closing: asyncio.Task[None] | None = None
        self._client: Client

    async def client(self) -> Client:
        """The client. Whoever comes while it is opened waits, and opens it if that has failed."""
        async with self._opening:
            if self._manager is None:
                manager = self._connect()
                self._client = await manager.__aenter__()
                self._manager = manager
                self._opened()
            return self._client

    async def retire(self) -> None:
        """Close the client once nobody uses it. There will be no more calls than the ones under way."""
        self._retired = True
        await self.close_if_idle()

    async def close_if_idle(self) -> None:
        """Close the client if nobody will use it any more."""
        if self._retired and not self.users and self._manager is not None:
            manager, self._manager = self._manager, None
            self._closing = asyncio.create_task(_close(manager))
            await asyncio.shield(self._closing)  # it is closed although whoever is the last to leave is cancelled

    def leave_to_parent(self) -> None:
        """Never close the client here: the parent uses it."""
        self.users += 1
        with suppress(AttributeError):  # no generator, or a loop that does not close them where it ends
            self._loop._asyncgens.discard(self._manager.gen)


async def _close(manager: AbstractAsyncContextManager[Any]) -> None:
    try:
        await manager.__aexit__(None, None, None)
    except Exception as error:  # no reason to say that the last call failed: its answer has come
        logger.warning("The client of a store could not be closed: %s", type(error).__name__)


class SharedClient(Generic[Client]):
    """Lends a client to one call after the other. It may be shared by threads, event loops and forks.

    Args:
        connect: makes a context manager that opens a client, and closes it. A generator is best, since `asyncio.run`
            closes generators where it ends: the client that nobody has released, too.

    Attributes:
        opened: how many clients were opened in this process, for tests that count.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Client]]) -> None:
        self._connect = connect
        self._begin()
        _everyone.add(self)

    def _begin(self) -> None:
        self.opened = 0
        self._leases: dict[asyncio.AbstractEventLoop, _Lease[Client]] = {}
        self._living: WeakSet[_Lease[Client]] = WeakSet()  # the retired ones that are still in use, too
        self._changing = threading.Lock()

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Client]:
        """The client of this event loop, for one call."""
        lease = self._lease()
        lease.users += 1
        try:
            yield await lease.client()
        finally:
            lease.users -= 1
            await lease.close_if_idle()

    async def release(self) -> None:
        """Close the client of this event loop once the calls under way have ended. The next call opens another."""
        with self._changing:
            lease = self._leases.pop(asyncio.get_running_loop(), None)
        if lease is not None:
            await lease.retire()

    def _lease(self) -> _Lease[Client]:
        loop = asyncio.get_running_loop()
        with self._changing:
            if loop not in self._leases:
                for ended in [other for other in self._leases if other.is_closed()]:
                    del self._leases[ended]
                self._leases[loop] = _Lease(self._connect, self._count)
                self._living.add(self._leases[loop])
            return self._leases[loop]

    def _count(self) -> None:
        self.opened += 1

    def leave_to_parent(self) -> None:
        """We were forked: have no client, and never close the parent's, which would end its connections for it too."""
        leases = list(self._living)
        for lease in leases:
            lease.leave_to_parent()
        if leases:
            _keep_for_ever(leases)
        self._begin()


_everyone: WeakSet[SharedClient[Any]] = WeakSet()
_kept: list[Any] = []


def _keep_for_ever(kept: object) -> None:
    """Have an object, and what it refers to, never collected: if possible, not even when the interpreter ends."""
    _kept.append(kept)
    with suppress(AttributeError):  # no CPython
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _leave_all_to_parent() -> None:
    for shared in list(_everyone):
        shared.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)
