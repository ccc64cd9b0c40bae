"""Waits, stale claims, rates and cron entries: the tests that need a clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.domain.operations.rules import PauseSchedule, Reset, SetSchedule
from jqueue.ports.queue import JobQueue
from jqueue.runtime.system import SystemClock
from jqueue.testing.queue_contract import HOUR, QueueContractBase, QueueFactory

HOURLY = "0 * * * *"
SCHEDULED_FOR = "jqueue-scheduled-for"
NOON = datetime(2031, 5, 6, 12, 0, tzinfo=UTC)


def occurrence(job: Job) -> datetime:
    """Return the time for which a cron entry enqueued a job."""
    return datetime.fromisoformat(job.headers[SCHEDULED_FOR])


class SetClock(SystemClock):
    """A clock that shows the time it was set to."""

    def __init__(self, time: datetime) -> None:
        super().__init__()
        self.time = time

    def now(self) -> datetime:
        """Return the time that was set."""
        return self.time


class ClockedContract(QueueContractBase):
    """Opens queues on a clock that tests set."""

    @asynccontextmanager
    async def clocked(self, make_queue: QueueFactory, count: int = 1) -> AsyncIterator[tuple[SetClock, list[JobQueue]]]:
        """Open queue objects on one settable clock. Skip the test if their time comes from elsewhere."""
        clock = SetClock(NOON - timedelta(minutes=30))
        async with self.queues(make_queue, count, ["schedules"], clock=clock) as queues:
            if await self.time(queues[0]) != clock.time:
                pytest.skip("the time of this queue comes from its store")
            assert len(await queues[0].dequeue("clock")) == 1
            yield clock, queues


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


class SchedulesContract(ClockedContract):
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

    async def test_queues_that_dequeue_at_once_fire_an_entry_once(self, make_queue: QueueFactory) -> None:
        async with self.clocked(make_queue, 3) as (clock, queues):
            await queues[0].schedule("one", HOURLY, "work")
            await queues[1].schedule("two", "*/15 * * * *", "work")
            for hour in range(4):
                clock.time = NOON + timedelta(hours=hour, seconds=hour)
                answers = await asyncio.gather(*(queue.dequeue("work", batch_size=9) for queue in queues * 2))
                jobs = [job for answer in answers for job in answer]
                assert len(jobs) == 2
                assert {occurrence(job) for job in jobs} == {NOON + timedelta(hours=hour)}
                assert sorted(job.id.split(":")[1] for job in jobs) == ["one", "two"]

    async def test_a_paused_entry_passes_its_times_and_an_operators_one_stays(self, make_queue: QueueFactory) -> None:
        async with self.clocked(make_queue, 2) as (clock, [queue, other]):
            declared = SetSchedule("one", HOURLY, "work", by="program")
            await queue.apply(declared, PauseSchedule("one"))
            await other.apply(SetSchedule("one", HOURLY, "work", b"new", by="operator"))
            for hour, fired in enumerate((False, False, True)):
                clock.time = NOON + timedelta(hours=hour, seconds=9)
                assert len(await queue.dequeue("work")) == fired
                if hour == 1:
                    [entry] = await other.apply(PauseSchedule("one", paused=False))
                    assert entry.next_at == NOON + timedelta(hours=2)
                    assert await queue.dequeue("work") == [], "a missed time was made up for"
            [entry] = await queue.apply(declared)
            assert (entry.payload, entry.paused) == (b"new", False)
            await other.apply(Reset(schedule="one"))
            assert [each.payload for each in await queue.schedules()] == [b""]

    async def test_a_job_fired_is_as_the_entry_says(self, make_queue: QueueFactory) -> None:
        async with self.clocked(make_queue, 2) as (clock, [queue, other]):
            options: dict[str, Any] = {}
            values: dict[str, dict[str, Any]] = {
                "priority": {"priority": -3},
                "dead_letters": {"max_attempts": 5},
                "headers": {"headers": {"name": "text"}},
                "unique_keys": {"unique_key": "the-key"},
                "results": {"keep_result": 60.0},
                "limits": {"concurrency_key": "another", "concurrency_limit": 4, "fair_key": "one", "fair_weight": 0.5},
            }
            for name in values.keys() - set(queue.capabilities.missing):
                options |= values[name]
            await queue.schedule("the-name", HOURLY, "work", b"payload", **options)
            clock.time = NOON + timedelta(seconds=3)
            [job] = await other.dequeue("work", batch_size=9)
            assert (job.id, job.payload, job.created_at) == (
                f"cron:the-name:{NOON.isoformat()}",
                b"payload",
                clock.time,
            )
            headers = {**options.pop("headers", {}), SCHEDULED_FOR: NOON.isoformat()}
            assert (headers, options) == (dict(job.headers), {name: getattr(job, name) for name in options})
