"""What a queue makes of a place where others are quicker, or where there is no room: nothing is done twice."""

import asyncio
import os
import threading
import time

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


async def test_who_loses_one_of_several_jobs_gets_another_one(tmp_path):
    store = Robbed(filled(tmp_path, {"5": b"5", "6": b"6", "7": b"7", "8": b"8"}), fsync=False)
    jobs = await StoreQueue(store).dequeue(batch_size=3)
    assert [b"6", b"7", b"8"] == [job.payload for job in jobs]


async def test_claims_of_whom_nobody_waits_for_any_more_go_back(tmp_path):
    class Slow(Robbed):
        scans = 0

        def scan(self, now):
            self.scans += 1
            if self.scans > 1:
                left.set()
                time.sleep(0.1)
            return super().scan(now)

    left = threading.Event()
    store = Slow(filled(tmp_path, {"5": b"5", "6": b"6"}), fsync=False)
    async with StoreQueue(store) as queue:
        dequeue = asyncio.create_task(queue.dequeue(batch_size=2))
        while not left.is_set():
            await asyncio.sleep(0.01)
        dequeue.cancel()
    assert ["6"] == [name for name in names(tmp_path) if "." not in name], "claimed before the other one was lost"


async def test_a_job_that_has_its_old_name_again_is_seen_as_it_is_now(tmp_path):
    one, other = StoreQueue(VsqsFolder(filled(tmp_path, {"5": b""}))), StoreQueue(VsqsFolder(tmp_path))
    [job] = await other.dequeue()
    await one.nack(job, charge=False)
    [again] = await other.dequeue()
    assert ("5", 2) == (again.id, again.attempt)
    await one.nack(again, charge=False)
    assert [2] == [job.attempt for job in (await other.read_state()).jobs]
