"""One long-lived client for each storage object: opened at the first call, shared by later calls, then closed.

Opening a client takes ten times as long as a request, and it belongs to the event loop and the process that opened it.
So each event loop has its own client, and a fork begins with none.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from jqueue.ports.log import logger_of

try:
    import ctypes
except ImportError:  # a Python built without it
    ctypes = None  # type: ignore[assignment]

Answer = TypeVar("Answer")
Client = TypeVar("Client")

logger = logger_of("jqueue")


class _Lease(Generic[Client]):
    """The client of one event loop, opened at its first use, and the number of calls that use it.

    Args:
        connect: makes a context manager that opens and closes a client.
        opened: called when a client was opened.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Client]], opened: Callable[[], None]) -> None:
        self.users = 0
        self.calls = 0
        self._retired = False
        self._connect = connect
        self._opened = opened
        self._loop: Any = asyncio.get_running_loop()
        self._opening = asyncio.Lock()
        self._manager: Any = None  # while the client is open
        self._closing: asyncio.Task[None] | None = None
        self._client: Client

    async def client(self) -> Client:
        """Return the client. Callers wait while it is being opened, and the next one tries again if that fails."""
        async with self._opening:
            if self._manager is None:
                manager = self._connect()
                self._client = await manager.__aenter__()
                self._manager = manager
                self._opened()
            return self._client

    async def retire(self) -> None:
        """Close the client once the calls under way have ended. There will be no further calls."""
        self._retired = True
        await self.close_if_idle()

    async def close_if_idle(self) -> None:
        """Close the client if it is retired and no call uses it."""
        if self._retired and not self.users and self._manager is not None:
            manager, self._manager = self._manager, None
            self._closing = asyncio.create_task(_close(manager))
            await asyncio.shield(self._closing)  # it is closed even if the last caller is cancelled

    def leave_to_parent(self) -> None:
        """Never close the client in this process: the parent uses it."""
        self.users += 1
        with suppress(AttributeError):  # not a generator, or a loop that does not close generators when it ends
            self._loop._asyncgens.discard(self._manager.gen)


async def _close(manager: AbstractAsyncContextManager[Any]) -> None:
    try:
        await manager.__aexit__(None, None, None)
    except Exception as error:  # the last call has not failed: its answer has come
        logger.warning("The client of a store could not be closed: %s", type(error).__name__)


class SharedClient(Generic[Client]):
    """Lends a client to one call after the other. Threads, event loops and forks may share it.

    Args:
        connect: makes a context manager that opens and closes a client. A generator is best, since `asyncio.run` closes
            generators when it ends, and with them a client that was not released.

    Attributes:
        opened: number of clients that were opened in this process, for tests that count them.
        served: True once a call has succeeded.
        endpoint: the URL that the clients call, for errors; "" until one was opened.
    """

    served = False
    endpoint = ""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Client]]) -> None:
        self._connect = connect
        self._begin()
        _everyone.add(self)

    def _begin(self) -> None:
        self.opened = 0
        self._leases: dict[asyncio.AbstractEventLoop, _Lease[Client]] = {}
        self._living: WeakSet[_Lease[Client]] = WeakSet()  # including retired leases that are still in use
        self._changing = threading.Lock()

    async def call(
        self, work: Callable[[Client], Awaitable[Answer]], is_out_of_date: Callable[[Exception], bool]
    ) -> Answer:
        """Make a call with the client of this event loop, and return its answer.

        A client that is out of date is used no more. If this was not its first call, the call is made once more, with
        another client.

        Args:
            work: makes the call.
            is_out_of_date: returns True for an error that another client may not get, as it reads the credentials anew.
        """
        lease = self._lease()
        try:
            async with self._lent(lease) as client:
                answer = await work(client)
        except Exception as error:
            if not is_out_of_date(error):
                raise
            await self._retire(lease)
            if lease.calls == 1:
                raise
        else:
            self.served = True
            return answer
        async with self.lend() as client:
            answer = await work(client)
        self.served = True
        return answer

    def lend(self) -> AbstractAsyncContextManager[Client]:
        """Lend the client of this event loop to one call."""
        return self._lent(self._lease())

    @asynccontextmanager
    async def _lent(self, lease: _Lease[Client]) -> AsyncIterator[Client]:
        lease.users += 1
        lease.calls += 1
        try:
            yield await lease.client()
        finally:
            lease.users -= 1
            await lease.close_if_idle()

    async def release(self) -> None:
        """Close the client of this event loop once the calls under way have ended. The next call opens another."""
        lease = self._leases.get(asyncio.get_running_loop())
        if lease is not None:
            await self._retire(lease)

    async def _retire(self, lease: _Lease[Client]) -> None:
        """Lend the client of this lease to no further call."""
        loop = asyncio.get_running_loop()
        with self._changing:
            if self._leases.get(loop) is lease:
                del self._leases[loop]
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
        """After a fork: begin without a client. Closing the parent's would end its connections in the parent too."""
        leases = list(self._living)
        for lease in leases:
            lease.leave_to_parent()
        if leases:
            _keep_for_ever(leases)
        self._begin()


_everyone: WeakSet[SharedClient[Any]] = WeakSet()
_kept: list[Any] = []


def _keep_for_ever(kept: object) -> None:
    """Keep an object and all that it refers to from being collected: on CPython, even when the interpreter ends."""
    _kept.append(kept)
    with suppress(AttributeError):  # not CPython
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _leave_clients_to_parent() -> None:
    for shared in list(_everyone):
        shared.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_clients_to_parent)
