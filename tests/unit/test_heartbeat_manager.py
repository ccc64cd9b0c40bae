"""The heartbeat manager: keeps claims alive while a block works on their jobs, and stops it when one is lost."""

import asyncio
from contextlib import nullcontext
from datetime import timedelta

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.domain.errors import ClaimLostError, InvalidJobError, JobNotFoundError
from jqueue.domain.operations.ends import Ack
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.testing.faults import Fault
from tests.virtual_world import World, now, stand_still

pytestmark = pytest.mark.virtual_time

REFERENCES = {"job": lambda job: job, "claim": lambda job: job.claim, "id": lambda job: job.id}
by_every_reference = pytest.mark.parametrize("refer", REFERENCES.values(), ids=REFERENCES)


@pytest.fixture
def world():
    return World(BrokerQueue)


# Beating


@pytest.mark.parametrize(
    ("timeout", "interval", "beats"),
    [
        (30, None, [10, 20, 30, 40, 50]),
        (300, None, [60, 120, 180]),
        (86400, None, [60, 120]),
        (30, timedelta(seconds=7), [7, 14, 21]),
    ],
)
async def test_heartbeats_come_every_third_of_the_timeout_and_at_least_once_a_minute(world, timeout, interval, beats):
    async with world:
        [job] = await world.claimed(timeout=timeout)
        async with HeartbeatManager(world.queue, job, interval):
            assert beats == await world.confirmations(job, beats[-1] + 3)
        assert [] == await world.confirmations(job, 60), "it goes on after the block"


@by_every_reference
async def test_a_claim_last_confirmed_long_ago_is_confirmed_at_once(world, refer):
    async with world:
        [job] = await world.claimed(timeout=300)
        await asyncio.sleep(200)
        async with HeartbeatManager(world.queue, refer(job)):
            await asyncio.sleep(0.1)
            assert 200 == await world.confirmed(job)
            assert [60, 120] == await world.confirmations(job, 130)


async def test_an_error_of_the_block_is_raised_unchanged_and_at_once_although_the_store_hangs(world):
    async with world:
        [job] = await world.claimed()
        with pytest.raises(ZeroDivisionError):
            async with HeartbeatManager(world.queue, job):
                world.storage.on_write(Fault.HANGS)
                await asyncio.sleep(11)
                raise ZeroDivisionError
        assert 11 == now()


def test_an_unknown_value_of_on_lost_is_refused():
    wrong: list = ["", "raise", None]
    for on_lost in wrong:
        with pytest.raises(InvalidJobError, match="on_lost"):
            HeartbeatManager(DirectQueue(InMemoryStorage()), "an-id", on_lost=on_lost)


# Many jobs


async def test_many_jobs_are_one_operation_at_the_pace_of_the_shortest_timeout(world):
    async with world:
        jobs = [*await world.claimed(20, timeout=300), *await world.claimed(timeout=15)]
        writes = world.storage.writes
        async with HeartbeatManager(world.queue, iter(jobs)):
            assert [5, 10, 15] == await world.confirmations(jobs[0], 17)
        assert writes + 3 == world.storage.writes
        assert 1 == len({await world.confirmed(job) for job in jobs})


ENDINGS = {
    "ack": lambda queue, reference: queue.ack(reference),
    "ack_many": lambda queue, reference: queue.ack_many([reference]),
    "apply": lambda queue, reference: queue.apply(Ack(reference), Enqueue("next", b"payload")),
    "dead": lambda queue, reference: queue.nack(reference, dead=True),
}


@pytest.mark.parametrize(
    ("ending", "reference"), [*((ending, "job") for ending in ENDINGS), ("ack", "claim"), ("ack", "id")]
)
async def test_a_claim_ended_through_this_queue_ends_its_heartbeats_without_an_error(world, ending, reference, caplog):
    refer = REFERENCES[reference]
    async with world:
        for delay in (9.5, 9.9, 10.0, 10.1, 10.5):  # while a heartbeat is on its way
            [job] = await world.claimed()
            world.storage.latency = 0.3
            async with HeartbeatManager(world.queue, refer(job)) as manager:
                await asyncio.sleep(delay)
                await ENDINGS[ending](world.queue, refer(job))
                writes = world.storage.writes
                await asyncio.sleep(60)
                assert (False, None) == (manager.lost.is_set(), manager.error)
                assert writes == world.storage.writes
        assert [] == caplog.records


# Failures of the store


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.HANGS])
async def test_a_store_failure_loses_the_claim_at_its_timeout_from_the_last_confirmation(world, fault):
    async with world:
        [job] = await world.claimed(timeout=300)
        await asyncio.sleep(200)
        world.storage.on_write(*[fault] * 10_000)
        world.storage.on_read(*[Fault.LOST_REQUEST] * 10_000)
        with pytest.raises(ClaimLostError, match="no heartbeat for 300 s") as raised:
            async with HeartbeatManager(world.queue, job):
                await asyncio.sleep(3600)
        assert now() == pytest.approx(300, abs=2), "by then another worker may have the job"
        assert (job.id, True) == (raised.value.job_id, raised.value.__cause__ is not None)


async def test_time_in_which_the_process_stood_still_does_not_lose_a_claim(world):
    """Its broker may have stood still with it, and go on a moment later."""

    async with world:
        [job] = await world.claimed(timeout=30)
        async with HeartbeatManager(world.queue, job):
            await asyncio.sleep(1)
            world.storage.down = True
            stand_still(3600)
            await asyncio.sleep(15)
            world.storage.down = False
            await asyncio.sleep(20)
        await world.queue.ack(job)


# Lost claims


def cancellations():
    """Return the number of cancellations that this task has not handled."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


@by_every_reference
async def test_a_lost_claim_of_many_cancels_the_block_which_leaves_with_claim_lost(world, refer):
    async with world:
        jobs = await world.claimed(3)
        manager = HeartbeatManager(world.queue, [refer(job) for job in jobs])
        with pytest.raises(ClaimLostError) as raised:
            async with asyncio.timeout(3600), manager:
                await world.revoke(jobs[1])
                await asyncio.sleep(1800)
        assert now() == pytest.approx(10, abs=0.1)
        assert (jobs[1].id, True) == (raised.value.job_id, manager.lost.is_set())
        assert raised.value is manager.error
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)
        assert 0 == cancellations()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.sleep(2)


async def test_a_lost_claim_can_set_an_event_and_the_other_claims_are_kept(world):
    async with world:
        jobs = await world.claimed(2)
        async with HeartbeatManager(world.queue, jobs, on_lost="event") as manager:
            await world.revoke(jobs[0])
            await manager.lost.wait()
            assert now() == pytest.approx(10, abs=0.1)
            assert [10, 20, 30] == await world.confirmations(jobs[1], 35)
        assert manager.error is not None
        assert jobs[0].id == manager.error.job_id


async def test_a_cancellation_or_timeout_from_outside_stays_one_even_in_the_moment_of_a_lost_claim(world):
    async with world:
        [job] = await world.claimed()
        manager = HeartbeatManager(world.queue, job)

        async def work():
            async with manager:
                await asyncio.sleep(3600)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(15):
                await work()
        manager = HeartbeatManager(world.queue, job)
        task = asyncio.create_task(work())
        await asyncio.sleep(1)
        await world.revoke(job)
        await manager.lost.wait()
        assert not task.done(), "the test meant to cancel it while the manager does"
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


@pytest.mark.parametrize("answer", [ZeroDivisionError, None])
async def test_a_block_that_handles_its_cancellation_leaves_the_task_usable(world, answer):
    async with world:
        [job] = await world.claimed()
        with pytest.raises(answer) if answer else nullcontext():
            async with HeartbeatManager(world.queue, job) as manager:
                await world.revoke(job)
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    if answer:
                        raise answer from None
        assert manager.error is not None
        assert 0 == cancellations(), "a handled cancellation is still counted"


# Other queues


class HeartbeatOnly:
    """The smallest queue of a user's own that 1.0.0 allows."""

    def __init__(self):
        self.beats = []

    async def heartbeat(self, job_id):
        self.beats.append((now(), job_id))
        if job_id == "b" and now() > 9:
            raise JobNotFoundError(job_id)


async def test_any_queue_with_a_heartbeat_method_can_be_used():
    queue = HeartbeatOnly()
    with pytest.raises(ClaimLostError) as raised:
        async with HeartbeatManager(queue, ["a", "b"], 5):
            await asyncio.sleep(3600)
    assert "b" == raised.value.job_id
    assert [(5, "a"), (5, "b"), (10, "a"), (10, "b")] == queue.beats
