"""Objects in files beyond their contract: flushes, permissions, links, and the temporary files of those that failed."""

import errno
import os
import stat

import pytest

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.domain.errors import CASConflictError, StorageError, StorageFatalError
from jqueue.testing.objects_contract import pieces_of
from tests.unit.file_faults import failing

ONE = ".history/1"


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """The steps in the file system that decide what survives a power failure, in order, each with its path."""
    seen = []

    def watch(call, path_of):
        original = getattr(os, call)

        def watching(*arguments, **options):
            result = original(*arguments, **options)
            name = os.path.relpath(path_of(*arguments), tmp_path)
            seen.append((call, "temporary" if name.endswith(".object.tmp") else name))
            return result

        monkeypatch.setattr(os, call, watching)

    watch("mkdir", lambda path, *_: path)
    watch("link", lambda _, path: path)
    watch("fsync", lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))
    return seen


def on_disk(path):
    return sorted(str(each.relative_to(path.parent)) for each in path.parent.rglob("*") if each.is_file())


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="only Linux tells the path of a descriptor")
async def test_an_object_and_the_names_above_it_are_flushed_before_it_is_said_to_exist(storage, path, steps):
    await storage.create_object(ONE, b"x")
    made = [("mkdir", "queue.json.history"), ("fsync", "."), ("fsync", "temporary")]
    named = [("link", "queue.json.history/1"), ("fsync", "queue.json.history")]
    assert made + named == steps
    steps.clear()
    await storage.create_object(".history/2", b"x")
    assert ["fsync", "link", "fsync"] == [step for step, _ in steps]

    steps.clear()  # another process has made the folder, and perhaps not flushed it yet
    await LocalFileSystemStorage(path).create_object(".history/3", b"x")
    assert ("fsync", ".") in steps[: steps.index(("link", "queue.json.history/3"))]

    steps.clear()  # another process has made the object, and perhaps not flushed its name yet
    with pytest.raises(CASConflictError):
        await storage.create_object(ONE, b"x")
    assert ("fsync", "queue.json.history") == steps[-1]


@pytest.mark.parametrize("call", ["write", "link"])
@pytest.mark.parametrize(
    ("number", "error", "advice"),
    [(errno.ENOSPC, StorageError, "free some space"), (errno.EROFS, StorageFatalError, "mounted for writing")],
)
async def test_a_failed_creation_leaves_nothing(storage, path, monkeypatch, call, number, error, advice):
    await storage.create_object(".history/0", b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(number))
        for creation in (storage.create_object(ONE, b"x"), storage.create_object_from(ONE, pieces_of(b"xy", [1]))):
            with pytest.raises(error, match=rf"(write|create) the object: '.*{advice}"):
                await creation
    assert ["queue.json.history/0"] == on_disk(path)
    await storage.create_object(ONE, b"x")


@pytest.mark.parametrize("linked", ["queue.json.history", "queue.json.history/1"])
async def test_links_are_not_followed(storage, path, tmp_path, linked):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "1").write_bytes(b"precious")
    if linked == "queue.json.history":
        (tmp_path / linked).symlink_to(precious)
    else:
        (tmp_path / "queue.json.history").mkdir()
        (tmp_path / linked).symlink_to(precious / "1")
    for call in (
        storage.create_object(ONE, b"x"),
        storage.create_object_from(ONE, pieces_of(b"x", [])),
        storage.read_object(ONE),
        storage.remove_object(ONE),
    ):
        with pytest.raises(StorageFatalError, match="link"):
            await call
    assert [] == await storage.list_beside(".h")
    assert b"precious" == (precious / "1").read_bytes()
    assert ["precious/1"] == [name for name in on_disk(path) if "queue" not in name]


async def test_folders_and_their_objects_follow_the_mode_and_group_of_the_queue_file(storage, path):
    etag = await storage.write(b"the queue")
    for suffix in (".segments/1", ".history/a/1"):
        await storage.create_object(suffix, b"x")
    path.with_name("queue.json.mine").mkdir(0o700)
    group = 54321 if os.geteuid() == 0 else path.stat().st_gid
    for mode, of_folder in ((0o660, 0o770), (0o600, 0o700)):
        os.chown(path, -1, group)
        path.chmod(mode)
        _, etag = await storage.read()
        await storage.write(b"the queue, again", etag)
        for folder in (path.with_name("queue.json.segments"), path.with_name("queue.json.history") / "a"):
            for each, fits in ((folder, of_folder), (folder / "1", mode)):
                assert (fits, group) == (stat.S_IMODE(each.stat().st_mode), each.stat().st_gid)
        assert 0o700 == stat.S_IMODE(path.with_name("queue.json.mine").stat().st_mode)


async def test_temporary_files_of_processes_that_died_are_removed_after_a_day(storage, path):
    await storage.create_object(ONE, b"x")
    folder = path.with_name("queue.json.history")
    for name, age in ((".1.dead.object.tmp", 90_000), (".2.busy.object.tmp", 80_000), (".3.other.tmp", 90_000)):
        (folder / name).write_bytes(b"half")
        written = (folder / "1").stat().st_mtime - age
        os.utime(folder / name, (written, written))
    await LocalFileSystemStorage(path).create_object(".history/2", b"y")
    assert {"1", "2", ".2.busy.object.tmp", ".3.other.tmp"} == set(os.listdir(folder))
