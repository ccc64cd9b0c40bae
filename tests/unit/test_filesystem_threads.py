"""Calls wait for the disk in threads of the storage: the event loop goes on, and forks and exits do no harm."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.domain.errors import CASConflictError
from tests.file_faults import instead_of_fsync

ROOT = Path(__file__).parents[2]
PATIENCE = 60


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


@pytest.fixture
def storage(path):
    return LocalFileSystemStorage(path)


def threads_of_ours():
    return [thread for thread in threading.enumerate() if thread.name.startswith("jqueue-storage")]


class Gate:
    """A flush that waits until it is let through."""

    def __init__(self, monkeypatch):
        self.reached, self.opened = threading.Event(), threading.Event()
        instead_of_fsync(monkeypatch, self._wait)

    def _wait(self, _descriptor):
        self.reached.set()
        assert self.opened.wait(PATIENCE)

    async def until_reached(self):
        while not self.reached.is_set():
            await asyncio.sleep(0)


async def test_the_event_loop_goes_on_while_a_write_waits_for_the_disk(storage, monkeypatch):
    gate = Gate(monkeypatch)
    write = asyncio.create_task(storage.write(b"first"))
    await gate.until_reached()
    gate.opened.set()
    assert await write


async def test_a_waiting_write_does_not_delay_other_calls(storage, monkeypatch):
    etag = await storage.write(b"before")
    gate = Gate(monkeypatch)
    write = asyncio.create_task(storage.write(b"after", etag))
    await gate.until_reached()
    assert (b"before", None) == ((await storage.read())[0], await storage.read_if_changed((await storage.read())[1]))
    gate.opened.set()
    assert (b"after", await write) == await storage.read()


async def test_consecutive_calls_need_one_thread(storage):
    await storage.write(b"first")
    await asyncio.gather(*(storage.read() for _ in range(3)))
    before = threads_of_ours()
    for _ in range(50):
        await storage.read()
    assert before == threads_of_ours()


async def test_more_calls_than_threads_are_all_made(path):
    storages = [LocalFileSystemStorage(path.with_name(f"{number}.json")) for number in range(100)]
    etags = await asyncio.gather(*(storage.write(b"first") for storage in storages))
    assert 32 >= len(threads_of_ours())
    assert [(b"first", etag) for etag in etags] == await asyncio.gather(*(storage.read() for storage in storages))


async def test_a_full_default_executor_delays_no_call(storage):
    loop, full = asyncio.get_running_loop(), threading.Event()
    executor = ThreadPoolExecutor(1)
    loop.set_default_executor(executor)
    busy = loop.run_in_executor(None, full.wait, PATIENCE)
    try:
        await storage.write(b"first")
        assert not busy.done()
    finally:
        full.set()
        await busy


async def test_a_write_cancelled_while_it_waits_for_the_disk_still_lands(storage, path, monkeypatch):
    gate = Gate(monkeypatch)
    write = asyncio.create_task(storage.write(b"first"))
    await gate.until_reached()
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    assert not path.exists()
    gate.opened.set()
    while not path.exists():
        await asyncio.sleep(0.001)
    assert b"first" == path.read_bytes()


def test_the_end_of_an_event_loop_waits_for_a_cancelled_write(storage, path, monkeypatch):
    gate = Gate(monkeypatch)

    async def leave_a_write():
        task = asyncio.create_task(storage.write(b"first"))
        await gate.until_reached()
        threading.Timer(0.05, gate.opened.set).start()
        return task

    asyncio.run(leave_a_write())
    assert b"first" == path.read_bytes()
    assert ["queue.json", "queue.json.lock"] == sorted(os.listdir(path.parent))


def test_several_loops_may_use_one_storage_at_a_time(storage):
    async def increment():
        for _ in range(20):
            while True:
                content, etag = await storage.read()
                try:
                    await storage.write(b"%d" % (int(content or b"0") + 1), etag)
                except CASConflictError:
                    continue
                break

    loops = [threading.Thread(target=lambda: asyncio.run(increment())) for _ in range(4)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join()
    assert b"80" == asyncio.run(storage.read())[0]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not list open files")
async def test_writes_leave_no_files_open(storage, path):
    etag = await storage.write(b"first")
    for _ in range(20):
        etag = await storage.write(b"again", etag)
        with pytest.raises(CASConflictError):
            await storage.write(b"late", "another etag")
    async with asyncio.timeout(PATIENCE):
        while [name for name in map(_target, os.listdir("/proc/self/fd")) if name.startswith(str(path.parent))]:
            await asyncio.sleep(0.001)  # the replaced file is closed a moment after the answer


def _target(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


async def test_a_handled_error_is_freed_without_garbage_collection(storage):
    await storage.write(b"first")
    gc.collect()
    gc.disable()
    try:
        error = None
        try:
            await storage.write(b"x" * 1_000_000, "another etag")
        except CASConflictError as conflict:
            error = weakref.ref(conflict)
        await asyncio.sleep(0.01)
        assert error is not None
        assert error() is None, "the error and its content would stay until the next garbage collection"
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_child_forked_during_a_write_has_threads_of_its_own(storage, path, monkeypatch):
    gate = Gate(monkeypatch)
    write = asyncio.create_task(storage.write(b"first"))
    await gate.until_reached()
    child = os.fork()
    if child == 0:
        try:
            other = LocalFileSystemStorage(path.with_name("other.json"))
            thread = threading.Thread(target=lambda: asyncio.run(other.write(b"child")))
            thread.start()
            thread.join(PATIENCE)
            os._exit(0)
        finally:
            os._exit(1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    gate.opened.set()
    await write
    assert (b"first", b"child") == (path.read_bytes(), path.with_name("other.json").read_bytes())


@pytest.mark.parametrize("end", ["", "raise SystemExit", "loop.close()"])
def test_a_program_that_ends_during_a_write_ends_after_it(path, end):
    code = f"""
import asyncio, os, sys, threading
from jqueue import LocalFileSystemStorage

fsync, reached = os.fsync, threading.Event()

def slow(descriptor):
    reached.set()
    threading.Event().wait(0.2)
    fsync(descriptor)

os.fsync = slow

async def main():
    task = asyncio.create_task(LocalFileSystemStorage(sys.argv[1]).write(b"first"))
    while not reached.is_set():
        await asyncio.sleep(0)
    task.cancel()

loop = asyncio.new_event_loop()
loop.run_until_complete(main())
{end}
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (0, "") == (done.returncode, "" if end == "" else done.stderr)
    assert b"first" == path.read_bytes()
