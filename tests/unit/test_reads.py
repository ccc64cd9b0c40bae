"""Reads that claim nothing: peek, find and waiting; and what a missing queue or one that is no queue says."""

import asyncio
import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest

from jqueue import (
    BrokerQueue,
    DirectQueue,
    InMemoryStorage,
    InvalidJobError,
    JobStatus,
    QueueSet,
    connect,
    open_storage,
)
from jqueue.errors import QueueMissingError
from jqueue.testing.virtual_time import VirtualClock
from jqueue.worker import Worker
from tests.virtual_world import in_virtual_time, now


def blob(storage=None):
    return DirectQueue(storage or InMemoryStorage(clock=VirtualClock()), clock=VirtualClock())


@in_virtual_time
async def test_a_peek_shows_the_jobs_of_the_next_dequeue_without_payloads_and_changes_nothing():
    storage = InMemoryStorage(clock=VirtualClock())
    queue, other = blob(storage), blob(storage)
    for number in range(6):
        await other.enqueue("work", b"secret", number % 3, job_id=f"{number}", concurrency_key="one")
    await other.enqueue("work", b"", 2, job_id="free")
    before = await queue.read_state()
    shown = await queue.peek(batch_size=9)
    assert before == await queue.read_state()
    assert [("0", b""), ("free", b"")] == [(job.id, job.payload) for job in shown]
    assert ["0", "free"] == [job.id for job in await queue.dequeue(batch_size=9)]
    assert [] == await other.peek()


@in_virtual_time
async def test_find_returns_a_job_by_its_id_and_no_repr_shows_its_payload():
    queue = blob()
    await queue.enqueue("work", b"payload", job_id="here")
    found = await queue.find("here")
    assert (found and found.status, found and found.payload) == (JobStatus.QUEUED, b"")
    for job in (found, *await queue.peek(), pickle.loads(pickle.dumps(found))):
        assert "payload='<not loaded>'" in repr(job)
    assert "payload='<7 bytes>'" in repr((await queue.read_state()).jobs[0])
    await queue.ack((await queue.dequeue())[0])
    finished = await queue.find("here")
    assert (finished and finished.status) == JobStatus.COMPLETED
    assert await queue.find("nowhere") is None


@in_virtual_time
async def test_a_job_counts_as_ready_until_the_moment_of_its_expiry():
    queue, ready = blob(), []
    await queue.enqueue("work", expires_at=VirtualClock().now() + timedelta(seconds=60))
    for seconds in (0, 59, 1):
        await asyncio.sleep(seconds)
        ready.append((await queue.stats()).ready)
    assert [1, 1, 0] == ready


@in_virtual_time
async def test_a_wait_ends_with_a_cron_entry_that_is_due():
    queue = blob()
    await queue.schedule("often", "* * * * *", "work")
    assert await queue.until_ready(wait=90)
    assert now() <= 60.1


# A queue that does not exist


async def consumed(items):
    return [item async for item in items]


LOOKS = {
    "stats": lambda queue: queue.stats(),
    "peek": lambda queue: queue.peek("work"),
    "find": lambda queue: queue.find("an-id"),
    "iterate_jobs": lambda queue: consumed(queue.iterate_jobs()),
    "schedules": lambda queue: queue.schedules(),
    "settings": lambda queue: queue.configure(),
    "history": lambda queue: consumed(queue.history()),
}
"""Calls that only look at a queue."""


async def test_a_look_at_a_queue_that_does_not_exist_names_the_place_and_creates_nothing(tmp_path):
    async with connect(tmp_path / "mistyped.json", BrokerQueue) as queue:
        for look in LOOKS.values():
            with pytest.raises(QueueMissingError, match=r"no queue at .*mistyped\.json.*: check the URL"):
                await look(queue)
        assert ([], []) == (await queue.dequeue("work"), list(tmp_path.glob("*.json")))
    for url in ("vsqs://{}/q", "dirq://{}/q?kind=simple", "textq://{}/q.tq"):
        async with connect(url.format(tmp_path)) as queue:
            with pytest.raises(QueueMissingError):
                await queue.stats()


# What is no queue

REMEDY = r"`connect\(url\)`"


@pytest.mark.parametrize("url", ["queue.json", "s3://bucket/key"])
async def test_a_storage_in_the_place_of_a_queue_names_the_remedy(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage: Any = open_storage(url)
    for verb in ("enqueue", "dequeue", "peek"):
        with pytest.raises(AttributeError, match=rf"^{type(storage).__name__} is a storage, not a queue.*{REMEDY}"):
            getattr(storage, verb)
    assert not hasattr(storage, "enqueue")
    assert type(storage) is type(copy.copy(storage))
    worker = Worker()

    @worker.handler("mail")
    async def mail(message: str) -> None: ...

    with pytest.raises(TypeError, match=rf"got {type(storage).__name__}: {REMEDY}"):
        await worker.run(storage)
    with pytest.raises(InvalidJobError, match=REMEDY):
        QueueSet(storage)
    with pytest.raises(InvalidJobError, match=r"`connect\(url, BrokerQueue\)`"):
        BrokerQueue(url)


@pytest.mark.parametrize(
    ("payload", "hint"),
    [
        ({"a": 1}, r"got dict: write json.dumps\(value\).encode\(\), or .*`handler.using\(queue\).enqueue\(value\)`"),
        ("text", r"got str: write text.encode\(\), or .*handler.using"),
        (None, "leave the payload out"),
    ],
)
async def test_the_error_for_a_payload_that_is_not_bytes_says_how_to_encode_it(payload, hint):
    with pytest.raises(InvalidJobError, match=hint):
        await DirectQueue(InMemoryStorage()).enqueue("mail", payload)
