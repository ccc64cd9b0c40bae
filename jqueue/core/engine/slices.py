"""Long work in slices on an event loop, which gets a turn between them, and perhaps time for a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from jqueue.domain.slices import Result, Slices

LONGEST_WAIT = 0.005
"""Seconds for which a slice of work that can wait is put off at most. A commit on a file is mostly faster."""

Turn = Callable[[], Awaitable[None]]
"""Called between two slices."""


async def one_turn() -> None:
    """Give the event loop one turn."""
    await asyncio.sleep(0)


async def in_turns(slices: Slices[Result], turn: Turn = one_turn) -> Result:
    """Run the slices, with a turn of the event loop between them, and return the result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: Result = end.value
            return result
        await turn()


class SpareTurns:
    """Turns for work that can wait: it stands back while a commit is written.

    A write in a thread needs the interpreter's lock after each of its system calls, some twenty times. If the event
    loop were busy meanwhile, the write would wait for a slice each time, and all its callers with it.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the write under way: it belongs to another event loop, or to the process before a fork."""
        self._written: asyncio.Future[None] | None = None

    def begin_write(self) -> asyncio.Future[None]:
        """Note that a commit is being written. The caller must pass the result to `end_write`."""
        self._written = asyncio.get_running_loop().create_future()
        return self._written

    def end_write(self, written: asyncio.Future[None]) -> None:
        """Note that the write has ended."""
        if self._written is written:
            self._written = None
        written.set_result(None)

    async def next(self) -> None:
        """Give the event loop a turn, and wait for the end of a write, for some milliseconds at most."""
        await one_turn()
        if self._written is not None:
            await asyncio.wait([self._written], timeout=LONGEST_WAIT)
