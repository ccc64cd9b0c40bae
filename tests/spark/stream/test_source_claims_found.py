"""The claims of a streaming query after a restart, and under a failing store."""

import asyncio

import pytest

from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import StorageError
from jqueue.spark.stream.offsets import Offset, holder_of
from jqueue.testing.faults import Fault
from jqueue.testing.virtual_time import VirtualClock
from tests.spark.stream.claims_world import BEGIN, Claims, OnItsWay, ended
from tests.virtual_world import in_virtual_time, now

# After a restart


@in_virtual_time
async def test_an_unlogged_claim_is_the_next_batch_after_a_restart():
    world = Claims()
    await world.enqueue(15)
    first = world.process()
    lost = await first.after(BEGIN, 10)
    await ended(first)
    second = world.process()
    end = await second.after(BEGIN, 10)
    assert lost == end
    assert await first.jobs_of(end) == [
        job.evolve(heartbeat_at=before.heartbeat_at)
        for job, before in zip(await second.jobs_of(end), await first.jobs_of(end), strict=True)
    ]
    assert 5 == len(await second.jobs_of(await second.after(end, 10)))
    await ended(second)


@in_virtual_time
async def test_a_finished_batch_is_acked_after_a_restart_and_not_delivered_again():
    world = Claims()
    await world.enqueue(15)
    first = world.process()
    end = await first.after(BEGIN, 10)
    await ended(first)
    second = world.process()
    following = await second.after(end, 10)
    assert 5 == len(await second.jobs_of(following))
    assert 5 == len((await world.elsewhere.read_state()).jobs)
    await ended(second)


@in_virtual_time
async def test_two_unlogged_claims_become_two_batches():
    """A logged batch then always has the jobs of exactly one claim, even if another process made more claims."""
    world = Claims()
    await world.enqueue(15)
    first, other = world.process(), world.process()
    first.begin("query")
    other.begin("query")  # a process that was believed dead
    sizes = {len(await claims.jobs_of(await claims.after(BEGIN, 10))) for claims in (first, other)}
    assert {10, 5} == sizes
    await ended(first)
    await ended(other)
    restarted = world.process()
    one = await restarted.after(BEGIN, 10)
    two = await restarted.after(one, 10)
    assert (1, 2) == (one.batch, two.batch)
    assert two == await restarted.after(two, 10)
    assert () == (await world.elsewhere.read_state()).jobs


@in_virtual_time
async def test_a_repeated_batch_has_only_the_jobs_still_claimed_and_is_kept_alive():
    world = Claims(claim_timeout=30.0)
    jobs = await world.enqueue(10)
    first = world.process()
    end = await first.after(BEGIN, 10)
    await ended(first)
    await asyncio.sleep(20)
    for job in jobs[:4]:
        await world.steal(job)
    second = world.process()
    assert [job.id for job in jobs[4:]] == [job.id for job in await second.jobs_of(end)]
    assert {job.id for job in jobs[:4]} == {job.id for job in await world.elsewhere.dequeue("work", batch_size=4)}
    stale = DirectQueue(world.memory, clock=VirtualClock())
    for _ in range(25):
        await asyncio.sleep(5)
        await stale.dequeue("none")
    assert end == await second.after(end, 0)
    assert {job.id for job in jobs[:4]} == {job.id for job in (await world.elsewhere.read_state()).jobs}


@in_virtual_time
async def test_a_claim_that_lands_after_its_process_has_ended_waits_for_the_next_restart():
    """Its commit is still on its way while the restarted query reads its claims."""
    world = Claims()
    await world.enqueue(15)
    on_its_way = OnItsWay(world.memory)
    dead = world.process(on_its_way)
    dead.begin("query")
    dying = asyncio.create_task(dead.after(BEGIN, 10))
    await on_its_way.sent.wait()
    second = world.process(on_its_way.landing_after_a_read())
    end = await second.after(BEGIN, 10)
    held = [job.id for job in await second.jobs_of(end)]
    assert 5 == len(held)
    await ended(second)
    third = world.process()
    assert held == [job.id for job in await third.jobs_of(end)]
    assert 10 == len(await third.jobs_of(await third.after(end, 10)))
    await ended(third)
    dying.cancel()
    await asyncio.wait([dying])


@in_virtual_time
async def test_other_queries_and_workers_keep_their_claims():
    world = Claims()
    await world.enqueue(30)
    other = world.process()
    other.begin("another")
    await other.after(Offset("another", 0, ""), 10)
    await world.elsewhere.dequeue("work", batch_size=10)
    claims = world.process()
    assert 10 == len(await claims.jobs_of(await claims.after(BEGIN, 100)))
    await ended(other)
    await ended(claims)


@in_virtual_time
async def test_a_new_query_does_not_look_for_claims():
    world = Claims()
    claims = world.process()
    claims.begin("query")
    await claims.after(BEGIN, 10)
    assert (1, 0) == world.asked


# Under a failing store


@in_virtual_time
async def test_a_failing_store_is_retried_until_the_deadline():
    world = Claims()
    await world.enqueue(1)
    claims = world.process()
    world.storage.on_read(*[Fault.LOST_REQUEST] * 1000)
    with pytest.raises(StorageError):
        await claims.after(BEGIN, 10)
    assert 19 < now() < 21


@pytest.mark.parametrize("fault", [Fault.LOST_REQUEST, Fault.LOST_ANSWER, Fault.RESENT])
@in_virtual_time
async def test_a_commit_whose_answer_is_lost_makes_one_batch(fault):
    world = Claims()
    await world.enqueue(15)
    claims = world.process()
    end = await claims.after(BEGIN, 10)
    world.storage.on_write(fault)
    last = await claims.after(end, 10)
    assert 5 == len(await claims.jobs_of(last))
    assert 5 == len((await world.elsewhere.read_state()).jobs)
    await ended(claims)


@in_virtual_time
async def test_a_claim_made_before_a_failure_is_found_by_the_next_call():
    world = Claims()
    await world.enqueue(15)
    claims = world.process()
    end = await claims.after(BEGIN, 10)
    world.storage.on_write(Fault.LOST_ANSWER)
    world.storage.on_read(*[Fault.LOST_REQUEST] * 1000)
    with pytest.raises(StorageError):
        await claims.after(end, 10)
    world.storage.heal()
    following = await claims.after(end, 10)
    assert 5 == len(await claims.jobs_of(following))
    assert following == await claims.after(following, 10)
    assert () == (await world.elsewhere.read_state()).jobs


def test_a_holder_names_the_query_and_the_claim():
    assert "spark/query/claim" == holder_of("query", "claim")
