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
    JobNotFoundError,
    JobStatus,
    QueueClosedError,
    QueueSet,
    StorageError,
    connect_queue,
)
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


class Plain:
    """A queue that can only be read whole, as one of an older format."""

    def __init__(self, queue):
        self._queue = queue

    def __getattr__(self, name):
        if name in ("peek", "until_ready"):
            raise AttributeError(name)
        return getattr(self._queue, name)


class TestJobs:
    @in_virtual_time
    async def test_a_queue_that_can_only_be_read_whole_can_be_a_member(self):
        queue = blob()
        await queue.enqueue("work", job_id="first")
        queues = set_of(blob(), Plain(queue))
        assert ["first"] == [job.id for job in await queues.dequeue()]
        waiting = asyncio.create_task(queues.dequeue(wait=30))
        await asyncio.sleep(5)
        await queue.enqueue("work", job_id="late")
        assert ["late"] == [job.id for job in await waiting]

    @in_virtual_time
    async def test_the_queues_take_turns_and_each_keeps_its_order(self):
        queues = [blob() for _ in range(3)]
        for number, queue in enumerate(queues):
            await queue.enqueue_many([Enqueue("work", job_id=f"{number}{letter}") for letter in "abc"])
        every, names = set_of(*queues), []
        while jobs := await every.dequeue():
            names += [job.id for job in jobs]
            assert [] == await every.ack_many(jobs)
        assert [{"0", "1", "2"}] * 3 == [{name[0] for name in names[place : place + 3]} for place in (0, 3, 6)]
        for first in "012":
            assert [f"{first}{letter}" for letter in "abc"] == [name for name in names if name[0] == first]

    @in_virtual_time
    async def test_only_jobs_that_are_handed_out_are_claimed_by_one_write_and_a_read_of_each_queue(self):
        storages = [faulty() for _ in range(3)]
        members = [blob(storage) for storage in storages]
        for member in members:
            await member.enqueue("work")
        for storage in storages:
            storage.reads = storage.writes = 0
        assert 1 == len(await set_of(*members).dequeue())
        assert [(1, 1), (1, 0), (1, 0)] == sorted(((s.reads, s.writes) for s in storages), reverse=True)

    @in_virtual_time
    async def test_figures_and_iterations_are_of_all_queues(self):
        first, second = await two()
        await second.enqueue("mail", delay=60, job_id="mail")
        await first.dequeue()
        queues = set_of(first, second)
        stats = await queues.stats()
        assert (3, 1, 1, 5) == (stats.depth, stats.scheduled, stats.in_progress, await queues.count())
        assert {"mail": 0, "work": 3} == {name: each.depth for name, each in (stats.entrypoints or {}).items()}
        assert ["0", "2", "1", "3", "mail"] == [job.id async for job in queues.iterate_jobs()]
        assert ["2", "1", "3"] == [job.id async for job in queues.iterate_jobs("queued", entrypoint="work")]
        assert {"0": first, "1": second} == {job.id: queue async for queue, job in queues if job.id < "2"}


class TestClaims:
    @in_virtual_time
    async def test_the_same_id_in_two_queues_finds_the_right_one(self):
        queues = [blob(), blob()]
        for queue in queues:
            await queue.enqueue("work", job_id="same")
            await asyncio.sleep(1)
        both = set_of(*queues)
        one, other = await both.dequeue(batch_size=2)
        assert [] == await both.heartbeat_many([one.claim, other.claim])
        for unclear in ("same", one.claim):
            with pytest.raises(InvalidJobError, match="several queues"):
                await both.ack(unclear)
        for _ in range(2):  # again, as after a lost answer
            await both.ack(other)
        assert [[JobStatus.IN_PROGRESS], []] == [[job.status for job in (await q.read_state()).jobs] for q in queues]
        await both.ack("same")  # now it is clear which is meant
        assert 0 == await both.count()

    @in_virtual_time
    async def test_jobs_claimed_elsewhere_are_found_and_lost_or_unknown_ones_raise_their_errors(self):
        first, second = await two()
        jobs = [*await first.dequeue(batch_size=2), *await second.dequeue(batch_size=2)]
        queues = set_of(first, second)
        await queues.nack(jobs[0], error="no")
        assert [] == await queues.ack_many([job.claim for job in jobs[1:3]])
        assert 1 == await queues.requeue_stale(0)
        for call in (queues.ack, queues.heartbeat, queues.nack):
            with pytest.raises(ClaimLostError):
                await call(jobs[3])
        for call in (queues.ack, queues.cancel):
            with pytest.raises(JobNotFoundError):
                await call("no such job")

    @in_virtual_time
    async def test_operations_of_one_apply_must_be_of_one_queue(self):
        first, second = await two()
        queues = set_of(first, second)
        one, other = await queues.dequeue(batch_size=2)
        for operations, text in (((Ack(one), Ack(other)), "several queues"), ((Enqueue("next"),), ONE)):
            with pytest.raises(InvalidJobError, match=text):
                await queues.apply(*operations)
        await queues.apply(Ack(other), Enqueue("next", job_id="next"))
        assert "next" in [job.id for job in (await second.read_state()).jobs]
        results = await queues.apply_each(Nack(one), Enqueue("next"), Heartbeat(("none",)), Ack(other))
        assert [None, InvalidJobError, JobNotFoundError, None] == [result and type(result) for result in results]
        for verb in (queues.enqueue, queues.pause, queues.limit):
            with pytest.raises(InvalidJobError, match=ONE):
                await verb("work")


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
        jobs = await queues.dequeue(batch_size=4)
        queues.remove(first)
        assert [] == await queues.ack_many(jobs)
        assert 0 == (await first.stats()).in_progress
        with pytest.raises(InvalidJobError, match="not in the set"):
            queues.remove(first)

    async def test_a_queue_cannot_be_added_again_under_another_spelling(self, tmp_path):
        path, folder = tmp_path / "queue.json", tmp_path / "folder"
        queue = connect_queue(path, DirectQueue)
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
                await queues.add(connect_queue(url))
        storage: Any = InMemoryStorage()
        for members, text in (
            ((DirectQueue(storage), DirectQueue(storage)), "already"),
            ((storage,), "made of queues"),
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
                assert 2 == len(await queues.dequeue(batch_size=9))
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
        assert now() <= 2
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
        assert 5 <= now() - before < 6
        job = await blob(slow.storage).enqueue("work")
        before = now()
        assert [job.id] == [found.id for found in await queues.dequeue(wait=wait)]
        assert now() - before < 17, "it was claimed only when the wait was over"
