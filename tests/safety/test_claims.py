"""Safety rules 4 and 5 of docs/reference/protocol.md: tests named after the ways to break them.

A test of a rule fails if the code that docs/reference/protocol.md names beside it is removed.
"""

import asyncio

import pytest

from jqueue import BrokerQueue, ClaimLostError, JobNotFoundError, JobStatus
from jqueue.operations import Enqueue
from jqueue.testing.virtual_time import run
from tests.safety.world import World

# 4. Ids are unique; a job has at most one current claim; attempts only grow.


def test_rule_4_two_consumers_never_hold_the_same_claim(kind):
    async def main():
        world = World()
        world.storage.latency = 0.01
        await world.honest().enqueue_many([Enqueue("t", b"") for _ in range(10)])
        queues = [world.process(kind=kind) for _ in range(4)]
        for queue in queues:
            if kind is BrokerQueue:
                await queue.start()
        claimed = await asyncio.gather(*(queue.dequeue("t") for queue in queues for _ in range(3)))
        ids = [job.id for jobs in claimed for job in jobs]
        assert 10 == len(ids) == len(set(ids))
        for queue in queues:
            await (queue.stop() if kind is BrokerQueue else queue.aclose())

    run(main())


def test_rule_4_attempts_grow_through_nack_and_redrive_and_a_reused_id(kind):
    async def main():
        world = World()
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

    run(main())


def test_rule_4_an_existing_id_is_not_enqueued_again(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            first = await queue.enqueue("t", b"1", job_id="a")
            assert first == await queue.enqueue("u", b"2", job_id="a")
            [claimed] = await queue.dequeue()
            assert claimed == await world.honest().enqueue("u", b"2", job_id="a")
            assert {"a": claimed} == await world.jobs()

    run(main())


def test_rule_4_an_id_finished_a_moment_ago_is_not_enqueued_again(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"", job_id="a")
            await queue.ack((await queue.dequeue("t"))[0])
            for other in (queue, world.honest()):
                assert JobStatus.COMPLETED == (await other.enqueue("t", b"", job_id="a")).status
            assert {} == await world.jobs()

    run(main())


def test_rule_4_a_reused_id_starts_above_forgotten_attempts(monkeypatch):
    """A claim from an earlier use of the id must never be valid again, however long ago that was."""
    monkeypatch.setattr("jqueue.domain.commits.FINISHED_KEPT", 4)
    monkeypatch.setattr("jqueue.domain.commits.FINISHED_SLACK", 0)

    async def main():
        world = World()
        queue = world.honest()
        await queue.enqueue("t", b"", job_id="daily")
        [zombie] = await queue.dequeue("t")
        await queue.nack(zombie)
        [job] = await queue.dequeue("t")
        await queue.ack(job)
        for _ in range(10):
            await queue.enqueue("t", b"")
            await queue.ack((await queue.dequeue("t"))[0])
        await queue.enqueue("t", b"", job_id="daily")
        [again] = await queue.dequeue("t")
        assert again.attempt > job.attempt
        for old in (zombie, job):
            with pytest.raises(ClaimLostError):
                await queue.ack(old)

    run(main())


# 5. ack, nack and heartbeat act only with the current claim; repeating an ack soon after succeeds.


@pytest.mark.parametrize("verb", ["ack", "nack", "heartbeat"])
def test_rule_5_a_zombie_changes_nothing(kind, verb):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"")
            [zombie] = await queue.dequeue("t")
            await queue.requeue_stale(0)
            with pytest.raises(ClaimLostError):
                await getattr(queue, verb)(zombie)
            [owner] = await world.honest().dequeue("t")
            before = await world.memory.read()
            with pytest.raises(ClaimLostError):
                await getattr(queue, verb)(zombie)
            assert before == await world.memory.read()
            await queue.ack(owner)

    run(main())


def test_rule_5_a_bare_id_is_fenced(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            job = await queue.enqueue("t", b"")
            with pytest.raises(ClaimLostError):
                await queue.ack(job.id)  # no queue object has claimed it
            [lost] = await queue.dequeue("t")
            await queue.requeue_stale(0)
            [newer] = await queue.dequeue("t")
            with pytest.raises(ClaimLostError):
                await queue.ack(job.id)  # which of the two?
            with pytest.raises(ClaimLostError):
                await queue.ack(lost)
            await queue.ack(newer.id)
            with pytest.raises(JobNotFoundError):
                await queue.ack(newer.id)

    run(main())


def test_rule_5_repeating_an_ack_succeeds_and_writes_nothing(kind):
    async def main():
        world = World()
        async with world.process(kind=kind) as queue:
            await queue.enqueue("t", b"")
            [job] = await queue.dequeue("t")
            await queue.ack(job)
            before = await world.memory.read()
            await queue.ack(job)
            await world.honest().ack(job)
            assert before == await world.memory.read()

    run(main())
