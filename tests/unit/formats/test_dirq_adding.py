"""Elements that are added together get to the disk together, before anybody can find one of them."""

import asyncio
import os

import pytest

from jqueue import StorageError
from jqueue.adapters.formats._dirq_adding import AT_ONCE
from jqueue.adapters.formats.dirq import DirqElements, DirqSimple
from jqueue.core.job_store.queue import StoreQueue

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
