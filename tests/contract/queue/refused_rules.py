"""Refused limits, settings, cron entries and results: wrong input, before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from jqueue.domain.errors import QueueFullError
from jqueue.domain.limits import Limits
from jqueue.domain.operations import SetLimits, SetSchedule
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory
from tests.contract.queue.refusals import (
    BAD_DURATIONS,
    BAD_ENQUEUES,
    BAD_NAMES,
    NAIVE,
    RefusalsContract,
)

BAD_COUNTS: list[Any] = [0, -1, 1.5, True, "3", 2**64, [1]]
BAD_CRONS: list[Any] = [
    "",
    "* * * *",
    "* * * * * * *",
    "60 * * * *",
    "* 24 * * *",
    "* * 32 * *",
    "* * 0 * *",
    "0 0 30 2 *",
    "* * * 13 *",
    "* * * * MOO",
    "*/0 * * * *",
    "5-1 * * * *",
    "@daily",
    "a\nb * * * *",
    None,
    5,
    b"* * * * *",
]
BAD_ZONES: list[Any] = ["", "Europe/Nowhere", "../UTC", "/etc/passwd", "\0", "Europe", None, 5, b"UTC"]
BAD_ENTRIES: dict[str, list[Any]] = {
    "name": [*BAD_NAMES, None, "x" * 449],
    "cron": BAD_CRONS,
    "timezone": BAD_ZONES,
    "entrypoint": BAD_NAMES,
    "payload": BAD_ENQUEUES["payload"],
    "priority": BAD_ENQUEUES["priority"],
    "max_attempts": BAD_COUNTS,
    "headers": BAD_ENQUEUES["headers"],
    "unique_key": BAD_NAMES,
    "concurrency_key": BAD_NAMES,
    "concurrency_limit": [5],
    "keep_result": BAD_DURATIONS,
    "deadline": BAD_DURATIONS,
}


class RefusedRulesContract(RefusalsContract, QueueContractBase):
    """An invalid limit, setting or entry is refused, and leaves every byte of the queue unchanged."""

    async def test_bad_limits_are_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits"]) as [queue]:
            await queue.enqueue("work", b"payload")
            calls = self.calls(queue.limit, {"entrypoint": "work"}, {"running": BAD_COUNTS, "rate": [5], "per": [5]})
            calls += self.calls(queue.limit, {"entrypoint": "work", "per": 5}, {"rate": [*BAD_COUNTS, None]})
            calls += self.calls(queue.limit, {"entrypoint": "work", "rate": 5}, {"per": [*BAD_DURATIONS, 0, None]})
            calls += self.calls(queue.limit, {}, {"entrypoint": [*BAD_NAMES, None]})
            for verb in (queue.pause, queue.resume):
                calls += self.calls(verb, {}, {"entrypoint": [*BAD_NAMES, None]})
            calls += self.calls(queue.configure, {}, {"aging": [*BAD_DURATIONS, 0]})
            assert await self.refuse(queue, calls) == ""

    async def test_a_bad_retention_is_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["retention"]) as [queue]:
            await queue.enqueue("work", b"payload")
            assert await self.refuse(queue, self.calls(queue.configure, {}, {"dead_retention": BAD_DURATIONS})) == ""

    async def test_bad_changes_of_jobs_are_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["reschedule"]) as [queue]:
            job = await queue.enqueue("work", b"payload")
            good, time = {"job_id": job.id}, datetime(2030, 1, 1, tzinfo=UTC)
            calls = self.calls(queue.reschedule, good, {"delay": [*BAD_DURATIONS, None], "run_at": [NAIVE, "now", 5]})
            calls += self.calls(queue.reschedule, {**good, "delay": 5}, {"run_at": [time]})
            calls += self.calls(queue.reprioritise, good, {"priority": BAD_ENQUEUES["priority"]})
            calls += self.calls(queue.reschedule, {"delay": 5}, {"job_id": [*BAD_NAMES, None, job]})
            calls += self.calls(queue.reprioritise, {"priority": 5}, {"job_id": [*BAD_NAMES, None, job]})
            assert await self.refuse(queue, calls) == ""
            assert job == await self.held(queue, job)

    @pytest.mark.parametrize("argument", BAD_ENTRIES)
    async def test_a_bad_cron_entry_is_refused(self, make_queue: QueueFactory, argument: str) -> None:
        async with self.queues(make_queue, 1, ["schedules"], limits=Limits(payload_bytes=2000)) as [queue]:
            await queue.enqueue("work", b"payload")
            good = {"name": "the-name", "cron": "* * * * *", "entrypoint": "work"}
            assert await self.refuse(queue, self.calls(queue.schedule, good, {argument: BAD_ENTRIES[argument]})) == ""
            if argument == "name":
                assert await self.refuse(queue, self.calls(queue.unschedule, {}, {"name": [*BAD_NAMES, None]})) == ""
            assert await queue.schedules() == []

    async def test_a_full_queue_takes_no_cron_entry(self, make_queue: QueueFactory) -> None:
        needs = ["schedules", "size_limit"]
        async with self.queues(make_queue, 1, needs, limits=Limits(blob_bytes=20_000)) as [queue]:
            with pytest.raises(QueueFullError, match="room"):
                for number in range(20):
                    await queue.schedule(f"entry {number}", "0 0 1 1 *", "work", b"x" * 1000)
            before = await self.fingerprint(queue)
            entries = await queue.schedules()
            assert 5 <= len(entries) <= 17
            assert entries[0] == await queue.schedule(entries[0].name, "0 0 1 1 *", "work", b"x" * 1000)
            assert before == await self.fingerprint(queue)

    async def test_bad_waits_for_a_result_are_refused(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["results"]) as [queue]:
            job = await queue.enqueue("work", b"payload", keep_result=60)
            calls = self.calls(queue.result, {"job_id": job}, {"timeout": BAD_DURATIONS})
            calls += self.calls(queue.result, {"timeout": 0}, {"job_id": [*BAD_NAMES, None, []]})
            assert await self.refuse(queue, calls) == ""

    async def test_bad_operations_are_refused_before_the_good_ones_are_done(self, make_queue: QueueFactory) -> None:
        async with self.queues(make_queue, 1, ["limits", "schedules", "transactions"]) as [queue]:
            await queue.enqueue("work", b"payload")
            good, wrong = SetLimits("work", running=3), "ack"
            bad: list[Any] = [SetLimits("work", rate=5), SetSchedule("the-name", "never", "work"), wrong]
            calls = self.calls(lambda operation: queue.apply(good, operation), {}, {"operation": bad})
            calls += self.calls(lambda operation: queue.apply_each(good, operation), {}, {"operation": [wrong]})
            assert await self.refuse(queue, calls) == ""
            assert (await queue.read_state()).entrypoints == {}
