"""A queue whose object is gone is not created anew beside what is left of it."""

import asyncio

import pytest

from jqueue import BrokerQueue, DirectQueue, InMemoryStorage, Limits
from jqueue.domain.errors import DeadlineExceededError, StorageFatalError
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.errors import BlobMissingError
from jqueue.testing.faults import Fault, FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Worker
from tests.virtual_world import now

pytestmark = pytest.mark.virtual_time

TINY = Limits(object_bytes=10, hot_bytes=200)
HOUR = 3600
both = pytest.mark.parametrize("make", [DirectQueue, BrokerQueue])


class NamedStorage(FaultyObjects):
    name = "memory"


def new_storage():
    return NamedStorage(InMemoryStorage(clock=VirtualClock()))


def new_queue(storage, make=DirectQueue, **options):
    return make(storage, clock=VirtualClock(), limits=TINY, **options)


async def leave_payload(queue):
    await queue.enqueue("work", bytes(1000))


async def leave_segments(queue):
    for _ in range(3):
        await queue.enqueue_many([Enqueue("work", b"")] * 1000)


async def leave_history(queue):
    await queue.configure(history=HOUR)
    for _ in range(3):
        await queue.enqueue_many([Enqueue("work", b"")] * 1000)
        await queue.ack_many(await queue.dequeue(batch_size=1000))


LEFT = {".payloads/": leave_payload, ".segments/": leave_segments, ".history/": leave_history}


async def deleted(folder):
    """A store from which the object of a queue was removed, and in which a folder beside it is left."""
    storage = new_storage()
    async with new_queue(storage, BrokerQueue) as queue:
        await LEFT[folder](queue)
        await asyncio.sleep(60)
    assert await storage.list_beside(folder), "the scene leaves nothing beside the object"
    await storage.storage.remove()
    storage.object_calls.clear()
    return storage


@pytest.mark.parametrize(("folder", "make"), [*((folder, DirectQueue) for folder in LEFT), (".payloads/", BrokerQueue)])
async def test_no_call_creates_a_queue_beside_what_is_left_of_another(folder, make):
    storage = await deleted(folder)
    await asyncio.sleep(HOUR)
    async with new_queue(storage, make) as queue:
        assert [] == await queue.dequeue("work")
        assert [] == storage.object_calls, "a look lists nothing"
        for call in (queue.limit("work", running=3), queue.enqueue("work", b"")):
            with pytest.raises(BlobMissingError, match=rf"\{folder[:-1]}.*restore it.* move .* away"):
                await call
    assert (b"", None) == await storage.read()


@both
async def test_a_first_enqueue_lists_once_and_does_not_mind_the_payload_of_another_one_under_way(make):
    storage = new_storage()
    storage.on_write(*[Fault.LOST_REQUEST] * 5)  # its tries last longer than the deadline below
    async with new_queue(storage, make) as slow, new_queue(storage) as queue, new_queue(storage) as worker:
        first = asyncio.create_task(slow.enqueue("work", bytes(1000)))
        while not storage.writes:
            await asyncio.sleep(0.001)
        waiting = asyncio.create_task(worker.limit("work", running=3))
        with pytest.raises(DeadlineExceededError, match="unless a first enqueue creates it now"):
            await worker.limit("work", running=3, deadline=0.02)
        assert (b"", None) == await storage.read()
        storage.object_calls.clear()
        await queue.enqueue("work", b"")
        assert [("list_beside", ".")] == storage.object_calls[:1]
        await asyncio.gather(first, waiting)


@pytest.mark.parametrize(
    ("must_exist", "limits"), [(True, {}), (True, {"max_running": 3}), (False, {"max_running": 3})]
)
async def test_a_worker_waits_for_its_queue_to_be_restored_and_ends_in_time(must_exist, limits):
    storage = new_storage() if must_exist else await deleted(".history/")
    worker, began = Worker(give_up_after=300), now()
    worker.handler("work", **limits)(lambda: None)
    async with new_queue(storage, BrokerQueue, must_exist=must_exist) as queue:
        with pytest.raises(BlobMissingError, match="restore it"):
            await worker.run(queue, signals=False)
    assert 300 <= now() - began < 301
    assert (b"", None) == await storage.read()


async def test_a_queue_is_created_if_its_user_may_not_list_objects(caplog):
    storage = await deleted(".history/")
    storage.error = lambda: StorageFatalError("403")
    storage.on_object(Fault.LOST_REQUEST)
    async with new_queue(storage) as queue:
        await queue.enqueue("work", b"")
    assert ["a queue is created, although it is unknown if one was here before: 403"] == caplog.messages
