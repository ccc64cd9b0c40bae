"""A long history of one queue, made without the queue: days of work of three entrypoints and some workers."""

import asyncio
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from jqueue import DirectQueue, LocalFileSystemStorage
from jqueue.core.blob.codec import encode, parse_blob
from jqueue.core.blob.history_objects import Place, encode_object
from jqueue.domain.models import QueueState

ENTRYPOINTS = ("resize", "mail", "report")
ERRORS = ("TimeoutError: timed out", "ValueError: 451", "ConnectionError: reset by peer")
IN_OBJECT = 1000


def make_history(path, events, *, days=1.0, seed=1, start=datetime(2026, 10, 1, tzinfo=UTC), batch=25):
    """Create a queue with this many events, which are spread over some days, and busier around noon."""
    chance = random.Random(seed)

    async def configured():
        async with DirectQueue(LocalFileSystemStorage(path)) as queue:
            await queue.configure(history=1e9)

    asyncio.run(configured())
    header = parse_blob(Path(path).read_bytes()).header
    assert header.history is not None
    series = header.history.series
    texts: list[str] = []
    number, at = 1, start.timestamp()
    step = timedelta(days=days).total_seconds() / max(1, events // (3 * batch))
    while number <= events:
        hour = at / 3600 % 24
        at += step * (0.35 if 9 < hour < 18 else 1.45) * chance.uniform(0.5, 1.5)
        for text, count in _round(chance, number, at, batch):
            texts.append(text)
            number += count
    held, first = [], 1
    for text in texts:
        held.append(text)
        begun, count = (int(part) for part in text[1:].split(",", 2)[:2])
        if begun + count - first >= IN_OBJECT:
            _write(path, header.queue, Place(series, first), held)
            held, first = [], begun + count
    history = header.history.model_copy(update={"last": number - 1, "batches": tuple(held)})
    Path(path).write_bytes(encode(QueueState(**{**vars(header), "history": history, "jobs": ()})))
    return number - 1


def _write(path, queue, place, texts):
    file = Path(f"{path}{place.suffix}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encode_object(queue, texts))


def _round(chance, number, at, batch):
    """An enqueue of some jobs, their claims, and their ends, as three commits."""
    entrypoint = chance.choices(ENTRYPOINTS, (6, 3, 1))[0]
    holder = f"worker-{chance.randrange(4)}@east-{chance.randrange(2)}"
    ids = [str(UUID(int=chance.getrandbits(128), version=4)) for _ in range(batch)]
    scale = {"resize": 0.4, "mail": 0.05, "report": 20.0}[entrypoint]
    wait, run = chance.lognormvariate(0, 1), scale * chance.lognormvariate(0, 0.6)
    enqueue = [[entrypoint, "enqueue", None, "queued"]]
    yield _text(number, at, enqueue, [[0, each, 0] for each in ids]), batch
    claim = [[entrypoint, "dequeue", "queued", "in_progress", holder]]
    yield (
        _text(number + batch, at + wait, claim, [[0, each, 1, round(wait, 3)] for each in ids]),
        batch,
    )
    ends = [[entrypoint, "ack", "in_progress", None, holder], [entrypoint, "nack", "in_progress", "dead", holder]]
    rows = []
    for each in ids:
        took = round(run * chance.uniform(0.7, 1.4), 3)
        if chance.random() < 0.03:
            rows.append([1, each, 1, took, None, chance.choice(ERRORS)])
        else:
            rows.append([0, each, 1, took, round(wait + run * 1.4, 6)])
    yield _text(number + 2 * batch, at + wait + run * 1.4, ends, rows), batch


def _text(number, at, kinds, rows):
    return json.dumps([number, len(rows), round(at, 6), kinds, rows])
