"""The claims of a streaming query: the times of requests to the store, and heartbeats."""

import asyncio
import logging

from jqueue.core.direct import DirectQueue
from jqueue.testing.faults import Fault
from jqueue.testing.virtual_time import VirtualClock
from tests.spark.stream.claims_world import BEGIN, Claims, ended
from tests.virtual_world import in_virtual_time

# Requests to the store


@in_virtual_time
async def test_an_empty_queue_is_read_once_per_poll_interval():
    world = Claims(poll_interval=5.0)
    claims = world.process()
    for _ in range(10):
        assert claims.is_due
        assert BEGIN == await claims.after(BEGIN, 10)
        assert not claims.is_due
        await asyncio.sleep(4.9)
        assert not claims.is_due
        await asyncio.sleep(0.1)
    assert 0 == world.storage.writes


@in_virtual_time
async def test_a_full_batch_is_followed_by_the_next_at_once():
    world = Claims(poll_interval=5.0)
    await world.enqueue(15)
    claims = world.process()
    first = await claims.after(BEGIN, 10)
    assert 10 == len(await claims.jobs_of(first))
    assert claims.is_due
    second = await claims.after(first, 10)
    assert 5 == len(await claims.jobs_of(second))
    assert not claims.is_due, "the queue has no more jobs"
    await ended(claims)


@in_virtual_time
async def test_one_commit_acks_a_batch_and_claims_the_next_without_a_read():
    world = Claims()
    await world.enqueue(30)
    claims = world.process()
    offset = await claims.after(BEGIN, 10)
    for _ in range(2):
        world.storage.reads = world.storage.writes = 0
        offset = await claims.after(offset, 10)
        assert 10 == len(await claims.jobs_of(offset))
        assert (0, 1) == world.asked
    assert 10 == len((await world.elsewhere.read_state()).jobs)
    await ended(claims)


@in_virtual_time
async def test_a_frozen_query_takes_only_jobs_enqueued_before_the_freeze():
    world = Claims(poll_interval=60.0)
    before = await world.enqueue(12)
    claims = world.process()
    await claims.freeze()
    await world.enqueue(5)
    await world.enqueue(5, priority=-1)
    taken, offset = [], BEGIN
    while (end := await claims.after(offset, 10)) != offset:
        assert claims.is_due, "the query must not end before it has taken all jobs"
        offset = end
        taken += [job.id for job in await claims.jobs_of(offset)]
    assert [job.id for job in before] == taken
    assert 10 == len((await world.elsewhere.read_state()).queued_jobs())
    assert [] == list((await world.elsewhere.read_state()).in_progress_jobs())


@in_virtual_time
async def test_a_frozen_query_ends_while_others_keep_enqueueing():
    """The jobs with the highest sequence numbers have left the queue before the others are enqueued."""
    world = Claims()
    for job in (await world.enqueue(50))[1:]:
        await world.elsewhere.cancel(job.id)
    await world.enqueue(1, priority=-1)
    claims, offset = world.process(), BEGIN
    await claims.freeze()
    for _ in range(2):
        offset = await claims.after(offset, 1)
    for _ in range(3):
        await DirectQueue(world.memory, clock=VirtualClock()).enqueue("work", b"later")
    assert offset == await claims.after(offset, 1)
    assert 3 == len((await world.elsewhere.read_state()).queued_jobs())


@in_virtual_time
async def test_only_jobs_of_the_given_entrypoints_are_claimed():
    world = Claims(entrypoints=("a", "b"))
    for entrypoint in "abc":
        await world.enqueue(1, entrypoint)
    claims = world.process()
    await claims.freeze()
    end = await claims.after(BEGIN, 10)
    assert ["a", "b"] == [job.entrypoint for job in await claims.jobs_of(end)]
    await ended(claims)


# Heartbeats


@in_virtual_time
async def test_claims_are_kept_alive_while_their_batch_runs_for_long():
    world = Claims(claim_timeout=30.0)
    await world.enqueue(1)
    claims = world.process()
    end = await claims.after(BEGIN, 10)
    stale = DirectQueue(world.memory, clock=VirtualClock())
    for _ in range(200):
        await asyncio.sleep(1)
        assert [] == await stale.dequeue("work"), "another worker claimed the job"
    assert end == await claims.after(end, 10)
    assert () == (await world.elsewhere.read_state()).jobs


@in_virtual_time
async def test_one_heartbeat_for_all_claims_comes_at_a_third_of_their_timeout():
    world = Claims(claim_timeout=30.0)
    await world.enqueue(10)
    claims = world.process()
    await claims.after(BEGIN, 10)
    world.storage.reads = world.storage.writes = 0
    await asyncio.sleep(61)
    assert (0, 6) == world.asked
    await ended(claims)
    await asyncio.sleep(60)
    assert (0, 6) == world.asked, "a stopped query must send no heartbeats"


@in_virtual_time
async def test_a_failed_heartbeat_is_retried_before_the_claims_are_stale(caplog):
    world = Claims(claim_timeout=30.0)
    [job] = await world.enqueue(1)
    claims = world.process()
    await claims.after(BEGIN, 10)
    world.storage.on_write(*[Fault.LOST_REQUEST] * 1000)
    await asyncio.sleep(21)
    world.storage.heal()
    await asyncio.sleep(8)
    assert await world.age(job) < 8
    assert ["a heartbeat for 1 job failed: "] == [record.getMessage()[:30] for record in caplog.records]
    await ended(claims)


@in_virtual_time
async def test_lost_claims_are_logged_in_one_line_and_not_acked(caplog):
    world = Claims(claim_timeout=30.0)
    jobs = await world.enqueue(10)
    claims = world.process()
    end = await claims.after(BEGIN, 10)
    for job in jobs[:4]:
        await world.steal(job)
    await asyncio.sleep(11)
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        "4 of 10 jobs that this query had claimed went to other workers after too long without a heartbeat"
    )
    await claims.after(end, 0)
    assert {job.id for job in jobs[:4]} == {job.id for job in (await world.elsewhere.read_state()).jobs}


@in_virtual_time
async def test_refused_acks_are_logged_in_one_line_and_the_query_continues(caplog):
    world = Claims()
    jobs = await world.enqueue(15)
    claims = world.process()
    end = await claims.after(BEGIN, 10)
    for job in jobs[:3]:
        await world.steal(job)
    assert 8 == len(await claims.jobs_of(await claims.after(end, 10))), "five waiting jobs and the three stolen ones"
    assert ["3 of 10 jobs of batch 1 went to other workers before the batch was finished: they may be done twice"] == [
        record.getMessage() for record in caplog.records
    ]
    await ended(claims)


@in_virtual_time
async def test_a_heartbeat_and_an_ack_of_the_same_jobs_never_conflict(caplog):
    """Both are due at the same moment, and the store is slow."""
    world = Claims(claim_timeout=30.0)
    await world.enqueue(200)
    world.storage.latency = 0.7
    claims, offset = world.process(), BEGIN
    for tenths in range(80, 100):
        offset = await claims.after(offset, 10)
        await asyncio.sleep(tenths / 10)
    assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]
    await ended(claims)


@in_virtual_time
async def test_a_job_cancelled_during_its_batch_is_finished_with_it(caplog):
    world = Claims(claim_timeout=30.0)
    [job] = await world.enqueue(1)
    claims = world.process()
    end = await claims.after(BEGIN, 10)
    await world.elsewhere.cancel(job.id, running=True)
    await asyncio.sleep(11)
    assert end == await claims.after(end, 10)
    assert () == (await world.elsewhere.read_state()).jobs
    assert [] == caplog.records
