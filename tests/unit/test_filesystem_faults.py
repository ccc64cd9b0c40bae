"""A disk that is full, broken or refuses access: the old content stays, and the error says what to do."""

import errno
import fcntl
import os
import resource
import subprocess
import sys
from contextlib import contextmanager

import pytest

from jqueue import BrokerQueue
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.domain.errors import DeadlineExceededError, StorageError, StorageFatalError
from jqueue.testing.virtual_time import VirtualClock
from tests.file_faults import failing, instead_of_fsync, names
from tests.virtual_world import in_virtual_time


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


@pytest.fixture
def storage(path):
    return LocalFileSystemStorage(path)


@contextmanager
def files_no_larger_than(size):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def refuse_temporary_files(monkeypatch, number):
    """Let the creation of any temporary file fail from now on."""
    system_open = os.open

    def refusing(path, flags, *mode):
        if str(path).endswith(".tmp"):
            raise OSError(number, os.strerror(number), str(path))
        return system_open(path, flags, *mode)

    monkeypatch.setattr(os, "open", refusing)


async def test_a_write_that_the_system_cuts_short_leaves_the_old_content(storage, path):
    etag = await storage.write(b"before")
    with files_no_larger_than(1 << 20), pytest.raises(StorageError, match=r"queue\.json.*ulimit"):
        await storage.write(b"x" * (3 << 20), etag)
    assert (b"before", ["queue.json", "queue.json.lock"]) == (path.read_bytes(), names(path))
    await storage.write(b"after", (await storage.read())[1])


@pytest.mark.parametrize("call", ["write", "fsync", "pwrite", "rename"])
@pytest.mark.parametrize(
    ("number", "error", "advice"),
    [
        (errno.ENOSPC, StorageError, "free some space"),
        (errno.EDQUOT, StorageError, "have it raised"),
        (errno.EIO, StorageError, "Input/output error"),
        (errno.EACCES, StorageFatalError, "must be allowed to read and write"),
        (errno.EROFS, StorageFatalError, "mounted for writing"),
        (errno.EBUSY, StorageFatalError, "mount its folder"),
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
    [
        (errno.EACCES, StorageFatalError, "create files in"),
        (errno.EPERM, StorageFatalError, "create files in"),
        (errno.EROFS, StorageFatalError, "mounted for writing"),
        (errno.ENOSPC, StorageError, "free some space"),
        (errno.EDQUOT, StorageError, "have it raised"),
    ],
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


async def test_a_write_to_a_name_that_is_too_long_is_not_done(tmp_path):
    storage = LocalFileSystemStorage(tmp_path / ("q" * 240))
    with pytest.raises(StorageFatalError, match="name is too long") as raised:
        await storage.write(b"first")
    assert raised.value.nothing_written
    with pytest.raises(StorageFatalError, match="name is too long"):
        await storage.check_writable()


async def test_checking_a_missing_queue_does_not_create_it(tmp_path):
    await LocalFileSystemStorage(tmp_path / "a" / "b" / "queue.json").check_writable()
    await LocalFileSystemStorage(tmp_path / "queue.json").check_writable()
    assert [] == list(tmp_path.iterdir())


async def test_a_check_refuses_a_lock_file_of_another_program(storage, path):
    path.with_name("queue.json.lock").write_bytes(b"another program's 4711\n")
    with pytest.raises(StorageFatalError, match="belongs to another program"):
        await storage.check_writable()


async def test_a_write_that_cannot_get_the_lock_is_not_done(storage, path):
    etag = await storage.write(b"before")
    patient = LocalFileSystemStorage(path, lock_timeout=0)
    with open(path.with_name("queue.json.lock"), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="Could not lock") as raised:
            await patient.write(b"after", etag)
    assert raised.value.nothing_written


@in_virtual_time
async def test_an_operation_on_a_full_disk_is_not_done(storage, path, monkeypatch):
    """The operation is retried until its deadline, as space may become free."""
    async with BrokerQueue(storage, clock=VirtualClock()) as queue:
        await queue.enqueue("work", b"1")
        refuse_temporary_files(monkeypatch, errno.ENOSPC)
        said = r"nothing was done .*queue\.json.*the disk is full; free some"
        with pytest.raises(DeadlineExceededError, match=said) as raised:
            await queue.enqueue("work", b"2", deadline=5)
        assert StorageError is type(raised.value.__cause__), "the last failure"
        monkeypatch.undo()
        assert [b"1"] == [job.payload for job in (await queue.read_state()).jobs]
        await queue.enqueue("work", b"3")


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
async def test_a_folder_without_permission_to_write_ends_an_operation_at_once(storage, monkeypatch, number):
    async with BrokerQueue(storage) as queue:
        await queue.enqueue("work", b"1")
        refuse_temporary_files(monkeypatch, number)
        with pytest.raises(StorageFatalError, match=r"write the queue file: '.*queue\.json"):
            await queue.enqueue("work", b"2")
        with pytest.raises(StorageFatalError, match=r"write the queue file: '.*queue\.json"):
            await queue.dequeue("work")


async def test_a_file_system_that_cannot_flush_folders_is_no_error(storage, monkeypatch):
    etag = await storage.write(b"before")
    instead_of_fsync(monkeypatch, failing(errno.EINVAL), call=2)
    await storage.write(b"after", etag)


async def test_short_writes_are_continued_until_all_is_written(storage, path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:7]))
    await storage.write(bytes(range(256)))
    assert bytes(range(256)) == path.read_bytes()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
async def test_the_error_for_a_refused_permission_names_the_file_and_the_remedy(storage, path, monkeypatch, number):
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(number))
        with pytest.raises(StorageFatalError, match=rf"{path}.*permission refused; this process \(user id \d+\)"):
            await storage.read()


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


ON_A_MOUNT = """
import asyncio, subprocess, sys
from jqueue import BrokerQueue
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.cli import doctor
from jqueue.domain.errors import StorageFatalError
path = sys.argv[1]
subprocess.run(["mount", "--bind", path, path], check=True)
storage = LocalFileSystemStorage(path)
async def refused(call):
    try:
        await call
    except StorageFatalError as error:
        print(error, repr(error.__cause__))
async def main():
    await refused(storage.check_writable())
    async with BrokerQueue(storage) as queue:
        await refused(queue.enqueue("work", b"2"))
asyncio.run(main())
print(doctor.run(path).error)
"""


@pytest.mark.wide
async def test_a_file_that_is_a_mount_point_is_refused_at_once_by_each_call_and_by_the_doctor(storage, path):
    private = ["unshare", "--mount"]
    if subprocess.run([*private, "true"], capture_output=True).returncode:
        pytest.skip("only root can mount")
    async with BrokerQueue(storage) as queue:
        await queue.enqueue("work", b"1")
    ran = subprocess.run([*private, sys.executable, "-c", ON_A_MOUNT, path], capture_output=True, text=True, timeout=60)
    assert 3 == len(ran.stdout.splitlines()), ran.stderr
    for line in ran.stdout.splitlines():
        assert f"'{path}': it is mounted by itself, and so cannot be replaced; mount its folder instead" in line
