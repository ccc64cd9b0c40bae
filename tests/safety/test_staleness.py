"""Safety rule 6 of docs/reference/protocol.md: tests named after the ways to break it.

A test of a rule fails if the code that docs/reference/protocol.md names beside it is removed.
"""

import asyncio
from datetime import timedelta

import pytest

from jqueue import (
    BrokerQueue,
    DeadlineExceededError,
    HeartbeatManager,
    JobStatus,
)
from jqueue.testing.virtual_time import VirtualClock
from tests.virtual_world import stand_still

pytestmark = pytest.mark.virtual_time


class TwoMethodsOf:
    def __init__(self, storage):
        self.read, self.write = storage.read, storage.write


# 6. A live worker's claim is not revoked before its own timeout, whatever other clocks and settings say.


@pytest.mark.parametrize("skew", [timedelta(), timedelta(hours=3), timedelta(hours=-3)])
async def test_rule_6_a_beating_worker_keeps_its_claim(world, kind, skew):
    """Another worker has a different clock and a far shorter timeout."""

    worker = world.honest(stale_timeout=300)
    await worker.enqueue("t", b"")
    [job] = await worker.dequeue("t")
    neighbour = world.process(kind=kind, stale_timeout=1, clock=VirtualClock(skew))
    async with neighbour, HeartbeatManager(worker, job):
        for _ in range(100):
            await asyncio.sleep(20)
            assert [] == await neighbour.dequeue("t")
    await worker.ack(job)


async def test_rule_6_a_claim_seen_to_move_is_not_judged_by_its_age(world, kind):
    """The worker's clock is hours behind the store's, and its storage does not tell the time."""

    async with world.process(kind=kind) as neighbour:
        worker = world.process(TwoMethodsOf(world.memory), clock=VirtualClock(timedelta(hours=-3)))
        await worker.enqueue("other", b"")
        assert [] == await neighbour.dequeue("t")
        await worker.enqueue("t", b"")
        [job] = await worker.dequeue("t")
        async with HeartbeatManager(worker, job):
            for _ in range(30):
                await asyncio.sleep(20)
                assert [] == await neighbour.dequeue("t")
        await worker.ack(job)


async def test_rule_6_time_in_which_the_store_could_not_be_read_does_not_count(world, kind):
    """While the store cannot be read, the worker cannot send heartbeats either."""

    async with world.process(kind=kind, deadline=5) as watcher:
        worker = world.process(stale_timeout=60)
        await worker.enqueue("t", b"")
        [job] = await worker.dequeue("t")
        assert [] == await watcher.dequeue("t")
        await asyncio.sleep(50)
        assert [] == await watcher.dequeue("t")
        world.storage.down = True
        for _ in range(10):
            await asyncio.sleep(60)
            with pytest.raises(DeadlineExceededError):
                await watcher.dequeue("t")
        world.storage.down = False
        assert [] == await watcher.dequeue("t")
        await worker.ack(job)


async def test_rule_6_a_fresh_process_revokes_nothing_in_its_first_moments(world, kind):
    worker = world.honest(stale_timeout=300)
    await worker.enqueue("t", b"")
    [job] = await worker.dequeue("t")
    await asyncio.sleep(3600)
    async with world.process(kind=kind) as fresh:
        assert [] == await fresh.dequeue("t")
        await asyncio.sleep(9)
        await worker.heartbeat(job)
        assert [] == await fresh.dequeue("t", wait=200)
        await worker.ack(job)


@pytest.mark.parametrize("seen", [True, False])
async def test_rule_6_the_first_process_to_go_on_after_all_stood_still_revokes_no_claim(world, kind, seen):
    """A container was paused, or a laptop was closed: the holder gets the time to send its heartbeat."""

    async with world.process(kind=kind) as neighbour:
        worker = world.honest(stale_timeout=30)
        await worker.enqueue("t", b"", max_attempts=1)
        assert [] == await neighbour.dequeue("other", wait=1)
        [job] = await worker.dequeue("t")
        if seen:
            assert [] == await neighbour.dequeue("other", wait=9)
        stand_still(3600)
        assert [] == await neighbour.dequeue("other", wait=9)
        await worker.heartbeat(job)
        assert [] == await neighbour.dequeue("other", wait=29)
        await worker.ack(job)


async def test_a_holder_beats_soon_after_its_machine_was_suspended(world):
    """The timers of the event loop stood still, and the time of the store did not. A fresh process waits for 10 s."""

    class Laptop(VirtualClock):
        def suspended(self):
            return self.skew.total_seconds()

    world.clock = world.memory.clock = clock = Laptop()
    worker = world.honest(stale_timeout=300)
    await worker.enqueue("t", b"", max_attempts=1)
    [job] = await worker.dequeue("t")
    async with HeartbeatManager(worker, job):
        await asyncio.sleep(1)
        clock.skew += timedelta(hours=1)
        async with world.honest(kind=BrokerQueue) as fresh:
            assert [] == await fresh.dequeue("t", wait=200)
    await worker.ack(job)


async def test_rule_6_heartbeats_come_before_the_sweep_of_the_same_commit(world):
    async with world.process(kind=BrokerQueue, stale_timeout=60) as queue:
        await queue.enqueue("t", b"")
        [job] = await queue.dequeue("t")
        assert [] == await queue.dequeue("t")
        await asyncio.sleep(100)
        await world.honest().enqueue("other", b"")  # so that the commit has to look, and finds the claim old
        taken, _ = await asyncio.gather(queue.dequeue("t"), queue.heartbeat(job))
        assert [] == taken
        await queue.ack(job)


async def test_a_dead_workers_job_is_claimed_again_within_its_timeout_and_a_poll(world, kind):
    async with world.process(kind=kind) as survivor:
        worker = world.honest(stale_timeout=30)
        await worker.enqueue("t", b"", max_attempts=2)
        await worker.dequeue("t")
        began = world.clock.monotonic()
        [job] = await survivor.dequeue("t", wait=60)
        assert 2 == job.attempt
        assert 29 <= world.clock.monotonic() - began <= 33
        await asyncio.sleep(400)
        assert [] == await survivor.dequeue("t")
        assert [JobStatus.DEAD] == [each.status for each in (await world.jobs()).values()]
