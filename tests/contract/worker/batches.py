"""The worker contract: batch handlers get several jobs at once, and each job has an outcome of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.worker.context import BatchContext
from jqueue.worker.report import RunReport
from jqueue.worker.retries import Discard, Exponential, Retry, Snooze
from tests.contract.worker.base import MANY_BEATS, Gate, QueueFactory, WorkerContractBase, message_of

LONG = Exponential(base=3600, cap=3600)
SECRET = "S3CR3T-MARKER"


class BatchContract(WorkerContractBase):
    """Handlers with `batch=...`."""

    async def test_a_batch_handler_gets_each_job_once_and_never_too_many_at_a_time(
        self, make_queue: QueueFactory
    ) -> None:
        worker, seen, sizes = self.new_worker(concurrency=2), Counter[int](), list[int]()

        @worker.handler("work", batch=4)
        async def work(numbers: list[int], ctx: BatchContext) -> None:
            assert [b"%d" % number for number in numbers] == [job.payload for job in ctx.jobs]
            assert [(1, "work")] * len(numbers) == [(each.attempt, each.entrypoint) for each in ctx]
            seen.update(numbers)
            sizes.append(len(numbers))

        async with self.queues(make_queue) as [queue]:
            await self.enqueue_all(queue, "work", [b"%d" % number for number in range(10)])
            assert await self.drain(worker, queue) == RunReport(succeeded=10)
            assert (await queue.read_state()).jobs == ()
        assert seen == dict.fromkeys(range(10), 1)
        assert max(sizes) == 4

    async def test_a_batch_takes_one_slot_and_claims_no_more_jobs_than_it_holds(self, make_queue: QueueFactory) -> None:
        worker, gate = self.new_worker(concurrency=2), Gate()

        @worker.handler("work", batch=3)
        async def work(payloads: list[bytes]) -> None:
            await gate.through()

        async with self.queues(make_queue, 2) as [queue, observer]:
            await self.enqueue_all(queue, "work", [b""] * 12)
            async with self.working(worker, queue):
                await gate.until_entered(2)
                assert await self.in_progress(observer) == 6
                gate.open()
                await self.until_empty(observer)
            assert (gate.entered, gate.peak) == (4, 2)

    async def test_jobs_of_a_batch_fail_alone(self, make_queue: QueueFactory) -> None:
        worker = self.new_worker()
        fates = [None, ValueError("no"), Discard("gone"), Retry(after=1800), Snooze(1800), Discard]

        @worker.handler("work", batch=10, backoff=LONG)
        async def work(places: list[int]) -> list[BaseException | type[BaseException] | None]:
            return [fates[place] for place in places]

        async with self.queues(make_queue, needs={"dead_letters", "errors", "delay", "uncharged"}) as [queue]:
            jobs = [await work.enqueue(queue, place) for place in range(len(fates))]
            assert await self.drain(worker, queue) == RunReport(succeeded=1, failed=2, dead=2, snoozed=1)
            left = {job.id: job for job in (await queue.read_state()).jobs}
            now = await self.time(queue)
            assert set(left) == {job.id for job in jobs[1:]}
            failed, discarded, retried, snoozed, discarded_by_class = [left[job.id] for job in jobs[1:]]
            assert (failed.failures, message_of(failed)) == (1, "ValueError: no")
            assert (discarded.status, discarded.error) == (JobStatus.DEAD, "Discard: gone")
            assert discarded_by_class.status is JobStatus.DEAD
            assert (retried.failures, snoozed.failures) == (1, 0)
            for job in (retried, snoozed):
                assert job.run_at is not None
                assert timedelta(seconds=1800 - self.patience) < job.run_at - now <= timedelta(seconds=1800)

    async def test_a_batch_handler_that_raises_fails_each_job_by_its_own_count(self, make_queue: QueueFactory) -> None:
        worker = self.new_worker()

        @worker.handler("work", batch=10, max_attempts=2, backoff=LONG)
        async def work(payloads: list[bytes]) -> None:
            raise ValueError(f"{len(payloads)} jobs")

        async with self.queues(make_queue, needs={"dead_letters", "errors", "delay"}) as [queue]:
            first = await queue.enqueue("work", b"")
            [claimed] = await queue.dequeue("work")
            await queue.nack(claimed)
            second = await queue.enqueue("work", b"", max_attempts=1)
            third = await queue.enqueue("work", b"", max_attempts=3)
            assert await self.drain(worker, queue) == RunReport(failed=1, dead=2)
            for job, failures in ((first, 2), (second, 1)):
                dead = await self.held(queue, job)
                assert (dead.status, dead.failures, message_of(dead)) == (
                    JobStatus.DEAD,
                    failures,
                    "ValueError: 3 jobs",
                )
            left = await self.held(queue, third)
            assert (left.status, left.failures, message_of(left)) == (JobStatus.QUEUED, 1, "ValueError: 3 jobs")

    async def test_a_payload_that_does_not_validate_fails_without_its_batch(
        self, make_queue: QueueFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        worker, runs = self.new_worker(), list[int]()
        caplog.set_level(0)

        @worker.handler("work", batch=10, max_attempts=20)
        async def work(numbers: list[int], ctx: BatchContext) -> None:
            assert len(numbers) == len(ctx)
            runs.extend(numbers)

        async with self.queues(make_queue, needs={"dead_letters", "errors"}) as [queue]:
            bad = [await queue.enqueue("work", payload) for payload in (b'"%s"' % SECRET.encode(), b"")]
            await self.enqueue_all(queue, "work", [b"1", b"2"])
            bad.append(await queue.enqueue("work", b"\xff"))
            assert await self.drain(worker, queue) == RunReport(succeeded=2, dead=3)
            assert sorted(runs) == [1, 2]
            for job in bad:
                dead = await self.held(queue, job)
                assert dead.status is JobStatus.DEAD
                assert dead.error
                assert SECRET not in dead.error, "the stored error must not show the payload"
        assert SECRET not in caplog.text, "the log must not show the payload"

    async def test_each_job_of_a_batch_has_operations_that_are_done_with_its_ack(
        self, make_queue: QueueFactory
    ) -> None:
        worker, made = self.new_worker(), self.new_worker()
        seen = self.collector(made, "next")

        @worker.handler("work", batch=10, max_attempts=1)
        async def work(numbers: list[int], ctx: BatchContext) -> list[Exception | None]:
            for number, each in zip(numbers, ctx, strict=True):
                each.on_ack(Enqueue("next", b"%d" % number))
            return [ValueError("odd") if number % 2 else None for number in numbers]

        async with self.queues(make_queue, needs={"transactions", "dead_letters"}) as [queue]:
            await self.enqueue_all(queue, "work", [b"%d" % number for number in range(4)])
            assert await self.drain(worker, queue) == RunReport(succeeded=2, dead=2)
            await self.drain(made, queue)
        assert seen == {b"0": 1, b"2": 1}

    async def test_a_cancelled_job_is_told_and_its_batch_goes_on(self, make_queue: QueueFactory) -> None:
        worker, gate = self.new_worker(claim_timeout=MANY_BEATS * self.moment), Gate()
        told = asyncio.Event()

        @worker.handler("work", batch=3)
        async def work(payloads: list[bytes], ctx: BatchContext) -> None:
            [cancelled] = [each for each in ctx if each.job.payload == b"cancelled"]
            await asyncio.gather(gate.through(), cancelled.cancelled.wait())
            assert not ctx.is_cancelled
            assert [each for each in ctx if each.is_cancelled] == [cancelled]
            told.set()

        async with self.queues(make_queue, 2, needs={"heartbeat", "claim_timeout", "cancel_running"}) as [queue, other]:
            await self.enqueue_all(queue, "work", [b"1", b"2"])
            job = await queue.enqueue("work", b"cancelled")
            async with self.working(worker, queue) as task:
                await gate.until_entered()
                await other.cancel(job.id, running=True)
                gate.open()
                await told.wait()
                await self.until_empty(other)
            assert task.result() == RunReport(succeeded=2, cancelled=1)
            assert gate.entered == 1

    async def test_a_batch_that_does_not_finish_in_time_is_handed_back_as_a_whole(
        self, make_queue: QueueFactory
    ) -> None:
        worker, gate = self.new_worker(grace=0), Gate()

        @worker.handler("work", batch=4)
        async def work(payloads: list[bytes]) -> None:
            await gate.through()

        async with self.queues(make_queue, 2) as [queue, other]:
            await self.enqueue_all(queue, "work", [b""] * 4)
            async with self.working(worker, queue) as task:
                await gate.until_entered()
                worker.stop()
                assert await task == RunReport(handed_back=4)
            jobs = (await other.read_state()).jobs
            assert [job.status for job in jobs] == [JobStatus.QUEUED] * 4
            if queue.capabilities.uncharged:
                assert {job.failures for job in jobs} == {0}
