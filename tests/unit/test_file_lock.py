"""Writers of one file exclude each other even if the lock is removed, lost, inherited or held elsewhere."""

import asyncio
import concurrent.futures
import errno
import fcntl
import os
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.domain.errors import CASConflictError, StorageError, StorageFatalError
from jqueue.runtime.system import SystemEntropy


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


@pytest.fixture
def sidecar(path):
    return path.with_name("queue.json.lock")


@pytest.fixture
def storage(path):
    return LocalFileSystemStorage(path)


def during_the_next_flush(monkeypatch, action):
    """Do something in the middle of a write: under the lock, before the file is renamed."""
    fsync, pending = os.fsync, [action]

    def act_and_flush(descriptor):
        if pending:
            pending.pop()()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", act_and_flush)


@contextmanager
def locked(sidecar):
    with open(sidecar, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(file, fcntl.LOCK_UN)


@pytest.mark.parametrize("timeout", [0.02, timedelta(milliseconds=20), 0])
async def test_the_error_for_a_held_lock_says_what_to_do(storage, path, sidecar, timeout):
    etag = await storage.write(b"first")
    patient = LocalFileSystemStorage(path, lock_timeout=timeout)
    with locked(sidecar):
        with pytest.raises(StorageError, match=rf"Could not lock '{sidecar}' within 0.* s: .* raise lock_timeout"):
            await patient.write(b"second", etag)
        assert (b"first", etag) == await patient.read(), "reading takes no lock"
    await patient.write(b"second", etag)


class ActsAtTheThirdLook:
    """Entropy that acts at its third pause: the storage asks for one each time it finds the lock held."""

    def __init__(self, action):
        self.looks, self.action = 0, action

    def new_id(self):
        return "a-token"

    def jitter(self, bound):
        self.looks += 1
        if self.looks == 3:
            self.action()
        return 0.0


async def test_a_released_lock_is_taken(storage, path, sidecar):
    etag = await storage.write(b"first")
    with locked(sidecar) as unlock:
        entropy = ActsAtTheThirdLook(unlock)
        await LocalFileSystemStorage(path, entropy=entropy).write(b"second", etag)
    assert (b"second", 3) == ((await storage.read())[0], entropy.looks)


async def test_a_lock_file_removed_while_a_writer_waits_for_it_is_created_again(storage, path, sidecar):
    await storage.write(b"first")
    etag = (await storage.read())[1]
    with locked(sidecar):
        entropy = ActsAtTheThirdLook(lambda: os.replace(sidecar, sidecar.with_name("held")))
        with pytest.raises(CASConflictError):  # the token went with the file
            await LocalFileSystemStorage(path, entropy=entropy).write(b"second", etag)
    await storage.write(b"second", (await storage.read())[1])


async def test_a_lock_file_removed_as_it_is_locked_is_opened_again(storage, path, sidecar, monkeypatch):
    flock, removals = fcntl.flock, [sidecar]

    def lock_and_remove(descriptor, operation):
        flock(descriptor, operation)
        if removals:
            os.unlink(removals.pop())

    monkeypatch.setattr(fcntl, "flock", lock_and_remove)
    etag = await storage.write(b"first")
    assert sidecar.exists()
    assert etag == (await storage.read())[1]


@pytest.mark.parametrize("first", [True, False])
async def test_a_writer_whose_lock_file_was_removed_does_not_overwrite_another_write(
    storage, path, sidecar, monkeypatch, first
):
    etag = None if first else await storage.write(b"before")
    other = LocalFileSystemStorage(path)

    def remove_and_let_another_write():
        sidecar.unlink()
        asyncio.run(write_as(other))

    async def write_as(storage):
        await storage.write(b"other", (await storage.read())[1])

    during_the_next_flush(monkeypatch, remove_and_let_another_write)
    with pytest.raises(CASConflictError, match=r"lock file of '.*queue\.json' was removed"):
        await storage.write(b"lost update", etag)
    assert b"other" == path.read_bytes()
    assert ["queue.json", "queue.json.lock"] == sorted(os.listdir(path.parent))


async def another_writer(path, **settings):
    """Return a writer that has removed leftovers already, and so will not take a temporary file in use for one."""
    other = LocalFileSystemStorage(path, **settings)
    await other.write(b"tidy")
    await other.remove()
    return other


def at_the_next_rename(monkeypatch, action):
    """Do something in the last moment of a write: after all checks, before the file is renamed."""
    rename, pending = os.rename, [action]

    def act_and_rename(source, target):
        if pending:
            pending.pop()()
        rename(source, target)

    monkeypatch.setattr(os, "rename", act_and_rename)


@pytest.mark.parametrize("first", [True, False])
async def test_a_lock_file_removed_before_the_rename_does_not_let_another_writer_in(
    storage, path, sidecar, monkeypatch, first
):
    other = await another_writer(path, lock_timeout=0)
    etag = None if first else await storage.write(b"before")
    outcomes = []

    async def write_over():
        try:
            outcomes.append(await other.write(b"other", (await other.read())[1]))
        except StorageError as error:
            outcomes.append(str(error))

    def remove_and_let_another_try():
        sidecar.unlink()
        asyncio.run(write_over())

    at_the_next_rename(monkeypatch, remove_and_let_another_try)
    await storage.write(b"ours", etag)
    assert [f"Could not lock the folder {str(path.parent)!r} within 0 s"] == [o.partition(":")[0] for o in outcomes]
    assert b"ours" == path.read_bytes()


async def test_a_writer_that_waited_for_the_folder_lock_does_not_overwrite_another_write(
    storage, path, sidecar, monkeypatch
):
    """The lock file is removed after the checks of the first writer, and both writers began with the same etag."""
    waits = threading.Event()

    class SignalsItsWait(SystemEntropy):
        def jitter(self, bound):
            waits.set()
            return super().jitter(bound)

    other = await another_writer(path, entropy=SignalsItsWait())
    etag = await storage.write(b"before")

    def write_over():
        try:
            asyncio.run(read_and_write())
        finally:
            waits.set()

    async def read_and_write():
        await other.write(b"lost update", (await other.read())[1])

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        writing = []

        def remove_and_have_another_wait():
            sidecar.unlink()
            writing.append(thread.submit(write_over))
            assert waits.wait(60)

        at_the_next_rename(monkeypatch, remove_and_have_another_wait)
        await storage.write(b"ours", etag)
        with pytest.raises(CASConflictError, match="without its lock"):
            writing[0].result(60)
    assert b"ours" == path.read_bytes()


async def test_a_write_waits_while_another_program_locks_the_folder(storage, path):
    etag = await storage.write(b"first")
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        entropy = ActsAtTheThirdLook(lambda: fcntl.flock(folder, fcntl.LOCK_UN))
        await LocalFileSystemStorage(path, entropy=entropy).write(b"second", etag)
    finally:
        os.close(folder)
    assert (b"second", 3) == ((await storage.read())[0], entropy.looks)


async def test_the_error_for_a_folder_without_locks_asks_for_a_local_disk(storage, path, monkeypatch):
    flock = fcntl.flock

    def flock_as_nfs(descriptor, operation):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_as_nfs)
    with pytest.raises(StorageFatalError, match="no locks; keep it on a local disk"):
        await storage.write(b"first")
    assert not path.exists()


async def test_a_write_changes_the_token_before_its_file_can_be_seen(storage, sidecar, monkeypatch):
    rename, at_the_rename = os.rename, []

    def look_and_rename(source, target):
        at_the_rename.append(sidecar.read_text())
        rename(source, target)

    monkeypatch.setattr(os, "rename", look_and_rename)
    etag = await storage.write(b"first")
    assert etag.partition(":")[0] in at_the_rename[0]


async def test_removing_the_lock_file_repeatedly_loses_no_update(path, sidecar):
    async def increment(storage):
        for _ in range(20):
            while True:
                content, etag = await storage.read()
                try:
                    await storage.write(b"%d" % (int(content or b"0") + 1), etag)
                except (
                    CASConflictError,
                    StorageError,
                ):  # a StorageError if another writer took our temporary file for a leftover
                    continue
                break
            sidecar.unlink(missing_ok=True)

    await asyncio.gather(*(increment(LocalFileSystemStorage(path)) for _ in range(5)))
    assert b"100" == path.read_bytes()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_a_process_forked_during_a_write_does_not_keep_the_lock(storage, path, monkeypatch):
    started, stop = os.pipe()
    children = []

    def fork():
        child = os.fork()
        if child == 0:
            os.close(stop)
            os.read(started, 1)  # until the parent closes its end
            os._exit(0)
        children.append(child)

    during_the_next_flush(monkeypatch, fork)
    etag = await storage.write(b"first")
    try:
        await LocalFileSystemStorage(path, lock_timeout=0).write(b"second", etag)
    finally:
        os.close(stop)
        os.close(started)
        os.waitpid(children[0], 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_storage_is_usable_on_both_sides_of_a_fork(storage, path):
    async def write_over(expected, content):
        found, etag = await storage.read()
        assert found == expected
        await storage.write(content, etag)

    asyncio.run(write_over(b"", b"before"))
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(write_over(b"before", b"child"))
            os._exit(0)
        finally:
            os._exit(1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    asyncio.run(write_over(b"child", b"parent"))
    assert b"parent" == path.read_bytes()
