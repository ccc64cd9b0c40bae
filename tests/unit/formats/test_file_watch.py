"""File events and due times wake a waiting dequeue, which reads nothing in between."""

import asyncio
import os
import shutil
import threading
from datetime import timedelta

import pytest

from jqueue.core.calls.file_watch import FileWatch
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import VsqsFolder
from jqueue.runtime.file_events import FileEvents
from tests.unit.formats.folders import filled

HOUR = timedelta(hours=1)


class Counted(VsqsFolder):
    """A store that counts its scans and the questions if it has moved.

    It also counts the questions for the folders to watch, which the watch asks after it has handled some events.
    """

    scans = 0
    asked = 0
    watches = 0

    def scan(self, now):
        self.scans += 1
        return super().scan(now)

    def may_have_changed(self):
        self.asked += 1
        return super().may_have_changed()

    def watched(self):
        self.watches += 1
        return super().watched()


async def _until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def heard(monkeypatch):
    """Return the list of watches that have reported events; a watch reports its own start, too."""
    heard = []
    notice = FileWatch._notice

    def note(self: FileWatch, events: FileEvents) -> None:
        notice(self, events)
        heard.append(events)

    monkeypatch.setattr(FileWatch, "_notice", note)
    return heard


@pytest.fixture
async def queue(tmp_path):
    """Return a queue that polls only every hour without events."""
    assert FileEvents.available(), "install the extra `formats`"
    async with StoreQueue(Counted(tmp_path / "a" / "queue", fsync=False), poll_interval=HOUR) as queue:
        yield queue
    assert not _threads()


def _threads():
    return [thread for thread in threading.enumerate() if thread.name == "jqueue-file-events"]


def _is_idle(queue):
    """Return True if the writer rests and has read after every noticed event."""
    return queue._writer._files.active and not queue._writer._files.noticed and queue._writer._idle


async def _watching(queue, heard):
    await _until(lambda: queue._writer._files._events in heard and _is_idle(queue))


async def _waits(queue, heard):
    waiting = asyncio.create_task(queue.dequeue(wait=20))
    await _watching(queue, heard)
    return waiting


async def test_a_waiting_dequeue_reads_nothing_while_nothing_changes(queue, heard, tmp_path, monkeypatch):
    rests, rest = [], queue._writer._wait_for_call

    def note(seconds):
        rests.append(seconds)
        return rest(seconds)

    monkeypatch.setattr(queue._writer, "_wait_for_call", note)
    waiting = await _waits(queue, heard)
    assert HOUR.total_seconds() - 60 < rests[-1], "it would poll without an event"
    looks, watches = (queue.store.scans, queue.store.asked), queue.store.watches
    (tmp_path / "beside").mkdir()  # in the folder that is watched because that of the queue is not there yet
    await _until(lambda: queue.store.watches > watches)
    await asyncio.sleep(0)  # events reported before that are noticed
    await _until(lambda: _is_idle(queue))
    assert looks == (queue.store.scans, queue.store.asked)
    filled(tmp_path / "a" / "queue", {"5": b"payload"})
    async with asyncio.timeout(20):
        assert b"payload" == (await waiting)[0].payload, "it does read when there is a message"


async def test_a_message_of_another_program_wakes_a_waiting_dequeue_even_in_a_new_folder(queue, heard, tmp_path):
    waiting = await _waits(queue, heard)
    filled(tmp_path / "a" / "queue", {"5.new": b"payload"})
    os.rename(tmp_path / "a" / "queue" / "5.new", tmp_path / "a" / "queue" / "5")
    async with asyncio.timeout(20):
        [job] = await waiting
    assert b"payload" == job.payload


async def test_a_recreated_folder_is_watched_again(queue, heard, tmp_path):
    folder = filled(tmp_path / "a" / "queue", {})
    for number in range(3):
        waiting = await _waits(queue, heard)
        count = len(heard)
        shutil.rmtree(folder)
        filled(folder, {})
        await _until(lambda count=count: len(heard) > count and _is_idle(queue))
        filled(folder, {str(number): b"payload"})
        async with asyncio.timeout(20):
            [job] = await waiting
        await queue.ack(job)


async def test_a_waiting_dequeue_fails_when_the_folder_is_removed(queue, heard, tmp_path):
    from jqueue.domain.errors import BlobMissingError

    folder = filled(tmp_path / "a" / "queue", {})
    waiting = await _waits(queue, heard)
    shutil.rmtree(folder)
    with pytest.raises(BlobMissingError):
        async with asyncio.timeout(20):
            await waiting


async def test_the_end_of_a_claim_wakes_a_waiting_dequeue(queue, heard, tmp_path):
    other = StoreQueue(VsqsFolder(tmp_path / "a" / "queue", fsync=False))
    await other.enqueue("work", b"payload")
    await other.dequeue(claim_timeout=0.4)
    waiting = await _waits(queue, heard)
    async with asyncio.timeout(20):
        [job] = await waiting
    assert 2 == job.attempt


async def test_a_job_that_is_due_wakes_a_waiting_dequeue(queue, heard):
    await queue.enqueue("work", b"payload", delay=0.4)
    waiting = await _waits(queue, heard)
    async with asyncio.timeout(20):
        assert b"payload" == (await waiting)[0].payload


async def test_free_space_wakes_a_waiting_enqueue(heard, tmp_path):
    store = Counted(tmp_path, fsync=False, capacity=1, when_full="wait")
    async with StoreQueue(store, poll_interval=HOUR) as queue:
        await queue.enqueue("work", b"1")
        waiting = asyncio.create_task(queue.enqueue("work", b"2"))
        await _watching(queue, heard)
        assert not waiting.done()
        [name] = [name for name in os.listdir(tmp_path) if name.isdigit()]
        (tmp_path / name).unlink()
        async with asyncio.timeout(20):
            await waiting
    assert not _threads()


async def test_the_watch_thread_ends_with_the_last_waiting_call(queue, heard):
    waiting = await _waits(queue, heard)
    assert 1 == len(_threads())
    waiting.cancel()
    await _until(lambda: not _threads())


async def test_the_folder_is_polled_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(FileEvents, "available", lambda: False)
    store = Counted(tmp_path, fsync=False)
    async with StoreQueue(store, poll_interval=0.05) as queue:
        waiting = asyncio.create_task(queue.dequeue(wait=20))
        await _until(lambda: store.asked)
        assert not _threads()
        filled(tmp_path, {"5": b"payload"})
        async with asyncio.timeout(20):
            assert b"payload" == (await waiting)[0].payload


async def test_the_folder_is_polled_if_the_system_refuses_watches(tmp_path, monkeypatch, caplog):
    def none_left(self: FileEvents) -> None:
        raise OSError(24, "too many")

    monkeypatch.setattr(FileEvents, "_watch", none_left)
    store = Counted(tmp_path, fsync=False)
    async with StoreQueue(store, poll_interval=0.05) as queue:
        waiting = asyncio.create_task(queue.dequeue(wait=20))
        await _until(lambda: store.asked)
        filled(tmp_path, {"5": b"payload"})
        async with asyncio.timeout(20):
            assert b"payload" == (await waiting)[0].payload
    assert "too many" in caplog.text
