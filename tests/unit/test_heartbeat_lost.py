"""The heartbeat manager when a claim is lost: it stops the block, names the claim, and leaves the task usable."""

import asyncio

import pytest

from jqueue.core.broker import BrokerQueue
from jqueue.core.direct import DirectQueue
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.domain.errors import ClaimLostError
from tests.virtual_world import World, in_virtual_time, now

REFERENCES = {"job": lambda job: job, "claim": lambda job: job.claim, "id": lambda job: job.id}
by_every_reference = pytest.mark.parametrize("refer", REFERENCES.values(), ids=REFERENCES)


@pytest.fixture(params=[DirectQueue, BrokerQueue], ids=["direct", "broker"])
def world(request):
    return World(request.param)


def cancellations():
    """Return the number of cancellations that this task has not handled."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


def lost_job(manager):
    """Return the id of the job whose claim was lost."""
    assert manager.error is not None
    return manager.error.job_id


@by_every_reference
@in_virtual_time
async def test_a_lost_claim_cancels_the_block_which_leaves_with_claim_lost(world, refer):
    async with world:
        [job] = await world.claimed()
        manager = HeartbeatManager(world.queue, refer(job))
        with pytest.raises(ClaimLostError) as raised:
            async with manager:
                await asyncio.sleep(5)
                await world.operator.requeue_stale(0)
                await asyncio.sleep(3600)
        assert now() == pytest.approx(10, abs=0.1)
        assert (job.id, True) == (raised.value.job_id, manager.lost.is_set())
        assert raised.value is manager.error
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)


@pytest.mark.parametrize("gone", ["acked", "cancelled"])
@in_virtual_time
async def test_a_job_that_was_cancelled_or_finished_is_a_lost_claim(world, gone):
    async with world:
        [job] = await world.claimed()
        with pytest.raises(ClaimLostError):
            async with HeartbeatManager(world.queue, job):
                await world.operator.requeue_stale(0)
                if gone == "cancelled":
                    await world.operator.cancel(job.id)
                else:
                    await world.operator.ack((await world.operator.dequeue())[0])
                await asyncio.sleep(3600)


@in_virtual_time
async def test_an_unknown_id_is_a_lost_claim(world):
    async with world:
        with pytest.raises(ClaimLostError, match="no-such-job"):
            async with HeartbeatManager(world.queue, "no-such-job", interval=10):
                await asyncio.sleep(3600)
        assert now() == pytest.approx(10, abs=0.1)


@in_virtual_time
async def test_one_lost_claim_of_many_cancels_the_block(world):
    async with world:
        jobs = await world.claimed(3)
        with pytest.raises(ClaimLostError) as raised:
            async with HeartbeatManager(world.queue, jobs):
                [other] = await world.claimed()
                await world.queue.nack(other)
                await world.revoke(jobs[1])
                await asyncio.sleep(3600)
        assert jobs[1].id == raised.value.job_id


@in_virtual_time
async def test_a_lost_claim_can_set_an_event_instead_of_cancelling(world):
    async with world:
        [job] = await world.claimed()
        async with HeartbeatManager(world.queue, job, on_lost="event") as manager:
            await world.revoke(job)
            await manager.lost.wait()
            assert now() == pytest.approx(10, abs=0.1)
            await asyncio.sleep(60)
        assert job.id == lost_job(manager)


@in_virtual_time
async def test_the_other_claims_are_kept_when_an_event_reports_a_lost_one(world):
    async with world:
        jobs = await world.claimed(2)
        async with HeartbeatManager(world.queue, jobs, on_lost="event") as manager:
            await world.revoke(jobs[0])
            await manager.lost.wait()
            assert [10, 20, 30] == await world.confirmations(jobs[1], 35), "the block goes on, and holds this job"


# Cancellation by others


@in_virtual_time
async def test_a_cancellation_from_outside_stays_a_cancellation(world):
    async with world:
        [job] = await world.claimed()

        async def work():
            async with HeartbeatManager(world.queue, job):
                await asyncio.sleep(3600)

        for moment in (0, 5, 10, 15):
            task = asyncio.create_task(work())
            await asyncio.sleep(moment)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()


@in_virtual_time
async def test_a_cancellation_from_outside_wins_over_a_claim_lost_in_the_same_moment(world):
    async with world:
        [job] = await world.claimed()
        manager = HeartbeatManager(world.queue, job)

        async def work():
            async with manager:
                await asyncio.sleep(3600)

        task = asyncio.create_task(work())
        await asyncio.sleep(1)
        await world.revoke(job)
        await manager.lost.wait()
        assert not task.done(), "the test meant to cancel it while the manager does"
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()


@in_virtual_time
async def test_a_task_is_usable_after_a_lost_claim(world):
    async with world:
        [job] = await world.claimed()
        with pytest.raises(ClaimLostError):
            async with asyncio.timeout(3600), HeartbeatManager(world.queue, job):
                await world.revoke(job)
                await asyncio.sleep(1800)
        assert 0 == cancellations()
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.sleep(2)


@pytest.mark.parametrize("answer", ["an error of its own", "nothing"])
@in_virtual_time
async def test_a_block_that_handles_its_cancellation_leaves_the_task_usable(world, answer):
    async with world:
        [job] = await world.claimed()
        try:
            async with HeartbeatManager(world.queue, job) as manager:
                await world.revoke(job)
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    if answer != "nothing":
                        raise ZeroDivisionError from None
        except ZeroDivisionError:
            assert answer != "nothing"
        except ClaimLostError:
            assert answer == "nothing"
        assert job.id == lost_job(manager)
        assert 0 == cancellations(), "a handled cancellation is still counted"


@in_virtual_time
async def test_a_lost_claim_inside_a_timeout_is_not_taken_for_the_timeout(world):
    async with world:
        [job] = await world.claimed()
        with pytest.raises(ClaimLostError):
            async with asyncio.timeout(10), HeartbeatManager(world.queue, job, interval=9):
                await world.revoke(job)
                await asyncio.sleep(3600)


@in_virtual_time
async def test_a_timeout_around_a_block_is_not_taken_for_a_lost_claim(world):
    async with world:
        [job] = await world.claimed()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(15), HeartbeatManager(world.queue, job):
                await asyncio.sleep(3600)
