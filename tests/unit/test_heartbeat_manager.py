"""The heartbeat manager: keeps claims alive while a block works on their jobs, and stops it when one is lost."""

import asyncio
from datetime import timedelta

import pytest

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.domain.errors import ClaimLostError, InvalidJobError, JobNotFoundError, StorageFatalError
from jqueue.domain.operations import Ack, Enqueue, Nack
from jqueue.testing.faults import Fault
from tests.virtual_world import World, in_virtual_time, now

REFERENCES = {"job": lambda job: job, "claim": lambda job: job.claim, "id": lambda job: job.id}
by_every_reference = pytest.mark.parametrize("refer", REFERENCES.values(), ids=REFERENCES)


@pytest.fixture(params=[DirectQueue, BrokerQueue], ids=["direct", "broker"])
def world(request):
    return World(request.param)


# Beating


@pytest.mark.parametrize(
    ("timeout", "beats"),
    [(30, [10, 20, 30, 40, 50]), (90, [30, 60]), (300, [60, 120, 180]), (86400, [60, 120])],
)
@in_virtual_time
async def test_heartbeats_come_every_third_of_the_timeout_and_at_least_once_a_minute(world, timeout, beats):
    async with world:
        [job] = await world.claimed(timeout=timeout)
        async with HeartbeatManager(world.queue, job):
            assert beats == await world.confirmations(job, beats[-1] + 5)
        await world.queue.ack(job)


@by_every_reference
@in_virtual_time
async def test_the_manager_takes_a_job_a_claim_or_an_id(world, refer):
    async with world:
        [job] = await world.claimed(timeout=30)
        async with HeartbeatManager(world.queue, refer(job)):
            assert [10, 20] == await world.confirmations(job, 25)


@pytest.mark.parametrize("interval", [7, timedelta(seconds=7)])
@in_virtual_time
async def test_the_interval_can_be_set(world, interval):
    async with world:
        [job] = await world.claimed()
        async with HeartbeatManager(world.queue, job, interval):
            assert [7, 14, 21] == await world.confirmations(job, 22)


@by_every_reference
@in_virtual_time
async def test_a_claim_last_confirmed_long_ago_is_confirmed_at_once(world, refer):
    async with world:
        [job] = await world.claimed(timeout=300)
        await asyncio.sleep(200)
        async with HeartbeatManager(world.queue, refer(job)):
            await asyncio.sleep(0.1)
            assert 200 == await world.confirmed(job)
            assert [60, 120] == await world.confirmations(job, 130)


@in_virtual_time
async def test_heartbeats_keep_a_claim_from_being_revoked_by_others(world):
    async with world:
        [job] = await world.claimed(timeout=12)
        async with HeartbeatManager(world.queue, job):
            assert [] == await world.operator.dequeue("work", wait=600)
        await world.queue.ack(job)


@in_virtual_time
async def test_heartbeats_stop_after_the_block(world):
    async with world:
        [job] = await world.claimed()
        before = asyncio.all_tasks()
        async with HeartbeatManager(world.queue, job):
            await asyncio.sleep(15)
        left = {task for task in asyncio.all_tasks() - before if "heartbeat" in task.get_name()}
        assert set() == left
        assert [] == await world.confirmations(job, 60)


@in_virtual_time
async def test_leaving_the_block_does_not_wait_for_a_store_that_hangs(world):
    async with world:
        [job] = await world.claimed()
        async with HeartbeatManager(world.queue, job):
            world.storage.on_write(Fault.HANGS)
            await asyncio.sleep(11)
            began = now()
        assert began == now()


@in_virtual_time
async def test_an_error_of_the_block_is_raised_unchanged(world):
    async with world:
        [job] = await world.claimed()
        with pytest.raises(ZeroDivisionError):
            async with HeartbeatManager(world.queue, job):
                await asyncio.sleep(15)
                raise ZeroDivisionError


@pytest.mark.parametrize("on_lost", ["", "raise", None])
def test_an_unknown_value_of_on_lost_is_refused(on_lost):
    with pytest.raises(InvalidJobError, match="on_lost"):
        HeartbeatManager(DirectQueue(InMemoryStorage()), "an-id", on_lost=on_lost)


# Many jobs


@in_virtual_time
async def test_many_jobs_are_one_operation_and_one_write(world):
    async with world:
        jobs = await world.claimed(200)
        writes = world.storage.writes
        async with HeartbeatManager(world.queue, jobs):
            await asyncio.sleep(35)
        assert writes + 3 == world.storage.writes
        assert {35 - 5} == {round(await world.confirmed(job)) for job in jobs[::50]}


@in_virtual_time
async def test_the_shortest_timeout_of_many_sets_the_pace(world):
    async with world:
        jobs = [*await world.claimed(timeout=300), *await world.claimed(timeout=15)]
        async with HeartbeatManager(world.queue, iter(jobs)):
            assert [5, 10, 15] == await world.confirmations(jobs[0], 17)


@in_virtual_time
async def test_finished_jobs_are_dropped_and_the_other_claims_are_kept(world):
    async with world:
        jobs = await world.claimed(3)
        async with HeartbeatManager(world.queue, jobs) as manager:
            await asyncio.sleep(5)
            await world.queue.ack(jobs[0])
            assert [5, 15, 25] == await world.confirmations(jobs[1], 26)
            await world.queue.nack(jobs[1])
            assert [9, 19] == await world.confirmations(jobs[2], 21)
            await world.queue.ack(jobs[2])
            writes = world.storage.writes
            await asyncio.sleep(60)
            assert writes == world.storage.writes
        assert not manager.lost.is_set()


@in_virtual_time
async def test_a_manager_of_no_jobs_sends_nothing(world):
    async with world, HeartbeatManager(world.queue, []):
        await asyncio.sleep(600)
        assert (0, 0) == (world.storage.reads, world.storage.writes)


# Failures of the store


@in_virtual_time
async def test_a_store_failure_shorter_than_the_timeout_is_survived(world):
    async with world:
        [job] = await world.claimed(timeout=60)
        async with HeartbeatManager(world.queue, job) as manager:
            await asyncio.sleep(25)
            world.break_down()
            await asyncio.sleep(45)
            world.come_back()
            await asyncio.sleep(20)
            assert await world.confirmed(job) > 70
            assert not manager.lost.is_set()
        await world.queue.ack(job)


@in_virtual_time
async def test_a_store_failure_loses_the_claim_at_its_own_timeout(world):
    async with world:
        [job] = await world.claimed(timeout=60)
        with pytest.raises(ClaimLostError, match="no heartbeat for 60 s") as raised:
            async with HeartbeatManager(world.queue, job):
                await asyncio.sleep(30)
                world.break_down()
                await asyncio.sleep(3600)
        assert 20 + 60 == pytest.approx(now(), abs=1), "the last confirmed heartbeat was at 20 s"
        assert job.id == raised.value.job_id
        assert raised.value.__cause__ is not None
        world.come_back()


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.HANGS])
@in_virtual_time
async def test_a_timeout_counts_from_the_last_confirmation_and_not_from_the_block(world, fault):
    async with world:
        [job] = await world.claimed(timeout=300)
        await asyncio.sleep(200)
        world.storage.on_write(*[fault] * 10_000)
        world.storage.on_read(*[Fault.LOST_REQUEST] * 10_000)
        with pytest.raises(ClaimLostError):
            async with HeartbeatManager(world.queue, job):
                await asyncio.sleep(3600)
        assert now() == pytest.approx(300, abs=2), "by then another worker may have the job"
        world.come_back()


@in_virtual_time
async def test_a_refusal_of_the_store_is_survived_like_a_failure(world):
    async with world:
        [job] = await world.claimed(timeout=60)
        world.storage.error = lambda: StorageFatalError("access denied")
        async with HeartbeatManager(world.queue, job):
            world.break_down()
            await asyncio.sleep(50)
            world.come_back()
            await asyncio.sleep(20)
            assert await world.confirmed(job) > 50


# Claims that end through this queue

ENDINGS = {
    "ack": lambda queue, reference: queue.ack(reference),
    "nack": lambda queue, reference: queue.nack(reference),
    "ack_many": lambda queue, reference: queue.ack_many([reference]),
    "apply": lambda queue, reference: queue.apply(Ack(reference), Enqueue("next", b"payload")),
    "apply of a nack": lambda queue, reference: queue.apply(Nack(reference, delay=60)),
    "dead": lambda queue, reference: queue.nack(reference, dead=True),
}


@pytest.mark.parametrize("ending", ENDINGS)
@by_every_reference
@in_virtual_time
async def test_a_claim_ended_through_this_queue_ends_its_heartbeats_without_an_error(world, ending, refer, caplog):
    async with world:
        [job] = await world.claimed()
        async with HeartbeatManager(world.queue, refer(job)) as manager:
            await asyncio.sleep(15)
            await ENDINGS[ending](world.queue, refer(job))
            writes = world.storage.writes
            await asyncio.sleep(60)
            assert (False, None) == (manager.lost.is_set(), manager.error)
            assert writes == world.storage.writes
        assert [] == caplog.records


@in_virtual_time
async def test_an_ack_during_a_heartbeat_in_flight_causes_no_error(world):
    async with world:
        for delay in (9.5, 9.9, 10.0, 10.1, 10.5):
            [job] = await world.claimed()
            world.storage.latency = 0.3
            async with HeartbeatManager(world.queue, job) as manager:
                await asyncio.sleep(delay)
                await world.queue.ack(job)
                await asyncio.sleep(60)
            assert manager.error is None


# Other queues


class HeartbeatOnly:
    """The smallest queue of a user's own that 1.0.0 allows."""

    def __init__(self, *lost):
        self.lost = lost
        self.beats = []

    async def heartbeat(self, job_id):
        self.beats.append((now(), job_id))
        if job_id in self.lost:
            raise JobNotFoundError(job_id)


@in_virtual_time
async def test_any_queue_with_a_heartbeat_method_can_be_used():
    queue = HeartbeatOnly()
    async with HeartbeatManager(queue, "an-id", timedelta(seconds=5)):
        await asyncio.sleep(11)
    assert [(5, "an-id"), (10, "an-id")] == queue.beats


@in_virtual_time
async def test_a_queue_without_heartbeat_many_is_called_for_each_job():
    queue = HeartbeatOnly("b")
    with pytest.raises(ClaimLostError) as raised:
        async with HeartbeatManager(queue, ["a", "b", "c"], 5):
            await asyncio.sleep(3600)
    assert "b" == raised.value.job_id
    assert [(5, "a"), (5, "b"), (5, "c")] == queue.beats
