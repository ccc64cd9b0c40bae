"""`SeatServer`: serves the other processes of a machine from a queue object, through the seat that the store knows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from jqueue.domain.errors import StorageError
from jqueue.ports.sharing import Handle, Seat, SupportsSharing

RETRY = 0.25
"""Seconds between two looks for a free seat."""

REST = 30.0
"""Seconds for which a process that stood still does not offer again, unless it was told to."""

WATCH = 0.5
"""Seconds between two looks of a broker whether it has stood still, or its seat is lost."""


class SeatServer:
    """Serves a queue for other processes while no other process does, until the queue is closed.

    If this process has stood still for a while, it leaves the seat, as its clients have given it up.

    Args:
        storage: has the seat.
        handle: answers the messages of clients.
        rest: see `BrokerServer.rest`.

    Attributes:
        lasting: True to look for a free seat until the queue is closed; False to look once, and to serve once.
        serving: True while this process has the seat.
    """

    def __init__(self, storage: SupportsSharing, handle: Handle, rest: Callable[[float], Awaitable[bool]]) -> None:
        self._storage, self._handle, self._rest = storage, handle, rest
        self._seat: Seat | None = None
        self._closing = False
        self.lasting: bool = False
        self.serving: bool = False
        self._task = asyncio.get_running_loop().create_task(self._serve(), name="jqueue-seat-server")

    @property
    def over(self) -> bool:
        """True if it neither serves nor looks for a free seat any longer."""
        return self._task.done()

    async def _serve(self) -> None:
        try:
            while True:
                with suppress(StorageError):
                    self._seat = await self._storage.take_seat(self._handle)
                stood_still = self._seat is not None and await self._has_stood_still(self._seat)
                await asyncio.sleep(REST if stood_still and not self.lasting else RETRY)
                if not self.lasting:
                    return
        finally:
            if self._seat is not None and not self._closing:  # the event loop ends
                self._seat.abandon()

    async def _has_stood_still(self, seat: Seat) -> bool:
        """Serve until the seat is lost, or this process has stood still. Return True for the latter."""
        self.serving, stood_still = True, False
        while seat.is_held() and not stood_still:
            stood_still = await self._rest(WATCH)
        self.serving = False
        await seat.leave()
        self._seat = None
        return stood_still

    def leave(self) -> None:
        """Stop looking for a free seat, or after the seat."""
        self._closing = True
        self._task.cancel()

    async def left(self) -> None:
        """Free the seat."""
        if self._seat is not None:
            await self._seat.leave()

    def drop(self) -> None:
        """Free the seat once the answers under way are sent, as the queue object is gone."""
        self.leave()
        self._dropped = asyncio.get_running_loop().create_task(self.left(), name="jqueue-seat-server")

    def abandon(self) -> None:
        """Free the seat at once, as the event loop has stopped; in a forked child, leave it to the parent."""
        if self._seat is not None:
            self._seat.abandon()
        with suppress(RuntimeError):  # the event loop is closed
            self._task.cancel()
