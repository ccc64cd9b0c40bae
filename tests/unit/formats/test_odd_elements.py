"""An element that is invalid or cannot be read does not affect the others."""

import os
import stat
from pathlib import Path

import pytest

from jqueue.formats.dirq.disk import Disk
from jqueue.formats.dirq.elements import DirqElements
from jqueue.formats.dirq.simple import DirqSimple
from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import VsqsFolder


async def test_a_symbolic_link_is_not_taken_for_an_element(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "body").write_bytes(b"mine")
    queue = StoreQueue(DirqElements(tmp_path / "queue", fsync=False))
    job = await queue.enqueue("work", b"1")
    (tmp_path / "queue" / "00000000" / "00000001000000").symlink_to(outside)
    claimed = await queue.dequeue(batch_size=9)
    assert [job.id] == [one.id for one in claimed]
    await queue.ack_many(claimed)
    assert ["body"] == os.listdir(outside)


class UnreadableMessages(VsqsFolder):
    """A folder in which messages with a private mode cannot be read, as if another user owned them."""

    def _read(self, place: str) -> bytes:
        if os.stat(self.path / place).st_mode & 0o077 == 0:
            raise PermissionError(13, "Permission denied")
        return super()._read(place)


async def test_a_message_that_may_not_be_read_does_not_block_the_others(tmp_path: Path) -> None:
    for name in ("5", "6"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "5").chmod(0o600)
    queue = StoreQueue(UnreadableMessages(tmp_path, fsync=False), deadline=20)
    assert [b"6"] == [job.payload for job in (await queue.read_state()).jobs]
    assert [b"6"] == [job.payload for job in await queue.dequeue()]
    assert [] == await queue.dequeue()
    assert "5" in os.listdir(tmp_path)
    (tmp_path / "5").chmod(0o644)
    [job] = await queue.dequeue()
    assert (b"5", 1) == (job.payload, job.attempt)


@pytest.mark.parametrize("kind", [DirqSimple, DirqElements])
@pytest.mark.parametrize("refused", ["os.link os.mkdir", "os.utime", "read"])
async def test_an_element_that_may_not_be_claimed_does_not_block_the_others(
    kind: type[DirqSimple | DirqElements], refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = StoreQueue(kind(tmp_path / "queue", fsync=False))
    first, second = await other.enqueue("work", b"1"), await other.enqueue("work", b"2")
    element = tmp_path / "queue" / first.id
    element.chmod(0o700)

    def refuse(owner: object, name: str) -> None:
        call = getattr(owner, name)

        def perhaps(*arguments: object, **options: object) -> object:
            path = next((argument for argument in arguments if isinstance(argument, str)), "")
            if path.startswith(str(element)) and stat.S_IMODE(element.stat().st_mode) == 0o700:
                raise PermissionError(13, "Permission denied")
            return call(*arguments, **options)

        monkeypatch.setattr(owner, name, perhaps)

    for text in refused.split():
        refuse(os if "." in text else Disk, text.removeprefix("os."))
    queue = StoreQueue(kind(tmp_path / "queue", fsync=False), deadline=20)
    assert b"2" in [job.payload for job in (await queue.read_state()).jobs]
    assert [second.id] == [job.id for job in await queue.dequeue()]
    assert [] == await queue.dequeue()
    element.chmod(0o755)
    [job] = await queue.dequeue()
    assert (first.id, b"1") == (job.id, job.payload)
    await queue.ack(job)
    assert not element.exists()


class Counting(DirqElements):
    """A store that counts its locks of elements."""

    locks = 0

    def _lock(self, name: str) -> None:
        self.locks += 1
        super()._lock(name)


async def test_each_queue_tries_an_unreadable_element_once_until_it_is_repaired(tmp_path: Path) -> None:
    stores = [Counting(tmp_path / "queue", fsync=False) for _ in range(3)]
    queues = [StoreQueue(store) for store in stores]
    job = await queues[0].enqueue("work", b"1", headers={"a": "b"})
    header = tmp_path / "queue" / job.id / "header"
    header.write_bytes(b"nonsense")
    for _ in range(4):
        assert [[], [], []] == [await queue.dequeue() for queue in queues]
    assert [1, 1, 1] == [store.locks for store in stores]
    header.unlink()
    header.write_bytes(b"a\tc\n")
    [job] = await queues[1].dequeue()
    assert {"a": "c"} == dict(job.headers)
