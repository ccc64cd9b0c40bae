"""Lines that another program is still writing, and lines that a crash has truncated, are not taken for messages."""

import asyncio
import os

import pytest

from jqueue import JobStatus
from jqueue.formats.textqueue.store import TextQueueFile
from tests.unit.formats.text_files import LATER, messages, queue_on

PERSONS = b"# my list\n\n-one\n two\n\\state=new\n!old\n?what\n  lost\n=done\r\n-three"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.tq"


async def seen(path, age: float, **options) -> list[bytes]:
    """Return the payloads that are ready when the file was last changed `age` seconds ago."""
    now = LATER.timestamp()
    os.utime(path, (now - age, now - age))
    store = TextQueueFile(path, **options)
    ready = [kept for kept in store.scan(LATER) if kept.job.run_at is None or kept.job.run_at <= LATER]
    return [job.payload for job in store.payloads(ready)]


@pytest.mark.parametrize(
    ("content", "age", "expected"),
    [
        (b"-a\n-b\n", 0.1, [b"a"]),
        (b"-a\n-b\n", 0.3, [b"a", b"b"]),
        (b"-a\n-b\n\n", 0.0, [b"a", b"b"]),
        (b"-a\n-b\n#c\n", 0.0, [b"a", b"b"]),
        (b"-a\n-b", 0.9, [b"a"]),
        (b"-a\n-b", 1.1, [b"a", b"b"]),
        (b"-a\n-b\n more", 0.9, [b"a"]),
        (b"-a\n-b\n", -30.0, [b"a"]),
        (b"-a\n-b\n", -1e9, [b"a"]),
    ],
)
async def test_the_last_message_of_another_program_waits_until_it_is_whole(path, content, age, expected):
    path.write_bytes(content)
    assert expected == await seen(path, age)


async def test_a_queue_finds_the_last_message_when_the_file_has_settled(path):
    async with queue_on(path, settle=0.05) as queue:
        path.write_bytes(b"-a\n")
        [job] = await queue.dequeue(wait=20)
        assert job.payload == b"a"


async def test_marks_of_other_programs_do_not_delay_the_last_message(path):
    path.write_bytes(b"-a\n-b\n")
    now = LATER.timestamp()
    os.utime(path, (now - 10, now - 10))
    store = TextQueueFile(path)
    before = {kept.job.id: kept.job.run_at for kept in store.scan(LATER)}
    path.write_bytes(b"=a\n-b\n")
    os.utime(path, (now, now))
    [kept] = store.scan(LATER)
    assert before[kept.job.id] == kept.job.run_at


async def test_nothing_is_appended_behind_a_line_that_another_program_is_writing(path):
    path.write_bytes(b"-a\n-par")
    async with queue_on(path) as queue:
        adding = asyncio.create_task(queue.enqueue("work", b"ours"))
        with open(path, "ab") as file:
            for _ in range(1000):
                await asyncio.sleep(0)
            file.write(b"tial\n")
        await adding
        assert path.read_bytes().startswith(b"-a\n-partial\n#jq {")
        assert [b"a", b"partial", b"ours"] == [job.payload for job in await queue.dequeue(batch_size=9)]


TORN = b'#jq {"id":"torn","ep":"work","t":1,"n":9}\n-123456789\n\n'


@pytest.mark.parametrize("length", range(len(TORN) + 1))
async def test_a_truncated_message_of_ours_is_not_taken_for_a_message(path, length):
    path.write_bytes(b"-a\n" + TORN[:length])
    os.utime(path, (0, 0))
    whole = length >= len(TORN) - 2
    async with queue_on(path) as queue:
        before = [job.payload for job in (await queue.read_state()).jobs]
        await queue.enqueue("work", b"ours", job_id="ours")
        payloads = [job.payload for job in await queue.dequeue(batch_size=9)]
        again = await queue.enqueue("work", b"123456789", job_id="torn")
        assert again.status is (JobStatus.IN_PROGRESS if whole else JobStatus.QUEUED)
    with open(path, "ab") as file:
        file.write(b"-theirs\n more\n")
    expected = [b"a", b"123456789"] if whole else [b"a"]
    assert (expected, [*expected, b"ours"]) == (before, payloads)
    assert {b"a", b"123456789", b"ours", b"theirs\nmore"} == {payload for _, payload in messages(path)}


async def test_a_note_without_its_message_is_not_applied_to_the_next_line(path):
    path.write_bytes(TORN[: TORN.index(b"-")])
    async with queue_on(path) as queue:
        await queue.enqueue("work", b"ours", job_id="ours")
    assert b"\n\n#jq" in path.read_bytes()


async def test_a_file_with_a_future_time_settles_like_any_other(path):
    path.write_bytes(b"-a\n")
    os.utime(path, (4e9, 4e9))
    async with queue_on(path, settle=0.05) as queue:
        assert [b"a"] == [job.payload for job in await queue.dequeue(wait=20)]
