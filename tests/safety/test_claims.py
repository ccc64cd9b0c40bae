"""Safety rules 4 and 5 of docs/reference/protocol.md: tests named after the ways to break them.

A test of a rule fails if the code that docs/reference/protocol.md names beside it is removed.
"""

import asyncio

import pytest

from jqueue import BrokerQueue, ClaimLostError, JobStatus
from jqueue.operations import Enqueue

pytestmark = pytest.mark.virtual_time

# 4. Ids are unique; a job has at most one current claim; attempts only grow.


async def test_rule_4_attempts_grow_through_nack_and_redrive_and_a_reused_id(world, kind):
    async with world.process(kind=kind) as queue:
        await queue.enqueue("t", b"", job_id="a", max_attempts=3)
        seen = []
        for ending in ({}, {"charge": False}, {}, {"dead": True}):
            [job] = await queue.dequeue("t")
            seen.append(job.attempt)
            await queue.nack(job, **ending)
        await queue.redrive("a")
        [job] = await queue.dequeue("t")
        seen.append(job.attempt)
        await queue.nack(job, dead=True)
        await queue.purge()
        await queue.enqueue("t", b"", job_id="a")
        [job] = await queue.dequeue("t")
        seen.append(job.attempt)
        assert [1, 2, 3, 4, 5, 6] == seen


async def test_rule_4_an_id_finished_a_moment_ago_is_not_enqueued_again(world, kind):
    async with world.process(kind=kind) as queue:
        await queue.enqueue("t", b"", job_id="a")
        await queue.ack((await queue.dequeue("t"))[0])
        for other in (queue, world.honest()):
            assert JobStatus.COMPLETED == (await other.enqueue("t", b"", job_id="a")).status
        assert {} == await world.jobs()


async def test_rule_4_a_reused_id_starts_above_forgotten_attempts(world):
    """A claim from an earlier use of the id must never be valid again, however long ago that was."""
    queue = world.honest()
    await queue.enqueue("t", b"", job_id="daily")
    [zombie] = await queue.dequeue("t")
    await queue.nack(zombie)
    [job] = await queue.dequeue("t")
    await queue.ack(job)
    for _ in range(4):
        await queue.enqueue_many([Enqueue("t", b"")] * 300)
        assert [] == await queue.ack_many(await queue.dequeue("t", batch_size=300))
    await asyncio.sleep(3700)  # more jobs, and a longer time, than the blob remembers
    await queue.enqueue_many([Enqueue("t", b"")])
    assert "daily" not in (await queue.read_state()).finished
    await queue.enqueue("t", b"", job_id="daily", priority=-1)
    [again] = await queue.dequeue("t")
    assert again.attempt > job.attempt
    for old in (zombie, job):
        with pytest.raises(ClaimLostError):
            await queue.ack(old)


# 5. ack, nack and heartbeat act only with the current claim; repeating an ack soon after succeeds.


async def test_rule_5_an_ack_is_known_for_an_hour_whatever_else_ends_meanwhile(world):
    queue = world.honest()

    async def end_others():
        await queue.enqueue_many([Enqueue("t", b"")] * 800)
        assert [] == await queue.ack_many(await queue.dequeue("t", batch_size=800))
        return await queue.read_state()

    await queue.enqueue("t", b"", job_id="first")
    [job] = await queue.dequeue("t")
    await queue.ack(job)
    for _ in range(3):
        state = await end_others()
        await queue.ack(job)
        await asyncio.sleep(1100)
    assert (2401, 2401) == (len(state.finished), sum(number for _, number in state.finished_minutes))
    await asyncio.sleep(3000)
    state = await end_others()
    assert 1000 == len(state.finished), "of earlier ones, the last thousand stay"
    with pytest.raises(ClaimLostError):
        await queue.ack(job)


async def test_rule_5_the_same_ack_twice_in_one_commit_succeeds_twice_and_removes_one_job(world):
    async with world.process(kind=BrokerQueue) as queue:
        await queue.enqueue_many([Enqueue("t", b"")] * 5)
        jobs = await queue.dequeue("t", batch_size=5)
        assert [None] * 10 == await asyncio.gather(*(queue.ack(job) for job in jobs for _ in range(2)))
        totals = (await queue.stats()).totals
        assert totals is not None
        assert 5 == totals.done
