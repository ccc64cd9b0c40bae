"""Messages that people edit in the file while a queue object knows them: they are served as they stand by then."""

from pathlib import Path

import pytest

from jqueue import StoreQueue
from tests.unit.formats.text_files import queue_on


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.tq"


@pytest.fixture
def queue(path: Path) -> StoreQueue:
    return queue_on(path)


def edit(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert 1 == content.count(old)
    path.write_bytes(content.replace(old, new))


async def test_the_text_is_that_of_the_moment_of_the_claim(path: Path, queue: StoreQueue) -> None:
    await queue.enqueue("work", b"one")
    edit(path, b"-one", b"-two")
    [job] = await queue.dequeue("work")
    assert b"two" == job.payload
    await queue.nack(job)
    edit(path, b"-two", b"-three\n and more")
    assert [] == await queue.dequeue("other")
    [job] = await queue.dequeue("work")
    assert b"three\nand more" == job.payload


async def test_the_note_is_that_of_the_moment_of_the_claim(path: Path, queue: StoreQueue) -> None:
    await queue.enqueue("work", b"one", headers={"to": "Ada"}, max_attempts=3)
    edit(path, b"Ada", b"Bob")
    edit(path, b'"max":3', b'"max":9')
    [job] = await queue.dequeue("work")
    assert ({"to": "Bob"}, 9) == (dict(job.headers), job.max_attempts)


@pytest.mark.parametrize("looked", [True, False])
async def test_a_message_that_was_given_to_others_is_theirs(path: Path, queue: StoreQueue, looked: bool) -> None:
    job = await queue.enqueue("work", b"one")
    if looked:
        assert [] == await queue.dequeue("other")
    edit(path, b'"ep":"work"', b'"ep":"other"')
    assert [] == await queue.dequeue("work")
    [claimed] = await queue.dequeue("other")
    assert (job.id, "other") == (claimed.id, claimed.entrypoint)
