"""Elements that are added together are flushed together, before any of them becomes visible."""

import asyncio
import os

import pytest

from jqueue import StorageError
from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.dirq.store import WRITE_BATCH
from jqueue.formats.queue import StoreQueue

KINDS = {"simple": DirqSimple, "queue": DirqElements}
JOBS = WRITE_BATCH + 2


@pytest.fixture(params=KINDS)
def store(request, tmp_path):
    return KINDS[request.param](tmp_path / "queue")


def _visible(root):
    """Return the elements that any program of dirq finds."""
    return [path for path in root.glob("[0-9a-f]*/[0-9a-f]*") if path.suffix == ""]


async def test_every_visible_element_is_on_the_disk(store, tmp_path, monkeypatch):
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


async def test_a_failed_flush_leaves_no_element_and_no_part_of_one(store, tmp_path, monkeypatch):
    queue = StoreQueue(store)
    await queue.enqueue("work", b"before")

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    calls = [queue.enqueue("work", b"%d" % number, deadline=0.3) for number in range(3)]
    assert all(isinstance(error, StorageError) for error in await asyncio.gather(*calls, return_exceptions=True))
    assert [b"before"] == [job.payload for job in (await queue.read_state()).jobs]
    assert [] == [*(tmp_path / "queue").glob("*/*.tmp"), *(tmp_path / "queue").glob("temporary/*")]


async def test_a_failed_flush_after_a_taken_name_leaves_no_part(tmp_path, monkeypatch):
    """The element was flushed under the taken name, and is written again under another."""
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
async def test_adding_elements_leaves_no_file_open(store, tmp_path):
    queue = StoreQueue(store)
    await asyncio.gather(*(queue.enqueue("work", b"%d" % number) for number in range(JOBS)))
    assert [] == [name for name in os.listdir("/proc/self/fd") if _is_of(name, tmp_path)]


def _is_of(name, folder):
    try:
        return os.readlink(f"/proc/self/fd/{name}").startswith(str(folder))
    except OSError:
        return False
