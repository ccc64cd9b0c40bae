"""Queues in memory and virtual time, and functions that wait for a condition, for the tests of the worker."""

import asyncio
from contextlib import asynccontextmanager

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.models import JobStatus
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Exponential

SECRET = "S3CR3T-MARKER"

LONG = Exponential(base=1e6, cap=1e6)
"""Backoff longer than any test waits, but for one draw in a million."""


class CountingStorage:
    """A store in memory that counts its reads and writes, each of which takes `latency` seconds."""

    def __init__(self, latency=0.0):
        self.memory = InMemoryStorage(clock=VirtualClock())
        self.latency = latency
        self.reads = self.writes = 0

    async def read(self):
        self.reads += 1
        await asyncio.sleep(self.latency)
        return await self.memory.read()

    async def write(self, content, if_match=None):
        self.writes += 1
        await asyncio.sleep(self.latency)
        return await self.memory.write(content, if_match)


def broker(storage=None, **options):
    return BrokerQueue(storage or InMemoryStorage(clock=VirtualClock()), clock=VirtualClock(), **options)


def direct(storage=None, **options):
    return DirectQueue(storage or InMemoryStorage(clock=VirtualClock()), clock=VirtualClock(), **options)


@asynccontextmanager
async def working(worker, queue, **options):
    """Run a worker during the block, and stop it afterwards. Yields the task, whose result is the report."""
    task = asyncio.create_task(worker.run(queue, signals=False, **options))
    try:
        yield task
    finally:
        if not task.done():
            worker.stop()
            await task


async def only_job(queue):
    """The only job of a queue."""
    [job] = (await queue.read_state()).jobs
    return job


async def until(condition):
    """Wait, in virtual time, until the condition is true."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition never became true")


async def until_job(queue, **fields):
    """Wait until a queue has a single job with these fields."""
    for _ in range(10_000):
        jobs = (await queue.read_state()).jobs
        if len(jobs) == 1 and all(getattr(jobs[0], name) == value for name, value in fields.items()):
            return jobs[0]
        await asyncio.sleep(0.01)
    raise AssertionError(f"no such job: {fields}")


def statuses(state):
    return sorted(job.status for job in state.jobs)


DEAD, QUEUED, IN_PROGRESS, COMPLETED = JobStatus.DEAD, JobStatus.QUEUED, JobStatus.IN_PROGRESS, JobStatus.COMPLETED
