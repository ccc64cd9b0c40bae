"""Queues in memory and virtual time, and functions that wait for a condition, for the tests of the worker."""

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage
from jqueue.domain.job import JobStatus
from jqueue.testing.faults import FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Exponential, Worker
from tests.virtual_world import now

SECRET = "S3CR3T-MARKER"

LONG = Exponential(base=1e6, cap=1e6)
"""Backoff longer than any test waits, but for one draw in a million."""

DEAD, QUEUED, IN_PROGRESS, COMPLETED = JobStatus.DEAD, JobStatus.QUEUED, JobStatus.IN_PROGRESS, JobStatus.COMPLETED


def counted(latency=0.0, memory=None):
    """Return a store in memory that counts its reads and writes, each of which takes `latency` seconds."""
    return FaultyStorage(memory or InMemoryStorage(clock=VirtualClock()), latency=latency)


def broker(storage=None, kind=BrokerQueue, **options):
    return kind(storage or InMemoryStorage(clock=VirtualClock()), clock=VirtualClock(), **options)


def direct(storage=None, **options):
    return broker(storage, DirectQueue, **options)


class FailingQueue(BrokerQueue):
    """A queue whose verbs fail as ordered.

    Attributes:
        calls: the times of the calls of each verb that was ordered to fail.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.calls = {}
        self._orders = {}

    def fail(self, verb, error, *, times=math.inf, until=math.inf, after=False):
        """Let the next calls of a verb fail, as often and as long as given; `after` they have done their work."""
        self._orders[verb] = [error, times, until, after]
        self.calls.setdefault(verb, [])

    async def _answer(self, verb, call):
        order = self._orders.get(verb)
        if order is None:
            return await call
        self.calls[verb].append(now())
        error, times, until, after = order
        if times <= 0 or now() >= until:
            return await call
        order[1] -= 1
        if after:
            await call
        call.close()
        raise error

    def dequeue(self, *arguments, **options):
        return self._answer("dequeue", super().dequeue(*arguments, **options))

    def apply_each(self, *operations, **options):
        return self._answer("apply_each", super().apply_each(*operations, **options))

    def heartbeat_many(self, *arguments, **options):
        return self._answer("heartbeat_many", super().heartbeat_many(*arguments, **options))

    def apply(self, *operations, **options):
        return self._answer("apply", super().apply(*operations, **options))


@asynccontextmanager
async def working(worker, *queues, **options):
    """Run a worker during the block, and stop it afterwards. Yields the task, whose result is the report."""
    task = asyncio.create_task(worker.run(*queues, signals=False, **options))
    try:
        yield task
    finally:
        if not task.done():
            worker.stop()
            await task


async def drained(worker, *queues):
    """Run a worker until nothing is ready, and return its report."""
    return await worker.run(*queues, drain=True, signals=False)


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


class NoThreads(ThreadPoolExecutor):
    """The executor of an event loop whose program takes all of its threads."""

    def submit(self, *_, **__):
        raise RuntimeError("the threads of the program are its own")


def stubborn(timeout=10, **options):
    """A worker whose handler of "work" ignores cancellation until an event is set, and that event."""
    worker, over = Worker(**options), asyncio.Event()

    @worker.handler("work", timeout=timeout, max_attempts=1)
    async def work() -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    return worker, over
