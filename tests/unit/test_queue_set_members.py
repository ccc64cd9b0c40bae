"""A set of queues: members that come, go and fail, the requests that it costs, and a worker on it."""

import asyncio
import os
from datetime import timedelta
from typing import Any

import pytest

from jqueue import (
    BrokerQueue,
    DirectQueue,
    InMemoryStorage,
    InvalidJobError,
    LocalFileSystemStorage,
    QueueClosedError,
    QueueSet,
    StorageError,
    connect_queue,
)
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import VsqsFolder
from jqueue.operations import Ack
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Retry, Worker
from tests.sets_of_queues import blob, set_of, two
from tests.virtual_world import in_virtual_time, now


class TestMembers:
    @in_virtual_time
    async def test_an_iteration_yields_the_chosen_jobs_of_each_queue(self):
        first, second = blob(), blob()
        queues = set_of(first, second)
        for queue, job_id in ((first, "a1"), (first, "b"), (second, "a2"), (second, "a3")):
            await queue.enqueue("work", b"", job_id=job_id)
        await first.dequeue("work")
        assert ["a1", "b", "a2", "a3"] == [job.id async for job in queues.iterate_jobs()]
        assert ["a2", "a3"] == [job.id async for job in queues.iterate_jobs("queued", entrypoint="work", id_prefix="a")]

    @in_virtual_time
    async def test_a_waiting_dequeue_gets_jobs_of_an_added_queue(self):
        queues = set_of(blob())
        waiting = asyncio.create_task(queues.dequeue(wait=60))
        await asyncio.sleep(10)
        late = blob()
        await late.enqueue("work", b"", job_id="late")
        before = now()
        await queues.add(late)
        assert ["late"] == [job.id for job in await waiting]
        assert now() - before < 0.1

    @in_virtual_time
    async def test_an_empty_set_waits_for_a_queue(self):
        queues = set_of()
        assert [] == await queues.dequeue()
        waiting = asyncio.create_task(queues.dequeue(wait=60))
        await asyncio.sleep(10)
        first, _ = await two()
        await queues.add(first)
        assert ["0"] == [job.id for job in await waiting]

    @in_virtual_time
    async def test_a_waiting_dequeue_gets_no_jobs_of_a_removed_queue(self):
        leaving, staying = blob(), blob()
        queues = set_of(leaving, staying)
        waiting = asyncio.create_task(queues.dequeue(wait=60))
        await asyncio.sleep(10)
        queues.remove(leaving)
        await leaving.enqueue("work", b"")
        await asyncio.sleep(10)
        assert not waiting.done()
        await staying.enqueue("work", b"", job_id="staying")
        assert ["staying"] == [job.id for job in await waiting]
        assert 1 == (await leaving.stats()).depth

    @in_virtual_time
    async def test_claims_of_a_removed_queue_can_still_be_ended(self):
        first, second = await two()
        queues = set_of(first, second)
        jobs = await queues.dequeue(batch_size=4)
        queues.remove(first)
        await queues.heartbeat(jobs[0])
        assert [] == await queues.ack_many(jobs)
        assert 0 == (await first.stats()).in_progress
        with pytest.raises(InvalidJobError, match="not in the set"):
            queues.remove(first)

    async def test_a_queue_cannot_be_added_again_under_another_spelling(self, tmp_path):
        path, folder = tmp_path / "queue.json", tmp_path / "folder"
        queue = connect_queue(path, DirectQueue)
        await queue.enqueue("work", b"")
        folder.mkdir()
        os.link(path, tmp_path / "linked.json")
        os.symlink(folder, tmp_path / "symlinked")
        queues = QueueSet(queue, StoreQueue(VsqsFolder(folder)))
        others = [
            queue,
            connect_queue(f"file://{tmp_path}/folder/../queue.json"),
            connect_queue(tmp_path / "linked.json"),
            connect_queue(f"vsqs://{tmp_path}/symlinked"),
        ]
        for other in others:
            with pytest.raises(InvalidJobError, match="already"):
                await queues.add(other)
            with pytest.raises(InvalidJobError, match="already"):
                QueueSet(*queues.queues, other)
        with pytest.raises(InvalidJobError, match="already"):
            storage = InMemoryStorage()
            QueueSet(DirectQueue(storage), DirectQueue(storage))
        no_queues: list[Any] = [path, LocalFileSystemStorage(path)]
        for no_queue in no_queues:
            with pytest.raises(InvalidJobError, match="made of queues"):
                QueueSet(no_queue)
        assert 2 == len(queues.queues)

    @in_virtual_time
    async def test_a_set_opens_closed_queues_and_closes_the_queues_it_opened(self):
        storages = [InMemoryStorage(clock=VirtualClock()) for _ in range(3)]
        ours, theirs, late = (BrokerQueue(storage, clock=VirtualClock()) for storage in storages)
        async with theirs:
            with pytest.raises(QueueClosedError):
                await set_of(ours, theirs).dequeue()
            async with set_of(ours, theirs) as queues:
                await queues.add(late)
                for queue in (ours, theirs, late):
                    await queue.enqueue("work", b"")
                queues.remove(late)
                assert 2 == len(await queues.dequeue(batch_size=9))
                await late.enqueue("work", b"")
            for queue in (ours, late):
                with pytest.raises(QueueClosedError):
                    await queue.enqueue("work", b"")
            await theirs.enqueue("work", b"")

    @in_virtual_time
    async def test_calls_for_a_whole_queue_must_be_made_on_that_queue(self):
        queues = set_of(*await two())
        calls = [
            lambda: queues.enqueue("work", b""),
            lambda: queues.enqueue_many([]),
            lambda: queues.pause("work"),
            lambda: queues.limit("work", running=1),
            lambda: queues.schedule("night", "0 3 * * *", "work"),
            lambda: queues.configure(aging=1),
        ]
        for call in calls:
            with pytest.raises(InvalidJobError, match="call it on one queue of the set"):
                await call()

    async def test_a_set_has_the_capabilities_that_all_its_queues_share(self, tmp_path):
        folder = StoreQueue(VsqsFolder(tmp_path / "folder"))
        capabilities = QueueSet(blob(), folder).capabilities
        assert capabilities.heartbeat
        assert capabilities.delay
        assert not capabilities.transactions
        assert not capabilities.schedules
        assert QueueSet(blob()).capabilities.transactions
        await folder.enqueue("work", b"")
        with pytest.raises(InvalidJobError, match="transactions"):
            queues = QueueSet(blob(), folder)
            await queues.apply(Ack((await queues.dequeue())[0]))


class TestLooking:
    @in_virtual_time
    async def test_the_figures_of_all_queues_are_added_up(self):
        first, second = await two()
        await second.enqueue("mail", b"", delay=60)
        await first.dequeue()
        queues = set_of(first, second)
        stats = await queues.stats()
        assert (3, 1, 1, 5) == (stats.depth, stats.scheduled, stats.in_progress, await queues.count())
        assert stats.entrypoints is not None
        assert {"mail": 0, "work": 3} == {name: figures.depth for name, figures in stats.entrypoints.items()}
        assert timedelta(seconds=3) == stats.oldest_ready_age
        assert 5 == len((await queues.read_state()).jobs)

    @in_virtual_time
    async def test_iteration_yields_all_jobs_in_order_with_their_queues(self):
        first, second = await two()
        await first.dequeue()
        await second.enqueue("work", b"", priority=-1, job_id="urgent")
        found = [(job.id, queue) async for queue, job in set_of(first, second)]
        assert [("urgent", second), ("0", first), ("1", second), ("2", first), ("3", second)] == found


class TestFailures:
    @in_virtual_time
    async def test_the_other_queues_go_on_when_a_store_fails(self):
        healthy, _ = await two()
        ill = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
        queues = set_of(blob(ill, deadline=1), healthy)
        ill.on_read(*[Fault.LOST_REQUEST] * 1000)
        assert ["0"] == [job.id for job in await queues.dequeue()]
        assert now() < 10
        await queues.dequeue()
        with pytest.raises(StorageError):
            await queues.dequeue(deadline=1)

    @in_virtual_time
    async def test_a_hanging_store_delays_the_other_queues_by_two_seconds(self):
        healthy, _ = await two()
        ill = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
        queues = set_of(blob(ill), healthy)
        ill.on_read(*[Fault.HANGS] * 1000)
        before = now()
        assert ["0"] == [job.id for job in await queues.dequeue()]
        assert 2 == round(now() - before, 3)

    @in_virtual_time
    async def test_a_waiting_dequeue_gets_jobs_of_other_queues_while_a_store_hangs(self):
        healthy, ill = blob(), FaultyStorage(InMemoryStorage(clock=VirtualClock()))
        queues = set_of(blob(ill), healthy)
        ill.on_read(*[Fault.HANGS] * 1000)
        waiting = asyncio.create_task(queues.dequeue(wait=60))
        await asyncio.sleep(20)
        await healthy.enqueue("work", b"", job_id="here")
        before = now()
        assert ["here"] == [job.id for job in await waiting]
        assert now() - before < 5

    @in_virtual_time
    async def test_wrong_arguments_are_refused_at_once(self):
        queues = set_of(*await two())
        for wrong in ({"batch_size": -1}, {"entrypoint": 7}, {"claim_timeout": -1}, {"wait": -1}, {"deadline": "x"}):
            with pytest.raises(InvalidJobError):
                await queues.dequeue(**wrong)


class TestCost:
    @in_virtual_time
    async def test_an_idle_set_sends_no_more_requests_than_its_queue_alone(self):
        async def asked(make):
            storage = FaultyStorage(InMemoryStorage(clock=VirtualClock()))
            await storage.write(b'{"format": 2, "version": 1, "queue": "q", "jobs": {}}')
            storage.writes = 0
            assert [] == await make(blob(storage)).dequeue(wait=30)
            return storage.reads, storage.writes

        alone = await asked(lambda queue: queue)
        assert alone[0] > 30
        assert alone == await asked(set_of)
        assert alone == await asked(lambda queue: set_of(blob(), queue, blob()))

    @in_virtual_time
    async def test_a_claim_reads_each_queue_and_writes_one(self):
        storages = [FaultyStorage(InMemoryStorage(clock=VirtualClock())) for _ in range(3)]
        members = [blob(storage) for storage in storages]
        for member in members:
            await member.enqueue("work", b"")
        for storage in storages:
            storage.reads = storage.writes = 0
        await set_of(*members).dequeue()
        assert [(1, 1), (1, 0), (1, 0)] == sorted(((s.reads, s.writes) for s in storages), reverse=True)


async def test_a_worker_works_on_a_file_and_a_folder_at_once(tmp_path):
    file, folder = connect_queue(tmp_path / "queue.json"), connect_queue(f"vsqs://{tmp_path}/folder")
    async with file, folder:
        for number in range(5):
            await file.enqueue("work", b"file %d" % number)
            await folder.enqueue("work", b"folder %d" % number)
    worker, done = Worker(concurrency=3), list[bytes]()

    @worker.handler("work")
    async def work(payload: bytes) -> None:
        if payload == b"file 3" and payload not in done:
            done.append(payload)
            raise Retry(after=60)
        done.append(payload)

    queues = QueueSet(file, folder)
    report = await worker.run(queues, drain=True, signals=False)
    assert (9, 1) == (report.succeeded, report.failed)
    assert 10 == len(set(done))
    async with queues:
        assert 1 == await queues.count(), "one job is to be tried again"
