"""`KeepAlive`: heartbeats from the background thread, while a block of blocking code works on its jobs."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Self

from jqueue.core.heartbeat import HeartbeatManager
from jqueue.domain.durations import Duration
from jqueue.domain.errors import ClaimLostError
from jqueue.domain.operations.base import JobReference
from jqueue.domain.segments import RangeClaim
from jqueue.ports.queue import Consumer
from jqueue.sync.calls import CallEnded
from jqueue.sync.open_queue import OpenQueue


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

    A cancelled job of a range is no loss. `cancelled` has its id, so that the block can leave it out.

    Args:
        open_queue: the open queue.
        jobs: a job, a claim, the claim of a range, an id, or several of them.
        interval: time between heartbeats; see `HeartbeatManager`.
    """

    def __init__(
        self,
        open_queue: OpenQueue,
        jobs: JobReference | RangeClaim | Iterable[JobReference | RangeClaim],
        interval: Duration | None = None,
    ) -> None:
        self._open_queue = open_queue
        self._jobs = jobs
        self._interval = interval
        self._manager: HeartbeatManager | None = None

    @property
    def lost(self) -> bool:
        """True if a claim is lost. From then on another worker may have its job."""
        return self.error is not None

    @property
    def error(self) -> ClaimLostError | None:
        """The error that names the lost claim; None while no claim is lost."""
        return None if self._manager is None else self._manager.error

    @property
    def cancelled(self) -> frozenset[str]:
        """Ids of the jobs of ranges that were cancelled, as far as heartbeats have told: see `HeartbeatManager`."""
        return frozenset() if self._manager is None else self._manager.cancelled

    def __enter__(self) -> Self:
        self._manager = self._open_queue.run(self._start)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        manager = self._manager
        assert manager is not None
        with suppress(CallEnded):  # the queue was left within the block, or this is a fork, whose parent beats
            self._open_queue.run(lambda _: self._open_queue.stop_beating(manager))
        if exc_type is None and self.error is not None:
            raise self.error

    async def _start(self, queue: Consumer) -> HeartbeatManager:
        manager = HeartbeatManager(queue, self._jobs, self._interval, on_lost="event")
        await manager.__aenter__()
        self._open_queue.beats.add(manager)
        return manager
