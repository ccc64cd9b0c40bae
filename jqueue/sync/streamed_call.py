"""A call on the background thread that takes items from an iterator of the caller's thread, a piece at a time.

The iterator may belong to that thread, as a database cursor does, and it may have more items than memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from jqueue.ports.queue import JobQueue

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class StreamedCall(Generic[Item, Answer]):
    """One call. All methods run on the event loop.

    Args:
        call: takes the queue, and an async iterator of the items.
    """

    def __init__(self, call: Callable[[JobQueue, AsyncIterator[Item]], Awaitable[Answer]]) -> None:
        self._call = call
        self._task: asyncio.Task[Answer] | None = None

    @property
    def ended(self) -> bool:
        """True once the call has ended."""
        return self._task is not None and self._task.done()

    async def give(self, queue: JobQueue, piece: list[Item]) -> None:
        """Give the next items, and wait until the call has taken them or has ended. No items are the end."""
        if self._task is None:
            self._pieces: asyncio.Queue[list[Item]] = asyncio.Queue(1)
            self._hungry = asyncio.Event()
            self._task = asyncio.create_task(self._run(queue))
        self._hungry.clear()
        self._pieces.put_nowait(piece)
        waiting = asyncio.create_task(self._hungry.wait())
        try:
            await asyncio.wait({self._task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.cancel()
            raise
        finally:
            waiting.cancel()

    async def cancel(self) -> None:
        """End the call: its caller wants no answer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def answer(self) -> Answer:
        """Return the answer of the call, or raise its error."""
        assert self._task is not None  # items were given
        return await self._task

    async def _run(self, queue: JobQueue) -> Answer:
        return await self._call(queue, self._items())

    async def _items(self) -> AsyncIterator[Item]:
        while piece := await self._pieces.get():
            for item in piece:
                yield item
            self._hungry.set()
