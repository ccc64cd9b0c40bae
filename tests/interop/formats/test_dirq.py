"""jqueue and the real dirq of Python on one folder, and folders that it made."""

import asyncio

import pytest

from jqueue import connect
from tests.interop.formats.dirq_contract import DirqContract
from tests.interop.formats.dirq_original import SCHEMA, Dirq


class TestDirq(DirqContract):
    counted_dead = 1  # a dead job is in a folder, which it counts

    @pytest.fixture
    def theirs(self, original, folder):
        opened = []

        def make(kind, **options):
            dirq = Dirq(original("dirq"), folder, SCHEMA if kind == "queue" else None, **options)
            opened.append(dirq)
            return dirq

        yield make
        for dirq in opened:
            dirq.__exit__(None, None, None)


def test_what_the_original_made_is_read(unpacked):
    async def read(url):
        async with connect(url) as queue:
            state = await queue.read_state()
            return [(job.payload, str(job.status), dict(job.headers)) for job in state.queued_jobs()], [
                job.payload for job in state.in_progress_jobs()
            ]

    simple, elements = unpacked("dirq-1.8-simple"), unpacked("dirq-1.8-queue")
    waiting, locked = asyncio.run(read(f"dirq://{simple}/queue"))
    texts = [b"first", b"", b"two\nlines\r\n", bytes(range(256)), "größe".encode(), "größe".encode()]
    assert [(text, "queued", {}) for text in texts] == waiting
    assert [b"locked", b"stale lock"] == locked
    assert ([(b"hourly", "queued", {})], []) == asyncio.run(read(f"dirq://{simple}/hourly?granularity=3600"))
    schema = "schema=body:binary,text:string?,header:table?"
    waiting, locked = asyncio.run(read(f"dirq://{elements}/queue?{schema}"))
    assert [b"first", b"", bytes(range(256)), b"next dir"] == [payload for payload, _, _ in waiting]
    assert {"text": ""} == waiting[1][2]
    table = {"a": "1", "tab\tkey": "line\nvalue", "back\\slash": "\\t not a tab", "": "empty", "z": ""}
    assert {**table, "text": "größe\r\n☺\0"} == waiting[2][2]
    assert [b"locked", b"stale"] == locked
    waiting, _ = asyncio.run(read(f"dirq://{elements}/strings?schema=body:string,header:table"))
    assert [(b"text", "queued", {"k": "v"})] == waiting
