"""The file storage beyond the storage contract: its path, modes, links in its place, and edits by hand."""

import asyncio
import errno
import os
import pickle
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jqueue.adapters.storage import filesystem
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.domain.errors import CASConflictError, InvalidJobError, StorageError, StorageFatalError
from jqueue.runtime import file_lock
from jqueue.runtime.posix_files import read_all
from jqueue.runtime.system import SystemEntropy
from tests.file_faults import failing, instead_of_fsync, names

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.json"


@pytest.fixture
def storage(path):
    return LocalFileSystemStorage(path)


def test_a_storage_shows_its_path_as_given():
    assert "LocalFileSystemStorage(path=PosixPath('some/queue.json'))" == repr(
        LocalFileSystemStorage("some/queue.json")
    )
    assert Path("some/queue.json") == LocalFileSystemStorage(Path("some/queue.json")).path


@pytest.mark.parametrize("path", ["", "/", "..", "folder/..", "nul\0"])
def test_a_path_that_names_no_file_is_refused(path):
    with pytest.raises(ValueError, match="needs the path of a file"):
        LocalFileSystemStorage(path)


def test_a_lock_timeout_that_is_no_duration_is_refused():
    with pytest.raises(InvalidJobError, match="lock_timeout"):
        LocalFileSystemStorage("queue.json", lock_timeout=-1)


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


async def test_each_call_makes_one_hop_to_a_thread(storage, monkeypatch):
    loop = asyncio.get_running_loop()
    hops, run_in_executor = [], loop.run_in_executor

    def count_hop(*call):
        hops.append(call)
        return run_in_executor(*call)

    monkeypatch.setattr(loop, "run_in_executor", count_hop)
    etag = await storage.write(b"first")
    await storage.write(b"second", etag)
    await storage.read()
    await storage.read_if_changed(etag)
    assert 4 == len(hops)


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_a_write_by_root_keeps_the_owner_of_a_queue(storage, path):
    path.write_bytes(b"first")
    os.chown(path, 12345, 12346)
    await storage.write(b"second", (await storage.read())[1])
    assert [(12345, 12346)] * 2 == [(p.stat().st_uid, p.stat().st_gid) for p in sorted(path.parent.iterdir())]


@pytest.mark.parametrize("target", ["precious", "absent"])
@pytest.mark.parametrize("link", ["queue.json", "queue.json.lock"])
async def test_a_symbolic_link_is_not_followed(storage, tmp_path, link, target):
    (tmp_path / "precious").write_bytes(b"keep")
    (tmp_path / link).symlink_to(tmp_path / target)
    with pytest.raises(StorageFatalError, match=f"{link}'.* a symbolic link"):
        await storage.write(b"first")
    if link == "queue.json":
        with pytest.raises(StorageFatalError, match="a symbolic link"):
            await storage.read()
    assert {link, "precious"} == set(os.listdir(tmp_path))
    assert b"keep" == (tmp_path / "precious").read_bytes()


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"), [(os.mkdir, "a folder"), (os.mkfifo, "a named pipe"), (make_socket, "a socket")]
)
@pytest.mark.parametrize("name", ["queue.json", "queue.json.lock"])
async def test_a_path_that_is_no_regular_file_is_refused_without_waiting(tmp_path, monkeypatch, make, kind, name):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    make(name)
    storage = LocalFileSystemStorage("queue.json")
    async with asyncio.timeout(10):
        with pytest.raises(StorageFatalError, match=f"{name}'.* {kind}"):
            await storage.write(b"first")
        if name == "queue.json":
            with pytest.raises(StorageFatalError, match=kind):
                await storage.read()
    assert [name] == os.listdir(tmp_path)


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


async def test_a_file_of_zero_bytes_exists(storage, path):
    path.touch()
    content, etag = await storage.read()
    assert b"" == content
    assert etag
    with pytest.raises(CASConflictError):
        await storage.write(b"first")
    await storage.write(b"first", etag)
    assert b"first" == path.read_bytes()


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


@pytest.mark.parametrize("content", [b"edited", b"longer than it was"])
@pytest.mark.parametrize("edit", [edit_in_place, replace])
async def test_an_edit_by_hand_is_another_etag(storage, path, edit, content):
    etag = await storage.write(b"before")
    edit(path, content)
    with pytest.raises(CASConflictError):
        await storage.write(b"lost edit", etag)
    found = await storage.read_if_changed(etag)
    assert found == await storage.read()
    assert content == found[0]
    await storage.write(b"after", found[1])


async def test_a_file_removed_by_hand_is_absent_and_can_be_created_again(storage, path):
    etag = await storage.write(b"before")
    path.unlink()
    assert (b"", None) == await storage.read()
    assert (b"", None) == await storage.read_if_changed(etag)
    with pytest.raises(CASConflictError):
        await storage.write(b"after", etag)
    await storage.write(b"after")
    assert b"after" == path.read_bytes()


async def test_an_edit_during_a_write_is_not_overwritten(storage, path, monkeypatch):
    etag = await storage.write(b"before")
    instead_of_fsync(monkeypatch, lambda _: edit_in_place(path, b"edited"))
    with pytest.raises(CASConflictError, match="without its lock"):
        await storage.write(b"after", etag)
    assert b"edited" == path.read_bytes()
    assert ["queue.json", "queue.json.lock"] == names(path)


async def test_an_edit_during_a_read_has_it_read_again(storage, path, monkeypatch):
    await storage.write(b"before")
    edits = [b"second", b"first"]

    def read_and_edit(descriptor, size):
        content = read_all(descriptor, size)
        if edits:
            edit_in_place(path, edits.pop())
        return content

    monkeypatch.setattr(filesystem, "read_all", read_and_edit)
    content, etag = await storage.read()
    assert b"second" == content
    await storage.write(b"after", etag)


async def test_a_file_that_keeps_changing_while_it_is_read_is_an_error(storage, path, monkeypatch):
    await storage.write(b"before")
    monkeypatch.setattr(filesystem, "read_all", lambda *_: edit_in_place(path, b"edited"))
    with pytest.raises(StorageError, match="keeps changing while it is read"):
        await storage.read()


async def test_checking_for_a_change_does_not_read_the_file(storage, monkeypatch):
    etag = await storage.write(b"first")
    monkeypatch.setattr(filesystem, "read_all", failing(errno.EIO))
    assert await storage.read_if_changed(etag) is None


class TokensWithAnything(SystemEntropy):
    def new_id(self):
        return "a.b/c d \N{SNOWMAN} " + super().new_id()


async def test_a_token_may_have_any_characters(path):
    storage = LocalFileSystemStorage(path, entropy=TokensWithAnything())
    etag = await storage.write(b"first")
    etag = await storage.write(b"second", etag)
    assert (b"second", etag) == await storage.read()


async def test_a_storage_can_be_pickled_at_any_time(storage, path):
    etag = await storage.write(b"first")
    copy = pickle.loads(pickle.dumps(storage))
    assert path == copy.path
    assert await copy.write(b"second", etag)


def test_the_error_without_posix_locks_names_alternatives(monkeypatch):
    monkeypatch.setattr(file_lock, "fcntl", None)
    with pytest.raises(StorageFatalError, match=r"POSIX file locks.*InMemoryStorage"):
        LocalFileSystemStorage("queue.json")


def test_the_module_can_be_imported_on_windows():
    code = """
import os, sys
sys.modules["fcntl"] = None
for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "geteuid", "fchown", "pread", "pwrite"):
    delattr(os, name)
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.domain.errors import StorageFatalError
try:
    LocalFileSystemStorage("queue.json")
except StorageFatalError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "needs POSIX file locks" in done.stdout
