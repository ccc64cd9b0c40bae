"""Any payload and headers come back from every older format, and no call changes a byte that others wrote in a text."""

import asyncio
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jqueue import Job, JobNotFoundError, JobStateError, connect
from jqueue.formats.queue import StoreQueue

pytestmark = pytest.mark.wide

URLS = {
    "dirq-simple": "dirq://{}/queue?kind=simple",
    "dirq-queue": "dirq://{}/queue?kind=queue",
    "vsqs": "vsqs://{}/queue",
    "textq": "textq://{}/queue.tq",
}

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.text(st.sampled_from("\\\t\n\rtnx\0ö\u2028 "))
names = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=20)
payloads = st.binary(max_size=300) | texts.map(str.encode) | st.sampled_from([b"", b"\r\n", b"\xff" * 9000])


@pytest.mark.parametrize("form", URLS)
@settings(max_examples=30, deadline=None)
@given(payloads, st.dictionaries(names, texts, max_size=6))
@example(b"\x00\r\n\xff", {"n": "\x00\u2028 é" * 900})
def test_payloads_and_headers_come_back_unchanged_until_the_job_is_done(form, payload, headers):
    async def round_trip(url):
        async with connect(url) as queue:
            sent = await queue.enqueue("work", payload, headers=headers)
        for attempt in (1, 2):
            async with connect(url) as queue:
                [job] = await queue.dequeue("work")
                assert (sent.id, payload, headers) == (job.id, job.payload, dict(job.headers))
                assert (attempt, sent.created_at) == (job.attempt, job.created_at)
                await queue.nack(job, error="é" * 50) if attempt == 1 else await queue.ack(job)
        async with connect(url) as queue:
            assert () == (await queue.read_state()).jobs

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(round_trip(URLS[form].format(folder)))


ENDS = (b"\n", b"\r\n", b"\r")
OURS = re.compile(rb"\n{0,2}(?:#jq \{[^\n]*\}\n-[^\r\n]*\n(?: [^\r\n]*\n)*\n)")
MARKS = {
    "ack": {b"-="},
    "dead": {b"-!"},
    "redrive": {b"!-"},
    "cancel": {b"-#", b"-="},
    "purge": {b"!#", b"!="},
}
"""The changes of the first byte of a message that each verb may make."""

words = st.sampled_from([b"", b"a", b"b", b" a", b"-a", b"jq {}", b'jq {"id":"x"}', "grüß".encode(), b"\xff", b"\x00"])
controls = st.sampled_from([b"-"] * 6 + [b"=", b"!", b"#", b" ", b" ", b"\\", b"?", b"x", b"\xef\xbb\xbf", b""])
lines = st.tuples(controls, words, st.sampled_from(ENDS[:1] * 4 + ENDS)).map(b"".join)
contents = st.lists(lines, max_size=12).map(b"".join)
actions = st.tuples(
    st.sampled_from(["enqueue", "dequeue", "ack", "ack", "nack", "dead", "redrive", "cancel", "heartbeat", "purge"]),
    st.integers(0, 100),
    words,
)
edits = st.tuples(st.sampled_from(["insert", "remove", "mark", "cut"]), st.integers(0, 40), lines)


def messages(content):
    """Each message of a file, as textqueue 1.1 finds it: its first byte, by its place."""
    found, place, going_on = {}, 0, False
    for line in re.findall(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z", content):
        if line.strip(b"\r\n") == b"":
            going_on = False
        elif not (going_on and line[:1] in (b" ", b"\\")):
            going_on = True
            if line[:1] in (b"-", b"=", b"!", b"#"):
                found[place] = line[:1]
        place += len(line)
    return found


def edited(content, kind, number, text):
    """The file after an edit by a person."""
    parts = re.findall(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z", content)
    place = number % (len(parts) + 1)
    if kind == "insert":
        parts.insert(place, text)
    elif kind == "cut":
        return content.rstrip(b"\r\n")
    elif place < len(parts):
        line = parts.pop(place)
        if kind == "mark" and line.strip(b"\r\n"):
            parts.insert(place, b"-=!#"[number % 4 : number % 4 + 1] + line[1:])
    return b"".join(parts)


async def act(queue, held, verb, number, payload):
    """Make a call on the queue; `held` has the claimed jobs."""
    if verb == "enqueue":
        await queue.enqueue("work", payload, headers={"n": "ü"})
    elif verb == "dequeue":
        held += await queue.dequeue(batch_size=number % 4 + 1)
    elif verb in ("redrive", "purge"):
        await getattr(queue, verb)()
    elif verb == "cancel":
        if jobs := (await queue.read_state()).jobs:
            await queue.cancel(jobs[number % len(jobs)].id)
    elif held:
        job = held[number % len(held)] if verb == "heartbeat" else held.pop(number % len(held))
        if verb in ("heartbeat", "ack"):
            await getattr(queue, verb)(job)
        else:
            await queue.nack(job, dead=verb == "dead", error="broken")


def check(verb, before, after):
    """Assert that a verb changed only the bytes that it may change."""
    tail = after[len(before) :]
    assert len(after) >= len(before), "bytes were removed"
    assert verb == "enqueue" or not tail, f"{verb} has appended"
    assert OURS.sub(b"", tail) == b"", "the appended bytes are not a whole message of ours"
    changed = [place for place in range(len(before)) if before[place] != after[place]]
    for place in changed:
        assert place in messages(before), f"{verb} has changed a byte that is no first byte of a message"
        assert before[place : place + 1] + after[place : place + 1] in MARKS.get(verb, ())
    assert len(changed) <= 1 or verb in ("redrive", "purge")


@settings(max_examples=120, deadline=None)
@given(contents, st.lists(actions | edits | st.just(("reopen", 0, b"")), max_size=14))
def test_calls_change_no_byte_that_others_wrote_in_a_text_and_show_every_message(content, program):
    async def live(path):
        held: list[Job] = []
        queue = connect(f"textq://{path}", StoreQueue)
        for verb, number, text in program:
            before = path.read_bytes()
            os.utime(path, (0, 0))  # what a person has written is whole, although it may lack its last end
            if verb == "reopen":
                await queue.aclose()
                queue = connect(f"textq://{path}", StoreQueue)
            elif verb in ("insert", "remove", "mark", "cut"):
                path.write_bytes(edited(before, verb, number, text))
                os.utime(path, (0, 0))
            else:
                with suppress(JobNotFoundError, JobStateError):
                    await act(queue, held, verb, number, text)
                check(verb, before, path.read_bytes())
            ids = {job.id for job in (await queue.read_state()).jobs}
            assert len(ids) == sum(mark in b"-!" for mark in messages(path.read_bytes()).values())
        os.utime(path, (0, 0))
        await queue.requeue_stale(0)
        expected = list(messages(path.read_bytes()).values()).count(b"-")
        left = await queue.dequeue(batch_size=100)
        if len(left) < expected:  # the last message may have been read while its file was new: it settles soon
            left += await queue.dequeue(batch_size=100, wait=5)
        assert expected == len(left)
        await queue.aclose()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "queue.tq"
        path.write_bytes(content)
        os.utime(path, (0, 0))
        asyncio.run(live(path))
