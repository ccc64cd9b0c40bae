"""A disk that is full, broken or refuses: the old content stays, and the error says what to do."""

import errno
import os
import resource
from contextlib import contextmanager

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.domain.errors import StorageError, StorageFatalError
from tests.file_faults import failing, instead_of_fsync, names


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
        (errno.EIO, StorageError, "Input/output error"),
        (errno.EACCES, StorageFatalError, "must be allowed to read and write"),
        (errno.EROFS, StorageFatalError, "mounted for writing"),
    ],
)
async def test_a_failed_write_leaves_the_old_content(storage, path, monkeypatch, call, number, error, advice):
    etag = await storage.write(b"before")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(number))
        with pytest.raises(error, match=rf"write the queue file: '.*queue\.json.*{advice}") as raised:
            await storage.write(b"after", etag)
    assert number == raised.value.cause.errno
    assert (b"before", ["queue.json", "queue.json.lock"]) == (path.read_bytes(), names(path))
    await storage.write(b"after", (await storage.read())[1])


async def test_a_folder_that_cannot_be_flushed_is_reported_after_the_fact(storage, path, monkeypatch):
    etag = await storage.write(b"before")
    instead_of_fsync(monkeypatch, failing(errno.EIO), call=2)
    with pytest.raises(StorageError, match="is in place, but its folder could not be flushed"):
        await storage.write(b"after", etag)
    assert b"after" == (await storage.read())[0]


async def test_a_folder_that_knows_no_flush_is_no_fault(storage, monkeypatch):
    etag = await storage.write(b"before")
    instead_of_fsync(monkeypatch, failing(errno.EINVAL), call=2)
    await storage.write(b"after", etag)


async def test_a_system_that_takes_little_at_a_time_gets_it_all(storage, path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:7]))
    await storage.write(bytes(range(256)))
    assert bytes(range(256)) == path.read_bytes()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
async def test_a_refused_permission_names_the_file_and_what_is_needed(storage, path, monkeypatch, number):
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
