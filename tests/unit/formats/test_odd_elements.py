"""What does not fit, or cannot be read, is nobody else's trouble."""

import os
from pathlib import Path

from jqueue import StoreQueue
from jqueue.adapters.formats.dirq import DirqElements
from jqueue.adapters.formats.vsqs import VsqsFolder


async def test_an_element_that_is_a_link_to_somewhere_else_is_none(tmp_path: Path) -> None:
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


class OfOthers(VsqsFolder):
    """Messages of others, which cannot be read by this user as long as only their owner may."""

    def _read(self, place: str) -> bytes:
        if os.stat(self.path / place).st_mode & 0o077 == 0:
            raise PermissionError(13, "Permission denied")
        return super()._read(place)


async def test_a_message_that_may_not_be_read_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    for name in ("5", "6"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "5").chmod(0o600)
    queue = StoreQueue(OfOthers(tmp_path, fsync=False), deadline=2)
    assert [b"6"] == [job.payload for job in (await queue.read_state()).jobs]
    assert [b"6"] == [job.payload for job in await queue.dequeue()]
    assert [] == await queue.dequeue()
    assert "5" in os.listdir(tmp_path)
    (tmp_path / "5").chmod(0o644)
    [job] = await queue.dequeue()
    assert (b"5", 1) == (job.payload, job.attempt)
