"""Writers of one file wait in line for their turn, and one that hangs in its turn does not stop the others."""

import asyncio
import os
import signal
import subprocess
import sys
from typing import cast

import pytest

from jqueue import BrokerQueue, CASConflictError, LocalFileSystemStorage
from jqueue.runtime import file_lock


class Counted(LocalFileSystemStorage):
    """Counts its writes, those of them that were in vain, and its reads."""

    writes = conflicts = reads = 0

    async def read_if_changed(self, etag):
        self.reads += 1
        return await super().read_if_changed(etag)

    async def write(self, content, if_match=None):
        self.writes += 1
        try:
            return await super().write(content, if_match)
        except CASConflictError:
            self.conflicts += 1
            raise


async def enqueue_some(queue, number):
    for _ in range(number):
        await queue.enqueue("t", b"")


async def test_writers_of_one_file_write_hardly_ever_in_vain(tmp_path):
    storages = [Counted(tmp_path / "queue.json") for _ in range(3)]
    queues = [BrokerQueue(storage) for storage in storages]
    async with queues[0], queues[1], queues[2]:
        await queues[0].enqueue("t", b"")
        await asyncio.gather(*(enqueue_some(queue, 40) for queue in queues for _ in range(3)))
        assert 361 == (await queues[0].stats()).ready
    writes, conflicts = sum(each.writes for each in storages), sum(each.conflicts for each in storages)
    assert writes > 60
    assert conflicts < writes / 4
    assert sum(each.reads for each in storages) < writes / 2, "a turn has many commits, and one read"


async def test_a_lone_writer_needs_no_turn(tmp_path):
    async with BrokerQueue(LocalFileSystemStorage(tmp_path / "queue.json")) as queue:
        await enqueue_some(queue, 5)
    assert {"queue.json", "queue.json.lock"} == {path.name for path in tmp_path.iterdir()}


async def test_a_writer_goes_on_without_its_turn_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(file_lock, "LONGEST_WAIT", 0.05)
    storage = LocalFileSystemStorage(tmp_path / "queue.json")
    await storage.write(b"{}")
    async with asyncio.timeout(60), storage.turn(), storage.turn(), LocalFileSystemStorage(storage.path).turn():
        assert (tmp_path / "queue.json.lock.lock").exists()
    await storage.remove()
    assert [] == os.listdir(tmp_path)


async def test_those_who_wait_for_a_turn_keep_no_thread_from_others(tmp_path, monkeypatch):
    monkeypatch.setattr(file_lock, "LONGEST_WAIT", 3600.0)
    storage, other = LocalFileSystemStorage(tmp_path / "queue.json"), LocalFileSystemStorage(tmp_path / "other.json")
    await storage.write(b"{}")
    async with storage.turn():
        waiting = [asyncio.create_task(anext(_turns(storage))) for _ in range(40)]
        await asyncio.sleep(0)  # each asks for a thread before the read does
        async with asyncio.timeout(60):
            assert (b"", None) == await other.read()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize("reads", [0, 1, 5])
async def test_a_wait_cancelled_at_any_moment_leaves_no_turn_behind(tmp_path, reads):
    storage = LocalFileSystemStorage(tmp_path / "queue.json")
    await storage.write(b"{}")
    async with storage.turn():
        waiting = asyncio.create_task(anext(_turns(storage)))
        await asyncio.sleep(0)
        for _ in range(reads):
            await storage.read()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with asyncio.timeout(60):
        begun = asyncio.get_running_loop().time()
        for _ in range(3):
            async with storage.turn():
                pass
        assert asyncio.get_running_loop().time() - begun < 3 * file_lock.LONGEST_WAIT


def test_a_turn_that_ends_while_it_is_joined_changes_no_mode_of_another_file(tmp_path):
    """Its file was closed in the middle of `join`, and the mode of the next file with the same number changed."""
    queue, others = tmp_path / "queue.json", list[int]()
    queue.touch(0o666)
    turn = file_lock.Turn(str(tmp_path / "line"))

    class Status:
        """The status of the data file, read by `join`: at that moment, its caller is cancelled."""

        def __getattr__(self, name):
            if not others:
                turn.end()
                others.append(os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT, 0o600))
            return getattr(os.stat(queue), name)

    turn.join(cast("os.stat_result", Status()))
    assert 0o600 == os.fstat(others[0]).st_mode & 0o777
    os.close(others[0])


async def _turns(storage):
    async with storage.turn():
        yield


KILLED_WITH_A_CHILD = """
import asyncio, os, signal, sys
from jqueue import LocalFileSystemStorage

def be_killed(*_):
    if os.fork() == 0:
        os.close(1)
        os.read(0, 1)  # until the test closes its end
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)

async def main(path, when):
    storage = LocalFileSystemStorage(path)
    content, etag = await storage.read()
    if when == "write":
        os.fsync = be_killed
        await storage.write(b"{1}", etag)
    async with storage.turn():
        be_killed()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("when", ["turn", "write"])
async def test_a_child_keeps_neither_turn_nor_lock_of_a_parent_that_was_killed(tmp_path, monkeypatch, when):
    monkeypatch.setattr(file_lock, "LONGEST_WAIT", 3600.0)
    storage = LocalFileSystemStorage(tmp_path / "queue.json", lock_timeout=20)
    etag = await storage.write(b"{}")
    command = [sys.executable, "-c", KILLED_WITH_A_CHILD, str(storage.path), when]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert b"" == parent.stdout.read()  # until both have closed it: the child lives on
        assert -signal.SIGKILL == parent.wait()
        async with asyncio.timeout(60), storage.turn():
            await storage.write(b"{2}", etag)


async def test_a_file_of_another_program_in_the_place_of_the_turns_stays(tmp_path):
    storage, line = LocalFileSystemStorage(tmp_path / "queue.json"), tmp_path / "queue.json.lock.lock"
    await storage.write(b"{}")
    line.write_text("not ours")
    async with storage.turn():
        pass
    await storage.remove()
    assert "not ours" == line.read_text()


async def test_a_queue_whose_name_ends_in_turn_has_a_lock_of_its_own(tmp_path):
    storage, other = (
        LocalFileSystemStorage(tmp_path / "queue.json"),
        LocalFileSystemStorage(tmp_path / "queue.json.turn"),
    )
    await storage.write(b"{}")
    etag = await other.write(b"{}")
    async with storage.turn():
        await other.write(b"{2}", etag)
    await storage.remove()
    assert {"queue.json.turn", "queue.json.turn.lock"} == set(os.listdir(tmp_path))
