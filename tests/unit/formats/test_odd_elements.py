"""What does not fit, or cannot be read, is nobody else's trouble."""

import os
from pathlib import Path

from jqueue import StoreQueue
from jqueue.adapters.formats.dirq import DirqElements


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
