"""Elements that are added together get to the disk together, before anybody can find one of them."""

import asyncio
import os

import pytest

from jqueue import StorageError
from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.dirq.store import AT_ONCE
from jqueue.formats.queue import StoreQueue

KINDS = {"simple": DirqSimple, "queue": DirqElements}
JOBS = AT_ONCE + 2


@pytest.fixture(params=KINDS)
def store(request, tmp_path):
    return KINDS[request.param](tmp_path / "queue")


def _visible(root):
    """The elements that any program of dirq finds."""
    return [path for path in root.glob("[0-9a-f]*/[0-9a-f]*") if path.suffix == ""]


async def test_nothing_is_to_be_found_that_is_not_on_the_disk(store, tmp_path, monkeypatch):
    sync, synced, seen = os.fsync, set(), []

    def noted(descriptor):
        sync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)
        seen.append({path.stat().st_ino for path in _visible(tmp_path / "queue")} - synced)

    monkeypatch.setattr(os, "fsync", noted)
    queue = StoreQueue(store)
    await asyncio.gather(*(queue.enqueue("work", b"%d" % number) for number in range(JOBS)))
    assert JOBS == len(_visible(tmp_path / "queue"))
    assert [] == [inodes for inodes in seen if inodes]
    assert {path.stat().st_ino for path in (tmp_path / "queue").glob("*/*") if path.is_file()} <= synced
    assert [b"%d" % number for number in range(JOBS)] == [job.payload for job in (await queue.read_state()).jobs]


async def test_where_the_disk_fails_none_of_them_is_there_and_no_part_of_one(store, tmp_path, monkeypatch):
    queue = StoreQueue(store)
    await queue.enqueue("work", b"before")

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    calls = [queue.enqueue("work", b"%d" % number, deadline=0.3) for number in range(3)]
    assert all(isinstance(error, StorageError) for error in await asyncio.gather(*calls, return_exceptions=True))
    assert [b"before"] == [job.payload for job in (await queue.read_state()).jobs]
    assert [] == [*(tmp_path / "queue").glob("*/*.tmp"), *(tmp_path / "queue").glob("temporary/*")]


async def test_no_part_is_left_if_the_disk_fails_for_one_whose_name_was_taken(tmp_path, monkeypatch):
    """It was on the disk once, and is written anew."""
    queue = StoreQueue(DirqSimple(tmp_path / "queue"))
    await queue.enqueue("work", b"before")

    def taken(source, name):
        monkeypatch.setattr(os, "fsync", fail)
        raise FileExistsError(name)

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "link", taken)
    with pytest.raises(StorageError):
        await queue.enqueue("work", b"1", deadline=0.3)
    assert [] == [*(tmp_path / "queue").glob("*/*.tmp")]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system does not list open files")
async def test_who_adds_leaves_no_file_open(store, tmp_path):
    queue = StoreQueue(store)
    await asyncio.gather(*(queue.enqueue("work", b"%d" % number) for number in range(JOBS)))
    assert [] == [name for name in os.listdir("/proc/self/fd") if _is_of(name, tmp_path)]


def _is_of(name, folder):
    try:
        return os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
    except OSError:
        return False
