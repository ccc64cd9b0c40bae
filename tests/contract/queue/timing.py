"""Time: delays, expiry, waiting for jobs, and claims that are no longer confirmed."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from jqueue.domain.models import JobStatus
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory, ids


class TimingContract(QueueContractBase):
    """Jobs become ready on time, consumers wait for them, and claims end when they are not confirmed."""

    async def test_a_delayed_job_is_scheduled_and_not_claimed(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["delay"]) as [queue, other]:
            later = await queue.enqueue("work", b"later", delay=HOUR)
            now = await queue.enqueue("work", b"now")
            assert later.run_at == later.created_at + HOUR
            assert (await other.stats()).scheduled == 1
            assert ids([now]) == ids(await other.dequeue(batch_size=9))

    async def test_a_job_may_name_the_time_from_which_it_runs(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["delay"]) as [queue]:
            began = await self.time(queue)
            await queue.enqueue("work", b"tomorrow", run_at=began + timedelta(days=1))
            past = await queue.enqueue("work", b"yesterday", run_at=began - timedelta(days=1))
            assert ids([past]) == ids(await queue.dequeue("work", batch_size=9))

    async def test_a_job_whose_time_has_come_takes_its_place_in_commit_order(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["delay"]) as [queue]:
            first = await queue.enqueue("work", b"first", delay=self.moment)
            second = await queue.enqueue("work", b"second")

            async def is_due() -> bool:
                return (await queue.stats()).ready == 2

            await self.until(is_due)
            assert ids([first, second]) == ids(await queue.dequeue("work", batch_size=9))

    async def test_a_claimed_job_does_not_expire(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["expiry"]) as [queue]:
            job, expiry = await self.expiring_job(queue)
            await self.until_after(queue, expiry)
            await queue.dequeue("nobody")
            await queue.ack(job)

    async def test_a_waiting_dequeue_is_answered_by_an_enqueue_through_its_own_queue(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 1, ["wait"]) as [queue]:
            waiting = asyncio.create_task(queue.dequeue("work", wait=self.patience))
            await queue.enqueue("other", b"not this one")
            enqueued = await queue.enqueue("work", b"payload")
            assert ids([enqueued]) == ids(await waiting)

    async def test_a_wait_ends_with_nothing_when_it_is_over(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["wait"]) as [queue]:
            loop = asyncio.get_running_loop()
            began = loop.time()
            assert await queue.dequeue("work", wait=timedelta(seconds=self.moment)) == []
            assert loop.time() - began >= self.moment * 0.9, "the dequeue returned too early"

    async def test_a_wait_that_is_not_needed_is_not_waited_for(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["wait"]) as [queue]:
            enqueued = await queue.enqueue("work", b"payload")
            assert ids([enqueued]) == ids(await queue.dequeue("work", batch_size=9, wait=1000 * self.patience))

    async def test_of_several_waiting_dequeues_each_job_answers_one(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 3, ["wait"]) as [queue, *consumers]:
            waiting = [
                asyncio.create_task(consumer.dequeue("work", wait=self.patience))
                for consumer in consumers
                for _ in range(3)
            ]
            enqueued = [(await queue.enqueue("work", b"%d" % number)).id for number in range(len(waiting))]
            answers = await asyncio.gather(*waiting)
            assert [len(jobs) for jobs in answers] == [1] * len(waiting)
            assert sorted(enqueued) == sorted(ids(job for jobs in answers for job in jobs))

    async def test_a_claim_that_is_confirmed_lasts(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["claim_timeout", "wait", "heartbeat"]) as [queue, other]:
            timeout = 8 * self.moment
            await queue.enqueue("work", b"payload")
            [job] = await queue.dequeue("work", claim_timeout=timeout)
            stealing = asyncio.create_task(other.dequeue("work", wait=timeout + 4 * self.moment))
            while not stealing.done():
                await queue.heartbeat(job)
                await asyncio.wait([stealing], timeout=self.moment)
            assert stealing.result() == [], "a claim was revoked although it was confirmed in time"
            await queue.ack(job)

    async def test_the_timeout_of_a_claim_is_its_own_and_not_that_of_who_looks(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["claim_timeout", "wait"]) as [queue]:
            await queue.enqueue("work", b"payload")
            [job] = await queue.dequeue("work", claim_timeout=HOUR)
            assert await queue.dequeue("work", wait=4 * self.moment, claim_timeout=self.moment / 4) == []
            await queue.ack(job)

    @pytest.mark.parametrize("attempts", [1, 2])
    async def test_a_job_whose_workers_vanish_is_dead_when_its_attempts_are_used_up(
        self, make_queue: QueueFactory, attempts: int
    ) -> None:
        async with self.queues(make_queue, 2, ["claim_timeout", "wait", "dead_letters"]) as [queue, other]:
            enqueued = await queue.enqueue("work", b"payload", max_attempts=attempts)
            for _ in range(attempts):
                [job] = await other.dequeue("work", wait=self.patience, claim_timeout=self.moment)

            async def is_dead() -> bool:
                await queue.dequeue("work")
                return (await self.held(queue, enqueued)).status is JobStatus.DEAD

            await self.until(is_dead)
            dead = await self.held(queue, enqueued)
            assert (dead.attempt, dead.failures) == (attempts, attempts)
            assert dead.error
            assert job.attempt == attempts
