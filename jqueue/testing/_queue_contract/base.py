"""Shared by the parts of the queue contract: making queue objects, and observing time, writes and errors."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import CASConflictError
from jqueue.domain.models import Claim, Job
from jqueue.ports.queue import JobQueue
from jqueue.ports.storage import ObjectStoragePort
from jqueue.testing.storage_contract import StorageFactory

QueueFactory = Callable[..., JobQueue | Awaitable[JobQueue]]
"""Makes one more queue object on the queue of a test; takes `limits` and `clock` by name, as the queues do."""


def ids(jobs: Iterable[Job]) -> list[str]:
    """Return the ids of jobs, in their order."""
    return [job.id for job in jobs]


@pytest.mark.asyncio
class QueueContractBase:
    """Settings of the contract that a user's class may change, and helpers for its tests.

    Attributes:
        kind: class of the queue that the default `make_queue` makes from a storage.
        moment: seconds that are long for the store and short for people: used for delays and timeouts that must pass.
        patience: seconds after which a test counts as hung.
        cancellations: number of moments at which a call is cancelled.
    """

    kind: Callable[..., Any] = DirectQueue
    moment = 0.25
    patience = 60.0
    cancellations = 30

    @pytest.fixture
    def make_storage(self) -> StorageFactory:
        raise NotImplementedError(
            "give the subclass a fixture `make_storage`, as for StorageContract, or a fixture `make_queue`"
        )

    @pytest.fixture
    def make_queue(self, make_storage: StorageFactory) -> QueueFactory:
        kind = type(self).kind

        async def open_queue(**options: Any) -> JobQueue:
            made = make_storage()
            queue: JobQueue = kind(await made if inspect.isawaitable(made) else made, **options)
            return queue

        return open_queue

    @asynccontextmanager
    async def queues(
        self, make_queue: QueueFactory, count: int = 1, needs: Iterable[str] = (), **options: Any
    ) -> AsyncIterator[list[JobQueue]]:
        """Open `count` queue objects on the queue of this test, and allow `patience` seconds to use them.

        Args:
            make_queue: the fixture.
            count: number of queue objects.
            needs: capabilities that the test needs; without them it is skipped.
            options: options for `make_queue`.
        """
        async with asyncio.timeout(self.patience), AsyncExitStack() as closing:
            opened = []
            for _ in range(count):
                made = make_queue(**options)
                queue = await made if inspect.isawaitable(made) else made
                missing = sorted(set(needs) & set(queue.capabilities.missing))
                if missing:
                    pytest.skip(f"this queue does not support {', '.join(missing)}")
                if isinstance(queue, AbstractAsyncContextManager):
                    await closing.enter_async_context(queue)
                opened.append(queue)
            yield opened

    def storage_of(self, queue: JobQueue) -> ObjectStoragePort:
        """Return the storage of the blob, or skip the test if the queue does not have one."""
        storage = getattr(queue, "storage", None)
        if not isinstance(storage, ObjectStoragePort):
            pytest.skip("this queue is not one object in a store")
        return storage

    async def fingerprint(self, queue: JobQueue) -> object:
        """Return a value that changes with every write: the object with its etag, or else the state."""
        storage = getattr(queue, "storage", None)
        return await storage.read() if isinstance(storage, ObjectStoragePort) else await queue.read_state()

    async def rewrite(self, queue: JobQueue, change: Callable[[bytes], bytes]) -> None:
        """Change the blob by hand, beside the queue."""
        storage = self.storage_of(queue)
        while True:
            content, etag = await storage.read()
            changed = change(content)
            assert changed != content, "the edit must change the blob"
            try:
                await storage.write(changed, etag)
            except CASConflictError:
                continue
            return

    async def until(self, condition: Callable[[], Awaitable[object]]) -> None:
        """Check a condition again and again until it holds. The test's time limit ends the wait otherwise."""
        while not await condition():  # noqa: ASYNC110 - what is waited for happens in the store
            await asyncio.sleep(self.moment / 10)

    async def one_job(self, queue: JobQueue, **arguments: Any) -> Job:
        """Enqueue and claim one job."""
        await queue.enqueue("work", b"payload", **arguments)
        [job] = await queue.dequeue("work")
        return job

    async def expiring_job(self, queue: JobQueue, **arguments: Any) -> tuple[Job, datetime]:
        """Enqueue a job that expires, and claim it before it does. Return the job and the time of its expiry."""
        margin = self.moment
        while True:  # on a slow machine the job may expire too soon: then try a longer time
            expiry = await self.time(queue) + timedelta(seconds=margin)
            await queue.enqueue("work", b"payload", expires_at=expiry, **arguments)
            if jobs := await queue.dequeue("work"):
                return jobs[0], expiry
            margin *= 4

    async def time(self, queue: JobQueue) -> datetime:
        """Return the time by the queue's clock."""
        return (await queue.enqueue("clock", b"")).created_at

    async def until_after(self, queue: JobQueue, time: datetime) -> None:
        """Wait until the queue's clock is past a time."""

        async def is_past() -> bool:
            return await self.time(queue) > time

        await self.until(is_past)

    async def lost_claim(self, queue: JobQueue, operator: JobQueue, **arguments: Any) -> Job:
        """Return a job with a revoked claim, as its former holder knows it. No worker holds it now."""
        job = await self.one_job(queue, **arguments)
        assert await operator.requeue_stale(0) == 1
        return job

    async def find(self, queue: JobQueue, job: Job | Claim | str) -> Job | None:
        """Return the job as the queue holds it now; None if it has left."""
        job_id = job if isinstance(job, str) else job.id if isinstance(job, Job) else job.job_id
        return (await queue.read_state()).find(job_id)

    async def held(self, queue: JobQueue, job: Job | Claim | str) -> Job:
        """Return the job as the queue holds it now, and fail if it has left."""
        found = await self.find(queue, job)
        assert found is not None, "the job is no longer in the queue"
        return found
