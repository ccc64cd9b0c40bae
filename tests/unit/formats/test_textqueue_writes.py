"""Checks before a change of a TextQueue, and the number of its writes and flushes."""

import asyncio
import os
from collections import Counter

import pytest

from jqueue import Job
from jqueue.domain.errors import ClaimLostError
from jqueue.formats.textqueue.view import TextView
from tests.unit.formats.text_files import queue_on

PERSONS = b"# my list\n\n-one\n two\n\\state=new\n!old\n?what\n  lost\n=done\r\n-three"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.tq"


async def test_a_change_is_repeated_if_the_file_was_replaced_meanwhile(path, monkeypatch):
    """An editor replaces the file between our read and our write."""
    path.write_bytes(b"-a\n-b\n")
    real_pwrite = os.pwrite

    def pwrite_too_late(descriptor, content, offset):
        monkeypatch.undo()
        edited = path.with_name("edited")
        edited.write_bytes(b"-a\n-b\n-c\n")
        os.replace(edited, path)
        return real_pwrite(descriptor, content, offset)

    async with queue_on(path) as queue:
        a, _ = await queue.dequeue(batch_size=2)
        monkeypatch.setattr("jqueue.formats.textqueue.changes.os.pwrite", pwrite_too_late)
        await queue.ack(a)
    assert path.read_bytes() == b"=a\n-b\n-c\n"


def edit_before_the_change(monkeypatch, path, content: bytes) -> None:
    """Edit the file in place between the read for the next change and its write."""
    real_read = TextView.read

    def read_and_edit(view, now, *, locked=False):
        real_read(view, now, locked=locked)
        if locked:
            monkeypatch.setattr(TextView, "read", real_read)
            path.write_bytes(content)

    monkeypatch.setattr(TextView, "read", read_and_edit)


async def test_a_message_that_an_edit_moved_just_before_the_change_is_found(path, monkeypatch):
    path.write_bytes(b"-one\n-two\n-three\n")
    async with queue_on(path) as queue:
        one, two = await queue.dequeue(batch_size=2)
        edit_before_the_change(monkeypatch, path, b"# here are\n-one\n-two\n-three\n")
        await queue.ack(one)
        assert path.read_bytes() == b"# here are\n=one\n-two\n-three\n"
        edit_before_the_change(monkeypatch, path, b"-two\n-three\n=one\n")
        [three] = await queue.dequeue()
        assert three.payload == b"three"
        edit_before_the_change(monkeypatch, path, b"-TWO\n-three\n=one\n")
        with pytest.raises(ClaimLostError):
            await queue.ack(two)
        assert path.read_bytes() == b"-TWO\n-three\n=one\n"


async def test_a_message_that_an_edit_finished_just_before_the_claim_is_not_handed_out(path, monkeypatch):
    path.write_bytes(b"-one\n-two\n")
    async with queue_on(path) as queue:
        edit_before_the_change(monkeypatch, path, b"=one\n-two\n")
        assert [b"two"] == [job.payload for job in await queue.dequeue()]


@pytest.fixture
def calls(monkeypatch) -> Counter[str]:
    """Return the numbers of writes and flushes of each file."""
    counted: Counter[str] = Counter()
    for name in ("write", "pwrite", "fsync"):

        def call(descriptor, *arguments, name=name, real=getattr(os, name)):  # noqa: B008 - each its own
            where = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
            counted[f"{name} {where}"] += 1
            return real(descriptor, *arguments)

        monkeypatch.setattr(os, name, call)
    return counted


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="only Linux tells which file is written to")
async def test_concurrent_calls_share_writes_and_flushes(path, calls):
    path.write_bytes(b"-before\n")
    async with queue_on(path, fsync=True) as queue:
        await queue.ack((await queue.dequeue())[0])

        async def costs(*work) -> dict[str, int]:
            calls.clear()
            await asyncio.gather(*work)
            return dict(calls)

        adding = [queue.enqueue("work", b"%d" % number) for number in range(5)]
        assert await costs(*adding) == {"write queue.tq": 1, "fsync queue.tq": 1}
        jobs: list[Job] = []

        async def claim() -> None:
            jobs.extend(await queue.dequeue(batch_size=5))

        assert await costs(claim()) == {"write .queue.tq.jq": 1, "fsync .queue.tq.jq": 1}
        assert await costs(queue.heartbeat_many(jobs)) == {"write .queue.tq.jq": 1, "fsync .queue.tq.jq": 1}
        giving_back = [queue.nack(job) for job in jobs[3:]]
        assert await costs(*giving_back) == {"write .queue.tq.jq": 1, "fsync .queue.tq.jq": 1}
        finishing = [queue.ack(job) for job in jobs[:3]]
        assert await costs(*finishing) == {"pwrite queue.tq": 3, "fsync queue.tq": 1, "write .queue.tq.jq": 1}
        assert await costs(queue.dequeue("other"), queue.read_state()) == {}


async def test_without_fsync_nothing_is_flushed(path, calls):
    async with queue_on(path) as queue:
        await queue.enqueue("work", b"a")
        await queue.ack((await queue.dequeue())[0])
        await queue.enqueue("work", b"b")
        [job] = await queue.dequeue()
        calls.clear()
        await queue.ack(job)
    assert not [name for name in calls if name.startswith("fsync")]
