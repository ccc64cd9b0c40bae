"""Calls that are cancelled or run out of time: see docs/reference/protocol.md, safety rule 2."""

import asyncio

import pytest

from jqueue import (
    JobStatus,
)
from jqueue.testing.faults import Fault
from tests.safety.world import World

pytestmark = pytest.mark.virtual_time

# Cancelled calls and calls that run out of time


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("moment", [0.005, 0.015, 0.5])
async def test_a_cancelled_dequeue_leaves_no_orphaned_claim(world, kind, fault, moment):
    world.storage.latency = 0.01
    async with world.process(kind=kind, call_timeout=2) as queue:
        await queue.enqueue("t", b"")
        world.storage.on_write(fault)
        call = asyncio.create_task(queue.dequeue("t"))
        await asyncio.sleep(moment)
        call.cancel()
        claimed = (await asyncio.gather(call, return_exceptions=True))[0]
        await asyncio.sleep(20)
        [job] = (await world.jobs()).values()
        if isinstance(claimed, list):
            assert JobStatus.IN_PROGRESS == job.status
        else:
            assert (JobStatus.QUEUED, 0) == (job.status, job.failures)


async def test_a_wait_that_ends_while_its_claim_is_on_the_way_gets_the_job(kind):
    taken = 0
    for tenths in range(40):
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("other", b"")
            world.storage.latency = 0.5
            waiting = asyncio.create_task(queue.dequeue("t", wait=3))
            await asyncio.sleep(tenths / 10)
            await world.honest().enqueue("t", b"", job_id="a")
            jobs = await waiting
            await asyncio.sleep(10)
            taken += len(jobs)
            assert len(jobs) == (await world.jobs())["a"].attempt
    assert 0 < taken < 40


async def test_claims_of_a_cancelled_dequeue_go_back_even_after_a_long_outage(world, kind):
    async with world.process(kind=kind, call_timeout=2, stale_timeout=86_400) as queue:
        await queue.enqueue("t", b"")
        world.storage.on_write(Fault.HANGS_AFTER, *[Fault.LOST_REQUEST] * 60)
        call = asyncio.create_task(queue.dequeue("t"))
        await asyncio.sleep(1)
        call.cancel()
        await asyncio.sleep(600)
        assert [JobStatus.QUEUED] == [job.status for job in (await world.jobs()).values()]


async def test_leaving_reads_again_after_a_long_outage_of_the_store(world, kind):
    async with world.process(kind=kind, call_timeout=2, deadline=5) as queue:
        await queue.enqueue("t", b"")
        world.storage.on_write(Fault.HANGS_AFTER)
        world.storage.down = True
        call = asyncio.create_task(queue.dequeue("t"))
        await asyncio.sleep(1)
        call.cancel()
        await asyncio.sleep(60)  # the queue no longer looks for its write
        world.storage.down = False
    assert [JobStatus.QUEUED] == [job.status for job in (await world.jobs()).values()]
