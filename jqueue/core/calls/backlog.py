"""The calls of one queue object that have not ended: pending, carried by a commit, or waiting for jobs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from jqueue.core.calls.deadlines import Alarms
from jqueue.core.engine.requests import Request
from jqueue.domain.errors import DeadlineExceededError, QueueClosedError, QueueFullError, StorageError
from jqueue.domain.operations import Operation


class Backlog:
    """Holds every call from its entry to its answer, and a line of callers in front of it when it is full.

    Args:
        limit: the number of pending calls above which further callers stand in line, first come, first served.
        closed: why no calls are taken; None while they are.

    Attributes:
        pending: the calls for the next commit, the oldest first.
        carried: the calls in the commit that is under way.
        waiting: the calls that found no job and wait for one.
        alarms: the deadlines of all of them.
    """

    def __init__(self, limit: int, closed: str | None = None) -> None:
        self.pending: deque[Request] = deque()
        self.carried: list[Request] = []
        self.waiting: list[Request] = []
        self.alarms = Alarms(self.__iter__)
        self.closed = closed
        self._limit = limit
        self._line: deque[asyncio.Future[None]] = deque()

    def __iter__(self) -> Iterator[Request]:
        yield from self.carried
        yield from self.waiting
        yield from self.pending

    def has_room(self, operations: Sequence[Operation]) -> bool:
        """Whether a call can be entered now. What keeps or ends a claim always can."""
        return len(self.pending) < self._limit or not any(operation.needs_room for operation in operations)

    async def find_room(self, seconds: float) -> float:
        """Stand in line until there is room; returns the seconds that are left.

        Raises:
            QueueClosedError: the queue takes no calls now.
            QueueFullError: there was no room in time.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while len(self.pending) >= self._limit and self.closed is None:
            try:
                async with asyncio.timeout_at(until):
                    await self._turn()
            except TimeoutError:
                raise QueueFullError(
                    f"{self._limit} calls are waiting for the store already, and none was done in time"
                ) from None
        self.check_open()
        return max(0.0, until - loop.time())

    def check_open(self) -> None:
        """Refuse a call to a closed queue.

        Raises:
            QueueClosedError: the queue takes no calls now.
        """
        if self.closed is not None:
            raise QueueClosedError(self.closed)

    def take(self, limit: int) -> list[Request]:
        """Remove the oldest pending calls and return them, without those that have ended meanwhile."""
        batch: list[Request] = []
        while self.pending and len(batch) < limit:
            request = self.pending.popleft()
            if not request.future.done():
                batch.append(request)
        self._let_in(self._limit - len(self.pending))
        return batch

    def drop_ended(self) -> None:
        """Forget the waiting calls that have ended. On a closed queue, calls that need others to make room end too."""
        if self.closed is not None:
            for request in self.waiting:
                if isinstance(request.last_error, QueueFullError) and not request.in_flight:
                    request.fail(QueueClosedError(self.closed))
        self.waiting = [request for request in self.waiting if request.wanted]

    def close(self, reason: str) -> None:
        """Take no more calls. An empty answer is enough for those that wait for jobs."""
        self.closed = reason
        for request in self.waiting:
            request.lose_patience()
        for request in (*self.pending, *self.carried):
            request.patient = False

    def fail_all(self, error: BaseException | None) -> None:
        """Nothing carries calls any more: each ends, with an error that says whether it may have been done.

        Args:
            error: what ended the writer; None if it was closed.
        """
        requests = list(self)
        self.carried, self.waiting = [], []
        self.pending.clear()
        for request in requests:
            if request.wanted:
                if request.in_flight or request.open_tries:
                    request.fail(request.unknown("the queue's writer ended before the store's answer", error))
                elif error is not None:
                    request.fail(StorageError("the queue's writer failed, and nothing was done", error))
                else:
                    request.fail(DeadlineExceededError("the queue was closed, and nothing was done"))
        self._let_in(len(self._line))

    async def _turn(self) -> None:
        """Wait to be let in. Somebody else may take the place in that moment: look again."""
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._line:
                self._line.remove(turn)
            self._let_in(self._limit - len(self.pending))  # it may have been this one's turn already
            raise

    def _let_in(self, free: int) -> None:
        """Wake as many callers as there are free places."""
        while free > 0 and self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
