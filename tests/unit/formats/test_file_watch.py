"""Who waits for jobs is woken by events of the file system and at the next due time, and looks at nothing between."""

import asyncio
import os
import shutil
import threading
from datetime import timedelta

import pytest

from jqueue.adapters.file_events import FileEvents
from jqueue.adapters.formats.vsqs import VsqsFolder
from jqueue.core.store_queue import StoreQueue
from tests.unit.formats.folders import filled

HOUR = timedelta(hours=1)


class Counted(VsqsFolder):
    """Counts how often the folder is listed, and how often it is asked whether it has moved."""

    scans = 0
    asked = 0

    def scan(self, now):
        self.scans += 1
        return super().scan(now)

    def has_moved(self):
        self.asked += 1
        return super().has_moved()


@pytest.fixture
async def queue(tmp_path):
    """A queue that would look only every hour of its own accord."""
    assert FileEvents.are_there(), "install the extra `formats`"
    async with StoreQueue(Counted(tmp_path / "a" / "queue", fsync=False), poll_interval=HOUR) as queue:
        yield queue
    assert not _threads()


def _threads():
    return [thread for thread in threading.enumerate() if thread.name == "jqueue-file-events"]


async def _watching(queue):
    while not queue._writer._files.active or queue._writer._files.noticed:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)


async def _waits(queue):
    waiting = asyncio.create_task(queue.dequeue(wait=20))
    await _watching(queue)
    return waiting


async def test_who_waits_looks_at_nothing_while_nothing_happens(queue, tmp_path):
    waiting = await _waits(queue)
    looks = queue.store.scans, queue.store.asked
    await asyncio.sleep(0.5)
    assert looks == (queue.store.scans, queue.store.asked)
    (tmp_path / "beside").mkdir()  # in the folder that is watched because that of the queue is not there yet
    assert looks == (queue.store.scans, queue.store.asked)
    waiting.cancel()


async def test_a_message_of_another_program_wakes_who_waits_even_in_a_new_folder(queue, tmp_path):
    waiting = await _waits(queue)
    filled(tmp_path / "a" / "queue", {"5.new": b"payload"})
    os.rename(tmp_path / "a" / "queue" / "5.new", tmp_path / "a" / "queue" / "5")
    async with asyncio.timeout(5):
        [job] = await waiting
    assert b"payload" == job.payload


async def test_a_folder_that_is_removed_and_made_again_is_watched_again(queue, tmp_path):
    folder = filled(tmp_path / "a" / "queue", {})
    for number in range(3):
        waiting = await _waits(queue)
        shutil.rmtree(folder)
        filled(folder, {})
        await asyncio.sleep(0.1)
        filled(folder, {str(number): b"payload"})
        async with asyncio.timeout(5):
            [job] = await waiting
        await queue.ack(job)


async def test_a_waiting_call_is_told_when_the_folder_is_gone(queue, tmp_path):
    from jqueue import BlobMissingError

    folder = filled(tmp_path / "a" / "queue", {})
    waiting = await _waits(queue)
    shutil.rmtree(folder)
    with pytest.raises(BlobMissingError):
        async with asyncio.timeout(5):
            await waiting


async def test_the_end_of_a_claim_wakes_who_waits(queue, tmp_path):
    other = StoreQueue(VsqsFolder(tmp_path / "a" / "queue", fsync=False))
    await other.enqueue("work", b"payload")
    await other.dequeue(claim_timeout=0.4)
    waiting = await _waits(queue)
    async with asyncio.timeout(5):
        [job] = await waiting
    assert 2 == job.attempt


async def test_a_job_that_is_due_wakes_who_waits(queue):
    await queue.enqueue("work", b"payload", delay=0.4)
    waiting = await _waits(queue)
    async with asyncio.timeout(5):
        assert b"payload" == (await waiting)[0].payload


async def test_room_wakes_who_waits_for_it(tmp_path):
    store = Counted(tmp_path, fsync=False, capacity=1, when_full="wait")
    async with StoreQueue(store, poll_interval=HOUR) as queue:
        await queue.enqueue("work", b"1")
        waiting = asyncio.create_task(queue.enqueue("work", b"2"))
        await _watching(queue)
        assert not waiting.done()
        [name] = [name for name in os.listdir(tmp_path) if name.isdigit()]
        (tmp_path / name).unlink()
        async with asyncio.timeout(5):
            await waiting
    assert not _threads()


async def test_no_thread_is_left_when_nobody_waits(queue):
    waiting = await _waits(queue)
    assert 1 == len(_threads())
    waiting.cancel()
    async with asyncio.timeout(5):
        while _threads():
            await asyncio.sleep(0.01)


async def test_without_the_extra_it_is_looked_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(FileEvents, "are_there", lambda: False)
    async with StoreQueue(Counted(tmp_path, fsync=False), poll_interval=0.05) as queue:
        waiting = asyncio.create_task(queue.dequeue(wait=20))
        await asyncio.sleep(0.1)
        assert not _threads()
        filled(tmp_path, {"5": b"payload"})
        async with asyncio.timeout(5):
            assert b"payload" == (await waiting)[0].payload


async def test_where_the_system_has_no_watches_it_is_looked_now_and_then(tmp_path, monkeypatch, caplog):
    def none_left(self: FileEvents) -> None:
        raise OSError(24, "too many")

    monkeypatch.setattr(FileEvents, "_watch", none_left)
    async with StoreQueue(Counted(tmp_path, fsync=False), poll_interval=0.05) as queue:
        waiting = asyncio.create_task(queue.dequeue(wait=20))
        await asyncio.sleep(0.1)
        filled(tmp_path, {"5": b"payload"})
        async with asyncio.timeout(5):
            assert b"payload" == (await waiting)[0].payload
    assert "too many" in caplog.text
