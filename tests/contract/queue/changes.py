"""Changes by operators: rescheduling, other priorities, retention of dead jobs, several operations in one commit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jqueue.domain.errors import ClaimLostError, InvalidJobError, JobNotFoundError, JobStateError
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.operations import Ack, Cancel, Enqueue, Nack
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory, ids


class ChangesContract(QueueContractBase):
    """A waiting job may get another time or priority. A dead job leaves when its retention is over."""

    async def unchangeable(self, queue: JobQueue) -> list[tuple[Job, str]]:
        """Make jobs that are not queued, and return each with its status."""
        jobs = [(await self.one_job(queue), "in_progress")]
        if queue.capabilities.dead_letters:
            dead = await self.one_job(queue)
            await queue.nack(dead, dead=True)
            jobs.append((dead, "dead"))
        if queue.capabilities.results:
            done = await self.one_job(queue, keep_result=HOUR)
            await queue.ack(done)
            jobs.append((done, "completed"))
        return jobs

    # Time and priority

    async def test_a_job_put_off_may_be_brought_forward_to_its_place(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["reschedule", "delay"]) as [queue, operator]:
            first = await queue.enqueue("work", b"payload", delay=HOUR)
            second = await queue.enqueue("work", b"payload")
            third = await queue.enqueue("work", b"payload", delay=HOUR)
            past = await self.time(queue) - timedelta(seconds=5)  # past by any of the clocks
            await operator.reschedule(third.id, run_at=past)
            await operator.reschedule(first.id, delay=0)
            assert ids([first, second, third]) == ids(await queue.dequeue("work", batch_size=9))

    async def test_a_waiting_dequeue_is_answered_at_the_new_time(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["reschedule", "delay", "wait"]) as [queue, operator]:
            job = await queue.enqueue("work", b"payload", delay=HOUR)
            moved = await operator.reschedule(job.id, run_at=await self.time(queue) + timedelta(seconds=self.moment))
            [served] = await queue.dequeue("work", wait=self.patience)
            assert served.heartbeat_at is not None
            assert moved.run_at is not None
            assert served.heartbeat_at >= moved.run_at

    async def test_a_job_that_waits_may_get_another_priority_and_keeps_its_place_in_it(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["reschedule", "priority"]) as [queue, operator]:
            enqueued = [await queue.enqueue("work", b"payload", priority) for priority in (0, 0, 5, 0)]
            after = await operator.reprioritise(enqueued[1].id, 7)
            assert after == enqueued[1].evolve(priority=7) == await self.held(queue, after)
            await operator.reprioritise(enqueued[2].id, 0)
            await operator.reprioritise(enqueued[3].id, -1)
            expected = [enqueued[number].id for number in (3, 0, 2, 1)]
            assert expected == ids(await queue.dequeue(batch_size=9))

    async def test_the_same_time_or_priority_again_is_not_written(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["reschedule", "priority", "delay"]) as [queue, operator]:
            job = await queue.enqueue("work", b"payload", 3, delay=HOUR)
            before = await self.fingerprint(queue)
            assert job == await operator.reprioritise(job.id, 3)
            assert job == await operator.reschedule(job.id, run_at=job.run_at)
            assert before == await self.fingerprint(queue)

    async def test_only_a_job_that_waits_can_be_changed(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["reschedule"]) as [queue]:
            jobs = await self.unchangeable(queue)
            before = await self.fingerprint(queue)
            for job, status in jobs:
                for call in (queue.reschedule(job.id, delay=5), queue.reprioritise(job.id, 5)):
                    with pytest.raises(JobStateError, match=status) as raised:
                        await call
                    assert (raised.value.job_id, raised.value.status) == (job.id, status)
            for call in (queue.reschedule("no-such-job", delay=5), queue.reprioritise("no-such-job", 5)):
                with pytest.raises(JobNotFoundError, match="no-such-job"):
                    await call
            assert before == await self.fingerprint(queue)

    async def test_an_expired_job_cannot_be_brought_back(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["reschedule", "expiry"]) as [queue]:
            past = await self.time(queue) - HOUR
            for change in (queue.reschedule, queue.reprioritise):
                job = await queue.enqueue("work", b"payload", expires_at=past)
                arguments: dict[str, Any] = {"delay": 0} if change == queue.reschedule else {"priority": 5}
                with pytest.raises(JobNotFoundError):
                    await change(job.id, **arguments)

    # Retention

    async def test_dead_jobs_leave_when_they_were_kept_for_long_enough(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["retention", "dead_letters"]) as [queue, operator]:
            dead = await self.one_job(queue)
            await queue.nack(dead, dead=True)
            assert (
                await operator.configure(dead_retention=timedelta(seconds=self.moment))
            ).dead_retention == self.moment

            async def is_gone() -> bool:
                await queue.dequeue("work")
                return await self.find(operator, dead) is None

            await self.until(is_gone)
            with pytest.raises(JobNotFoundError):
                await operator.redrive(dead.id)

    async def test_dead_jobs_stay_until_then_and_for_ever_if_nothing_is_said(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["retention", "dead_letters"]) as [queue, operator]:
            dead = await self.one_job(queue)
            await queue.nack(dead, dead=True)
            assert (await operator.configure(dead_retention=HOUR)).dead_retention == 3600
            assert await queue.dequeue("work") == []
            assert await self.find(queue, dead) is not None
            assert (await operator.configure()).dead_retention == 3600
            assert (await operator.configure(dead_retention=None)).dead_retention is None
            assert (await self.held(queue, dead)).dead_at is not None
            waiting = await self.until_dead_for(queue, dead)
            assert await queue.dequeue("work") == []
            assert waiting.status is JobStatus.DEAD
            assert await queue.redrive(dead.id) == 1

    async def until_dead_for(self, queue: JobQueue, job: Job) -> Job:
        """Wait until a job has been dead for a moment, and return it."""
        dead = await self.held(queue, job)
        assert dead.dead_at is not None
        await self.until_after(queue, dead.dead_at + timedelta(seconds=self.moment))
        return await self.held(queue, job)

    async def test_a_redriven_job_is_not_taken_for_a_dead_one(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["retention", "dead_letters"]) as [queue]:
            dead = await self.one_job(queue)
            await queue.nack(dead, dead=True)
            assert await queue.redrive(dead.id) == 1
            await queue.configure(dead_retention=0)
            assert ids(await queue.dequeue("work")) == [dead.id]

    # Independent operations

    async def test_of_several_things_each_is_done_or_refused_for_itself_and_in_order(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["fencing"]) as [queue, operator]:
            lost = await self.lost_claim(queue, operator)
            assert len(await operator.dequeue()) == 1
            acked, given_back = await self.one_job(queue), await self.one_job(queue)
            wrong: Any = "text"
            results = await queue.apply_each(
                Ack(lost),
                Enqueue("next", b"first"),
                Enqueue("next", wrong),
                Ack(acked),
                Cancel("no-such-job"),
                Nack(given_back),
                Enqueue("next", b"second"),
            )
            refusals = {0: ClaimLostError, 2: InvalidJobError, 4: JobNotFoundError}
            kinds = {place: type(result) for place, result in enumerate(results) if isinstance(result, Exception)}
            assert kinds == refusals
            assert [results[3], results[5]] == [None, None]
            assert [results[1].payload, results[6].payload] == [b"first", b"second"]
            assert ids([results[1], results[6]]) == ids(await queue.dequeue("next", batch_size=9))
            assert await self.find(queue, acked) is None
            assert (await self.held(queue, given_back)).status is JobStatus.QUEUED

    async def test_where_all_are_refused_nothing_is_written(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1) as [queue]:
            await queue.enqueue("work", b"payload")
            before = await self.fingerprint(queue)
            assert await queue.apply_each() == []
            results = await queue.apply_each(Cancel("no-such-job"), Enqueue("", b"payload"), Ack("no-such-job"))
            assert [type(result) for result in results] == [JobNotFoundError, InvalidJobError, JobNotFoundError]
            [result] = await queue.apply_each(Enqueue("work", b"payload", 2**40))
            assert isinstance(result, InvalidJobError)
            assert before == await self.fingerprint(queue)
