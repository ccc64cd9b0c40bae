"""A disk that fails, and locks that are held, removed or inherited: the old content stays, the error says what to do.

Faults of the operating system are injected by patching `os` and `fcntl`: the file storage has no port below it.
"""

import asyncio
import concurrent.futures
import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest

from jqueue import BrokerQueue
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.domain.errors import CASConflictError, DeadlineExceededError, StorageError, StorageFatalError
from jqueue.runtime.system import SystemEntropy
from jqueue.testing.virtual_time import VirtualClock
from tests.unit.file_faults import failing, instead_of_fsync, names
from tests.virtual_world import in_virtual_time


def refuse_temporary_files(monkeypatch, number):
    """Let the creation of any temporary file fail from now on."""
    system_open = os.open

    def refusing(path, flags, *mode):
        if str(path).endswith(".tmp"):
            raise OSError(number, os.strerror(number), str(path))
        return system_open(path, flags, *mode)

    monkeypatch.setattr(os, "open", refusing)


@pytest.mark.parametrize(
    ("call", "number", "error", "advice"),
    [
        ("write", errno.ENOSPC, StorageError, "free some space"),
        ("fsync", errno.EDQUOT, StorageError, "have it raised"),
        ("pwrite", errno.EIO, StorageError, "Input/output error"),
        ("rename", errno.EIO, StorageError, "Input/output error"),
        ("write", errno.EFBIG, StorageError, "ulimit"),
        ("rename", errno.EACCES, StorageFatalError, "must be allowed to read and write"),
        ("write", errno.EROFS, StorageFatalError, "mounted for writing"),
        ("rename", errno.EBUSY, StorageFatalError, "mount its folder"),
    ],
)
async def test_a_failed_write_leaves_the_old_content(storage, path, monkeypatch, call, number, error, advice):
    etag = await storage.write(b"before")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(number))
        with pytest.raises(error, match=rf"write the queue file: '.*queue\.json.*{advice}") as raised:
            await storage.write(b"after", etag)
    assert number == raised.value.cause.errno
    assert raised.value.nothing_written is ((call, number) != ("rename", errno.EIO)), "POSIX promises so much"
    assert (b"before", ["queue.json", "queue.json.lock"]) == (path.read_bytes(), names(path))
    await storage.write(b"after", (await storage.read())[1])


async def test_a_failed_folder_flush_is_reported_as_an_error_after_the_write(storage, path, monkeypatch):
    etag = await storage.write(b"before")
    instead_of_fsync(monkeypatch, failing(errno.EIO), call=2)
    with pytest.raises(StorageError, match="is in place, but its folder could not be flushed") as raised:
        await storage.write(b"after", etag)
    assert not raised.value.nothing_written
    assert b"after" == (await storage.read())[0]


@pytest.mark.parametrize(
    ("number", "error", "advice"),
    [(errno.EACCES, StorageFatalError, "create files in"), (errno.ENOSPC, StorageError, "free some space")],
)
async def test_a_write_whose_temporary_file_cannot_be_made_is_not_done(
    storage, path, monkeypatch, number, error, advice
):
    etag = await storage.write(b"before")
    with monkeypatch.context() as patch:
        refuse_temporary_files(patch, number)
        with pytest.raises(error, match=rf"write the queue file: '.*queue\.json.*{advice}") as raised:
            await storage.write(b"after", etag)
        with pytest.raises(error, match=rf"write the queue file: '.*queue\.json.*{advice}"):
            await storage.check_writable()
    assert raised.value.nothing_written
    assert b"before" == path.read_bytes()
    await storage.check_writable()
    assert ["queue.json", "queue.json.lock"] == names(path)


async def test_a_system_that_takes_a_part_of_a_write_is_given_the_rest(storage, monkeypatch):
    system_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: system_write(descriptor, content[:3]))
    await storage.write(b"the whole queue")
    await storage.create_object(".segments/1", b"a whole segment")
    assert b"the whole queue" == (await storage.read())[0]
    assert b"a whole segment" == await storage.read_object(".segments/1")


async def test_a_write_to_a_name_that_is_too_long_is_not_done(tmp_path):
    storage = LocalFileSystemStorage(tmp_path / ("q" * 240))
    with pytest.raises(StorageFatalError, match="name is too long") as raised:
        await storage.write(b"first")
    assert raised.value.nothing_written
    with pytest.raises(StorageFatalError, match="name is too long"):
        await storage.check_writable()


@in_virtual_time
async def test_an_operation_on_a_full_disk_is_told_at_once_and_not_done(storage, path, monkeypatch, caplog):
    """The operation is retried until its deadline, as space may become free."""
    caplog.set_level("INFO")
    async with BrokerQueue(storage, clock=VirtualClock()) as queue:
        await queue.enqueue("work", b"1")
        refuse_temporary_files(monkeypatch, errno.ENOSPC)
        waiting = asyncio.create_task(queue.enqueue("work", b"2", deadline=5))
        while not (caplog.records or waiting.done()):
            await asyncio.sleep(0.01)
        [(_, level, told)] = caplog.record_tuples
        assert ("WARNING", True, False) == (logging.getLevelName(level), "the disk is full" in told, waiting.done())
        text = r"nothing was done .*queue\.json.*the disk is full; free some"
        with pytest.raises(DeadlineExceededError, match=text) as raised:
            await waiting
        assert StorageError is type(raised.value.__cause__), "the last failure"
        with pytest.raises(DeadlineExceededError, match=text):
            await queue.enqueue("work", b"2", deadline=5)
        monkeypatch.undo()
        assert [b"1"] == [job.payload for job in (await queue.read_state()).jobs]
        assert len(caplog.records) == 1, "one line for one outage"
        await queue.enqueue("work", b"3")
        assert [told, "the store takes writes again"] == caplog.messages


async def test_a_file_system_that_cannot_flush_folders_is_no_error(storage, monkeypatch):
    etag = await storage.write(b"before")
    instead_of_fsync(monkeypatch, failing(errno.EINVAL), call=2)
    await storage.write(b"after", etag)


async def test_leftovers_of_killed_writers_are_removed_at_the_first_write(storage, path):
    others = [".queue.json.other.0a-1b.tmp", ".queue.jsonx.0a-1b.tmp", "queue.json.0a-1b.tmp", ".queue.json.swp"]
    for name in [".queue.json.0a-1b.tmp", ".queue.json.2c-3d.tmp", *others]:
        (path.parent / name).touch()
    (path.parent / ".queue.json.folder.tmp").mkdir()
    etag = await storage.write(b"first")
    assert sorted([*others, ".queue.json.folder.tmp", "queue.json", "queue.json.lock"]) == names(path)
    later = path.parent / ".queue.json.4e-5f.tmp"
    later.touch()
    etag = await storage.write(b"second", etag)
    assert later.exists(), "the folder is not listed at every write"
    await LocalFileSystemStorage(path).write(b"third", etag)
    assert not later.exists()


# Locks


@pytest.fixture
def sidecar(path):
    return path.with_name("queue.json.lock")


@contextmanager
def locked(sidecar):
    with open(sidecar, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(file, fcntl.LOCK_UN)


async def test_the_error_for_a_held_lock_says_what_to_do(storage, path, sidecar):
    etag = await storage.write(b"first")
    patient = LocalFileSystemStorage(path, lock_timeout=timedelta(0))
    with locked(sidecar):
        with pytest.raises(
            StorageError, match=rf"Could not lock '{sidecar}' within 0 s: .* raise lock_timeout"
        ) as raised:
            await patient.write(b"second", etag)
        assert raised.value.nothing_written
        assert (b"first", etag) == await patient.read(), "reading takes no lock"
    await patient.write(b"second", etag)


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

    instead_of_fsync(monkeypatch, lambda _: remove_and_let_another_write())
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


KILLED_WITH_A_CHILD = """
import asyncio, os, signal, sys
from jqueue import LocalFileSystemStorage

def be_killed(*_):
    if os.fork() == 0:
        os.close(1)
        os.read(0, 1)  # until the test closes its end
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)

async def main(path):
    storage = LocalFileSystemStorage(path)
    content, etag = await storage.read()
    os.fsync = be_killed
    await storage.write(b"{1}", etag)

asyncio.run(main(sys.argv[1]))
"""


async def test_a_child_does_not_keep_the_lock_of_a_parent_that_was_killed(tmp_path):
    storage = LocalFileSystemStorage(tmp_path / "queue.json", lock_timeout=20)
    etag = await storage.write(b"{}")
    command = [sys.executable, "-c", KILLED_WITH_A_CHILD, str(storage.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert b"" == parent.stdout.read()  # until both have closed it: the child lives on
        assert -signal.SIGKILL == parent.wait()
        async with asyncio.timeout(60):
            await storage.write(b"{2}", etag)
