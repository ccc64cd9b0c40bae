"""What the memory and the file give for trials: another object beside, and its removal."""

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


async def test_an_object_beside_is_another_one(storage):
    assert isinstance(storage, SupportsScratch)
    await storage.write(b"the user's")
    other = storage.beside(".trial")
    assert isinstance(other, type(storage))
    assert (b"", None) == await other.read()
    etag = await other.write(b"trial")
    assert b"the user's" == (await storage.read())[0]
    assert (b"trial", etag) == await storage.beside(".trial").read()
    assert (b"", None) == await storage.beside(".other").read()


async def test_a_removed_object_is_absent_and_its_etag_never_fits_again(storage):
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


async def test_a_sidecar_that_is_somebody_elses_is_left(path):
    storage = LocalFileSystemStorage(path)
    Path(f"{path}.lock").write_bytes(b"notes")
    with pytest.raises(StorageFatalError, match="somebody else's file"):
        await storage.remove()
    assert b"notes" == Path(f"{path}.lock").read_bytes()


async def test_a_folder_is_not_removed(path):
    path.mkdir()
    with pytest.raises(StorageFatalError, match="folder"):
        await LocalFileSystemStorage(path).remove()
    assert stat.S_ISDIR(os.stat(path).st_mode)


async def test_a_file_beside_is_in_the_same_folder_wherever_the_process_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage = LocalFileSystemStorage("queue.json", lock_timeout=3)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    other = storage.beside(".trial")
    assert tmp_path / "queue.json.trial" == other.path
    assert 3 == other._lock_timeout


@pytest.mark.parametrize("suffix", ["/../../elsewhere", "/trial", "trial/"])
def test_a_file_beside_cannot_be_in_another_folder(path, suffix):
    with pytest.raises(ValueError, match="cannot have a name"):
        LocalFileSystemStorage(path).beside(suffix)
