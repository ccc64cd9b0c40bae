"""Large payloads and results: memory, deadlines, cancellation, stores without objects, and the removal of litter."""

import asyncio
import hashlib
import os
import tracemalloc
from contextlib import suppress
from datetime import timedelta

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.core.sets.queue_set import QueueSet
from jqueue.domain.errors import (
    DeadlineExceededError,
    InvalidBlobError,
    InvalidJobError,
    QueueClosedError,
    StorageError,
    StorageFatalError,
    UnknownOutcomeError,
)
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.operations import Ack, Dequeue, Enqueue
from jqueue.domain.operations.holders import HeldBy
from jqueue.testing.fake_clock import FakeClock
from jqueue.testing.faults import Fault, FaultyObjects
from jqueue.testing.virtual_time import VirtualClock, run
from tests.two_methods import TwoMethods
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


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
async def test_bytes_of_several_megabytes_go_in_and_come_out_as_bytes(tmp_path, kind):
    smaller, larger = bytes(5_000_000), bytes(range(256)) * (9 << 12)  # the larger one is stored in pieces
    async with kind(LocalFileSystemStorage(tmp_path / "queue.json")) as queue:
        await queue.enqueue("task", smaller)
        await queue.enqueue_many([Enqueue("task", larger)])
        assert [smaller, larger] == [job.payload for job in await queue.dequeue("task", batch_size=2)]
        with pytest.raises(InvalidJobError, match=r"the limit is 67108864\. Enqueue it from a file"):
            await queue.enqueue("task", bytes((64 << 20) + 1))


async def test_bytes_in_the_queue_itself_have_one_mebibyte_at_most():
    for queue in (DirectQueue(TwoMethods()), DirectQueue(InMemoryStorage(), limits=Limits(object_bytes=None))):
        await queue.enqueue("task", bytes(MIB))
        with pytest.raises(InvalidJobError, match=r"the limit is 1048576\. Store the data elsewhere"):
            await queue.enqueue("task", bytes(MIB + 1))


async def test_a_payload_of_64_mib_takes_a_few_mib_of_memory(tmp_path):
    queue = DirectQueue(LocalFileSystemStorage(tmp_path / "queue.json"), limits=Limits(payload_bytes=MIB))
    digest, size = hashlib.sha256(), 0
    tracemalloc.start()
    try:
        enqueued = await queue.enqueue("work", pieces(64, MIB))
        [job] = await queue.dequeue("work")
        async for piece in queue.open_payload(job):
            digest.update(piece)
            size += len(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert enqueued.payload_object is not None
    assert (64 * MIB, enqueued.payload_object.sha256) == (size, digest.hexdigest())
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


async def test_a_store_that_keeps_no_objects_keeps_the_limits_of_before():
    queue = DirectQueue(TwoMethods())
    assert "objects" in queue.capabilities.missing
    job = await queue.enqueue("work", b"x" * 100_000, keep_result=60)
    assert (None, 100_000) == (job.payload_object, len(job.payload))
    with pytest.raises(InvalidJobError, match=r"Limits\(payload_bytes"):
        await queue.enqueue("work", b"x" * (MIB + 1))
    with pytest.raises(InvalidJobError, match="no objects"):
        await queue.enqueue("work", pieces(1, 8))
    [job] = await queue.dequeue()
    with pytest.raises(InvalidJobError, match="65536"):
        await queue.ack(job, result="x" * 70_000)
    with pytest.raises(InvalidJobError, match="objects"):
        await queue.collect()


async def test_a_storage_that_cannot_read_the_objects_refuses_the_queue():
    storage = InMemoryStorage(clock=FakeClock())
    await queue_on(storage).enqueue("work", LARGE)
    simple = TwoMethods()
    await simple.write((await storage.read())[0])
    with pytest.raises(InvalidBlobError, match="SupportsObjects"):
        await DirectQueue(simple).dequeue()


async def test_a_large_payload_that_cannot_be_stored_is_certainly_not_enqueued():
    class Refusing(InMemoryStorage):
        async def create_object(self, suffix, content):
            raise StorageError("the store is down")

    queue = queue_on(Refusing(clock=FakeClock()))
    with pytest.raises(DeadlineExceededError, match="the store is down"):
        await queue.enqueue("work", LARGE, deadline=0.05)
    small = await queue.enqueue("work", b"small")
    assert [small.id] == [job.id for job in (await queue.read_state()).jobs]


async def test_a_commit_names_no_object_that_may_be_removed_already():
    class Slow(InMemoryStorage):
        async def create_object(self, suffix, content):
            await super().create_object(suffix, content)
            advance(self, timedelta(minutes=46))

    storage = Slow(clock=FakeClock())
    queue = queue_on(storage)
    with pytest.raises(DeadlineExceededError, match="stored too long ago"):
        await queue.enqueue("work", LARGE)
    assert () == (await queue.read_state()).jobs


async def test_a_call_that_is_cancelled_while_payloads_are_loaded_hands_its_claims_back():
    class Hanging(InMemoryStorage):
        reading = None

        async def read_object(self, suffix, start=0, stop=None):
            if self.reading is not None:
                self.reading.set()
                await asyncio.Event().wait()
            return await super().read_object(suffix, start, stop)

    storage = Hanging(clock=FakeClock())
    async with queue_on(storage) as queue:
        await queue.enqueue_many([Enqueue("work", LARGE), Enqueue("work", b"small")])
        storage.reading = asyncio.Event()
        claiming = asyncio.create_task(queue.dequeue("work", batch_size=2))
        await storage.reading.wait()
        assert 2 == len((await queue.read_state()).in_progress_jobs())
        claiming.cancel()
        await asyncio.wait([claiming])
        storage.reading = None
        again = await queue.dequeue("work", batch_size=2)
    assert [(1, LARGE), (1, b"small")] == [(job.failures, job.payload) for job in again]


async def test_a_store_that_cannot_be_read_for_a_while_kills_no_job():
    class Failing(InMemoryStorage):
        down = True

        async def read_object(self, suffix, start=0, stop=None):
            if self.down:
                raise StorageError("the store is down")
            return await super().read_object(suffix, start, stop)

    storage = Failing(clock=FakeClock())
    queue = queue_on(storage)
    await queue.enqueue("work", LARGE)
    with pytest.raises(StorageError, match="the store is down"):
        await queue.dequeue("work", deadline=0.05)
    await queue.enqueue("work", b"small")
    assert [b"small"] == [job.payload for job in await queue.dequeue("work", batch_size=2, deadline=0.05)]
    storage.down = False
    advance(storage, timedelta(seconds=2))
    [job] = await queue.dequeue("work")
    assert (1, LARGE) == (job.failures, job.payload)


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


async def test_a_restarted_holder_finds_its_jobs_with_their_payloads():
    queue = queue_on(InMemoryStorage(clock=FakeClock()))
    await queue.enqueue("work", LARGE)
    await queue.apply(Dequeue(holder="stream 1"))
    [[job]] = await queue.apply(HeldBy("stream"))
    assert (LARGE, "stream 1") == (job.payload, job.holder)


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


async def test_files_that_no_queue_has_created_are_left_alone_and_stop_no_collection(tmp_path):
    clock = FakeClock()
    storage = LocalFileSystemStorage(tmp_path / "q.json")
    queue = DirectQueue(storage, limits=TINY, clock=clock)
    await queue.enqueue("work", LARGE)
    await queue.ack((await queue.dequeue())[0])
    payloads = tmp_path / "q.json.payloads"
    (payloads / ".DS_Store").write_bytes(b"of Finder")
    (payloads / "README").write_bytes(b"of a person")
    for file in payloads.iterdir():
        os.utime(file, (1, 1))
    assert 1 == await queue.collect()
    assert {".DS_Store", "README"} == {file.name for file in payloads.iterdir()}


async def test_an_object_that_cannot_be_removed_stops_no_other():
    class Refusing(InMemoryStorage):
        async def remove_object(self, suffix):
            if suffix == LITTER:
                raise StorageFatalError("403")
            await super().remove_object(suffix)

    storage = Refusing(clock=FakeClock())
    queue = queue_on(storage)
    await queue.enqueue("work", b"small")
    await storage.create_object(LITTER, b"")
    await storage.create_object(YOUNG, b"")
    advance(storage, timedelta(hours=2))
    with pytest.raises(StorageError, match="403"):
        await queue.collect()
    assert [LITTER] == await suffixes(storage)


async def test_a_collection_ends_by_its_deadline():
    class Silent(InMemoryStorage):
        async def list_beside(self, prefix):
            await asyncio.Event().wait()

    queue = queue_on(Silent(clock=FakeClock()))
    await queue.enqueue("work", b"")
    for each in (queue, QueueSet(queue)):
        with pytest.raises(DeadlineExceededError, match="next call"):
            await each.collect(deadline=0.01)


async def test_an_object_that_a_job_names_is_kept_though_its_line_cannot_be_read():
    storage = InMemoryStorage(clock=FakeClock())
    queue = queue_on(storage)
    job = await queue.enqueue("work", LARGE)
    content, etag = await storage.read()
    await storage.write(content.replace(b'"queued"', b'"no such status"'), etag)
    advance(storage, timedelta(hours=2))
    assert 0 == await queue.collect()
    assert 1 == (await queue.stats()).unreadable
    assert [job.payload_object.suffix] == await suffixes(storage)


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


async def test_a_write_that_lands_late_names_no_removed_object():
    """A write was sent, and has not arrived when its object is old enough to be removed."""

    class Late(InMemoryStorage):
        held = None

        async def write(self, content, if_match=None):
            if self.held is None:
                return await super().write(content, if_match)
            self.held.append((content, if_match))
            raise StorageError("the answer was lost")

    storage = Late(clock=FakeClock())
    queue, other = queue_on(storage), queue_on(storage)
    await other.enqueue("work", b"small")
    storage.held = []
    with pytest.raises(StorageError):
        await other.enqueue("work", LARGE, deadline=0.05)
    late, storage.held = storage.held, None
    advance(storage, timedelta(hours=2))
    await queue.collect()
    for content, if_match in late:
        try:
            await storage.write(content, if_match)
        except Exception:
            continue
    assert [b"small"] == [job.payload for job in await queue.dequeue(batch_size=5)]
    assert not [job for job in (await queue.read_state()).jobs if job.status is JobStatus.DEAD]


async def test_nothing_is_removed_if_the_queue_is_gone():
    storage = InMemoryStorage(clock=FakeClock())
    await queue_on(storage).enqueue("work", LARGE)
    await storage.remove()
    advance(storage, timedelta(hours=2))
    assert 0 == await queue_on(storage).collect()
    assert 1 == len(await suffixes(storage))


@pytest.mark.parametrize("kind", [DirectQueue, BrokerQueue])
async def test_a_queue_that_ends_jobs_with_objects_collects_every_ten_minutes(kind):
    class Counting(InMemoryStorage):
        listings = 0

        async def list_beside(self, prefix):
            self.listings += prefix == ".payloads/"
            return await super().list_beside(prefix)

    storage = Counting(clock=FakeClock())
    async with kind(storage, clock=storage.clock, limits=TINY) as queue:

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


async def test_a_collection_ends_when_the_queue_is_closed():
    class Hanging(InMemoryStorage):
        async def list_beside(self, prefix):
            await asyncio.Event().wait()

    storage = Hanging(clock=FakeClock())
    async with queue_on(storage) as queue:
        await queue.enqueue("work", LARGE)
        [job] = await queue.dequeue("work")
        await queue.ack(job)
        assert ["jqueue-collection"] == [
            task.get_name() for task in asyncio.all_tasks() if task.get_name() == "jqueue-collection"
        ]
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "jqueue-collection"]


async def test_a_set_of_queues_opens_payloads_and_loads_results():
    storages = [InMemoryStorage(clock=FakeClock()) for _ in range(2)]
    queues = [queue_on(storage, limits=Limits(object_bytes=100, payload_bytes=1000)) for storage in storages]
    together = QueueSet(*queues)
    job = await queues[1].enqueue("work", pieces(1, 4096), keep_result=60)
    [claimed] = await together.dequeue("work")
    assert claimed.payload_apart
    assert 4096 == len(b"".join([piece async for piece in together.open_payload(claimed)]))
    await together.ack(claimed, result="x" * 500)
    assert "x" * 500 == await together.result(job.id)
    assert 0 == await together.collect()
    with pytest.raises(InvalidJobError, match="cannot make URLs"):
        await together.result_url(job.id, 60)


async def test_400_results_of_60_kb_stay_beside_the_queue():
    limits = Limits(object_bytes=1000, blob_bytes=100_000)
    storage = InMemoryStorage(clock=FakeClock())
    queue = queue_on(storage, limits=limits)
    for _ in range(4):
        await queue.enqueue_many([Enqueue("work", b"p" * 400, keep_result=60) for _ in range(100)])
        jobs = await queue.dequeue("work", batch_size=100)
        assert 100 == len(jobs)
        await queue.apply_each(*[Ack(job, "x" * 60_000) for job in jobs])
        assert "x" * 60_000 == await queue.result(jobs[0])
        assert len((await storage.read())[0]) < limits.blob_bytes
        assert 100 == await queue.purge(status=JobStatus.COMPLETED)


def on_objects_that_fail():
    storage = FaultyObjects(InMemoryStorage(clock=VirtualClock()))
    return storage, {"clock": VirtualClock(), "limits": TINY, "deadline": 5, "call_timeout": 60}


def test_a_queue_that_closes_ends_calls_that_store_payloads():
    async def story():
        storage, options = on_objects_that_fail()
        storage.on_object(Fault.HANGS)
        async with BrokerQueue(storage, **options) as queue:
            call = asyncio.create_task(queue.enqueue("work", LARGE))
            await asyncio.sleep(1)
        assert call.done(), "a call must be answered when its queue has been left"
        with pytest.raises(QueueClosedError):
            await call
        with pytest.raises(QueueClosedError):
            await queue.enqueue("work", LARGE)
        assert storage.object_calls == [("create_object", storage.object_calls[0][1])]

    run(story())


@pytest.mark.parametrize("latency", [0.0, 0.5])
def test_a_queue_that_closes_hands_back_jobs_whose_payloads_are_not_loaded(latency):
    async def story():
        storage, options = on_objects_that_fail()
        storage.latency = latency
        async with BrokerQueue(storage, **options) as queue:
            await queue.enqueue("work", LARGE)
            storage.on_object(Fault.HANGS)
            call = asyncio.create_task(queue.dequeue("work", deadline=100))
            await asyncio.sleep(1)
        [job] = (await DirectQueue(storage.storage, **options).read_state()).jobs  # at once: no more time passes
        assert call.done(), "a call must be answered when its queue has been left"
        with pytest.raises(UnknownOutcomeError, match="handed back") as error:
            await call
        assert [] == await error.value.resolve()
        assert (JobStatus.QUEUED, 0) == (job.status, job.failures)

    run(story())


def test_a_result_whose_object_cannot_be_read_is_tried_for_until_the_end_of_its_call():
    async def story():
        storage, options = on_objects_that_fail()
        async with DirectQueue(storage, **options) as queue:
            job = await queue.enqueue("work", b"", keep_result=600)
            await queue.ack((await queue.dequeue())[0], result="x" * 1000)
            storage.on_object(*[Fault.LOST_REQUEST] * 1000)
            clock = asyncio.get_running_loop()
            before = clock.time()
            with pytest.raises(DeadlineExceededError):
                await queue.result(job, timeout=20, deadline=5)
            return clock.time() - before

    assert 24 <= run(story()) <= 26
