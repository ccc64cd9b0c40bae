"""What a queue makes of a place where others are quicker, or where there is no room: nothing is done twice."""

import asyncio
import os

import pytest

from jqueue import ClaimLostError, StorageError
from jqueue.adapters.formats.vsqs import VsqsFolder
from jqueue.core.store_queue import StoreQueue
from jqueue.domain.operations import Ack
from jqueue.ports.job_store import Step
from tests.unit.formats.folders import NOW, filled, names


class Robbed(VsqsFolder):
    """Another program claims every message of ours before a step, so many times."""

    step = Step.CLAIM
    times = 1

    def carry_out(self, changes, now):
        for change in changes:
            if change.step is self.step and self.times and change.place in os.listdir(self.path):
                self.times -= 1
                os.rename(self.path / change.place, self.path / f"{change.place.partition('.')[0]}.{9 * NOW}")
        return super().carry_out(changes, now)


async def test_a_job_that_another_program_takes_before_who_waits_for_it_is_enqueued_once(tmp_path):
    async with StoreQueue(Robbed(tmp_path, fsync=False)) as queue:
        waiting = asyncio.create_task(queue.dequeue(wait=0.3))
        await asyncio.sleep(0.05)
        await queue.enqueue("work", b"payload")
        assert [] == await waiting
    assert 1 == len(names(tmp_path))


async def test_a_job_given_back_and_taken_by_another_program_was_given_back(tmp_path):
    store = Robbed(filled(tmp_path, {"5": b""}), fsync=False)
    async with StoreQueue(store) as queue:
        store.times = 0
        [job] = await queue.dequeue()
        waiting = asyncio.create_task(queue.dequeue(wait=0.3))
        await asyncio.sleep(0.05)
        store.times = 1
        await queue.nack(job)
        assert [] == await waiting


async def test_what_was_lost_among_others_is_told_for_itself(tmp_path):
    store = Robbed(filled(tmp_path, {"5": b"", "6": b""}), fsync=False)
    store.step = Step.REMOVE
    queue = StoreQueue(store)
    first, second = await queue.dequeue(batch_size=2)
    lost, done = await queue.apply_each(Ack(first), Ack(second))
    assert isinstance(lost, ClaimLostError)
    assert done is None
    with pytest.raises(ClaimLostError):
        await queue.ack(first)
    await queue.ack(second)


async def test_a_claim_that_another_program_makes_first_leads_to_the_next_job(tmp_path):
    store = Robbed(filled(tmp_path, {"5": b"5", "6": b"6"}), fsync=False)
    [job] = await StoreQueue(store).dequeue()
    assert b"6" == job.payload


async def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    queue = StoreQueue(VsqsFolder(tmp_path, fsync=False), deadline=0.3)
    write = os.write

    def full(descriptor: int, content: bytes) -> int:
        if bytes(content) == b"payload":
            raise OSError(28, "no space")
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError):
        await queue.enqueue("work", b"payload")
    assert [] == names(tmp_path)
