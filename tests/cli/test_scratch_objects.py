"""Scratch objects beside a queue in memory or in a file: creating, removing and listing them."""

import os

import pytest

from jqueue import InMemoryStorage, LocalFileSystemStorage
from jqueue.domain.errors import CASConflictError, StorageFatalError


@pytest.fixture(params=["memory", "file"])
def storage(request, path):
    return InMemoryStorage() if request.param == "memory" else LocalFileSystemStorage(path)


async def test_a_scratch_object_is_separate_from_the_queue_and_leaves_no_etag_when_it_is_removed(storage):
    await storage.write(b"the user's")
    other = storage.beside(".tri").beside("al")
    first = await other.write(b"trial")
    assert b"the user's" == (await storage.read())[0]
    assert (b"trial", first) == await storage.beside(".trial").read()
    assert [".trial"] == [each.suffix for each in await storage.list_beside(".tri")]
    await other.remove()
    await other.remove()
    assert (b"", None) == await other.read()
    second = await other.write(b"trial")
    assert first != second
    with pytest.raises(CASConflictError):
        await other.write(b"late", first)


async def test_a_file_is_removed_with_its_sidecar_and_removing_nothing_creates_nothing(path):
    storage = LocalFileSystemStorage(path)
    await storage.write(b"first")
    await storage.remove()
    await LocalFileSystemStorage(path.parent / "none" / "queue.json").remove()
    assert [] == [*path.parent.iterdir()]


@pytest.mark.parametrize("name", ["queue.json", "queue.json.lock"])
async def test_what_is_no_file_of_ours_is_neither_followed_nor_removed(path, name):
    storage = LocalFileSystemStorage(path)
    await storage.write(b"first")
    precious, link = path.parent / "precious", path.parent / name
    precious.write_bytes(b"precious")
    link.unlink()
    link.symlink_to(precious)
    with pytest.raises(StorageFatalError, match="link"):
        await storage.remove()
    assert (True, b"precious") == (link.is_symlink(), precious.read_bytes())


@pytest.mark.parametrize("suffix", ["/../../elsewhere", "/trial", ".trial/../x"])
async def test_neither_a_scratch_file_nor_a_listing_leads_to_another_folder(path, suffix):
    with pytest.raises(ValueError, match="must not lead to another folder"):
        LocalFileSystemStorage(path).beside(suffix)
    with pytest.raises(ValueError, match="must not lead to another folder"):
        await LocalFileSystemStorage(path).list_beside(suffix)


async def test_a_listing_has_the_times_and_leaves_out_sidecars_temporary_files_links_and_folders(path):
    storage = LocalFileSystemStorage(path)
    await storage.write(b"the queue")
    await storage.beside(".staged.1").write(b"one")
    os.utime(f"{path}.staged.1", (1_800_000_000.25, 1_800_000_000.25))
    for name in ("queue.json.staged.2.lock", ".queue.json.staged.1.0123.tmp", "another.json.staged.3"):
        (path.parent / name).write_bytes(b"x")
    (path.parent / "queue.json.staged.4").symlink_to(path)
    (path.parent / "queue.json.staged.5").mkdir()
    [listed] = await storage.list_beside(".staged.")
    assert (".staged.1", 1_800_000_000.25) == (listed.suffix, listed.modified.timestamp())
    assert [] == await LocalFileSystemStorage(path.parent / "none" / "queue.json").list_beside(".staged.")
