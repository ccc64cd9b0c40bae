"""Cron entries: each occurrence becomes one job, no matter which and how many queue objects dequeue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jqueue.domain.models import Job
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import (
    HOURLY,
    NOON,
    SCHEDULED_FOR,
    QueueContractBase,
    QueueFactory,
    occurrence,
)


class SchedulesContract(QueueContractBase):
    """A due entry becomes a job at the next dequeue, in the same commit. All missed occurrences become one job."""

    async def fired(self, queue: JobQueue) -> list[Job]:
        """Return the jobs in the queue that cron entries have enqueued."""
        return [job for job in (await queue.read_state()).jobs if SCHEDULED_FOR in job.headers]

    # Setting and removing

    async def test_an_entry_is_there_until_it_is_removed(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 2, ["schedules"]) as [queue, other]:
            began = await self.time(queue)
            noon = await queue.schedule("noon", "0 12 * * *", "work", b"payload", timezone="Europe/Berlin")
            assert (noon.name, noon.cron, noon.entrypoint, noon.payload) == ("noon", "0 12 * * *", "work", b"payload")
            assert began < noon.next_at <= began + timedelta(hours=25)
            assert noon.next_at.minute == 0
            assert noon.next_at.hour in (10, 11)
            earlier = await other.schedule("earlier", HOURLY, "work")
            assert [earlier, noon] == await queue.schedules() == await other.schedules(), "by name"
            assert await other.unschedule("noon") is True
            assert await queue.unschedule("noon") is False
            assert [earlier] == await queue.schedules()

    async def test_an_equal_entry_set_again_changes_nothing(self, make_queue: QueueFactory) -> None:
        options: dict[str, Any] = {
            "payload": b"payload",
            "timezone": "America/New_York",
            "priority": -3,
            "headers": {"name": "text"},
            "keep_result": timedelta(minutes=1),
            "concurrency_key": "another",
            "concurrency_limit": 4,
        }
        others = {"payload": b"other", "timezone": "UTC", "keep_result": 5, "concurrency_limit": 5}
        async with self.queues(make_queue, 2, ["schedules", "priority", "limits", "results"]) as [queue, other]:
            first = await queue.schedule("the-name", HOURLY, "work", **options)
            before = await self.fingerprint(queue)
            for asked in (queue, other):
                assert first == await asked.schedule("the-name", HOURLY, "work", **options)
            assert before == await self.fingerprint(queue)
            for name, value in others.items():
                after = await other.schedule("the-name", HOURLY, "work", **{**options, name: value})
                assert after != first, f"a changed {name} was ignored"
                assert first == await other.schedule("the-name", HOURLY, "work", **options)

    async def test_an_entry_removed_fires_no_more_and_its_jobs_stay(self, make_queue: QueueFactory) -> None:
        async with self.clocked(make_queue, 2) as (clock, [queue, other]):
            await queue.schedule("the-name", HOURLY, "work")
            clock.time = NOON
            assert await queue.dequeue("nobody") == [], "a dequeue must fire due entries and return none of their jobs"
            assert await other.unschedule("the-name") is True
            clock.time = NOON + timedelta(hours=5)
            [job] = await other.dequeue("work", batch_size=9)
            assert occurrence(job) == NOON

    # Firing

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
