"""The line in front of a buffer that is full: who comes first gets the first place that becomes free."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sized


class Room:
    """Room in a buffer, and those who wait for it.

    Args:
        limit: how much the buffer may hold.
        buffer: that which is bounded.
    """

    def __init__(self, limit: int, buffer: Sized) -> None:
        self._limit = limit
        self._buffer = buffer
        self._line: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._line)

    def is_full(self) -> bool:
        """Whether nobody can enter now."""
        return len(self._buffer) >= self._limit

    async def wait(self) -> None:
        """Wait for one's turn. It may be taken by somebody else in that moment: look again."""
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._line:
                self._line.remove(turn)
            self.let_in()  # it may have been this one's turn already
            raise

    def let_in(self) -> None:
        """Wake as many as there is room for."""
        free = self._limit - len(self._buffer) if self._line else 0
        while free > 0 and self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1

    def let_all_go(self) -> None:
        """There is nothing to wait for any more."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
