"""A queue on a folder where another program is quicker, or the disk is full.

tests/unit/test_store_queue.py tests the rules on a store in memory.
"""

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
    """A folder in which another program claims a message just before the next `times` claims."""

    times = 1

    def carry_out(self, changes, now):
        for change in changes:
            if change.step is Step.CLAIM and self.times and change.place in os.listdir(self.path):
                self.times -= 1
                os.rename(self.path / change.place, self.path / f"{change.place.partition('.')[0]}.{9 * NOW}")
        return super().carry_out(changes, now)


@asynccontextmanager
async def waiting_dequeue(queue):
    """Let a dequeue wait during the block; it must get no job."""
    waiting = asyncio.create_task(queue.dequeue(wait=60))
    async with asyncio.timeout(20):
        while not queue._writer.calls.waiting:
            await asyncio.sleep(0.01)
    yield
    assert 0 == queue.store.times, "another program must have taken the job"
    assert not waiting.done()
    waiting.cancel()


async def test_a_job_that_another_program_takes_before_the_waiting_dequeue_is_enqueued_once(tmp_path):
    async with StoreQueue(Robbed(tmp_path, fsync=False)) as queue:
        async with waiting_dequeue(queue):
            await queue.enqueue("work", b"payload")
        assert 1 == len(names(tmp_path))


async def test_a_nack_succeeds_if_another_program_then_takes_the_job(tmp_path):
    store = Robbed(filled(tmp_path, {"5": b""}), fsync=False)
    async with StoreQueue(store) as queue:
        store.times = 0
        [job] = await queue.dequeue()
        async with waiting_dequeue(queue):
            store.times = 1
            await queue.nack(job)


async def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path, monkeypatch):
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


async def test_a_job_that_has_its_old_name_again_is_read_anew(tmp_path):
    one, other = StoreQueue(VsqsFolder(filled(tmp_path, {"5": b""}))), StoreQueue(VsqsFolder(tmp_path))
    [job] = await other.dequeue()
    await one.nack(job, charge=False)
    [again] = await other.dequeue()
    assert ("5", 2) == (again.id, again.attempt)
    await one.nack(again, charge=False)
    assert [2] == [job.attempt for job in (await other.read_state()).jobs]
