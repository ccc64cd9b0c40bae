"""A queue object is at home in one event loop of one process at a time; it notices when it has moved."""

import asyncio

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import JQueueError, QueueClosedError
from tests.shared_memory import SharedMemory

PATIENCE = 60


def in_another_thread(call):
    """Run a coroutine function on an event loop of another thread."""
    return asyncio.to_thread(lambda: asyncio.run(call()))


# Event loops


async def test_two_running_loops_cannot_share_a_queue_object():
    queue = DirectQueue(InMemoryStorage())
    await queue.enqueue("work", b"payload")
    with pytest.raises(JQueueError, match="two running event loops"):
        await in_another_thread(lambda: queue.enqueue("work", b"payload"))
    assert 1 == len(await queue.dequeue(batch_size=9)), "the first loop is not disturbed"


def test_calls_left_behind_in_a_closed_loop_do_not_disturb_the_next():
    queue = DirectQueue(InMemoryStorage())

    async def leave_calls_behind():
        for call in (queue.dequeue("nobody", wait=3600), queue.enqueue("work", b"first")):
            asyncio.get_running_loop().create_task(call)
        await asyncio.sleep(0)

    asyncio.run(leave_calls_behind())
    asyncio.run(queue.enqueue("work", b"second"))
    payloads = [job.payload for job in asyncio.run(queue.read_state()).jobs]
    assert payloads in ([b"first", b"second"], [b"second"])


def test_a_call_is_answered_if_its_loop_runs_again_after_another_one():
    queue, loop = DirectQueue(InMemoryStorage()), asyncio.new_event_loop()
    call = loop.create_task(queue.enqueue("work", b"first"))
    loop.run_until_complete(asyncio.sleep(0))
    asyncio.run(queue.enqueue("work", b"second"))
    assert b"first" == loop.run_until_complete(asyncio.wait_for(call, PATIENCE)).payload
    loop.close()
    assert 2 == len(asyncio.run(queue.read_state()).jobs)


def test_a_program_may_end_while_a_call_of_it_waits_at_a_broker():
    storage = SharedMemory()
    broker, client = BrokerQueue(storage), DirectQueue(storage)

    async def leave_a_call_behind():
        await broker.__aenter__()
        broker.offer()
        while storage.handle is None:
            await asyncio.sleep(0.01)
        waiting = asyncio.create_task(client.dequeue("nobody", wait=3600))
        while not any(link.messages for link in storage.links):
            await asyncio.sleep(0.01)
        return waiting

    assert asyncio.run(leave_a_call_behind()).cancelled()


def test_a_broker_can_be_entered_in_one_loop_after_another():
    queue = BrokerQueue(InMemoryStorage())

    async def use():
        async with queue:
            await queue.enqueue("work", b"payload")

    asyncio.run(use())
    asyncio.run(use())
    with pytest.raises(QueueClosedError):
        asyncio.run(queue.enqueue("work", b"payload"))
    assert 2 == len(asyncio.run(queue.read_state()).jobs)
