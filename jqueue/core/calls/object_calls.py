"""The calls of a queue object that store or load objects at the moment, so that a queue that closes can end them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from jqueue.domain.errors import JQueueError

Answer = TypeVar("Answer")


class ObjectCalls:
    """Work on objects, each for one call."""

    def __init__(self) -> None:
        self._storing: set[asyncio.Task[Any]] = set()
        self._loading: set[asyncio.Task[Any]] = set()

    async def store(self, work: Coroutine[Any, Any, Answer], ended: JQueueError) -> Answer:
        """Store the objects of a call that is not committed yet.

        Args:
            work: stores them.
            ended: raised if the queue closes meanwhile.
        """
        return await self._run(work, self._storing, ended)

    async def load(self, work: Coroutine[Any, Any, Answer], ended: JQueueError) -> Answer:
        """Load the objects of a call that is committed; the arguments are as in `store`."""
        return await self._run(work, self._loading, ended)

    async def _run(
        self, work: Coroutine[Any, Any, Answer], tasks: set[asyncio.Task[Any]], ended: JQueueError
    ) -> Answer:
        task = asyncio.create_task(work)
        tasks.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and caller is not None and not caller.cancelling():
                raise ended from None
            raise
        finally:
            tasks.discard(task)

    async def end_storing(self) -> None:
        """End all work that stores: the calls are not done."""
        await _ended(self._storing)

    async def end_loading(self, until: float) -> None:
        """Wait for all work that loads, until a time on the clock of the event loop, and then end it."""
        if self._loading:
            await asyncio.wait(list(self._loading), timeout=max(0.0, until - asyncio.get_running_loop().time()))
        await _ended(self._loading)


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    several = list(tasks)
    for task in several:
        task.cancel()
    if several:
        await asyncio.wait(several)
        await asyncio.sleep(0)  # lets the calls end
