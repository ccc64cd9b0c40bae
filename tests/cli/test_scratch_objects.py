"""Scratch objects beside a queue in memory or in a file: creating, removing and listing them."""

import os
import stat
from pathlib import Path

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.domain.errors import CASConflictError, StorageFatalError
from jqueue.ports.storage import SupportsScratch


@pytest.fixture(params=["memory", "file"])
def storage(request, tmp_path):
    return InMemoryStorage() if request.param == "memory" else LocalFileSystemStorage(tmp_path / "queue.json")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


async def test_a_scratch_object_is_separate_from_the_queue(storage):
    assert isinstance(storage, SupportsScratch)
    await storage.write(b"the user's")
    other = storage.beside(".trial")
    assert isinstance(other, type(storage))
    assert (b"", None) == await other.read()
    etag = await other.write(b"trial")
    assert b"the user's" == (await storage.read())[0]
    assert (b"trial", etag) == await storage.beside(".trial").read()
    assert (b"", None) == await storage.beside(".other").read()


async def test_a_removed_object_is_absent_and_its_etag_never_matches_again(storage):
    first = await storage.write(b"first")
    await storage.remove()
    await storage.remove()
    assert (b"", None) == await storage.read()
    with pytest.raises(CASConflictError):
        await storage.write(b"late", first)
    second = await storage.write(b"first")
    assert first != second
    with pytest.raises(CASConflictError):
        await storage.write(b"late", first)
    assert (b"first", second) == await storage.read()


async def test_a_file_is_removed_with_its_sidecar(path):
    storage = LocalFileSystemStorage(path)
    await storage.write(b"first")
    assert 2 == len(list(path.parent.iterdir()))
    await storage.remove()
    assert [] == list(path.parent.iterdir())


async def test_a_sidecar_without_its_file_is_removed(path):
    storage = LocalFileSystemStorage(path)
    await storage.write(b"first")
    path.unlink()
    await storage.remove()
    assert [] == list(path.parent.iterdir())


async def test_removing_nothing_creates_nothing(path):
    await LocalFileSystemStorage(path).remove()
    await LocalFileSystemStorage(path.parent / "none" / "queue.json").remove()
    assert [] == list(path.parent.iterdir())


@pytest.mark.parametrize("where", ["queue.json", "queue.json.lock"])
async def test_a_link_is_neither_followed_nor_removed(path, where):
    storage = LocalFileSystemStorage(path)
    await storage.write(b"first")
    precious, link = path.parent / "precious", path.parent / where
    precious.write_bytes(b"precious")
    link.unlink()
    link.symlink_to(precious)
    with pytest.raises(StorageFatalError, match="link"):
        await storage.remove()
    assert link.is_symlink()
    assert b"precious" == precious.read_bytes()


async def test_a_sidecar_with_foreign_content_is_left(path):
    storage = LocalFileSystemStorage(path)
    Path(f"{path}.lock").write_bytes(b"notes")
    with pytest.raises(StorageFatalError, match="belongs to another program"):
        await storage.remove()
    assert b"notes" == Path(f"{path}.lock").read_bytes()


async def test_a_folder_is_not_removed(path):
    path.mkdir()
    with pytest.raises(StorageFatalError, match="folder"):
        await LocalFileSystemStorage(path).remove()
    assert stat.S_ISDIR(os.stat(path).st_mode)


async def test_a_scratch_file_stays_in_the_same_folder_after_chdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = LocalFileSystemStorage("queue.json", lock_timeout=3)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    other = storage.beside(".trial")
    assert tmp_path / "queue.json.trial" == other.path
    assert 3 == other._lock_timeout


@pytest.mark.parametrize("suffix", ["/../../elsewhere", "/trial", "trial/"])
def test_a_scratch_file_cannot_be_in_another_folder(path, suffix):
    with pytest.raises(ValueError, match="must not lead to another folder"):
        LocalFileSystemStorage(path).beside(suffix)


async def test_a_listing_leaves_out_sidecars_temporary_files_links_and_folders(path):
    storage = LocalFileSystemStorage(path)
    await storage.write(b"the queue")
    await storage.beside(".staged.1").write(b"one")
    for name in ("queue.json.staged.2.lock", ".queue.json.staged.1.0123.tmp", "another.json.staged.3"):
        (path.parent / name).write_bytes(b"x")
    (path.parent / "queue.json.staged.4").symlink_to(path)
    (path.parent / "queue.json.staged.5").mkdir()
    assert [".staged.1"] == [each.suffix for each in await storage.list_beside(".staged.")]


async def test_the_temporary_files_of_another_queue_are_not_listed(tmp_path):
    (tmp_path / ".queue.json.0123.tmp").write_bytes(b"what queue.json will be")
    assert [] == await LocalFileSystemStorage(tmp_path / ".queue.json").list_beside(".")


async def test_a_listing_in_a_missing_folder_is_empty(path):
    assert [] == await LocalFileSystemStorage(path.parent / "none" / "queue.json").list_beside(".staged.")
    assert [] == list(path.parent.iterdir()), "a listing must not create the folder"


async def test_a_listing_has_the_time_of_the_last_write(path):
    storage = LocalFileSystemStorage(path)
    await storage.beside(".staged.1").write(b"one")
    os.utime(f"{path}.staged.1", (1_800_000_000.25, 1_800_000_000.25))
    [found] = await storage.list_beside(".staged.")
    assert 1_800_000_000.25 == found.modified.timestamp()


async def test_a_listing_below_a_file_is_an_error(path):
    path.write_bytes(b"a file")
    with pytest.raises(StorageFatalError, match=r"list the files .* not a folder"):
        await LocalFileSystemStorage(path / "queue.json").list_beside(".staged.")


@pytest.mark.parametrize("prefix", ["/../../elsewhere", "/trial", ".trial/../x", ".trial//x", ".trial/./x"])
async def test_a_listing_cannot_be_of_another_folder(path, prefix):
    with pytest.raises(ValueError, match="must not lead to another folder"):
        await LocalFileSystemStorage(path).list_beside(prefix)


async def test_suffixes_of_scratch_objects_in_memory_are_joined():
    storage = InMemoryStorage()
    await storage.beside(".a").beside(".b").write(b"x")
    assert b"x" == (await storage.beside(".a.b").read())[0]
    assert [".a.b"] == [each.suffix for each in await storage.beside("").list_beside(".a")]
