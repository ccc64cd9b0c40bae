"""Calls of a queue object that go to a broker: what the simulation of brokers has found once."""

import asyncio
from contextlib import asynccontextmanager

from jqueue import BrokerQueue, JobStatus
from jqueue.domain.errors import ResultTimeoutError
from jqueue.testing.virtual_time import VirtualClock
from tests.shared_memory import SharedMemory
from tests.virtual_world import in_virtual_time

MOST = 100


class GatedMemory(SharedMemory):
    """A storage whose writes wait until its gate is open, and whose broker is slow after many messages."""

    def __init__(self):
        super().__init__(clock=VirtualClock())
        self.messages = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def take_seat(self, handle):
        async def counted(message):
            self.messages += 1
            await asyncio.sleep(60 * (self.messages > MOST))
            return await handle(message)

        return await super().take_seat(counted)

    async def write(self, content, if_match=None):
        await self.gate.wait()
        return await super().write(content, if_match)


@asynccontextmanager
async def serving(storage):
    """Use a queue object that serves the others."""
    async with BrokerQueue(storage, clock=VirtualClock()) as broker:
        broker.offer()
        while storage.handle is None:
            await asyncio.sleep(0.1)
        yield broker


@in_virtual_time
async def test_a_caller_that_waits_here_beside_one_that_waits_at_the_broker_looks_at_the_usual_pace():
    storage = GatedMemory()
    async with BrokerQueue(storage, clock=VirtualClock()) as client:
        await client.enqueue("later", b"", delay=1)
        job = await client.enqueue("never", b"", keep_result=60)
        async with serving(storage):
            await asyncio.sleep(1)
            waiting = asyncio.create_task(client.dequeue("other", wait=5))
            try:
                async with asyncio.timeout(6):
                    await client.result(job, timeout=5)
            except ResultTimeoutError:
                pass
            assert [] == await waiting
            assert storage.messages < MOST


@in_virtual_time
async def test_a_process_leaves_only_when_a_claim_for_a_caller_that_has_gone_is_handed_back():
    storage = GatedMemory()
    async with serving(storage) as broker:
        await broker.enqueue("first", b"")
        client = BrokerQueue(storage, clock=VirtualClock())
        async with client:
            waiting = asyncio.create_task(client.dequeue("a", wait=5))
            await asyncio.sleep(1)
            storage.gate.clear()
            enqueued = asyncio.create_task(broker.enqueue("a", b""))
            await asyncio.sleep(1)
            waiting.cancel()
            asyncio.get_running_loop().call_later(1, storage.gate.set)
        state = await BrokerQueue(storage, share=False).read_state()
        assert [JobStatus.QUEUED, JobStatus.QUEUED] == [job.status for job in state.jobs]
        await enqueued
