"""A set of queues: the order of their jobs, and the queue of each claim."""

import asyncio

import pytest

from jqueue import ClaimLostError, InMemoryStorage, InvalidJobError, JobNotFoundError, JobStatus
from jqueue.operations import Ack, Enqueue, Heartbeat, Nack
from jqueue.testing.virtual_time import VirtualClock
from tests.sets_of_queues import Plain, all_of, blob, ids, set_of, two
from tests.virtual_world import in_virtual_time


class TestOrder:
    @in_virtual_time
    async def test_the_oldest_job_of_all_queues_is_next(self):
        assert ["0", "1", "2", "3"] == await all_of(set_of(*await two()))

    @in_virtual_time
    async def test_a_batch_is_in_order_across_queues(self):
        first, second = await two()
        assert ["0", "1", "2", "3"] == await all_of(set_of(second, first), batch_size=9)

    @in_virtual_time
    async def test_priority_comes_before_age(self):
        first, second = await two()
        await second.enqueue("work", b"", priority=-1, job_id="urgent")
        await first.enqueue("work", b"", priority=1, job_id="any time")
        assert ["urgent", "0", "1", "2", "3", "any time"] == await all_of(set_of(first, second), batch_size=2)

    @in_virtual_time
    async def test_a_scheduled_job_is_as_old_as_its_time(self):
        first, second = await two()
        await first.enqueue("work", b"", delay=0.5, job_id="later")
        await second.enqueue("work", b"", job_id="now")
        await asyncio.sleep(1)
        assert ["0", "1", "2", "3", "now", "later"] == await all_of(set_of(first, second))

    @in_virtual_time
    async def test_among_equals_the_queues_take_turns(self):
        queues = [blob() for _ in range(3)]
        for number, queue in enumerate(queues):
            await queue.enqueue_many([Enqueue("work", b"", job_id=f"{number}{letter}") for letter in "abc"])
        found = await all_of(set_of(*queues))
        assert [{"0", "1", "2"}] * 3 == [{name[0] for name in found[place : place + 3]} for place in (0, 3, 6)]
        assert ["0a", "0b", "0c"] == [name for name in found if name[0] == "0"]

    @in_virtual_time
    async def test_a_job_that_always_fails_does_not_block_other_queues(self):
        first, second = await two()
        queues = set_of(first, second)
        seen = []
        for _ in range(4):
            [job] = await queues.dequeue()
            seen.append(job.id)
            await asyncio.sleep(0.1)
            await (queues.nack(job) if job.id == "0" else queues.ack(job))
        assert ["0", "1", "2", "3"] == seen

    @in_virtual_time
    async def test_a_job_handed_back_unharmed_keeps_its_place(self):
        first, second = await two()
        queues = set_of(first, second)
        [job] = await queues.dequeue()
        await asyncio.sleep(9)
        await queues.nack(job, charge=False)
        assert ["0", "1", "2", "3"] == await all_of(queues)

    @in_virtual_time
    async def test_only_jobs_that_are_handed_out_are_claimed(self):
        first, second = await two()
        before = await second.read_state()
        [job] = await set_of(first, second).dequeue()
        assert "0" == job.id
        assert before == await second.read_state(), "a look has changed a queue"

    @in_virtual_time
    async def test_limits_and_pauses_of_a_queue_hold(self):
        first, second = await two()
        await first.limit("work", running=1)
        await second.enqueue("other", b"", job_id="other")
        queues = set_of(first, second)
        jobs = await queues.dequeue(batch_size=9)
        assert ["0", "1", "3", "other"] == [job.id for job in jobs]
        await first.pause("work")
        await queues.ack_many(jobs)
        assert [] == await queues.dequeue()

    @in_virtual_time
    async def test_only_jobs_of_the_requested_entrypoints_are_claimed(self):
        first, second = await two()
        await second.enqueue("mail", b"", job_id="mail")
        assert ["mail"] == await all_of(set_of(first, second), entrypoint="mail")
        assert ["0", "1", "2", "3"] == await all_of(set_of(first, second), entrypoint=("work", "mail"))

    @in_virtual_time
    async def test_sets_may_be_in_sets(self):
        first, second = await two()
        third = blob()
        await third.enqueue("work", b"", job_id="4")
        assert ["0", "1", "2", "3", "4"] == await all_of(set_of(third, set_of(first, second)))

    @in_virtual_time
    async def test_a_queue_that_can_only_be_read_whole_can_be_a_member(self):
        first, second = await two()
        queues = set_of(first, Plain(second))
        assert ["0", "1", "2", "3"] == await all_of(queues)
        waiting = asyncio.create_task(queues.dequeue(wait=30))
        await asyncio.sleep(5)
        await second.enqueue("work", b"", job_id="late")
        assert ["late"] == [job.id for job in await waiting]

    @in_virtual_time
    async def test_two_sets_share_the_jobs(self):
        first, second, third = (InMemoryStorage(clock=VirtualClock()) for _ in range(3))
        for storage in (first, second, third):
            await blob(storage).enqueue_many([Enqueue("work", b"")] * 20)
        sets = [set_of(blob(first), blob(second), blob(third)) for _ in range(4)]
        found = await asyncio.gather(*(queues.dequeue(batch_size=15) for queues in sets))
        assert [15] * 4 == [len(jobs) for jobs in found]
        assert 60 == len({job.id for jobs in found for job in jobs})


class TestClaims:
    @in_virtual_time
    async def test_the_same_id_in_two_queues_finds_the_right_one(self):
        queues = [blob(), blob()]
        for queue in queues:
            await queue.enqueue("work", b"", job_id="same")
            await asyncio.sleep(1)
        both = set_of(*queues)
        one, other = await both.dequeue(batch_size=2)
        assert one.claim == other.claim
        assert [] == await both.heartbeat_many([one.claim, other.claim])
        for unclear in ("same", one.claim):
            with pytest.raises(InvalidJobError, match="several queues"):
                await both.ack(unclear)
        [error] = await both.ack_many(["same"])
        assert isinstance(error, InvalidJobError)
        await both.ack(other)
        assert [[JobStatus.IN_PROGRESS], []] == [[job.status for job in (await q.read_state()).jobs] for q in queues]
        await both.ack(other)  # again, as after a lost answer
        await both.ack("same")  # now it is clear which is meant
        assert 0 == await both.count()

    @in_virtual_time
    async def test_a_job_claimed_elsewhere_is_found(self):
        first, second = await two()
        jobs = [*await first.dequeue(batch_size=2), *await second.dequeue(batch_size=2)]
        queues = set_of(first, second)
        await queues.heartbeat(jobs[0])
        await queues.nack(jobs[0], error="no")
        assert [] == await queues.ack_many([job.claim for job in jobs[1:]])
        assert [] == await queues.ack_many(jobs[1:]), "an ack is not repeated from another object"
        assert ["0"] == await all_of(queues)

    @in_virtual_time
    async def test_lost_claims_and_unknown_jobs_raise_their_errors(self):
        first, second = await two()
        queues = set_of(first, second)
        jobs = await queues.dequeue(batch_size=4)
        assert 4 == await queues.requeue_stale(0)
        errors = await queues.heartbeat_many(jobs)
        assert {job.id for job in jobs} == {error.job_id for error in errors}
        for job in jobs:
            with pytest.raises(ClaimLostError):
                await queues.ack(job)
        with pytest.raises(JobNotFoundError):
            await queues.ack("no such job")
        with pytest.raises(JobNotFoundError):
            await queues.cancel("no such job")
        with pytest.raises(ClaimLostError):
            await queues.nack(jobs[0].evolve(id="no such job"))

    @in_virtual_time
    async def test_operations_of_one_apply_must_be_of_one_queue(self):
        first, second = await two()
        queues = set_of(first, second)
        one, other = await queues.dequeue(batch_size=2)
        with pytest.raises(InvalidJobError, match="several queues"):
            await queues.apply(Ack(one), Ack(other))
        with pytest.raises(InvalidJobError, match="call it on one queue of the set"):
            await queues.apply(Enqueue("next", b""))
        await queues.apply(Ack(other), Enqueue("next", b"", job_id="next"))
        assert ["3", "next"] == await ids(second)
        results = await queues.apply_each(Nack(one), Enqueue("next", b""), Heartbeat(("none",)), Ack(other))
        assert [None, InvalidJobError, JobNotFoundError, None] == [result and type(result) for result in results]

    @in_virtual_time
    async def test_a_cancelled_dequeue_claims_nothing(self):
        for steps in range(60):
            first, second = await two(between=0)
            queues = set_of(first, second)
            task = asyncio.create_task(queues.dequeue(batch_size=4))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            got = [] if task.cancelled() else task.result()
            await asyncio.sleep(1)
            await queues.aclose()
            held = [job for queue in (first, second) for job in (await queue.read_state()).in_progress_jobs()]
            assert len(got) == len(held), f"after {steps} steps"
            if not got:
                assert ([["0", "2"], ["1", "3"]]) == [await ids(first), await ids(second)]
