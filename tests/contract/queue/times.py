"""Waits, stale claims, rates and cron entries: the tests that need a clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from jqueue.domain.job import JobStatus
from jqueue.testing.queue_contract import HOUR, HOURLY, NOON, QueueContractBase, QueueFactory, occurrence


class TimingContract(QueueContractBase):
    """Jobs become ready on time, consumers wait for them, claims end when they are not confirmed, and rates hold."""

    async def test_a_wait_ends_with_nothing_when_it_is_over(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["wait"]) as [queue]:
            loop = asyncio.get_running_loop()
            began = loop.time()
            assert await queue.dequeue("work", wait=timedelta(seconds=self.moment)) == []
            assert loop.time() - began >= self.moment * 0.9, "the dequeue returned too early"

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

    async def test_a_job_whose_workers_vanish_is_dead_when_its_attempts_are_used_up(
        self, make_queue: QueueFactory
    ) -> None:
        async with self.queues(make_queue, 2, ["claim_timeout", "wait", "dead_letters"]) as [queue, other]:
            enqueued = await queue.enqueue("work", b"payload", max_attempts=2)
            for _ in range(2):
                assert len(await other.dequeue("work", wait=self.patience, claim_timeout=self.moment)) == 1

            async def is_dead() -> bool:
                await queue.dequeue("work")
                return (await self.held(queue, enqueued)).status is JobStatus.DEAD

            await self.until(is_dead)
            dead = await self.held(queue, enqueued)
            assert (dead.attempt, dead.failures, bool(dead.error)) == (2, 2, True)


class SchedulesContract(QueueContractBase):
    """A due entry becomes a job at the next dequeue, in the same commit. All missed occurrences become one job."""

    async def test_after_a_gap_the_last_time_missed_becomes_one_job(self, make_queue: QueueFactory) -> None:
        async with self.clocked(make_queue, 2) as (clock, [queue, other]):
            await queue.schedule("the-name", HOURLY, "work")
            clock.time = NOON + timedelta(days=3, hours=7, minutes=20)
            [job] = await other.dequeue("work", batch_size=9)
            assert occurrence(job) == NOON + timedelta(days=3, hours=7)
            assert await queue.dequeue("work", batch_size=9) == []
            [entry] = await queue.schedules()
            assert entry.next_at == NOON + timedelta(days=3, hours=8)

    async def test_an_entry_whose_job_is_still_there_with_its_key_is_skipped(self, make_queue: QueueFactory) -> None:
        async with self.clocked(make_queue) as (clock, [queue]):
            if not queue.capabilities.unique_keys:
                pytest.skip("this queue does not support unique_keys")
            await queue.schedule("the-name", HOURLY, "work", unique_key="the-key")
            clock.time = NOON
            [job] = await queue.dequeue("work")
            clock.time += timedelta(hours=1)
            assert await queue.dequeue("work") == [], "a second job was added beside the first"
            await queue.ack(job)
            assert await queue.dequeue("work") == [], "a skipped time was made up for"
            clock.time += timedelta(hours=1)
            [job] = await queue.dequeue("work", batch_size=9)
            assert occurrence(job) == NOON + timedelta(hours=2)
