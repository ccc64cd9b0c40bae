"""The unfinished calls of one queue object: pending, carried by a commit, or waiting for jobs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from jqueue.core.calls.deadlines import Alarms
from jqueue.core.engine.requests import Request
from jqueue.domain.errors import DeadlineExceededError, QueueClosedError, QueueFullError, StorageError
from jqueue.domain.operations import Operation
from jqueue.domain.printable import counted


class Backlog:
    """Holds every call from its entry to its answer. If it is full, further callers wait in line.

    Args:
        limit: number of pending calls from which on further callers wait in line, first come, first served.
        closed: the reason why no calls are accepted; None while they are.

    Attributes:
        pending: the calls for the next commit, the oldest first.
        carried: the calls in the commit that is under way.
        waiting: the calls that found no job and wait for one.
        alarms: the deadlines of all these calls.
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

    def has_space(self, operations: Sequence[Operation]) -> bool:
        """True if a call can be entered now. A call that only keeps or ends claims always can."""
        return len(self.pending) < self._limit or not any(operation.needs_space for operation in operations)

    async def wait_for_space(self, seconds: float) -> float:
        """Wait in line until there is room, and return the seconds that are left.

        Raises:
            QueueClosedError: the queue takes no calls now.
            QueueFullError: there was no room in time.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while len(self.pending) >= self._limit and self.closed is None:
            try:
                async with asyncio.timeout_at(until):
                    await self._wait_in_line()
            except TimeoutError:
                raise QueueFullError(
                    f"{counted(self._limit, 'call is', 'calls are')} waiting for the store already, and no place "
                    "became free before the deadline: make fewer calls at a time, or set a larger max_pending"
                ) from None
        self.check_open()
        return max(0.0, until - loop.time())

    def check_open(self) -> None:
        """Check that the queue is open.

        Raises:
            QueueClosedError: the queue takes no calls now.
        """
        if self.closed is not None:
            raise QueueClosedError(self.closed)

    def take(self, limit: int) -> list[Request]:
        """Remove the oldest pending calls, and return the ones that have not ended meanwhile."""
        batch: list[Request] = []
        if len(self.pending) <= limit:
            batch = [request for request in self.pending if request.awaited]
            self.pending.clear()
        while self.pending and len(batch) < limit:
            request = self.pending.popleft()
            if request.awaited:
                batch.append(request)
        self._admit(self._limit - len(self.pending))
        return batch

    def drop_ended(self) -> None:
        """Forget the waiting calls that have ended.

        On a closed queue, fail calls that still wait for space in the queue.
        """
        if self.closed is not None:
            for request in self.waiting:
                if isinstance(request.last_error, QueueFullError) and not request.in_flight:
                    request.fail(QueueClosedError(self.closed))
        self.waiting = [request for request in self.waiting if request.awaited]

    def close(self, reason: str) -> None:
        """Take no more calls. From now on, an empty answer is enough for calls that wait for jobs."""
        self.closed = reason
        for request in self.waiting:
            request.stop_waiting()
        for request in (*self.pending, *self.carried):
            request.waits_for_jobs = False

    def fail_all(self, error: BaseException | None) -> None:
        """Fail all calls, as the writer has ended. The error of each says whether it may have been done.

        Args:
            error: the error that ended the writer; None if it was closed.
        """
        requests = list(self)
        self.carried, self.waiting = [], []
        self.pending.clear()
        for request in requests:
            if request.awaited:
                if request.in_flight or request.open_writes:
                    request.fail(request.unknown("the queue's writer ended before the store answered", error))
                elif error is not None:
                    request.fail(StorageError("the queue's writer failed, and nothing was done", error))
                else:
                    request.fail(
                        DeadlineExceededError("the queue was closed before the call was sent, and nothing was done")
                    )
        self._admit(len(self._line))

    async def _wait_in_line(self) -> None:
        """Wait to be let in. Another caller may take the place meanwhile, so the caller must check again."""
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._line:
                self._line.remove(turn)
            self._admit(self._limit - len(self.pending))  # this caller may have been let in already: pass its place on
            raise

    def _admit(self, free: int) -> None:
        """Wake as many callers as there are free places."""
        while free > 0 and self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
