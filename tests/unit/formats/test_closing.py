"""Closing a queue on the format of an older program: no call is kept waiting, and no file stays open."""

import asyncio
import os
from pathlib import Path

import pytest

from jqueue import QueueClosedError
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import VsqsFolder
from tests.unit.formats.text_files import queue_on


async def test_closing_a_queue_ends_enqueues_that_wait_for_space_at_once(tmp_path: Path) -> None:
    queue = StoreQueue(VsqsFolder(tmp_path, capacity=1, when_full="wait", fsync=False))
    await queue.enqueue("work", b"1")
    waiting = asyncio.create_task(queue.enqueue("work", b"2"))
    while not queue._writer.calls.waiting:
        await asyncio.sleep(0.001)
    async with asyncio.timeout(5):
        await queue.aclose()
        with pytest.raises(QueueClosedError):
            await waiting
    async with queue:
        assert [b"1"] == [job.payload for job in (await queue.read_state()).jobs]


async def test_closing_a_queue_ends_enqueues_made_at_the_same_moment(tmp_path: Path) -> None:
    queue = StoreQueue(VsqsFolder(tmp_path, capacity=1, when_full="wait", fsync=False))
    await queue.enqueue("work", b"1")
    waiting = asyncio.create_task(queue.enqueue("work", b"2"))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await queue.aclose()
        with pytest.raises(QueueClosedError):
            await waiting


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not show what is open")
async def test_closing_a_queue_leaves_no_file_open(tmp_path: Path) -> None:
    def still_open() -> list[str]:
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return [os.readlink(link) for link in links if os.path.lexists(link) and str(tmp_path) in os.readlink(link)]

    async with queue_on(tmp_path / "queue.tq") as queue:
        await queue.enqueue("work", b"1")
        [job] = await queue.dequeue()
    assert [] == still_open()
    async with queue:
        await queue.ack(job)
        assert [] == await queue.dequeue()
    assert [] == still_open()
