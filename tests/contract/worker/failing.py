"""The worker contract: failing jobs are retried or end as dead, and do not affect other jobs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from jqueue.domain.models import JobStatus
from jqueue.worker.context import Context
from jqueue.worker.report import RunReport
from jqueue.worker.retries import Discard, Exponential, Retry, Snooze
from tests.contract.worker.base import AT_ONCE, QueueFactory, WorkerContractBase, message_of

LONG = Exponential(base=3600, cap=3600)
SECRET = b"S3CR3T-MARKER"


class FailingContract(WorkerContractBase):
    """Retries, and how they end."""

    async def test_a_failing_job_is_tried_again_until_it_is_dead(self, make_queue: QueueFactory) -> None:
        worker, attempts = self.new_worker(), []

        @worker.handler("work", max_attempts=3, backoff=AT_ONCE)
        async def work(ctx: Context) -> None:
            attempts.append(ctx.attempt)
            raise ValueError(f"try {ctx.attempt}")

        async with self.queues(make_queue, 2, needs={"dead_letters", "delay", "errors"}) as [queue, other]:
            job = await queue.enqueue("work", b"")  # without max_attempts: the handler's count
            async with self.working(worker, queue) as task:
                dead = await self.until_is(other, job, JobStatus.DEAD)
                assert (message_of(dead), dead.failures) == ("ValueError: try 3", 3)
            assert attempts == [1, 2, 3]
            assert task.result() == RunReport(failed=2, dead=1)

    async def test_a_failed_job_waits_for_its_backoff(self, make_queue: QueueFactory) -> None:
        worker = self.new_worker()

        @worker.handler("work", backoff=LONG)
        async def work() -> None:
            raise Retry(after=1800, reason="the API is down")

        @worker.handler("drawn", backoff=LONG)
        async def drawn() -> None:
            raise ValueError("no")

        async with self.queues(make_queue, needs={"delay", "errors", "dead_letters"}) as [queue]:
            asked, left = await work.enqueue(queue), await drawn.enqueue(queue)
            assert await self.drain(worker, queue) == RunReport(failed=2)
            now = await self.time(queue)
            job = await self.held(queue, asked)
            assert job.run_at is not None
            assert timedelta(seconds=1800 - self.patience) < job.run_at - now <= timedelta(seconds=1800)
            assert (job.status, job.failures, job.error) == (JobStatus.QUEUED, 1, "Retry: the API is down")
            job = await self.held(queue, left)
            assert job.run_at is not None
            assert job.run_at - now <= timedelta(seconds=3600)

    async def test_a_discarded_job_is_dead_at_once(self, make_queue: QueueFactory) -> None:
        worker = self.new_worker()

        @worker.handler("work", max_attempts=20)
        async def work() -> None:
            raise Discard("the user is gone")

        async with self.queues(make_queue, needs={"dead_letters", "errors"}) as [queue]:
            job = await work.enqueue(queue)
            assert await self.drain(worker, queue) == RunReport(dead=1)
            dead = await self.held(queue, job)
            assert (dead.status, dead.error) == (JobStatus.DEAD, "Discard: the user is gone")

    async def test_a_snoozed_job_comes_back_uncharged(self, make_queue: QueueFactory) -> None:
        worker, failures = self.new_worker(), []

        @worker.handler("work", max_attempts=1)
        async def work(ctx: Context) -> None:
            failures.append(ctx.job.failures)
            if ctx.attempt < 3:
                raise Snooze(0.001)

        async with self.queues(make_queue, 2, needs={"delay", "uncharged", "dead_letters"}) as [queue, other]:
            await work.enqueue(queue)
            async with self.working(worker, queue) as task:
                await self.until_empty(other)
            assert failures == [1, 1, 1], "a snooze must not count as a failure"
            assert task.result() == RunReport(succeeded=1, snoozed=2)

    async def test_a_handler_that_takes_too_long_is_stopped_and_charged(self, make_queue: QueueFactory) -> None:
        worker, stopped = self.new_worker(), []

        @worker.handler("work", timeout=self.moment / 10, backoff=LONG)
        async def work(ctx: Context) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.append(ctx.is_cancelled)

        async with self.queues(make_queue, needs={"delay", "errors", "dead_letters"}) as [queue]:
            job = await work.enqueue(queue)
            assert await self.drain(worker, queue) == RunReport(failed=1)
            assert stopped == [True]
            job = await self.held(queue, job)
            assert (job.status, job.failures) == (JobStatus.QUEUED, 1)
            assert job.error is not None
            assert job.error.startswith("timed out after")

    async def test_a_payload_that_is_not_what_its_handler_takes_is_dead_at_once(
        self, make_queue: QueueFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        worker, runs = self.new_worker(), []
        caplog.set_level(0)

        @worker.handler("work", max_attempts=20)
        async def work(number: int) -> None:
            runs.append(number)

        async with self.queues(make_queue, needs={"dead_letters", "errors"}) as [queue]:
            bad = [await queue.enqueue("work", payload) for payload in (SECRET, b'"%s"' % SECRET, b"", b"\xff")]
            await queue.enqueue("work", b"1")
            assert await self.drain(worker, queue) == RunReport(succeeded=1, dead=4)
            assert runs == [1]
            for job in bad:
                dead = await self.held(queue, job)
                assert dead.status is JobStatus.DEAD
                assert dead.error
                assert SECRET.decode() not in dead.error, "the stored error must not show the payload"
        assert SECRET.decode() not in caplog.text, "the log must not show the payload"

    async def test_a_job_that_kills_its_workers_is_dead_without_being_run_again(self, make_queue: QueueFactory) -> None:
        worker = self.new_worker()
        seen = self.collector(worker, max_attempts=2)
        async with self.queues(make_queue, 2, needs={"dead_letters"}) as [queue, other]:
            job = await queue.enqueue("work", b"")
            for _ in range(2):  # claimed by workers that die
                assert len(await other.dequeue("work")) == 1
                assert await queue.requeue_stale(0) == 1
            assert await self.drain(worker, queue) == RunReport(dead=1)
            assert (await self.held(queue, job)).status is JobStatus.DEAD
            assert not seen

    async def test_one_failing_job_does_not_fail_the_others(self, make_queue: QueueFactory) -> None:
        worker, seen = self.new_worker(concurrency=4), []

        @worker.handler("work", backoff=LONG, max_attempts=1)
        async def work(number: int) -> None:
            if number == 3:
                raise SystemExit(1)
            if number == 4:
                raise asyncio.CancelledError
            seen.append(number)

        async with self.queues(make_queue, needs={"dead_letters"}) as [queue]:
            await self.enqueue_all(queue, "work", [b"%d" % number for number in range(8)])
            assert await self.drain(worker, queue) == RunReport(succeeded=6, dead=2)
            assert sorted(seen) == [0, 1, 2, 5, 6, 7]

    async def test_a_job_that_fails_where_the_queue_can_keep_little_is_still_tried_again(
        self, make_queue: QueueFactory
    ) -> None:
        worker, attempts = self.new_worker(), []

        @worker.handler("work", backoff=AT_ONCE)
        async def work(ctx: Context) -> None:
            attempts.append(ctx.attempt)
            if ctx.attempt == 1:
                raise ValueError("the first time")

        async with self.queues(make_queue, 2) as [queue, other]:
            await queue.enqueue("work", b"")
            async with self.working(worker, queue):
                await self.until_empty(other)
            assert attempts == [1, 2]
