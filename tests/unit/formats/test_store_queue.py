"""A queue on a folder where others are quicker, or whose disk is full; tests/unit/test_store_queue.py has the rules."""

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

from jqueue import DeadlineExceededError
from jqueue.formats.port import Step
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import VsqsFolder
from tests.unit.formats.folders import NOW, filled, names
from tests.unit.until_deadline import run_until_deadline


class Robbed(VsqsFolder):
    """Another program claims messages just before we do, so many times."""

    times = 1

    def carry_out(self, changes, now):
        for change in changes:
            if change.step is Step.CLAIM and self.times and change.place in os.listdir(self.path):
                self.times -= 1
                os.rename(self.path / change.place, self.path / f"{change.place.partition('.')[0]}.{9 * NOW}")
        return super().carry_out(changes, now)


@asynccontextmanager
async def somebody_waits(queue):
    """Somebody waits for a job, and gets none."""
    waiting = asyncio.create_task(queue.dequeue(wait=60))
    async with asyncio.timeout(20):
        while not queue._writer.calls.waiting:
            await asyncio.sleep(0.01)
    yield
    assert 0 == queue.store.times, "it was robbed"
    assert not waiting.done()
    waiting.cancel()


async def test_a_job_that_another_program_takes_before_who_waits_for_it_is_enqueued_once(tmp_path):
    async with StoreQueue(Robbed(tmp_path, fsync=False)) as queue:
        async with somebody_waits(queue):
            await queue.enqueue("work", b"payload")
        assert 1 == len(names(tmp_path))


async def test_a_job_given_back_and_taken_by_another_program_was_given_back(tmp_path):
    store = Robbed(filled(tmp_path, {"5": b""}), fsync=False)
    async with StoreQueue(store) as queue:
        store.times = 0
        [job] = await queue.dequeue()
        async with somebody_waits(queue):
            store.times = 1
            await queue.nack(job)


async def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    queue = StoreQueue(VsqsFolder(tmp_path, fsync=False))
    write = os.write

    def full(descriptor: int, content: bytes) -> int:
        if bytes(content) == b"payload":
            raise OSError(28, "no space")
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DeadlineExceededError, match="no space"):
        await run_until_deadline(queue, queue.enqueue("work", b"payload"))
    assert [] == names(tmp_path)


async def test_a_job_that_has_its_old_name_again_is_seen_as_it_is_now(tmp_path):
    one, other = StoreQueue(VsqsFolder(filled(tmp_path, {"5": b""}))), StoreQueue(VsqsFolder(tmp_path))
    [job] = await other.dequeue()
    await one.nack(job, charge=False)
    [again] = await other.dequeue()
    assert ("5", 2) == (again.id, again.attempt)
    await one.nack(again, charge=False)
    assert [2] == [job.attempt for job in (await other.read_state()).jobs]
