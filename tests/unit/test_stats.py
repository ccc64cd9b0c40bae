"""Figures and warnings about the size of a queue, and the reasons why its jobs wait."""

import dataclasses
from datetime import UTC, datetime, timedelta

from jqueue import DirectQueue, InMemoryStorage
from jqueue.domain.limits import Limits
from jqueue.domain.stats import UNCLAIMED, why_waiting
from jqueue.domain.workers import WorkerRecord
from jqueue.operations import Enqueue


async def test_ids_of_finished_jobs_do_not_make_an_empty_queue_look_full():
    queue = DirectQueue(InMemoryStorage(), limits=Limits(blob_bytes=30_000))
    for number in range(30):
        await queue.enqueue_many(
            [Enqueue("t", b"", job_id=f"a long id of a job {number}-{each}") for each in range(20)]
        )
        await queue.ack_many(await queue.dequeue(batch_size=20))
    stats = await queue.stats()
    assert stats.size > 0.5 * stats.size_limit
    assert () == stats.warnings


async def test_a_queue_more_than_half_full_by_the_count_of_enqueue_warns():
    queue = DirectQueue(InMemoryStorage(), limits=Limits(blob_bytes=30_000))
    await queue.enqueue_many([Enqueue("t", b"x" * 1000)] * 12)
    [warning] = (await queue.stats()).warnings
    assert "% full" in warning


async def test_a_queue_that_jobs_of_many_entrypoints_fill_says_why_they_stay_in_its_object():
    queue = DirectQueue(InMemoryStorage(), limits=Limits(blob_bytes=150_000))
    await queue.enqueue_many([Enqueue(f"of {number}", b"x" * 100) for number in range(256)])
    [full] = (await queue.stats()).warnings
    assert "% full" in full
    await queue.enqueue("of 256")
    _, warning = (await queue.stats()).warnings
    assert "257 entrypoints have waiting jobs" in warning
    assert "at most 256 segments" in warning


async def test_the_reason_why_jobs_wait_is_a_pause_a_limit_or_a_missing_worker():
    now = datetime.now(UTC)
    early = now - UNCLAIMED - timedelta(seconds=1)
    queue = DirectQueue(InMemoryStorage())
    for entrypoint in ("paused", "full", "fast", "open", "idle"):
        await queue.enqueue_many([Enqueue(entrypoint, b"", run_at=early) for _ in range(4)])
    await queue.enqueue("new")
    await queue.pause("paused")
    await queue.dequeue("full", batch_size=3)
    await queue.limit("full", running=2)
    await queue.limit("fast", rate=1, per=3600)
    await queue.ack((await queue.dequeue("fast"))[0])
    queue.attend("run", lambda at: WorkerRecord(name="w", at=at, entrypoints=("idle", "elsewhere")))
    await queue.limit("idle", running=1)
    state, stats = await queue.read_state(), await queue.stats()
    reasons = {
        "fast": "at its limit: 1 claim within 3600 s",
        "full": "at its limit: 3 of 2 in progress",
        "open": "no worker that has the handler",
        "paused": "paused",
    }
    assert reasons == why_waiting(state, stats, now)
    workers = tuple(each.model_copy(update={"lost": True}) for each in stats.workers)
    lost = dataclasses.replace(stats, workers=workers)
    assert reasons | {"idle": "no worker that has the handler"} == why_waiting(state, lost, now)


async def test_jobs_that_a_program_without_a_worker_takes_have_no_reason_to_wait():
    queue = DirectQueue(InMemoryStorage())
    await queue.enqueue_many([Enqueue("t", b"", run_at=datetime(2026, 1, 1, tzinfo=UTC)) for _ in range(2)])
    before = await queue.stats()
    await queue.ack((await queue.dequeue())[0])
    state, now = await queue.read_state(), datetime.now(UTC)
    assert ["t"] == list(why_waiting(state, before, now))
    assert {} == why_waiting(state, await queue.stats(), now)
