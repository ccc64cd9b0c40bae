"""A set of queues: whose turn it is, the queue of each claim, and queues that fail."""

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
from jqueue.operations import Enqueue
from jqueue.testing.faults import Fault, FaultyStorage
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time, now


def blob(storage=None):
    return DirectQueue(storage or InMemoryStorage(clock=VirtualClock()), clock=VirtualClock())


@in_virtual_time
async def test_the_queues_take_turns_and_each_keeps_its_order():
    queues = [blob() for _ in range(3)]
    for number, queue in enumerate(queues):
        await queue.enqueue_many([Enqueue("work", job_id=f"{number}{letter}") for letter in "abc"])
    every, names = QueueSet(*queues), []
    while jobs := await every.dequeue():
        names += [job.id for job in jobs]
        await every.ack(jobs[0])
    assert [f"{number}{letter}" for letter in "abc" for number in range(3)] == names


@in_virtual_time
async def test_a_waiting_dequeue_gets_the_jobs_of_any_queue_and_ends_with_its_time():
    queues = [blob(), blob()]
    every = QueueSet(*queues)
    for queue in queues:
        waiting = asyncio.create_task(every.dequeue("work", wait=60, batch_size=5))
        await asyncio.sleep(10)
        await queue.enqueue_many([Enqueue("work")] * 3)
        assert 3 == len(await waiting)
    before = now()
    assert [] == await every.dequeue(wait=60)
    assert 60 <= now() - before < 61


@in_virtual_time
async def test_a_job_is_ended_where_it_came_from():
    first, second = blob(), blob()
    for queue in (first, second):
        await queue.enqueue("work", job_id="same")
        await asyncio.sleep(1)
    both = QueueSet(first, second)
    [one], [other] = [await both.dequeue() for _ in range(2)]
    await both.heartbeat(one)
    for _ in range(2):  # again, as after a lost answer
        await both.ack(other)
    await both.nack(one, delay=60)
    assert [[JobStatus.QUEUED], []] == [[job.status for job in (await q.read_state()).jobs] for q in (first, second)]
    with pytest.raises(ClaimLostError):
        await both.ack(one)
    for unknown in ("same", await first.enqueue("work")):
        with pytest.raises(InvalidJobError, match="pass a Job"):
            await both.ack(unknown)  # type: ignore[arg-type]


@in_virtual_time
async def test_jobs_that_are_the_same_in_two_queues_are_ended_in_these():
    storage, copy = (InMemoryStorage(clock=VirtualClock()) for _ in range(2))
    await blob(storage).enqueue("work")
    await copy.write((await storage.read())[0])
    both = QueueSet(blob(storage), blob(copy))
    [one], [other] = [await both.dequeue() for _ in range(2)]
    for job in (one, other):
        with pytest.raises(InvalidJobError, match="two queues have this job"):
            await both.ack(job)


async def test_a_queue_cannot_be_given_twice_and_must_be_async(tmp_path):
    path = tmp_path / "queue.json"
    await connect(path, DirectQueue).enqueue("work")
    os.link(path, tmp_path / "linked.json")
    storage: Any = InMemoryStorage()
    for members, text in (
        ((connect(path), connect(tmp_path / "linked.json")), "already"),
        ((StoreQueue(VsqsFolder(tmp_path)), StoreQueue(VsqsFolder(tmp_path / "."))), "already"),
        ((DirectQueue(storage), DirectQueue(storage)), "already"),
        ((SyncQueue(storage),), "made of async queues"),
        ((storage,), "made of async queues"),
    ):
        with pytest.raises(InvalidJobError, match=text):
            QueueSet(*members)


@in_virtual_time
async def test_a_set_opens_closed_queues_and_closes_the_queues_it_opened():
    ours, theirs = (BrokerQueue(InMemoryStorage(clock=VirtualClock()), clock=VirtualClock()) for _ in range(2))
    async with theirs:
        with pytest.raises(QueueClosedError):
            await QueueSet(ours, theirs).dequeue()
        async with QueueSet(ours, theirs) as queues:
            for queue in (ours, theirs):
                await queue.enqueue("work")
            assert [1, 1, 0] == [len(await queues.dequeue()) for _ in range(3)]
        with pytest.raises(QueueClosedError):
            await ours.enqueue("work")
        await theirs.enqueue("work")


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.HANGS])
@in_virtual_time
async def test_a_failing_queue_is_an_error_only_if_no_other_has_jobs(fault):
    healthy, ill = blob(), FaultyStorage(InMemoryStorage(clock=VirtualClock()))
    queues = QueueSet(blob(ill), healthy)
    ill.on_read(*[fault] * 1000)
    with pytest.raises((StorageError, TimeoutError)):
        await queues.dequeue(deadline=1)
    waiting = asyncio.create_task(queues.dequeue(wait=60, deadline=1))
    await asyncio.sleep(20)
    await healthy.enqueue("work", job_id="here")
    assert ["here"] == [job.id for job in await waiting]
