"""Calls of a queue object that go to a broker: what the simulation of brokers has found once."""

import asyncio
from contextlib import asynccontextmanager

from jqueue import BrokerQueue, DirectQueue, JobStatus
from jqueue.domain.errors import ResultTimeoutError, StorageError
from jqueue.testing.fake_clock import LongestWaits
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
async def serving(storage, **options):
    """Use a queue object that serves the others."""
    async with BrokerQueue(storage, clock=VirtualClock(), **options) as broker:
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


def test_a_program_may_end_while_a_call_of_it_waits_at_the_broker():
    storage = SharedMemory()

    async def leave_a_call_behind():
        await broker.__aenter__()
        broker.offer()
        while storage.handle is None:
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(client.dequeue("mail", wait=60))
        while not any(link.messages for link in storage.links):
            await asyncio.sleep(0.01)
        return waiting

    broker, client = BrokerQueue(storage), DirectQueue(storage)
    assert asyncio.run(leave_a_call_behind()).cancelled()


class BrokenMemory(SharedMemory):
    """A storage whose writes fail while it is broken."""

    broken = False

    async def write(self, content, if_match=None):
        if self.broken:
            raise OSError("broken")
        return await super().write(content, if_match)


@in_virtual_time
async def test_a_pause_of_a_broker_ends_with_the_last_caller_of_any_process():
    storage = BrokenMemory(clock=VirtualClock())
    async with serving(storage, entropy=LongestWaits()) as broker, BrokerQueue(storage, clock=VirtualClock()) as client:
        await client.enqueue("mail", b"")
        storage.broken = True
        first = asyncio.create_task(broker.enqueue("mail", b"", deadline=1))
        await asyncio.sleep(0.5)  # the next commit has both calls. From 7.35 s on, it pauses for five seconds
        calls = [broker.enqueue("mail", b"", deadline=7.5), client.enqueue("mail", b"", deadline=8.5), first]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, StorageError) for error in errors)
        storage.broken = False
        async with asyncio.timeout(1):
            await broker.enqueue("mail", b"")
