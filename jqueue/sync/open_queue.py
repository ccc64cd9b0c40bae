"""An async queue that is open on the background thread from its first call to its last, and its heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Self

from jqueue.core.group_commit import GroupCommitLoop
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import ClaimLostError
from jqueue.domain.models import Job
from jqueue.domain.operations.base import JobReference
from jqueue.domain.segments import Lease
from jqueue.ports.queue import JobQueue
from jqueue.sync.background import Background, Call, CallEnded

DEFAULT_DEADLINE = 30.0
"""Seconds to leave a queue that has no deadline of its own."""

Work = Callable[[JobQueue], Awaitable[Any]]
"""A call of the async queue."""

FindClaims = Callable[[Any], Iterable[Job]]
"""Finds the claimed jobs in the result of a call."""

Kept = JobReference | Lease | Iterable[JobReference | Lease]
"""What heartbeats keep alive: a job, a claim, a lease, an id, or several of them."""


class OpenQueue:
    """One queue on one event loop.

    Args:
        background: the thread that runs the event loop.
        queue: the queue to call; it must not be open elsewhere.

    Attributes:
        deadline: seconds within which it is left, unless the call says otherwise.
    """

    def __init__(self, background: Background, queue: JobQueue) -> None:
        self.queue = queue
        self.beats: set[HeartbeatManager] = set()
        self._background = background
        self._calls: dict[Call[Any], asyncio.Task[Any]] = {}
        self._enter_lock = asyncio.Lock()
        self._entered = False
        self._leaving: asyncio.Task[None] | None = None
        self._left = False
        options = getattr(queue, "options", None)
        self.deadline: float = DEFAULT_DEADLINE if options is None else to_seconds("deadline", options.deadline)
        background.open_queues.add(self)

    # In any thread

    @property
    def takes_calls(self) -> bool:
        """True if it is open, on the thread of this process."""
        return not self._left and self._background.takes_calls

    def run(self, work: Work, *, endless: bool = False, claims: FindClaims | None = None) -> Any:
        """Do `work` with the queue, and wait for it.

        Args:
            work: called with the queue, which is entered.
            endless: True if it may wait for longer than any deadline.
            claims: finds the claimed jobs in the result. They are handed back if the caller no longer waits.

        Raises:
            CallEnded: the queue was left before the call was done.
        """
        give_back = None if claims is None else lambda result: self._give_back(list(claims(result)))
        return self._background.run(Call(lambda: self._do(work), endless=endless, give_back=give_back), self._begin)

    def close(self, deadline: float | None) -> None:
        """Leave the queue, and wait until it is left."""
        with suppress(CallEnded):  # the process ends, and leaves the queue itself
            self._background.run(Call(lambda: self.leave(deadline)), Call.begin)

    def close_soon(self) -> None:
        """Leave the queue, which is no longer used. Never waits, as the garbage collector may call this."""
        with suppress(CallEnded):
            self._background.post(Call(self.leave).begin)

    # On the event loop

    def _begin(self, call: Call[Any]) -> None:
        if self._leaving is not None:
            call.refuse()
            return
        task = self._calls[call] = call.begin()
        task.add_done_callback(lambda _: self._calls.pop(call, None))

    async def _do(self, work: Work) -> Any:
        async with self._enter_lock:
            if not self._entered:
                if isinstance(self.queue, GroupCommitLoop):
                    await self.queue.start()
                elif hasattr(self.queue, "__aenter__"):
                    await self.queue.__aenter__()
                self._entered = True
        return await work(self.queue)

    def _give_back(self, jobs: Sequence[Job]) -> None:
        """Hand back jobs that were claimed after their caller had stopped waiting."""
        if jobs and self._leaving is None:
            self._begin(Call(lambda: self._do(lambda queue: queue.nack_many(jobs, charge=False))))

    async def leave(self, deadline: float | None = None) -> None:
        """Take no more calls, finish those under way, and leave the queue.

        Args:
            deadline: seconds within which this ends; by default, the deadline of the queue.
        """
        if self._leaving is None:
            seconds = self.deadline if deadline is None else deadline
            self._leaving = asyncio.get_running_loop().create_task(self._leave(seconds), name="jqueue-leave")
        await asyncio.shield(self._leaving)

    async def _leave(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        for manager in list(self.beats):
            await self.stop_beating(manager)
        for call, task in self._calls.items():
            if call.endless:
                task.cancel()
        try:
            async with asyncio.timeout_at(until + 2.0), self._enter_lock:
                if self._entered and isinstance(self.queue, GroupCommitLoop):
                    await self.queue.stop(deadline=seconds)
                elif self._entered and hasattr(self.queue, "__aexit__"):
                    await self.queue.__aexit__(None, None, None)
        finally:
            if self._calls:  # calls that do not go through the writer: reads
                await asyncio.wait(self._calls.values(), timeout=max(0.0, until - loop.time()))
            for task in self._calls.values():
                task.cancel()
            self._left = True
            self._background.open_queues.discard(self)

    async def start_beating(self, manager: HeartbeatManager) -> None:
        """Begin the heartbeats of a block."""
        await manager.__aenter__()
        self.beats.add(manager)

    async def stop_beating(self, manager: HeartbeatManager) -> None:
        """End the heartbeats of a block, unless they have ended already."""
        if manager in self.beats:
            self.beats.discard(manager)
            await manager.__aexit__(None, None, None)


class KeepAlive:
    """Sends heartbeats for one or several jobs while a block runs. Made by `SyncQueue.keep_alive`.

        with queue.keep_alive(job) as claim:
            for part in parts:
                if claim.lost:
                    break
                work(part)

    Blocking code cannot be stopped from outside. A block whose claim is lost goes on, and can check `lost`. If it ends
    without an exception of its own, ClaimLostError is raised then. A job that was cancelled counts as lost, with
    JobCancelledError; its claim still holds, and nack ends it.


    Args:
        open_queue: the open queue.
        jobs: a job, a claim, a lease, an id, or several of them.
        interval: time between heartbeats; see `HeartbeatManager`.
    """

    def __init__(self, open_queue: OpenQueue, jobs: Kept, interval: Duration | None = None) -> None:
        self._open_queue = open_queue
        self._manager = HeartbeatManager(open_queue.queue, jobs, interval, on_lost="event")

    @property
    def lost(self) -> bool:
        """True if a claim is lost. From then on another worker may have its job."""
        return self.error is not None

    @property
    def error(self) -> ClaimLostError | None:
        """The error that names the lost claim; None while no claim is lost."""
        return self._manager.error

    def __enter__(self) -> Self:
        self._open_queue.run(lambda _: self._open_queue.start_beating(self._manager))
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        with suppress(CallEnded):  # the queue was left within the block, or this is a fork, whose parent beats
            self._open_queue.run(lambda _: self._open_queue.stop_beating(self._manager))
        if exc_type is None and self.error is not None:
            raise self.error
