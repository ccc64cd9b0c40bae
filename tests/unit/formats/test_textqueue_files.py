"""A TextQueue as a queue: the bytes that are written, those that are left alone, and what people edit meanwhile."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from jqueue import ClaimLostError, JobStatus
from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue import records
from jqueue.formats.textqueue.store import TextQueueFile
from jqueue.testing.virtual_time import VirtualClock
from tests.unit.formats.places import StandingClock
from tests.virtual_world import in_virtual_time


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.tq"


@pytest.fixture
def journal(path):
    return path.with_name(f".{path.name}.jq")


@pytest.fixture(autouse=True)
def whole_lines(monkeypatch):
    """Each line counts as whole at once."""
    monkeypatch.setattr(records, "SETTLE", 0)


def queue_on(path: Path, **settings: Any) -> StoreQueue:
    """Return a queue on a file."""
    return StoreQueue(TextQueueFile(path), **settings)


async def messages(path: Path) -> list[tuple[str, bytes]]:
    """Return the id and the payload of each message, in order, as a new queue object finds them."""
    async with queue_on(path) as queue:
        return [(job.id, job.payload) for job in (await queue.read_state()).jobs]


MESSAGES = {
    b"": [],
    b"\n\n": [],
    b"-a\n b\n  c\n \n-z\n": [b"a\nb\n c\n", b"z"],
    b"-\n": [b""],
    b"-a  \n": [b"a  "],
    b"--a\n": [b"-a"],
    b"-a": [b"a"],
    b"-a\n \n": [b"a\n"],
    b"-one\n#c\n two\n": [b"one"],
    b"-a\r\n b\r\n-c\r\n": [b"a\nb", b"c"],
    b"-a\rb\n-c\n": [b"a", b"c"],
    b"-a\x00\x0b\x0c\x85\n": [b"a\x00\x0b\x0c\x85"],
    "-grüß\u2028e\n".encode(): ["grüß\u2028e".encode()],
    b"-a\n\\state=new  \n\\x\n b\n-c\n": [b"a", b"c"],
    b"-\xff\xfe\n": [b"\xff\xfe"],
    b"=done\n more\n-a\n#c\n": [b"a"],
    b" orphan\n\\orphan\n-a\n\n orphan\n-b\n": [b"a", b"b"],
    b"xunknown\n and more\n-a\n?\n": [b"a"],
    b"\xef\xbb\xbf-a\n-b\n": [b"b"],
    b"-a\n\n\n\n-a\n": [b"a", b"a"],
    b"#jq {}\n-a\n": [b"a"],
    b'#jq {"id":5}\n-a\n#jq [}\n-b\n': [b"a", b"b"],
}
"""Contents of files, and the queued messages that textqueue 1.1 finds there."""


@pytest.mark.parametrize("content", MESSAGES, ids=repr)
async def test_a_file_has_the_messages_that_the_original_program_finds(path, content):
    path.write_bytes(content)
    assert MESSAGES[content] == [payload for _, payload in await messages(path)]
    assert content == path.read_bytes(), "reading changes nothing"


PERSONS = b"# my list\n\n-one\n two\n\\state=new\n!old\n?what\n  lost\n=done\r\n-three"


async def test_a_message_is_appended_whole_behind_the_existing_content(path):
    path.write_bytes(PERSONS)
    os.utime(path, (0, 0))
    async with queue_on(path) as queue:
        await queue.enqueue("mail", b"line one\nline two\n", job_id="the-id", headers={"k": "v"}, max_attempts=3)
    head, _, rest = path.read_bytes().removeprefix(PERSONS).partition(b"\n-")
    assert head.startswith(b'\n#jq {"id":"the-id","ep":"mail","t":')
    assert head.endswith(b',"n":18,"h":{"k":"v"},"max":3}')
    assert rest == b"line one\n line two\n \n\n"


TEXTS = [b"", b"\n", b" a", b"-", b"#jq {", b"\x00", "grüß\u2028".encode(), b"a\n\n b\n"]
BINARIES = [b"\r", b"a\r\nb", b"\xff", b"\xed\xa0\x80", bytes(range(256))]


@pytest.mark.parametrize("payload", TEXTS + BINARIES)
async def test_a_text_payload_is_written_unchanged_and_a_binary_one_in_base64(path, payload):
    async with queue_on(path) as queue:
        await queue.enqueue("work", payload)
        [job] = await queue.dequeue()
        assert payload == job.payload
    content = path.read_bytes()
    if payload in TEXTS:
        assert content.partition(b"\n")[2] == b"-" + payload.replace(b"\n", b"\n ") + b"\n\n"
    else:
        assert (True, True, False) == (b'"enc":"b64"' in content, content.isascii(), b"\r" in content)


async def test_one_byte_marks_the_state_of_a_message(path):
    path.write_bytes(b"-a\n-b\n-c\n-d\n-e\n")
    async with queue_on(path) as queue:
        a, b, c, d = await queue.dequeue(batch_size=4)
        assert path.read_bytes() == b"-a\n-b\n-c\n-d\n-e\n", "a claim is in the journal"
        await queue.ack(a)
        await queue.nack(b, dead=True, error="broken")
        await queue.nack(c)
        await queue.heartbeat(d)
        [e] = [job for job in (await queue.read_state()).jobs if job.payload == b"e"]
        await queue.cancel(e.id)
        assert path.read_bytes() == b"=a\n!b\n-c\n-d\n#e\n"
        assert await queue.redrive() == 1
        assert path.read_bytes() == b"=a\n-b\n-c\n-d\n#e\n"
        assert [b"c", b"b"] == [job.payload for job in await queue.dequeue(batch_size=9)], "in the order of the journal"
        assert path.read_bytes() == b"=a\n-b\n-c\n-d\n#e\n"


async def test_cancelling_a_message_does_not_turn_it_into_a_note(path):
    path.write_bytes(b'-jq {"id":"x"}\n-b\n')
    async with queue_on(path) as queue:
        first, second = (await queue.read_state()).jobs
        await queue.cancel(first.id)
        assert path.read_bytes() == b'=jq {"id":"x"}\n-b\n'
        assert [second.id] == [job.id for job in await queue.dequeue(batch_size=9)]


async def test_a_message_that_an_older_reader_finished_is_finished(path):
    path.write_bytes(b"-a\n-b\n-c\n")
    async with queue_on(path) as queue, queue_on(path) as other:
        a, b, c = await queue.dequeue(batch_size=3)
        path.write_bytes(b"=a\n!b\n#c\n")
        await queue.ack(a)
        await other.ack(a)
        for job in (b, c):
            with pytest.raises(ClaimLostError):
                await queue.ack(job)
        assert path.read_bytes() == b"=a\n!b\n#c\n"
        assert [JobStatus.DEAD] == [job.status for job in (await other.read_state()).jobs]


async def test_a_message_queued_again_by_hand_is_claimed_by_a_new_attempt(path):
    path.write_bytes(b"-a\n-b\n")
    async with queue_on(path) as queue:
        a, b = await queue.dequeue(batch_size=2)
        await queue.ack(a)
        await queue.nack(b, dead=True)
        path.write_bytes(b"-a\n-b\n")
        again = await queue.dequeue(batch_size=2)
        assert {(a.id, 2), (b.id, 2)} == {job.claim for job in again}
        assert {1} == {job.failures for job in again if job.id == b.id}
        with pytest.raises(ClaimLostError):
            await queue.nack(a)


async def test_a_claim_is_on_the_disk_before_it_is_answered(path, journal, monkeypatch):
    path.write_bytes(b"-a\n-b\n")
    flushed, flush = [], os.fsync

    def noted(file):
        flush(file)
        flushed.append(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    async with queue_on(path) as queue:
        for names in ([journal, path.parent], [journal]):
            await queue.dequeue()
            assert [name.stat().st_ino for name in names] == flushed
            flushed.clear()


async def test_an_editor_may_replace_the_file(path):
    path.write_bytes(b"-a\n-b\n")
    async with queue_on(path, clock=StandingClock()) as queue:
        [a] = await queue.dequeue()
        edited = path.with_name("edited")
        edited.write_bytes(b"# urgent\n-new\n\n-b\n-a\n")
        os.replace(edited, path)
        await queue.ack(a)
        assert path.read_bytes() == b"# urgent\n-new\n\n-b\n=a\n"
        await queue.enqueue("work", b"c", job_id="c")
        assert [b"new", b"b", b"c"] == [job.payload for job in await queue.dequeue(batch_size=9)]


async def test_a_message_edited_under_its_claim_is_another_job(path):
    path.write_bytes(b"-a\n-b\n")
    async with queue_on(path) as queue:
        [a] = await queue.dequeue()
        path.write_bytes(b"-A\n-b\n")
        with pytest.raises(ClaimLostError):
            await queue.ack(a)
        assert path.read_bytes() == b"-A\n-b\n"


async def test_every_message_is_there_and_unclaimed_without_the_journal(path, journal):
    path.write_bytes(b"-a\n=b\n!c\n")
    async with queue_on(path) as queue:
        [a] = await queue.dequeue()
        journal.unlink()
        async with queue_on(path) as fresh:
            assert {b"a": JobStatus.QUEUED, b"c": JobStatus.DEAD} == {
                job.payload: job.status for job in (await fresh.read_state()).jobs
            }
        await queue.heartbeat(a)
        assert journal.exists(), "a queue object that knows its content writes it again"
        async with queue_on(path) as fresh:
            assert await fresh.dequeue() == []
        await queue.ack(a)
    assert path.read_bytes() == b"=a\n=b\n!c\n"


@in_virtual_time
async def test_nothing_is_appended_behind_a_line_that_another_program_is_writing(path):
    path.write_bytes(b"-a\n-par")
    soon = time.time() + 50  # the line counts as whole a second after the last change of the file
    os.utime(path, (soon, soon))
    async with queue_on(path, clock=VirtualClock()) as queue:
        adding = asyncio.create_task(queue.enqueue("work", b"ours"))
        await asyncio.sleep(20)
        with open(path, "ab") as file:
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
    assert {b"a", b"123456789", b"ours", b"theirs\nmore"} == {payload for _, payload in await messages(path)}


WRONG_NOTES = [
    b'{"id":"\\ud800"}',
    b'{"id":"x","ep":5,"h":[1],"max":"y","t":-1,"n":"z"}',
    b'{"id":"x","enc":"b64"}',
    b"{" + b"[" * 100_000,
]


@pytest.mark.parametrize("note", WRONG_NOTES, ids=range(len(WRONG_NOTES)))
async def test_an_invalid_note_is_ignored(path, note):
    path.write_bytes(b"#jq " + note + b"\n-not base64!\n-b\n")
    async with queue_on(path) as queue:
        job, other = (await queue.read_state()).jobs
    assert (job.payload, other.payload) == (b"not base64!", b"b")
    assert (job.entrypoint, job.headers, job.max_attempts) == ("queue", {}, None)


async def test_a_truncated_line_of_the_journal_does_not_damage_the_next(path, journal):
    """A process was killed while it wrote its claim: that message is free, and the claims after it are kept."""
    path.write_bytes(b"-a\n-b\n")
    async with queue_on(path) as queue:
        [a] = await queue.dequeue()
        begin = len(journal.read_bytes())
        await queue.dequeue()
    content = journal.read_bytes()
    for length in range(begin, len(content) - 1):
        journal.write_bytes(content[:length])
        async with queue_on(path) as queue, queue_on(path) as other:
            [b] = await queue.dequeue()
            assert (b"b", 1) == (b.payload, b.attempt)
            assert {a.claim, b.claim} == {job.claim for job in (await other.read_state()).jobs}
