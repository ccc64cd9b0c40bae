"""Shared by the parts of the worker contract: running workers, and watching them from outside."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from jqueue.domain.models import Job, JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory
from jqueue.worker.handler_options import HandlerArguments
from jqueue.worker.report import RunReport
from jqueue.worker.retries import Exponential
from jqueue.worker.worker import Worker

__all__ = ["AT_ONCE", "MANY_BEATS", "Gate", "QueueFactory", "WorkerContractBase"]

AT_ONCE = Exponential(base=0.001, cap=0.001)
"""A backoff too short to notice."""

MANY_BEATS = 12.0
"""Lifetime, in moments, of a claim that heartbeats must keep even if a slow machine misses some."""


class Gate:
    """A place in which handlers wait for the test, and the test waits for handlers.

    Attributes:
        running: number of handlers inside.
        peak: largest number of handlers that were inside at the same time.
        entered: number of handlers that have come in.
    """

    def __init__(self, *, is_open: bool = False) -> None:
        self.running = self.peak = self.entered = 0
        self._is_open = asyncio.Event()
        self._changed = asyncio.Condition()
        if is_open:
            self.open()

    def open(self) -> None:
        """Let all handlers through, from now on."""
        self._is_open.set()

    async def through(self) -> None:
        """Enter, wait until the gate is open, and leave."""
        self.running += 1
        self.entered += 1
        self.peak = max(self.peak, self.running)
        try:
            await self._tell()
            await self._is_open.wait()
        finally:
            self.running -= 1

    async def until_entered(self, count: int = 1) -> None:
        """Wait until `count` handlers have entered."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.entered >= count)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def message_of(job: Job) -> str:
    """Return the error of a job without the file and line that its worker adds if the error was raised."""
    return re.sub(r" \(\S+:\d+\)$", "", job.error or "")


class WorkerContractBase(QueueContractBase):
    """Settings of the contract that a user's class may change, and helpers that run workers.

    Attributes:
        worker_kind: class of the workers.
    """

    worker_kind: Callable[..., Worker] = Worker

    def new_worker(self, **options: Any) -> Worker:
        """Return a new worker."""
        return type(self).worker_kind(**options)

    async def drain(self, worker: Worker, queue: JobQueue) -> RunReport:
        """Run a worker until nothing is ready, and return its report."""
        return await worker.run(queue, drain=True, signals=False)

    @asynccontextmanager
    async def working(self, worker: Worker, queue: JobQueue) -> AsyncIterator[asyncio.Task[RunReport]]:
        """Run a worker during the block, and stop it afterwards."""
        task = asyncio.create_task(worker.run(queue, signals=False))
        try:
            yield task
            worker.stop()
            await task
        finally:
            if not task.done():
                worker.stop()
                worker.stop()
                task.cancel()
                await asyncio.wait([task])

    async def enqueue_all(self, queue: JobQueue, entrypoint: str, payloads: Iterable[bytes]) -> None:
        """Enqueue one job for each payload, in one commit if the queue can do that."""
        if queue.capabilities.transactions:
            await queue.enqueue_many([Enqueue(entrypoint, payload) for payload in payloads])
            return
        for payload in payloads:
            await queue.enqueue(entrypoint, payload)

    async def in_progress(self, queue: JobQueue) -> int:
        """Return the number of claimed jobs."""
        return len((await queue.read_state()).in_progress_jobs())

    async def until_empty(self, queue: JobQueue) -> None:
        """Wait until no job is left. A listing of a folder may miss a file that is renamed meanwhile: look twice."""

        async def is_empty() -> bool:
            return not (await queue.read_state()).jobs and not (await queue.read_state()).jobs

        await self.until(is_empty)

    async def until_is(self, queue: JobQueue, job: Job, status: JobStatus) -> Job:
        """Wait until a job has a status, and return the job."""

        async def is_so() -> bool:
            return (await self.held(queue, job)).status is status

        await self.until(is_so)
        return await self.held(queue, job)

    def collector(self, worker: Worker, entrypoint: str = "work", **options: Any) -> Counter[bytes]:
        """Register a handler that counts the jobs it got, by payload."""
        seen: Counter[bytes] = Counter()
        arguments: HandlerArguments = options  # type: ignore[assignment]

        @worker.handler(entrypoint, **arguments)
        async def collect(payload: bytes) -> None:
            seen[payload] += 1
            await asyncio.sleep(0)

        return seen
