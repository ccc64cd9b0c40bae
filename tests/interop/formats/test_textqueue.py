"""jqueue and the real textqueue 1.1 on one file, and files made by 1.0."""

import os

import pytest

from jqueue import connect
from tests.interop.formats.mixed import take_turns
from tests.interop.formats.originals import Original
from tests.unit.formats.test_textqueue_files import MESSAGES

pytestmark = pytest.mark.wide

BY_HAND = b"# by hand\n\n=done\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.tq"


@pytest.fixture
def theirs(original, path):
    path.write_bytes(BY_HAND)
    with Original("textq", original("textqueue-1.1"), path) as theirs:
        yield theirs


def ours(path):
    return connect(f"textq://{path}")


def test_1_1_finds_the_messages_in_a_file_that_jqueue_finds(theirs, tmp_path):
    path = tmp_path / "other.tq"
    for content, texts in MESSAGES.items():
        if b"\xff" not in content and b"\x85" not in content:
            path.write_bytes(content)
            assert texts == [text.encode() for text in theirs.read_all(str(path))[0]], content


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_file_of_textqueue_is_read_and_finished_as_textqueue_does(version, unpacked, theirs):
    after = (unpacked("textqueue-1.1") / "after.tq").read_bytes()
    path = unpacked(f"textqueue-{version}") / "before.tq"
    os.utime(path, (0, 0))
    async with ours(path) as queue:
        texts = [job.payload for job in (await queue.read_state()).jobs]
        assert [b"first\ntwo lines", b"  padded  ", "größe".encode(), b"", b"last without newline"] == texts
        first, second = await queue.dequeue(batch_size=2)
        await queue.ack(first)
        await queue.nack(second, dead=True)
    assert after == path.read_bytes()
    assert [[text.decode() for text in texts[2:]], 0] == theirs.read_all(str(path))


async def test_a_file_written_by_jqueue_is_read_by_the_original(theirs, path):
    texts = ["one", "", "  two  ", "-three", "grüß\u2028e\x00", "four\n\n five\n"]
    async with ours(path) as queue:
        for text in texts:
            await queue.enqueue("work", text.encode(), headers={"ü": "\n"})
        await queue.ack((await queue.dequeue())[0])
    assert [texts[1:], 0] == theirs.read_all(str(path))


@pytest.mark.parametrize("rounds", [60, pytest.param(900, marks=pytest.mark.full)])
async def test_random_turns_of_both_programs_lose_nothing_and_do_nothing_twice(theirs, path, rounds):
    async with ours(path) as queue, ours(path) as other:
        await take_turns([queue, other], theirs, rounds, locks=False)
    assert path.read_bytes().startswith(BY_HAND)
    assert [[], 0] == theirs.read_all(str(path))
