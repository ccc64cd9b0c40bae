"""A change whose folder cannot be flushed to the disk is not made twice."""

import errno
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jqueue import DeadlineExceededError, UnknownOutcomeError
from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.port import JobStorePort
from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue.store import TextQueueFile
from jqueue.formats.vsqs.store import VsqsFolder
from tests.unit.until_deadline import run_until_deadline

STORES: dict[str, Callable[[Path], JobStorePort]] = {
    "simple": DirqSimple,
    "elements": DirqElements,
    "vsqs": VsqsFolder,
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> JobStorePort:
    return STORES[request.param](tmp_path / "queue")


class Disk:
    """A disk that flushes files, and fails the next `failures` flushes of folders that other programs see."""

    def __init__(self, queue: Path) -> None:
        self.failures = 0
        self._queue = queue
        self.and_then: Callable[[], Any] = lambda: None
        self._sync = os.fsync

    def sync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        hidden = any(os.path.samestat(found, os.stat(part)) for part in self._queue.glob("temporary/*"))
        if self.failures and stat.S_ISDIR(found.st_mode) and not hidden:
            self.failures -= 1
            self.and_then()
            raise OSError(5, "Input/output error")
        self._sync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disk:
    disk = Disk(tmp_path / "queue")
    monkeypatch.setattr(os, "fsync", disk.sync)
    return disk


async def test_a_job_is_added_once_if_its_folder_is_flushed_at_the_second_attempt(
    store: JobStorePort, disk: Disk
) -> None:
    queue = StoreQueue(store)
    await queue.enqueue("work", b"1")
    disk.failures = 1
    job = await queue.enqueue("work", b"2")
    assert [b"1", b"2"] == [found.payload for found in (await queue.read_state()).jobs]
    assert job.id in {found.id for found in (await queue.read_state()).jobs}


async def test_a_job_whose_folder_is_never_flushed_is_not_added(store: JobStorePort, disk: Disk) -> None:
    queue = StoreQueue(store)
    await queue.enqueue("work", b"1")
    disk.failures = -1
    with pytest.raises(DeadlineExceededError, match="Input/output"):
        await run_until_deadline(queue, queue.enqueue("work", b"2"))
    assert [b"1"] == [found.payload for found in (await queue.read_state()).jobs]


async def test_a_job_that_another_program_took_meanwhile_is_not_added_again(
    store: JobStorePort, disk: Disk, tmp_path: Path
) -> None:
    queue = StoreQueue(store)
    [first] = [await queue.enqueue("work", b"1")]
    taken: list[Any] = []

    def take() -> None:
        other = type(store)(tmp_path / "queue", fsync=False)  # type: ignore[call-arg]
        taken.extend(kept for kept in other.scan(first.created_at) if kept.job.id != first.id)
        for kept in taken:
            take_away(tmp_path / "queue" / kept.place)

    disk.failures, disk.and_then = 1, partial(take)
    await queue.enqueue("work", b"2")
    assert 1 == len(taken)
    assert [b"1"] == [found.payload for found in (await queue.read_state()).jobs]


def take_away(path: Path) -> None:
    """Finish a job as a program of the format does."""
    if path.is_dir():
        path.rename(path.parent.parent / "obsolete" / path.name)
    else:
        path.unlink()


async def test_a_message_is_not_confirmed_before_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = StoreQueue(TextQueueFile(tmp_path / "queue.tq"))
    await queue.enqueue("work", b"1")
    failures = [3]
    sync = os.fsync

    def fail(descriptor: int) -> None:
        if failures[0]:
            failures[0] -= 1
            raise OSError(5, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    await queue.enqueue("work", b"2")
    assert [0] == failures, "it was confirmed without another try"
    failures[0] = -1
    with pytest.raises(UnknownOutcomeError):
        await queue.enqueue("work", b"3", deadline=0.5)


async def test_a_claim_on_a_full_disk_fails_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = StoreQueue(TextQueueFile(tmp_path / "queue.tq"))
    await queue.enqueue("work", b"1")
    await queue.nack((await queue.dequeue())[0])
    journal = tmp_path / ".queue.tq.jq"
    before = journal.read_bytes()

    def write_half(descriptor: int, content: bytes) -> None:
        os.write(descriptor, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr("jqueue.formats.textqueue.journal.write_all", write_half)
        with pytest.raises(DeadlineExceededError, match="No space left on device"):
            await run_until_deadline(queue, queue.dequeue())
    assert before == journal.read_bytes()
    [job] = await queue.dequeue()
    assert (b"1", 2) == (job.payload, job.attempt)
