"""Helpers of tests of moves between queues: URLs of every kind, queues with jobs of every kind, and an audit."""

import asyncio
from datetime import UTC, datetime

from msgspec.structs import replace

from jqueue import DirectQueue, connect
from jqueue.formats.queue import StoreQueue

PLACES = {
    "file": lambda path, name: str(path / f"{name}.json"),
    "memory": lambda path, name: f"memory://tests/{path}/{name}",
    "dirq-simple": lambda path, name: f"dirq://{path}/{name}?kind=simple&maxlock=1",
    "dirq-queue": lambda path, name: f"dirq://{path}/{name}?kind=queue&maxlock=1",
    "vsqs": lambda path, name: f"vsqs://{path}/{name}",
    "textq": lambda path, name: f"textq://{path}/{name}.tq",
}
"""URL of a queue of each kind, from the folder of a test and a name."""

FORMATS = ["vsqs", "dirq-simple", "dirq-queue", "textq"]
PAIRS = [("file", "file"), ("file", "memory"), ("memory", "memory"), ("memory", "vsqs"), ("vsqs", "vsqs")]
PAIRS += [pair for format in FORMATS for pair in (("file", format), (format, "file"))]
PAIRS += zip(FORMATS, [*FORMATS[1:], FORMATS[0]], strict=True)
"""Pairs of kinds: every format from and to a file, and each to another format."""

LATER = datetime(2100, 1, 1, tzinfo=UTC)


def open_at(path, kind, name, **options):
    """Return a queue object."""
    return connect(PLACES[kind](path, name), StoreQueue if kind in FORMATS else DirectQueue, **options)


async def filled(queue, count=3, other=None):
    """Enqueue jobs of every kind that the queue can have, and `other`, too, if it is given."""
    can = queue.capabilities
    if other is not None:
        can = replace(can, **dict.fromkeys(other.capabilities.missing, False))

    async def add(payload, **options):
        names = {"headers": "headers", "max_attempts": "dead_letters", "priority": "priority", "expires_at": "expiry"}
        names |= {"run_at": "delay", "unique_key": "unique_keys", "concurrency_key": "limits", "keep_result": "results"}
        return await queue.enqueue("work", payload, **{k: v for k, v in options.items() if getattr(can, names[k])})

    for number in range(count):
        await add(b"plain %d" % number)
    await add(b"headers", headers={"name": "täxt"})
    await queue.enqueue("other", b"\x00\xff\r\n binary")
    await add(b"", max_attempts=7)
    await add(b"urgent", priority=-5)
    await add(b"expires", expires_at=LATER)
    await add(b"key", unique_key="one of it")
    await add(b"limited", concurrency_key="few")
    await add(b"result", keep_result=60)
    if can.dead_letters and can.errors:
        await queue.enqueue("failing", b"dead")
        [job] = await queue.dequeue("failing")
        await queue.nack(job, error="it was no good", dead=True)
        await queue.enqueue("failing", b"failed once")
        [job] = await queue.dequeue("failing")
        await queue.nack(job, error="try again")
    if can.delay:
        await add(b"later", run_at=LATER)


KEPT_BY_ALL = ("id", "entrypoint", "payload", "status", "failures", "error", "max_attempts", "headers", "created_at")
KEPT_BY_BLOBS = ("priority", "expires_at", "unique_key", "unique_for", "concurrency_key", "keep_result", "dead_at")


def kept_fields(job, fields=KEPT_BY_ALL, *, delay=True):
    """Return the fields of a job that a move keeps."""
    said = {name: getattr(job, name) for name in fields}
    return said if not delay else said | {"run_at": job.run_at if job.run_at == LATER else None}


async def jobs_of(queue):
    """Return the jobs of a queue in the order in which they are served."""
    return sorted((await queue.read_state()).jobs, key=lambda job: (job.priority, job.sequence))


async def audit(source, dest, ids):
    """Check that each job is in one queue, or in both as after a kill, and in none twice."""
    names = [[job.id for job in await jobs_of(queue)] for queue in (source, dest)]
    assert [len(set(each)) for each in names] == [len(each) for each in names], "a job is twice in one queue"
    assert set(ids) == {*names[0], *names[1]}, "a job is lost"


async def drained(queue, entrypoint=None):
    """Claim and ack all ready jobs, and return their payloads in the order in which they are served."""
    found = []
    while jobs := await queue.dequeue(entrypoint, batch_size=100):
        found += [job.payload for job in jobs]
        assert [] == await queue.ack_many(jobs)
        await asyncio.sleep(0)
    return found
