"""A TextQueue that people edit at rest: no call on the queue ever changes a byte of theirs."""

import asyncio
import os
import re
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jqueue import Job, JobNotFoundError, JobStateError
from jqueue.formats.queue import StoreQueue
from jqueue.formats.textqueue.store import TextQueueFile
from tests.property.text_lines import ENDS, edited, edits, files, read

pytestmark = pytest.mark.wide

OURS = re.compile(rb"\n{0,2}(?:#jq \{[^\n]*\}\n-[^\r\n]*\n(?: [^\r\n]*\n)*\n)")

FLIPS = {
    "ack": {(b"-", b"=")},
    "dead": {(b"-", b"!")},
    "redrive": {(b"!", b"-")},
    "cancel": {(b"-", b"#"), (b"-", b"=")},
    "purge": {(b"!", b"#"), (b"!", b"=")},
}

actions = st.tuples(
    st.sampled_from(["enqueue", "dequeue", "ack", "ack", "nack", "dead", "redrive", "cancel", "heartbeat", "purge"]),
    st.integers(0, 100),
    st.binary(max_size=5) | st.text(max_size=5).map(str.encode),
)
programs = st.lists(st.one_of(actions, actions, edits(), st.just("restart")), max_size=14)


class Life:
    """A file, the queues and programs on it, and the bytes that each step may change."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        path.write_bytes(content)
        self.held: list[Job] = []
        self.open()

    def open(self) -> None:
        self.queue = StoreQueue(TextQueueFile(self.path, fsync=False, settle=0.0))

    async def step(self, step: Any) -> None:
        before = self.path.read_bytes()
        os.utime(self.path, (0, 0))  # what a person has written is whole, although it may lack its last end
        if step == "restart":
            await self.queue.aclose()
            self.open()
        elif len(step) == 4:
            content = edited(before, step)
            if step[1] % 2:
                self.path.write_bytes(content)
            else:
                other = self.path.with_name("edited")
                other.write_bytes(content)
                other.replace(self.path)
            os.utime(self.path, (0, 0))
        else:
            with suppress(JobNotFoundError, JobStateError):
                await self.do(*step)
            self.check(before, self.path.read_bytes(), step[0])
        await self.look()

    async def do(self, verb: str, number: int, payload: bytes) -> None:
        queue, held = self.queue, self.held
        if verb == "enqueue":
            job = await queue.enqueue("work", payload, headers={"n": "ü"})
            assert job.payload == payload
        elif verb == "dequeue":
            held += await queue.dequeue(batch_size=number % 4 + 1)
        elif verb == "redrive":
            await queue.redrive()
        elif verb == "purge":
            await queue.purge()
        elif verb == "cancel":
            if jobs := (await queue.read_state()).jobs:
                await queue.cancel(jobs[number % len(jobs)].id)
        elif held:
            job = held.pop(number % len(held))
            if verb == "heartbeat":
                await queue.heartbeat(job)
                held.append(job)
            elif verb == "ack":
                await queue.ack(job)
            else:
                await queue.nack(job, dead=verb == "dead", error="broken")

    def check(self, before: bytes, after: bytes, verb: str) -> None:
        """Check that only the bytes have changed that this verb may change."""
        assert len(after) >= len(before), "bytes were removed"
        tail = after[len(before) :]
        assert verb == "enqueue" or not tail, f"{verb} has appended"
        assert OURS.sub(b"", tail) == b"", "the appended bytes are not a whole message of ours"
        messages = {message.offset: message for message in read(before)}
        changed = [offset for offset in range(len(before)) if before[offset] != after[offset]]
        for offset in changed:
            assert offset in messages, f"{verb} has changed a byte that is no first byte of a message"
            flip = messages[offset].control, after[offset : offset + 1]
            assert flip in FLIPS.get(verb, ()), f"{verb} has made {flip}"
        assert len(changed) <= 1 or verb in ("redrive", "purge")

    async def look(self) -> None:
        """Check that the queue shows every message of the file, and nothing else."""
        jobs = (await self.queue.read_state()).jobs
        texts = Counter(message.text for message in read(self.path.read_bytes()) if message.control in (b"-", b"!"))
        assert len(jobs) == sum(texts.values())
        assert len({job.id for job in jobs}) == len(jobs)


def live(content: bytes, program: list[Any]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            life = Life(Path(folder) / "queue.tq", content)
            for step in program:
                await life.step(step)
            held = {job.id for job in life.held}
            os.utime(life.path, (0, 0))
            await life.queue.requeue_stale(0)
            left = await life.queue.dequeue(batch_size=100)
            waiting = [message for message in read(life.path.read_bytes()) if message.control == b"-"]
            assert len(waiting) == len(left), f"not all was handed out in the end; {len(held)} were held"
            await life.queue.aclose()

    asyncio.run(run())


@settings(max_examples=120, deadline=None)
@given(files(), programs)
def test_bytes_of_other_programs_do_not_change(content, program):
    live(content, program)


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=200) | st.text().map(str.encode),
    st.dictionaries(
        st.text(min_size=1).filter(lambda name: name.isprintable()),
        st.text(st.characters(exclude_categories=["Cs"])),
        max_size=3,
    ),
    files(),
    st.sampled_from(ENDS),
)
def test_any_payload_and_any_header_come_back(payload, headers, content, end):
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "queue.tq"
            path.write_bytes(content + end)
            os.utime(path, (0, 0))
            async with StoreQueue(TextQueueFile(path, fsync=False)) as queue:
                await queue.enqueue("our own", payload, headers=headers)
            async with StoreQueue(TextQueueFile(path, fsync=False)) as queue:
                [job] = await queue.dequeue("our own")
                assert (payload, headers) == (job.payload, job.headers)
            assert path.read_bytes().startswith(content + end)

    asyncio.run(run())
