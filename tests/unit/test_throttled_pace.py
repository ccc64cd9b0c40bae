"""A store that takes one write a second: calls share commits, few writes are refused, and no call waits too long."""

import asyncio
import math
import random
from contextlib import AsyncExitStack

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import StorageThrottledError
from jqueue.domain.operations.operator import CreateQueue
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Worker
from tests.shared_memory import SharedMemory
from tests.simulation.workload import SeededEntropy
from tests.virtual_world import now

pytestmark = pytest.mark.virtual_time

both = pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])


class ThrottledStorage:
    """A store in memory that takes one write in `every` seconds, refuses the others, and counts its requests.

    A write that comes in time lands or meets a conflict. Only a write that lands delays the next one.
    """

    def __init__(self, every=1.0, latency=0.02):
        self.memory = InMemoryStorage(clock=VirtualClock())
        self.every = every
        self.latency = latency
        self.last = -math.inf
        self.forget()

    def forget(self):
        self.reads = self.writes = self.refused = self.landed = 0

    @property
    def share_refused(self):
        return self.refused / self.writes

    async def read(self):
        self.reads += 1
        await asyncio.sleep(self.latency)
        return await self.memory.read()

    async def write(self, content, if_match=None):
        self.writes += 1
        await asyncio.sleep(self.latency / 2)
        if now() < self.last + self.every:
            self.refused += 1
            await asyncio.sleep(self.latency / 2)
            raise StorageThrottledError("slow down")
        etag = await self.memory.write(content, if_match)
        self.last = now()
        self.landed += 1
        await asyncio.sleep(self.latency / 2)
        return etag


class SharedThrottledStorage(ThrottledStorage):
    """The same, whose queue objects find a broker."""

    def __init__(self, every=1.0, latency=0.02):
        super().__init__(every, latency)
        self.memory = shared = SharedMemory(clock=VirtualClock())
        self.dial, self.take_seat = shared.dial, shared.take_seat
        self.broker_epoch = shared.broker_epoch


def open_queue(kind, storage, seed=1, **options):
    entropy = SeededEntropy(random.Random(seed), f"queue {seed}")
    return kind(storage, clock=VirtualClock(), entropy=entropy, **options)


async def enqueue_without_end(queue, seconds, entrypoint="work"):
    """Enqueue one job after the other for `seconds`; return the number of calls and the seconds of the longest."""
    until, longest, calls = now() + seconds, 0.0, 0
    while now() < until:
        began = now()
        await queue.enqueue(entrypoint, b"payload")
        longest = max(longest, now() - began)
        calls += 1
        if calls % 50 == 0:
            await queue.purge(status="queued")  # or the blob would grow, and with it the work
    return calls, longest


async def enqueue_by_three(queue, seconds):
    """Do the same with three callers at once."""
    found = await asyncio.gather(*(enqueue_without_end(queue, seconds) for _ in range(3)))
    return max(calls for calls, _ in found), max(longest for _, longest in found)


# Many calls, few commits


@both
async def test_two_hundred_calls_at_once_are_done_in_four_writes(kind):
    storage = ThrottledStorage()
    async with open_queue(kind, storage) as queue:
        await queue.enqueue("work", b"payload")
        began = now()
        jobs = await asyncio.gather(*(queue.enqueue("work", b"payload") for _ in range(200)))
        took, seen = now() - began, await queue.read_state()
    assert {job.id for job in jobs} < {job.id for job in seen.queued_jobs()}
    assert took < 3, "the deadline would be 30"
    assert (storage.writes, storage.refused) == ((4, 1) if kind is DirectQueue else (3, 1))


@both
@pytest.mark.parametrize("every", [1, 0.1, 5])
async def test_a_queue_that_never_rests_commits_almost_as_often_as_the_store_lets_it(kind, every):
    storage = ThrottledStorage(every)
    async with open_queue(kind, storage) as queue:
        await enqueue_by_three(queue, 30 * every + 30)
        storage.forget()
        _, longest = await enqueue_by_three(queue, 60 * every)
    assert storage.landed >= 45
    assert storage.share_refused < 0.2
    assert longest < 5 * max(1, every)
    assert storage.reads <= 2 + storage.refused, "it reads after a refusal, and otherwise never"


# As fast as before


@both
async def test_a_store_that_refuses_nothing_is_never_waited_for(kind):
    storage = ThrottledStorage(every=0.0, latency=0.0)
    async with open_queue(kind, storage) as queue:
        for _ in range(200):
            await queue.enqueue("work", b"payload")
        assert 0 == now()
        assert 200 == storage.writes


# Several writers


@both
@pytest.mark.parametrize(("writers", "fewest", "longest_call", "refused"), [(2, 30, 10, 0.35), (4, 12, 25, 0.65)])
async def test_writers_of_one_throttled_object_all_make_progress(kind, writers, fewest, longest_call, refused):
    storage = ThrottledStorage(latency=0.2)
    queues = [open_queue(kind, storage, seed) for seed in range(writers)]
    for queue in queues:
        await queue.__aenter__()
    found = await asyncio.gather(*(enqueue_by_three(queue, 120) for queue in queues))
    for queue in queues:
        await queue.__aexit__(None, None, None)
    assert min(commits for commits, _ in found) >= fewest
    assert max(longest for _, longest in found) <= longest_call
    assert storage.landed >= 70
    assert storage.share_refused < refused
    lost_races = storage.writes - storage.refused - storage.landed
    assert lost_races <= storage.landed / 4, "a writer that takes turns reads before it writes"


@pytest.mark.wide
async def test_a_broker_for_eight_clients_has_one_write_in_twenty_refused():
    storage = SharedThrottledStorage(latency=0.2)
    async with open_queue(BrokerQueue, storage, 9) as broker, AsyncExitStack() as stack:
        broker.offer()
        await broker.enqueue("work", b"payload")
        clients = [await stack.enter_async_context(open_queue(BrokerQueue, storage, seed)) for seed in range(8)]
        found = await asyncio.gather(*(enqueue_by_three(client, 120) for client in clients))
    assert storage.share_refused <= 0.05, "from the first call on"
    assert storage.landed >= 102, "the store takes 120"
    assert storage.landed == storage.writes - storage.refused, "two have written"
    assert min(calls for calls, _ in found) >= 50
    assert max(longest for _, longest in found) <= 5


# Too many writers


@pytest.mark.parametrize(("writers", "named"), [(3, False), (12, True)])
async def test_many_writers_of_a_slow_store_are_told_once_to_let_a_broker_commit_for_all(writers, named, caplog):
    storage = ThrottledStorage()
    async with AsyncExitStack() as stack:
        queues = [open_queue(BrokerQueue, storage, seed, deadline=600) for seed in range(writers)]
        for queue in queues:
            await stack.enter_async_context(queue)
        await asyncio.gather(*(enqueue_without_end(queue, 120) for queue in queues))
        warnings = (await queues[0].stats()).warnings
    logged = [each.getMessage() for each in caplog.records if "jqueue serve" in each.getMessage()]
    assert (named, named) == (len(logged) > 0, any("jqueue serve" in each for each in warnings))
    assert len(logged) <= writers
    assert all("refuses writes" in each for each in logged)


# Idle workers


async def nothing(payload: bytes) -> None:
    """A handler that is never called."""


async def start_idle_workers(stack, storage, workers, **options):
    queues = [open_queue(BrokerQueue, storage, seed, **options) for seed in range(workers)]
    for queue in queues:
        await stack.enter_async_context(queue)
    await queues[0].apply(CreateQueue())
    for number, queue in enumerate(queues):
        worker = Worker(name=f"w{number}")
        worker.handler("work")(nothing)
        stack.callback(asyncio.create_task(worker.run(queue)).cancel)


@pytest.mark.wide
@pytest.mark.parametrize(("every", "workers"), [(1, 4), (0, 8)])
async def test_workers_that_started_together_have_hardly_a_write_refused_in_a_quarter_of_an_hour(every, workers):
    storage = ThrottledStorage(every, latency=0.1)
    async with AsyncExitStack() as stack:
        await start_idle_workers(stack, storage, workers)
        await asyncio.sleep(300)
        storage.forget()
        await asyncio.sleep(900)
    assert workers * 14 <= storage.landed <= workers * 16, "each shows itself once a minute"
    assert storage.writes - storage.landed <= storage.landed * 0.05


@pytest.mark.wide
async def test_many_idle_workers_leave_most_writes_of_a_slow_store_to_others():
    storage = ThrottledStorage(latency=0.05)
    async with AsyncExitStack() as stack:
        await start_idle_workers(stack, storage, 30, poll_interval=5)
        await asyncio.sleep(60)
        producer = await stack.enter_async_context(open_queue(BrokerQueue, storage, 99))
        calls, _ = await enqueue_without_end(producer, 60, "other")
        workers = (await producer.stats()).workers
    assert calls >= 40, "4 if each worker shows itself once a minute"
    assert (30, 0) == (len(workers), sum(each.lost for each in workers))
