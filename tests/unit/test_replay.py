"""Replay: the jobs of a queue at an earlier time."""

import asyncio
from datetime import timedelta

import pytest

from jqueue import DirectQueue, InMemoryStorage, Limits, replay
from jqueue.domain.errors import ReplayError
from jqueue.domain.operations import Enqueue
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import in_virtual_time


@in_virtual_time
async def test_the_jobs_of_every_moment_are_found_and_none_before_the_history():
    storage = InMemoryStorage(clock=VirtualClock())
    queue = DirectQueue(storage, clock=VirtualClock(), limits=Limits(batch_size=5, hot_bytes=1))
    moments, expected = [], []

    async def note():
        moments.append(VirtualClock().now())
        jobs = [job async for job in queue.iterate_jobs()]
        expected.append({job.id: (job.entrypoint, job.status, job.attempt) for job in jobs})
        await asyncio.sleep(1)

    async with queue:
        await queue.enqueue("t", job_id="old")
        before = VirtualClock().now()
        with pytest.raises(ReplayError, match="switched off"):
            await replay(queue, before)
        await asyncio.sleep(1)
        await queue.configure(history=timedelta(days=1))
        with pytest.raises(ReplayError, match="begins at 2026"):
            await replay(queue, before)
        await note()
        await queue.enqueue_many([Enqueue("t") for _ in range(4)])
        await note()
        [first, second] = await queue.dequeue(batch_size=2)
        await note()
        await queue.nack(first, dead=True)
        await queue.ack(second)
        await note()
        claim = await queue.claim_range("t", 6)
        assert claim is not None
        await queue.end_range(claim)
        await note()
        await queue.redrive()
        await note()
        past = [{job_id: tuple(job) for job_id, job in (await replay(queue, at)).items()} for at in moments]
        assert expected == past
