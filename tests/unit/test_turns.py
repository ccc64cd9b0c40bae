"""Writers of one file wait in line for their turn, and one that hangs in its turn does not stop the others."""

import asyncio
import os
import signal
import subprocess
import sys
from typing import cast

import pytest

from jqueue import BrokerQueue, CASConflictError, DirectQueue, LocalFileSystemStorage
from jqueue.core.pacing import Pacing
from jqueue.domain.header import CommitRecord
from jqueue.runtime import file_lock
from jqueue.runtime.system import SystemClock, SystemEntropy


class Counted(LocalFileSystemStorage):
    """Counts its writes, those of them that were in vain, its reads and its turns."""

    writes = conflicts = reads = turns = 0

    async def take_turn(self):
        end_turn = await super().take_turn()
        self.turns += 1
        return end_turn

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


async def test_a_busy_writer_leaves_turns_to_another(tmp_path):
    storage, busy_storage = Counted(tmp_path / "queue.json"), Counted(tmp_path / "queue.json")
    async with BrokerQueue(busy_storage) as busy, BrokerQueue(storage) as queue:
        await enqueue_some(queue, 1)
        tasks = [asyncio.create_task(enqueue_some(busy, 100_000)) for _ in range(3)]
        for _ in range(5):
            writes = busy_storage.writes
            while busy_storage.writes < writes + 3:  # it has gone on
                await asyncio.sleep(0)
            await enqueue_some(queue, 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert storage.turns >= 3, "it gets its turns, and need not write without one"


async def test_a_writer_does_not_forget_the_others_in_a_long_turn():
    """On a quick disk, a turn has more commits than a writer remembers the others for turns."""
    ended = list[str]()

    async def take_turn():
        return lambda: ended.append("turn")

    pacing = Pacing(SystemClock(), SystemEntropy(), take_turn)
    pacing.read(1, moved=False)
    pacing.line.lost()
    assert pacing.begin(), "the next commit reads, in a turn"
    await pacing.line.join()
    pacing.read(2, moved=True)
    for version in range(3, 103):
        assert not pacing.begin(), "further commits of the turn only write"
        pacing.landed("me", {"me": CommitRecord(version, version, 0.0, 0.001, "token")})
    pacing.line.leave()
    assert ["turn"] == ended
    assert pacing.begin()


async def test_a_lone_writer_needs_no_turn(tmp_path):
    async with BrokerQueue(LocalFileSystemStorage(tmp_path / "queue.json")) as queue:
        await enqueue_some(queue, 5)
    assert {"queue.json", "queue.json.lock"} == {path.name for path in tmp_path.iterdir()}


async def test_a_writer_goes_on_without_its_turn_after_a_while(tmp_path):
    path = tmp_path / "queue.json"
    storage = Counted(path)
    async with BrokerQueue(storage) as queue, BrokerQueue(LocalFileSystemStorage(path)) as other:
        await asyncio.gather(enqueue_some(queue, 1), enqueue_some(other, 1))
        await enqueue_some(queue, 1)
        end_turn = await LocalFileSystemStorage(path).take_turn()  # of a process that hangs in it
        async with asyncio.timeout(60):
            await enqueue_some(other, 1)
            assert 4 == (await queue.stats()).ready
        end_turn()
    await storage.remove()
    assert [] == os.listdir(tmp_path)


class Stopping(Counted):
    """Stops the event loop in the middle of a write."""

    stops = False

    async def write(self, content, if_match=None):
        if self.stops:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0)
        return await super().write(content, if_match)


def test_a_queue_that_moves_to_another_event_loop_leaves_no_turn_behind(tmp_path):
    storage, other = Stopping(tmp_path / "queue.json"), LocalFileSystemStorage(tmp_path / "queue.json")
    queue, loop = DirectQueue(storage), asyncio.new_event_loop()

    async def meet():
        for each in (queue, DirectQueue(other), queue):
            await enqueue_some(each, 1)

    async def go_on():
        await enqueue_some(queue, 1)
        async with asyncio.timeout(10):
            (await other.take_turn())()

    loop.run_until_complete(meet())
    storage.stops, turns = True, storage.turns
    stopped = loop.create_task(enqueue_some(queue, 1))
    loop.run_forever()
    storage.stops = False
    assert turns + 1 == storage.turns
    try:
        asyncio.run(go_on())
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.gather(stopped, return_exceptions=True))
        loop.close()


async def test_those_who_wait_for_a_turn_keep_no_thread_from_others(tmp_path):
    storage, other = LocalFileSystemStorage(tmp_path / "queue.json"), LocalFileSystemStorage(tmp_path / "other.json")
    await storage.write(b"{}")
    await storage.take_turn()
    waiting = [asyncio.create_task(storage.take_turn()) for _ in range(40)]
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
    descriptors = len(os.listdir("/dev/fd"))
    end_turn = await storage.take_turn()
    waiting = asyncio.create_task(storage.take_turn())
    await asyncio.sleep(0)
    for _ in range(reads):
        await storage.read()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    end_turn()
    async with asyncio.timeout(60):
        for _ in range(3):
            (await storage.take_turn())()
        while len(os.listdir("/dev/fd")) > descriptors:  # until the thread has closed its file
            await storage.read()


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
    await storage.take_turn()
    be_killed()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("when", ["turn", "write"])
async def test_a_child_keeps_neither_turn_nor_lock_of_a_parent_that_was_killed(tmp_path, when):
    storage = LocalFileSystemStorage(tmp_path / "queue.json", lock_timeout=20)
    etag = await storage.write(b"{}")
    command = [sys.executable, "-c", KILLED_WITH_A_CHILD, str(storage.path), when]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert b"" == parent.stdout.read()  # until both have closed it: the child lives on
        assert -signal.SIGKILL == parent.wait()
        async with asyncio.timeout(60):
            end_turn = await storage.take_turn()
            await storage.write(b"{2}", etag)
            end_turn()


async def test_a_file_of_another_program_in_the_place_of_the_turns_stays(tmp_path):
    storage, line = LocalFileSystemStorage(tmp_path / "queue.json"), tmp_path / "queue.json.lock.lock"
    await storage.write(b"{}")
    line.write_text("not ours")
    (await storage.take_turn())()
    await storage.remove()
    assert "not ours" == line.read_text()


async def test_a_queue_whose_name_ends_in_turn_has_a_lock_of_its_own(tmp_path):
    storage, other = (
        LocalFileSystemStorage(tmp_path / "queue.json"),
        LocalFileSystemStorage(tmp_path / "queue.json.turn"),
    )
    await storage.write(b"{}")
    etag = await other.write(b"{}")
    end_turn = await storage.take_turn()
    await other.write(b"{2}", etag)
    end_turn()
    await storage.remove()
    assert {"queue.json.turn", "queue.json.turn.lock"} == set(os.listdir(tmp_path))
