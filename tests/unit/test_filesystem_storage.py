"""The file storage beyond the storage contract: modes, links in its place, edits by hand, and its threads."""

import asyncio
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import CASConflictError, StorageFatalError
from jqueue.testing.storage_contract import count_up
from tests.unit.file_faults import instead_of_fsync, names


async def test_folders_are_created_at_the_first_write_and_by_nothing_else(tmp_path):
    storage = LocalFileSystemStorage(tmp_path / "a" / "b" / "queue.json")
    assert (b"", None) == await storage.read()
    with pytest.raises(CASConflictError):
        await storage.write(b"late", "an etag")
    assert [] == list(tmp_path.iterdir())
    etag = await storage.write(b"first")
    assert (b"first", etag) == await storage.read()


async def test_a_relative_path_stays_the_same_file_when_the_process_changes_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = LocalFileSystemStorage("queue.json")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    await storage.write(b"first")
    assert b"first" == (tmp_path / "queue.json").read_bytes()


async def test_new_files_are_private_under_any_umask(storage, path, monkeypatch):
    modes: dict[str, int] = {}
    instead_of_fsync(monkeypatch, lambda _: modes.update((p.name, p.stat().st_mode) for p in path.parent.iterdir()))
    umask = os.umask(0)
    try:
        await storage.write(b"first")
    finally:
        os.umask(umask)
    modes[path.name] = path.stat().st_mode
    assert 3 == len(modes), "the file, its sidecar and the temporary file"
    assert {0o600} == {stat.S_IMODE(mode) for mode in modes.values()}


@pytest.mark.parametrize("link", ["queue.json", "queue.json.lock"])
async def test_a_symbolic_link_is_not_followed(storage, tmp_path, link):
    (tmp_path / "precious").write_bytes(b"keep")
    (tmp_path / link).symlink_to(tmp_path / "precious")
    with pytest.raises(StorageFatalError, match=f"{link}'.* a symbolic link"):
        await storage.write(b"first")
    if link == "queue.json":
        with pytest.raises(StorageFatalError, match="a symbolic link"):
            await storage.read()
    assert {link, "precious"} == set(os.listdir(tmp_path))
    assert b"keep" == (tmp_path / "precious").read_bytes()


@pytest.mark.parametrize(("make", "kind"), [(os.mkdir, "a folder"), (os.mkfifo, "a named pipe")])
async def test_a_path_that_is_no_regular_file_is_refused_without_waiting(storage, path, make, kind):
    make(path)
    for call in (storage.read(), storage.write(b"first")):
        with pytest.raises(StorageFatalError, match=f"queue.json'.* {kind}"):
            await call
    assert [path.name] == os.listdir(path.parent)


async def test_a_lock_file_of_another_program_is_left_alone(storage, path):
    sidecar = path.with_name("queue.json.lock")
    sidecar.write_bytes(b"another program's 4711\n")
    with pytest.raises(StorageFatalError, match="belongs to another program"):
        await storage.write(b"first")
    assert b"another program's 4711\n" == sidecar.read_bytes()


@pytest.mark.parametrize("left", [b"", b"\0" * 97, b"jqueue lo"])
async def test_a_lock_file_damaged_by_a_power_cut_does_no_harm(storage, path, left):
    etag = await storage.write(b"first")
    path.with_name("queue.json.lock").write_bytes(left)
    with pytest.raises(CASConflictError):
        await storage.write(b"second", etag)
    await storage.write(b"second", (await storage.read())[1])
    assert b"second" == path.read_bytes()


def edit_in_place(path, content):
    """Write into the file until its time has moved: the clock of some file systems ticks only every few ms."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        with open(path, "r+b") as file:
            file.truncate(0)
            file.write(content)


def replace(path, content):
    path.with_name("edited").write_bytes(content)
    os.replace(path.with_name("edited"), path)


@pytest.mark.parametrize("edit", [edit_in_place, replace])
async def test_an_edit_by_hand_is_another_etag(storage, path, edit):
    content = b"edited"  # as long as what was there
    etag = await storage.write(b"before")
    edit(path, content)
    with pytest.raises(CASConflictError):
        await storage.write(b"lost edit", etag)
    found = await storage.read_if_changed(etag)
    assert found == await storage.read()
    assert content == found[0]
    await storage.write(b"after", found[1])


async def test_an_edit_during_a_write_is_not_overwritten(storage, path, monkeypatch):
    etag = await storage.write(b"before")
    instead_of_fsync(monkeypatch, lambda _: edit_in_place(path, b"edited"))
    with pytest.raises(CASConflictError, match="without its lock"):
        await storage.write(b"after", etag)
    assert b"edited" == path.read_bytes()
    assert ["queue.json", "queue.json.lock"] == names(path)


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_event_loops_in_several_threads_share_a_store(storage, kind):
    shared = storage if kind == "file" else InMemoryStorage()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: asyncio.run(count_up(shared, 20)), range(4)))
    assert b"80" == asyncio.run(shared.read())[0]


# Threads wait for the disk


class Gate:
    """A flush that waits until it is let through."""

    def __init__(self, monkeypatch):
        self.reached, self.opened = threading.Event(), threading.Event()
        instead_of_fsync(monkeypatch, self._wait)

    def _wait(self, _descriptor):
        self.reached.set()
        assert self.opened.wait(60)

    async def until_reached(self):
        while not self.reached.is_set():
            await asyncio.sleep(0)


async def test_a_waiting_write_delays_neither_the_event_loop_nor_other_calls(storage, monkeypatch):
    etag = await storage.write(b"before")
    gate = Gate(monkeypatch)
    write = asyncio.create_task(storage.write(b"after", etag))
    await gate.until_reached()
    assert (b"before", None) == ((await storage.read())[0], await storage.read_if_changed((await storage.read())[1]))
    gate.opened.set()
    assert (b"after", await write) == await storage.read()


async def test_a_full_default_executor_delays_no_call(storage):
    loop, full = asyncio.get_running_loop(), threading.Event()
    executor = ThreadPoolExecutor(1)
    loop.set_default_executor(executor)
    busy = loop.run_in_executor(None, full.wait, 60)
    try:
        await storage.write(b"first")
        assert not busy.done()
    finally:
        full.set()
        await busy


def test_the_end_of_an_event_loop_waits_for_a_cancelled_write(storage, path, monkeypatch):
    gate = Gate(monkeypatch)

    async def leave_a_write():
        task = asyncio.create_task(storage.write(b"first"))
        await gate.until_reached()
        asyncio.get_running_loop().call_soon(gate.opened.set)
        task.cancel()

    asyncio.run(leave_a_write())
    assert b"first" == path.read_bytes()
    assert ["queue.json", "queue.json.lock"] == names(path)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not list open files")
async def test_writes_leave_no_files_open(storage, path):
    etag = await storage.write(b"first")
    for _ in range(20):
        etag = await storage.write(b"again", etag)
        with pytest.raises(CASConflictError):
            await storage.write(b"late", "another etag")
    async with asyncio.timeout(60):
        while [name for name in map(_target, os.listdir("/proc/self/fd")) if name.startswith(str(path.parent))]:
            await asyncio.sleep(0.001)  # the replaced file is closed a moment after the answer


def _target(descriptor):
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_child_forked_during_a_write_has_threads_of_its_own_and_does_not_keep_the_lock(
    storage, path, monkeypatch
):
    await asyncio.gather(*(storage.read() for _ in range(4)))  # more threads than the write takes
    gate = Gate(monkeypatch)
    write = asyncio.create_task(storage.write(b"first"))
    await gate.until_reached()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(writing)
            other = LocalFileSystemStorage(path.with_name("other.json"))
            thread = threading.Thread(target=lambda: asyncio.run(other.write(b"child")))
            thread.start()
            thread.join(60)
            os.read(reading, 1)  # until the parent closes its end
        finally:
            os._exit(0)
    try:
        gate.opened.set()
        await LocalFileSystemStorage(path, lock_timeout=0).write(b"second", await write)
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)
    assert (b"second", b"child") == (path.read_bytes(), path.with_name("other.json").read_bytes())
