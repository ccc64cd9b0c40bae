"""A set of queues: the jobs of all of them, the queue of each claim, and members that come, go and fail."""

import asyncio
import os
from typing import Any

import pytest

from jqueue import (
    BrokerQueue,
    ClaimLostError,
    DirectQueue,
    InMemoryStorage,
    InvalidJobError,
    JobStatus,
    QueueSet,
    StorageError,
    SyncQueue,
    connect,
)
from jqueue.errors import QueueClosedError
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import VsqsFolder
from jqueue.operations import Ack, Enqueue, Heartbeat, Nack
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time, now

ONE = "call it on one queue of the set"


def blob(storage=None):
    return DirectQueue(storage or InMemoryStorage(clock=VirtualClock()), clock=VirtualClock())


def set_of(*queues):
    return QueueSet(*queues, clock=VirtualClock())


async def two():
    """Return two queues with two jobs each, enqueued in turn, a second apart."""
    first, second = blob(), blob()
    for number, queue in enumerate([first, second, first, second]):
        await queue.enqueue("work", b"%d" % number, job_id=f"{number}")
        await asyncio.sleep(1)
    return first, second


def faulty():
    return FaultyStorage(InMemoryStorage(clock=VirtualClock()))


class TestJobs:
    @in_virtual_time
    async def test_the_queues_take_turns_and_each_keeps_its_order(self):
        queues = [blob() for _ in range(3)]
        for number, queue in enumerate(queues):
            await queue.enqueue_many([Enqueue("work", job_id=f"{number}{letter}") for letter in "abc"])
        every, names = set_of(*queues), []
        while jobs := await every.dequeue():
            names += [job.id for job in jobs]
            assert [] == await every.ack_many(jobs)
        assert [f"{number}{letter}" for letter in "abc" for number in range(3)] == names

    @in_virtual_time
    async def test_a_batch_is_of_one_queue_and_costs_one_write(self):
        storages = [faulty() for _ in range(3)]
        members = [blob(storage) for storage in storages]
        for member in members[1:]:
            await member.enqueue_many([Enqueue("work")] * 3)
        for storage in storages:
            storage.reads = storage.writes = 0
        assert 3 == len(await set_of(*members).dequeue(batch_size=9))
        assert [(1, 0), (0, 1), (0, 0)] == [(storage.reads, storage.writes) for storage in storages]

    @in_virtual_time
    async def test_a_waiting_dequeue_returns_the_jobs_of_the_first_queue_and_hands_back_those_of_others(self):
        queues = [blob(), blob()]
        waiting = asyncio.create_task(set_of(*queues).dequeue(wait=60, batch_size=5))
        await asyncio.sleep(10)
        await asyncio.gather(*(queue.enqueue("work") for queue in queues))
        assert 1 == len(await waiting)
        [other] = [job for queue in queues for job in (await queue.read_state()).queued_jobs()]
        assert 0 == other.failures
        waiting = asyncio.create_task(set_of(*queues).dequeue("nothing", wait=60))
        await asyncio.sleep(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    @in_virtual_time
    async def test_a_dequeue_that_is_cancelled_while_it_ends_other_calls_hands_the_job_back(self):
        class Slow(DirectQueue):
            async def dequeue(self, *arguments, **options):
                try:
                    return await super().dequeue(*arguments, **options)
                except asyncio.CancelledError:
                    await asyncio.sleep(1)
                    raise

        storage = InMemoryStorage(clock=VirtualClock())
        queue = blob()
        waiting = asyncio.create_task(set_of(queue, Slow(storage, clock=VirtualClock())).dequeue(wait=60))
        await asyncio.sleep(10)
        await queue.enqueue("work")
        for _ in range(2):
            await asyncio.sleep(0.4)
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [(JobStatus.QUEUED, 0)] == [(job.status, job.failures) for job in (await queue.read_state()).jobs]

    @in_virtual_time
    async def test_figures_are_of_all_queues(self):
        first, second = await two()
        await second.enqueue("mail", delay=60, job_id="mail")
        await first.dequeue()
        queues = set_of(first, second)
        stats = await queues.stats()
        assert (3, 1, 1, 5) == (stats.depth, stats.scheduled, stats.in_progress, await queues.count())
        assert {"mail": 0, "work": 3} == {name: each.depth for name, each in (stats.entrypoints or {}).items()}
        assert (5, 1) == (stats.totals.enqueued, stats.totals.claimed)


class TestClaims:
    @in_virtual_time
    async def test_the_same_id_in_two_queues_finds_the_right_one(self):
        queues = [blob(), blob()]
        for queue in queues:
            await queue.enqueue("work", b"payload", job_id="same")
            await asyncio.sleep(1)
        both = set_of(*queues)
        [one], [other] = [await both.dequeue() for _ in queues]
        assert [] == await both.heartbeat_many([one.claim, other.claim])
        for unclear in ("same", one.claim):
            with pytest.raises(InvalidJobError, match="several queues"):
                await both.ack(unclear)
        for _ in range(2):  # again, as after a lost answer
            await both.ack(other)
        assert [[JobStatus.IN_PROGRESS], []] == [[job.status for job in (await q.read_state()).jobs] for q in queues]

    @in_virtual_time
    async def test_lost_claims_are_refused_by_their_queue_and_unknown_ones_by_the_set(self):
        first, second = await two()
        queues = set_of(first, second)
        [job] = await queues.dequeue()
        await first.requeue_stale(0)
        [again, _] = await first.dequeue(batch_size=2)
        for call in (queues.ack, queues.heartbeat, queues.nack):
            for lost in (job, job.claim):
                with pytest.raises(ClaimLostError):
                    await call(lost)
            for unknown in ("no such job", (await first.enqueue("work")).claim):
                with pytest.raises(InvalidJobError, match="own queue"):
                    await call(unknown)
        with pytest.raises(InvalidJobError, match="pass a Job"):
            await queues.ack(3)
        await set_of(first).ack(again)  # of a single queue, there is no question

    @in_virtual_time
    async def test_operations_of_one_apply_must_be_of_one_queue(self):
        first, second = await two()
        queues = set_of(first, second)
        [one], [other] = [await queues.dequeue() for _ in range(2)]
        for operations, text in (((Ack(one), Ack(other)), "several queues"), ((Enqueue("next"),), ONE)):
            with pytest.raises(InvalidJobError, match=text):
                await queues.apply(*operations)
        await queues.apply(Ack(other), Enqueue("next", job_id="next"))
        assert "next" in [job.id for job in (await second.read_state()).jobs]
        results = await queues.apply_each(Nack(one), Enqueue("next"), Heartbeat(("none",)), Ack(other))
        assert [None, InvalidJobError, InvalidJobError, None] == [result and type(result) for result in results]
        for verb in (queues.enqueue, queues.pause, queues.limit, queues.cancel):
            with pytest.raises(InvalidJobError, match=ONE):
                await verb("work")
        with pytest.raises(InvalidJobError, match=ONE):
            queues.iterate_jobs()


class TestMembers:
    @in_virtual_time
    async def test_a_waiting_dequeue_gets_jobs_of_added_queues_and_none_of_removed_ones(self):
        leaving, late = blob(), blob()
        queues = set_of()
        assert [] == await queues.dequeue()
        await queues.add(leaving)
        waiting = asyncio.create_task(queues.dequeue(wait=60))
        await asyncio.sleep(10)
        queues.remove(leaving)
        await leaving.enqueue("work")
        await asyncio.sleep(10)
        assert not waiting.done()
        await late.enqueue("work", job_id="late")
        before = now()
        await queues.add(late)
        assert ["late"] == [job.id for job in await waiting]
        assert now() - before < 0.1

    @in_virtual_time
    async def test_claims_of_a_removed_queue_can_still_be_ended(self):
        first, second = await two()
        queues = set_of(first, second)
        jobs = [*await queues.dequeue(batch_size=4), *await queues.dequeue(batch_size=4)]
        queues.remove(first)
        assert [] == await queues.ack_many(jobs)
        assert 0 == (await first.stats()).in_progress
        with pytest.raises(InvalidJobError, match="not in the set"):
            queues.remove(first)

    async def test_a_queue_cannot_be_added_again_under_another_spelling(self, tmp_path):
        path, folder = tmp_path / "queue.json", tmp_path / "folder"
        queue = connect(path, DirectQueue)
        await queue.enqueue("work")
        folder.mkdir()
        os.link(path, tmp_path / "linked.json")
        os.symlink(folder, tmp_path / "symlinked")
        queues = QueueSet(queue, StoreQueue(VsqsFolder(folder)))
        for url in (
            tmp_path / "linked.json",
            f"vsqs://{folder}/../symlinked",
        ):
            with pytest.raises(InvalidJobError, match="already"):
                await queues.add(connect(url))
        storage: Any = InMemoryStorage()
        for members, text in (
            ((DirectQueue(storage), DirectQueue(storage)), "already"),
            ((SyncQueue(storage),), "made of async queues"),
            ((storage,), "made of async queues"),
        ):
            with pytest.raises(InvalidJobError, match=text):
                QueueSet(*members)

    @in_virtual_time
    async def test_a_set_opens_closed_queues_and_closes_the_queues_it_opened(self):
        ours, theirs, late = (BrokerQueue(faulty(), clock=VirtualClock()) for _ in range(3))
        async with theirs:
            with pytest.raises(QueueClosedError):
                await set_of(ours, theirs).dequeue()
            async with set_of(ours, theirs) as queues:
                await queues.add(late)
                for queue in (ours, theirs, late):
                    await queue.enqueue("work")
                queues.remove(late)
                assert [1, 1, 0] == [len(await queues.dequeue()) for _ in range(3)]
            for queue in (ours, late):
                with pytest.raises(QueueClosedError):
                    await queue.enqueue("work")
            await theirs.enqueue("work")


class TestFailures:
    @pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.HANGS])
    @in_virtual_time
    async def test_the_other_queues_go_on_when_a_store_fails_or_hangs(self, fault):
        healthy, ill = blob(), faulty()
        await healthy.enqueue("work", job_id="0")
        queues = set_of(blob(ill), healthy)
        ill.on_read(*[fault] * 1000)
        assert ["0"] == [job.id for job in await queues.dequeue()]
        assert now() <= 2.1
        await healthy.enqueue("work", job_id="1")
        assert ["1"] == [job.id for job in await queues.dequeue()]
        assert now() <= 2.2, "the failed queue was asked first again"
        waiting = asyncio.create_task(queues.dequeue(wait=60))
        await asyncio.sleep(20)
        await healthy.enqueue("work", job_id="here")
        before = now()
        assert ["here"] == [job.id for job in await waiting]
        assert now() - before < 5
        with pytest.raises((StorageError, TimeoutError)):
            await queues.dequeue(deadline=1)

    @pytest.mark.parametrize("wait", [None, 1, 60])
    @in_virtual_time
    async def test_a_queue_that_answers_late_is_waited_for_if_the_others_are_empty(self, wait):
        slow = FaultyStorage(InMemoryStorage(clock=VirtualClock()), latency=5)
        queues = set_of(blob(), blob(slow))
        before = now()
        assert [] == await queues.dequeue()
        assert 5 <= now() - before < 11
        job = await blob(slow.storage).enqueue("work")
        before = now()
        assert [job.id] == [found.id for found in await queues.dequeue(wait=wait)]
        assert now() - before < 17, "it was claimed only when the wait was over"
