"""Requests to the store while nothing happens: idle workers, the broker that serves them, and writers past it."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage
from jqueue.domain.operations.operator import CreateQueue
from jqueue.errors import WorkerNotFoundError
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Worker
from tests.shared_memory import NetworkMemory, SharedMemory, Way
from tests.virtual_world import now

pytestmark = pytest.mark.virtual_time

HERE = "http://here:8470"
HOUR = 3600.0


@asynccontextmanager
async def served(**options):
    """A broker of a queue in a store, and its requests."""
    memory = NetworkMemory(clock=VirtualClock())
    requests = Way(memory)
    async with BrokerQueue(requests, clock=VirtualClock(), **options) as broker:
        await broker.apply(CreateQueue())
        memory.brokers[HERE] = broker.service().handle
        broker.offer(HERE)
        await asyncio.sleep(10)
        yield requests


@asynccontextmanager
async def idle_worker(storage, **options):
    """A worker that finds nothing to do."""
    worker = Worker(name="idle")

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        pass

    async with BrokerQueue(storage, clock=VirtualClock(), **options) as queue:
        running = asyncio.create_task(worker.run(queue))
        yield running
        worker.stop()
        await running


async def test_a_busy_worker_behind_a_broker_is_shown_and_can_be_stopped_within_seconds():
    worker = Worker(name="busy", concurrency=1)

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        await asyncio.sleep(HOUR)

    async with served() as broker, BrokerQueue(broker.storage, clock=VirtualClock()) as queue:
        await queue.enqueue("work", b"")
        running = asyncio.create_task(worker.run(queue))
        broker.forget()
        await asyncio.sleep(5)
        assert ["busy"] == [each.name for each in await workers_of(broker.storage)]
        assert 2 == broker.writes, "the claim, and the record"
        await queue.stop_worker("busy")
        running.cancel()
        await asyncio.wait([running])


async def workers_of(storage):
    """The workers, as another process sees them."""
    return (await DirectQueue(storage, clock=VirtualClock()).stats()).workers


async def test_an_idle_worker_costs_twenty_requests_an_hour_behind_a_broker_and_makes_none_itself():
    async with served() as broker:
        own = Way(broker.storage)
        async with idle_worker(own, poll_interval=HOUR):
            await asyncio.sleep(HOUR)  # its long polls and its looks become rarer
            broker.forget()
            own.forget()
            await asyncio.sleep(HOUR)
            assert (0, 0) == (own.reads, own.writes)
            assert 12 == broker.writes, "it shows itself every five minutes"
            assert broker.reads + broker.writes <= 20
            [worker] = await workers_of(broker.storage)
            assert not worker.lost


async def test_a_broker_looks_as_often_as_the_most_impatient_consumer_asks():
    async with served() as broker, AsyncExitStack() as stack:
        waiting = []
        for number in range(3):
            queue = BrokerQueue(Way(broker.storage), clock=VirtualClock(), poll_interval=300 + number)
            await stack.enter_async_context(queue)
            waiting.append(asyncio.create_task(queue.dequeue("work", wait=10 * HOUR)))
        await asyncio.sleep(HOUR)
        broker.forget()
        await asyncio.sleep(HOUR)
        assert (12, 0) == (broker.reads, broker.writes)
        impatient = BrokerQueue(Way(broker.storage), clock=VirtualClock(), poll_interval=0.25)
        await stack.enter_async_context(impatient)
        waiting.append(asyncio.create_task(impatient.dequeue("other", wait=10 * HOUR)))
        await asyncio.sleep(1)
        for entrypoint, call in (("other", waiting[-1]), ("work", waiting[0])):
            began = now()
            await DirectQueue(broker.storage, clock=VirtualClock()).enqueue(entrypoint, b"past the broker")
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert now() - began <= (0.3 if entrypoint == "other" else 300.1)
            assert call.done()
            waiting.remove(call)
        for call in waiting:
            call.cancel()


async def test_a_broker_without_a_waiting_client_asks_nothing():
    async with served() as broker:
        async with BrokerQueue(Way(broker.storage), clock=VirtualClock()) as client:
            await client.enqueue("work", b"")
            broker.forget()
            await asyncio.sleep(HOUR)
        assert (0, 0) == (broker.reads, broker.writes)


async def test_a_worker_behind_a_broker_is_lost_ten_minutes_after_its_last_report():
    async with served() as broker, idle_worker(broker.storage):
        await asyncio.sleep(1000)
        [before] = await workers_of(broker.storage)
        copy = InMemoryStorage(clock=VirtualClock())
        await copy.write((await broker.storage.read())[0])
    for seconds, lost in ((590, False), (610, True)):
        await asyncio.sleep(before.at + seconds - VirtualClock().now().timestamp())
        [worker] = await workers_of(copy)
        assert (before.at, lost) == (worker.at, worker.lost)


@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue])
async def test_an_operator_stops_a_worker_behind_a_broker_within_its_beat_through_the_broker_and_past_it(kind):
    async with served() as broker, idle_worker(broker.storage) as running:
        await asyncio.sleep(1000)
        before = now()
        async with kind(broker.storage, clock=VirtualClock()) as operator:
            [told] = await operator.stop_worker("idle")
            with pytest.raises(WorkerNotFoundError, match="No worker 'busy' in the queue"):
                await operator.stop_worker("busy")
        await running
        assert now() - before <= told.beat
        assert () == await workers_of(broker.storage)


@pytest.mark.parametrize("storage", [SharedMemory, NetworkMemory])
async def test_a_worker_that_polls_seldom_without_a_broker_still_shows_itself_each_minute(storage):
    memory = storage(clock=VirtualClock())
    await DirectQueue(memory, clock=VirtualClock()).apply(CreateQueue())
    async with idle_worker(memory, poll_interval=HOUR):
        await asyncio.sleep(HOUR)
        for _ in range(20):
            await asyncio.sleep(17)
            [worker] = await workers_of(memory)
            assert VirtualClock().now().timestamp() - worker.at <= 61
