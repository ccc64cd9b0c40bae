"""Large payloads and results: memory, deadlines, cancellation, stores without objects, and the removal of litter."""

import asyncio
import hashlib
import tracemalloc
from contextlib import suppress
from datetime import timedelta

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import (
    InvalidJobError,
    JQueueError,
    ObjectMissingError,
    QueueClosedError,
    StorageError,
    StorageFatalError,
)
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job
from jqueue.domain.operations.codec import AllOrNothing, Guarded
from jqueue.domain.operations.ends import Ack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.testing.fake_clock import FakeClock
from jqueue.testing.faults import Fault, FaultyObjects
from jqueue.testing.virtual_time import VirtualClock
from tests.tiny_segments import in_segments
from tests.virtual_world import in_virtual_time, now

TINY = Limits(object_bytes=100)
LARGE = bytes(range(256)) * 10
LITTER, YOUNG = ".payloads/" + "0" * 32, ".payloads/" + "f" * 32
MIB = 1 << 20


async def pieces(count, size):
    for number in range(count):
        yield number.to_bytes(8, "big") * (size // 8)


def queue_on(storage, **options):
    return DirectQueue(storage, **{"clock": storage.clock, "limits": TINY, **options})


def advance(storage, duration):
    assert isinstance(storage.clock, FakeClock)
    storage.clock.advance(duration)


async def suffixes(storage):
    listed = [each for folder in (".payloads/", ".results/") for each in await storage.list_beside(folder)]
    return [each.suffix for each in listed]


async def test_a_payload_of_24_mib_takes_a_few_mib_of_memory(tmp_path):
    queue = DirectQueue(LocalFileSystemStorage(tmp_path / "queue.json"), limits=Limits(payload_bytes=MIB))
    digest, size = hashlib.sha256(), 0
    tracemalloc.start()
    try:
        enqueued = await queue.enqueue("work", pieces(24, MIB))
        [job] = await queue.dequeue("work")
        async for piece in queue.open_payload(job):
            digest.update(piece)
            size += len(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert enqueued.payload_object is not None
    assert (24 * MIB, enqueued.payload_object.sha256) == (size, digest.hexdigest())
    assert peak < 16 * MIB
    assert (tmp_path / "queue.json").stat().st_size < 2048


async def test_the_claim_of_many_large_payloads_takes_no_more_memory_than_the_blob_may():
    storage = InMemoryStorage(clock=FakeClock())
    queue = queue_on(storage, limits=Limits(object_bytes=100, blob_bytes=10_000))
    await queue.enqueue_many([Enqueue("work", b"%d" % number * 3000) for number in range(10)])
    taken: list[Job] = []
    while jobs := await queue.dequeue("work", batch_size=10):
        assert 3 == len(jobs) or len(taken) == 9
        taken += jobs
        assert all(job.failures == 1 for job in jobs)
    assert [b"%d" % number * 3000 for number in range(10)] == [job.payload for job in taken]


@pytest.mark.parametrize("error", [StorageFatalError("403"), StorageError("input/output error"), None])
def test_a_payload_that_cannot_be_read_lets_the_jobs_behind_it_be_served_one_by_one_and_heals(error):
    @in_virtual_time
    async def served():
        storage = FaultyObjects(InMemoryStorage(clock=VirtualClock()))
        async with DirectQueue(storage, clock=VirtualClock(), limits=TINY) as queue:
            large = await queue.enqueue("work", LARGE)
            assert large.payload_object is not None
            small = [await queue.enqueue("work", b"%d" % number) for number in range(3)]
            storage.unreadable[large.payload_object.suffix] = error
            with pytest.raises(StorageError):
                await queue.dequeue("work", claim_timeout=10)
            got: list[str] = []
            while len(got) < 3:
                with suppress(StorageError):
                    got += [job.id for job in await queue.dequeue("work", claim_timeout=10)]
            assert [job.id for job in small] == got
            assert now() < 60
            [aside] = [job for job in (await queue.read_state()).jobs if job.id == large.id]
            assert 0 == aside.failures
            assert aside.error
            del storage.unreadable[large.payload_object.suffix]
            [job] = await queue.dequeue("work", wait=60)
            assert (1, LARGE) == (job.failures, job.payload)

    served()


@pytest.mark.parametrize("error", [StorageFatalError("403"), ObjectMissingError("it is gone")])
def test_a_claim_ends_by_its_deadline_if_the_store_hangs_once_a_payload_cannot_be_read(error):
    @in_virtual_time
    async def claimed():
        storage = FaultyObjects(InMemoryStorage(clock=VirtualClock()))
        async with DirectQueue(storage, clock=VirtualClock(), limits=TINY) as queue:
            large = await queue.enqueue("work", LARGE)
            assert large.payload_object is not None
            storage.unreadable[large.payload_object.suffix] = error
            storage.on_write(Fault.NONE, *[Fault.HANGS] * 100)  # the claim lands, its end does not
            await asyncio.sleep(1000)
            begun = now()
            with suppress(JQueueError):
                assert [] == await queue.dequeue("work", deadline=20)
            assert now() - begun < 25

    claimed()


@in_virtual_time
async def test_leaving_a_queue_gives_up_a_payload_that_the_store_never_takes():
    storage = FaultyObjects(InMemoryStorage(clock=VirtualClock()))
    storage.on_object(Fault.HANGS)
    async with BrokerQueue(storage, clock=VirtualClock(), limits=TINY, call_timeout=3600) as queue:
        call = asyncio.create_task(queue.enqueue("work", LARGE, deadline=3600))
        await asyncio.sleep(1)
        left = now()
    with pytest.raises(QueueClosedError):
        await call
    assert now() - left < 60


async def test_objects_that_no_job_names_are_removed_after_an_hour():
    storage = InMemoryStorage(clock=FakeClock())
    queue = queue_on(storage)
    kept = [await queue.enqueue("later", LARGE, delay=9999), await queue.enqueue("work", LARGE, keep_result=9999)]
    gone = await queue.enqueue("work", LARGE)
    await storage.create_object(LITTER, b"of a dead process")
    for job, result in zip(await queue.dequeue("work", batch_size=2), ["x" * 1000, None], strict=True):
        await queue.ack(job, result=result)
    advance(storage, timedelta(minutes=59))
    assert 0 == await queue.collect()
    advance(storage, timedelta(minutes=2))
    await storage.create_object(YOUNG, b"of a process that is about to commit")
    assert 3 == await queue.collect()  # the litter, and the payloads of both acked jobs
    left = await suffixes(storage)
    assert {gone.payload_object.suffix, LITTER}.isdisjoint(left)
    assert [kept[0].payload_object.suffix, YOUNG] == sorted(left[:2], key=lambda name: name == YOUNG)
    assert "x" * 1000 == await queue.result(kept[1])


@in_virtual_time
async def test_a_collection_outlives_a_failed_request_of_each_kind(caplog):
    """Even if it is an OSError, as the clients of a store may raise it."""
    memory = InMemoryStorage(clock=VirtualClock())
    storage = FaultyObjects(memory, error=lambda: OSError("the connection was reset"))
    queue = in_segments(DirectQueue(storage, clock=VirtualClock(), limits=TINY), bulk_jobs=0)
    await queue.enqueue_many([Enqueue("work", LARGE) for _ in range(3)])
    await storage.create_object(LITTER, b"of a dead process")
    await asyncio.sleep(7200)
    storage.object_calls.clear()
    listings_and_index = [*["list_beside"] * 3, "read_object"]
    for place in range(len(listings_and_index)):
        storage.on_object(*[Fault.NONE] * place, Fault.LOST_REQUEST)
        assert int(place == 0) == await queue.collect()
    assert {*listings_and_index, "remove_object"} == {call for call, _ in storage.object_calls}


async def test_the_objects_are_listed_before_the_queue_is_read():
    """Between the two steps, another process enqueues, and two hours pass for the collecting process."""

    class Overtaken(InMemoryStorage):
        steps = 0

        async def list_beside(self, prefix):
            await self.step()
            return await super().list_beside(prefix)

        async def read(self):
            await self.step()
            return await super().read()

        async def step(self):
            self.steps -= 1
            if self.steps == 0:
                await other.enqueue("work", LARGE)
                advance(self, timedelta(hours=2))

    for steps in range(1, 9):
        storage = Overtaken(clock=FakeClock())
        queue, other = queue_on(storage), queue_on(storage)
        await other.enqueue("first", LARGE)
        await storage.create_object(LITTER, b"of a dead process")
        advance(storage, timedelta(hours=2))
        storage.steps = steps
        assert 1 == await queue.collect()
        overtaken = storage.steps <= 0
        storage.steps = 0
        assert steps > 4 or overtaken
        assert [LARGE] * (1 + overtaken) == [job.payload for job in await other.dequeue(batch_size=5)]


@in_virtual_time
async def test_a_write_that_lands_late_names_no_removed_object():
    """A write was sent, and has not arrived when its object is old enough to be removed."""
    storage = FaultyObjects(memory := InMemoryStorage(clock=VirtualClock()), delay=7200)
    queue, other = (DirectQueue(each, clock=VirtualClock(), limits=TINY) for each in (memory, storage))
    await other.enqueue("work", b"small")
    storage.on_write(*[Fault.LANDS_LATER] * 1000)
    with pytest.raises(StorageError):
        await other.enqueue("work", LARGE, deadline=5)
    await asyncio.sleep(7000)
    await queue.collect()
    await asyncio.sleep(1000)
    assert [b"small"] == [job.payload for job in await queue.dequeue(batch_size=5)]
    assert () == (await queue.read_state()).dead_jobs()


async def test_a_queue_that_ends_jobs_with_objects_collects_every_ten_minutes():
    class Counting(InMemoryStorage):
        listings = 0

        async def list_beside(self, prefix):
            self.listings += prefix == ".payloads/"
            return await super().list_beside(prefix)

    storage = Counting(clock=FakeClock())
    async with queue_on(storage) as queue:

        async def do_a_job(payload):
            await queue.enqueue("work", payload)
            [job] = await queue.dequeue("work")
            await queue.ack(job)
            for task in asyncio.all_tasks():
                if task.get_name() == "jqueue-collection":
                    await task

        await do_a_job(b"small")
        assert 0 == storage.listings
        for expected in (1, 1, 1):
            await do_a_job(LARGE)
            assert expected == storage.listings
        advance(storage, timedelta(minutes=61))
        await do_a_job(LARGE)
        assert 2 == storage.listings
        assert 1 == len(await suffixes(storage))


async def test_an_operation_inside_another_keeps_its_large_values_and_none_is_lost():
    storage = InMemoryStorage(clock=FakeClock())
    async with queue_on(storage) as queue:
        await queue.enqueue("work", keep_result=60)
        [job] = await queue.dequeue("work")
        too_large, both = (
            AllOrNothing((Ack(job, "r" * 70_000),)),
            AllOrNothing((Enqueue("next", LARGE), Ack(job, "r" * 200))),
        )
        [error] = await queue.apply_each(too_large)
        await queue.apply_each(both, Guarded(Enqueue("next", LARGE)))
        assert isinstance(error, InvalidJobError)
        assert "r" * 200 == await queue.result(job.id)
        assert [LARGE] * 2 == [each.payload for each in await queue.dequeue("next", batch_size=2)]
        assert [] == await suffixes(storage)
