"""One long-lived client for each storage object: opened at the first call, shared by later calls, then closed.

Opening a client takes ten times as long as a request, and it belongs to the event loop and the process that opened it.
So each event loop has its own client, and a fork begins with none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from jqueue.ports.log import logger_of
from jqueue.runtime.system import at_fork, process_id

try:
    import ctypes
except ImportError:  # a Python built without it
    ctypes = None  # type: ignore[assignment]

Answer = TypeVar("Answer")
Client = TypeVar("Client")

logger = logger_of("jqueue")


@dataclass(eq=False)
class _Lease:
    """The client of one event loop, opened at its first use, and the number of calls that use it.

    Attributes:
        loop: the event loop.
        opening: held while the client is opened, so that other callers wait.
        manager: opens and closes the client; None while there is no client.
        client: the client.
        users: number of calls under way.
        calls: number of all calls.
        retired: True if there will be no further calls.
    """

    loop: Any
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    manager: Any = None
    client: Any = None
    users: int = 0
    calls: int = 0
    retired: bool = False

    async def close_if_idle(self) -> None:
        """Close the client if it is retired and no call uses it."""
        if self.retired and not self.users and self.manager is not None:
            manager, self.manager = self.manager, None
            await asyncio.shield(asyncio.create_task(_close(manager)))  # also if the last caller is cancelled


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
        served: True once a call has succeeded.
        endpoint: the URL that the clients call, for errors; "" until one was opened.
    """

    served = False
    endpoint = ""

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Client]]) -> None:
        self._connect = connect
        self._leases: dict[tuple[asyncio.AbstractEventLoop, int], _Lease] = {}

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
        is_second_try = False
        while True:
            lease = self._lease()
            try:
                answer = await self._call(lease, work)
            except Exception as error:
                if is_second_try or not is_out_of_date(error):
                    raise
                await self.release(lease)
                if lease.calls == 1:
                    raise
                is_second_try = True
            else:
                self.served = True
                return answer

    async def _call(self, lease: _Lease, work: Callable[[Client], Awaitable[Answer]]) -> Answer:
        lease.users += 1
        lease.calls += 1
        try:
            async with lease.opening:  # if it fails, the next caller tries again
                if lease.manager is None:
                    manager = self._connect()
                    lease.client = await manager.__aenter__()
                    lease.manager = manager
            return await work(lease.client)
        finally:
            lease.users -= 1
            await lease.close_if_idle()

    async def release(self, lease: _Lease | None = None) -> None:
        """Close the client of this event loop once the calls under way have ended. The next call opens another.

        Args:
            lease: the client, if another one may have taken its place.
        """
        key = asyncio.get_running_loop(), process_id()
        current = self._leases.get(key)
        if current is not None and lease in (None, current):
            del self._leases[key]
        lease = lease or current
        if lease is not None:
            lease.retired = True
            await lease.close_if_idle()

    def _lease(self) -> _Lease:
        """Return the client of this event loop. Only its own thread comes to this entry, so no lock is needed."""
        key = asyncio.get_running_loop(), process_id()
        if key not in self._leases:
            for loop, age in list(self._leases):
                if loop.is_closed() or age != process_id():
                    self._leases.pop((loop, age), None)
            _open_ones.add(lease := _Lease(key[0]))
            self._leases[key] = lease
        return self._leases[key]


_open_ones: WeakSet[_Lease] = WeakSet()
"""The clients of this process, including retired ones that are still in use."""

_of_parents: list[_Lease] = []


def _leave_clients_to_parent() -> None:
    """After a fork, never close the parent's clients: it would end their connections in the parent too."""
    leases = list(_open_ones)
    _open_ones.clear()
    for lease in leases:
        lease.users += 1
        with suppress(AttributeError):  # not a generator, or a loop that does not close generators when it ends
            lease.loop._asyncgens.discard(lease.manager.gen)
    _of_parents.extend(leases)
    with suppress(AttributeError):  # on CPython, they are not even collected when the interpreter ends
        for lease in leases:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(lease))


at_fork(_leave_clients_to_parent)
