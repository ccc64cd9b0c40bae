"""The target `segments`: a queue whose segments, or whose manifest, were changed, cut off or mixed up.

The input is read as choices: the damage, and the calls made then. Each call returns or raises an error of the queue. If
the manifest is made to fit the damage, the decoder of the index is reached, too.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Awaitable, Mapping
from datetime import timedelta
from functools import cache
from random import Random
from typing import Any

from jqueue import DirectQueue, InMemoryStorage, Job, JobStatus, JQueueError, Limits
from jqueue.domain.segments import FOLDER
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import VirtualClock, run
from tests.fuzz.choices import Choices
from tests.fuzz.edits import COUNTS, NUMBERS, OTHERS, TEXTS, VALUE, edit
from tests.simulation.workload import SeededEntropy
from tests.tiny_segments import in_segments

ENTRY = re.compile(rb'"segments":\{.*?\}\}')
"""The manifest in a header."""

NAMES = ("given 0", "given 3", "hot", "nothing")

Store = tuple[bytes, Mapping[str, bytes]]
"""A queue's object, and the objects beside it by suffix."""


@cache
def whole() -> Store:
    """Return a queue with ready and scheduled rows, keys, a lease, rows that were taken, and jobs in the blob."""
    storage = InMemoryStorage(clock=VirtualClock())

    async def make() -> Store:
        async with _queue(storage) as queue:
            given = [Enqueue("mail", b"%d" % number, job_id=f"given {number}") for number in range(4)]
            keyed = [Enqueue("mail", b"", unique_key=f"key {number}", max_attempts=2) for number in range(2)]
            later = [Enqueue("mail", b"", delay=timedelta(hours=1)) for _ in range(3)]
            await queue.enqueue_many([*given, *keyed, *later, *(Enqueue("other", b"") for _ in range(7))])
            await queue.claim_lease("other", 3)
            await queue.cancel("given 1")
            await queue.enqueue("hot", b"", job_id="hot")
            await queue.dequeue("mail")
            content, _ = await storage.read()
            listed = await storage.list_beside(FOLDER)
            return content, {each.suffix: await storage.read_object(each.suffix) for each in listed}

    found: Store = run(make())
    return found


def _queue(storage: InMemoryStorage) -> DirectQueue:
    limits = Limits(hot_bytes=1, batch_size=4)
    entropy = SeededEntropy(Random(0), "fuzz")
    queue = DirectQueue(storage, clock=VirtualClock(), entropy=entropy, holder="fuzz", deadline=20, limits=limits)
    return in_segments(queue, hot_bytes=1, chunk_rows=2, most_rows=65_536, merged=3, holes=2)


def damaged(choices: Choices) -> Store:
    """Return the queue with some damage."""
    content, objects = whole()
    objects = dict(objects)
    for _ in range(1 + choices.below(2)):
        kind, suffix = choices.below(4), choices.pick(sorted(objects))
        if kind == 0:
            objects[suffix] = edit(objects[suffix], choices)
        elif kind == 1:
            objects[suffix] = objects[choices.pick(sorted(objects))]
        elif kind == 2:
            content = _in_the_header(content, choices)
        else:
            at = choices.below(len(objects[suffix]))
            objects[suffix] = b"%b%c%b" % (objects[suffix][:at], choices.byte(), objects[suffix][at + 1 :])
            content = _believed(content, suffix, objects[suffix])
    return content, objects


def _in_the_header(content: bytes, choices: Choices) -> bytes:
    """Edit a value of the manifest, unless an edit before has hidden it."""
    found = ENTRY.search(content)
    if found is None:
        return content
    values = [each.span() for each in VALUE.finditer(content, *found.span())]
    first, last = choices.pick(values)
    return content[:first] + choices.pick((*NUMBERS, *COUNTS, *TEXTS, *OTHERS)) + content[last:]


def _believed(content: bytes, suffix: str, data: bytes) -> bytes:
    """Return the blob with the size, the index and the checksum of a changed segment in its manifest."""
    at = max(0, data.find(b'{"rows"'))
    entry = b'"%b":{' % suffix.removeprefix(FOLDER).encode()
    start = content.find(entry)
    facts = {b"bytes": len(data), b"index": at, b"crc": zlib.crc32(data[at:])}
    head, rest = content[:start], content[start:]
    for name, value in facts.items():
        rest = re.sub(rb'"%b":\d+' % name, b'"%b":%d' % (name, value), rest, count=1)
    return head + rest


def segments_target(data: bytes) -> None:
    """Open the damaged queue, and make the chosen calls. Any exception is a finding."""
    choices = Choices(data)
    run(_program(*damaged(choices), choices))


async def _program(content: bytes, objects: Mapping[str, bytes], choices: Choices) -> None:
    storage = InMemoryStorage(clock=VirtualClock())
    await storage.write(content, None)
    for suffix, data in objects.items():
        await storage.create_object(suffix, data)
    queue = _queue(storage)
    try:
        for _ in range(2 + choices.below(6)):
            await _step(queue, choices)
        await _call(_all(queue))
        await _call(queue.requeue_stale(0))
        while await _call(queue.dequeue(batch_size=100)):
            pass
        await _call(queue.stats())
    finally:
        await _call(queue.aclose())


async def _step(queue: DirectQueue, choices: Choices) -> None:
    name = choices.pick(NAMES)
    many = [Enqueue("mail", b"", job_id=f"given {number}") for number in range(9)]
    calls = (
        lambda: queue.dequeue(choices.pick((None, "mail", "other")), batch_size=choices.pick((1, 3))),
        lambda: _lease(queue, choices, name),
        lambda: queue.cancel(name),
        lambda: queue.enqueue("mail", b"", job_id=name),
        lambda: queue.enqueue("mail", b"", unique_key="key 1"),
        lambda: queue.purge(status=JobStatus.QUEUED, entrypoint="mail"),
        lambda: queue.peek("mail", batch_size=3),
        queue.collect,
        lambda: queue.enqueue_many(many),
        lambda: asyncio.sleep(choices.pick((1, 400, 4000))),
        lambda: queue.find(name),
    )
    await _call(choices.pick(calls)())


async def _lease(queue: DirectQueue, choices: Choices, failed: str) -> None:
    claim = await queue.claim_lease(choices.pick(("mail", "other")), choices.pick((1, 50)))
    if claim is not None:
        await _call(_read(queue, claim))
        await queue.end_lease(claim, failed={failed: "boom"} if choices.one_in(2) else {})


async def _all(queue: DirectQueue) -> list[Job]:
    return [job async for job in queue.iterate_jobs()]


async def _read(queue: DirectQueue, claim: Any) -> list[Job]:
    return [job async for job in queue.read_lease(claim)]


async def _call(work: Awaitable[Any]) -> Any:
    """Return the answer to a call; None for an error of the queue."""
    try:
        return await work
    except JQueueError:
        return None
