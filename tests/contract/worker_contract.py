"""The worker contract: tests that a worker must pass on every queue, from its first claim to shared limits."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

from jqueue.domain.job import JobStatus
from jqueue.domain.models import Job
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.ports.queue import JobQueue
from jqueue.testing.queue_contract import QueueContractBase, QueueFactory
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.handler_options import HandlerArguments
from jqueue.worker.retries import Discard, Exponential, Retry, Snooze
from jqueue.worker.run import RunReport
from jqueue.worker.worker import Worker
from tests.worker.scenes import drained, working

LONG, AT_ONCE = Exponential(base=3600, cap=3600), Exponential(base=0.001, cap=0.001)
"""A backoff that no test waits for, and one too short to notice."""

CLAIM = 12.0
"""Lifetime of a claim, in seconds of virtual time."""


class Gate:
    """A place in which handlers wait for the test, and the test waits for handlers.

    Attributes:
        running: number of handlers inside.
        peak: largest number of handlers that were inside at the same time.
        entered: number of handlers that have come in.
    """

    def __init__(self) -> None:
        self.running = self.peak = self.entered = 0
        self._is_open = asyncio.Event()
        self._changed = asyncio.Condition()

    def open(self) -> None:
        """Let all handlers through, from now on."""
        self._is_open.set()

    async def through(self) -> None:
        """Enter, wait until the gate is open, and leave."""
        self.running += 1
        self.entered += 1
        self.peak = max(self.peak, self.running)
        try:
            await self._tell()
            await self._is_open.wait()
        finally:
            self.running -= 1

    async def until_entered(self, count: int = 1) -> None:
        """Wait until `count` handlers have entered."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.entered >= count)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def message_of(job: Job) -> str:
    """Return the error of a job without the file and line that its worker adds if the error was raised."""
    return re.sub(r" \(\S+:\d+\)$", "", job.error or "")


class WorkerContractBase(QueueContractBase):
    """Helpers that run workers."""

    def others(self) -> Sequence[JobQueue]:
        """Return further queues, without jobs, on which each worker runs."""
        return ()

    async def drain(self, worker: Worker, queue: JobQueue) -> RunReport:
        """Run a worker until nothing is ready, and return its report."""
        report: RunReport = await drained(worker, queue, *self.others())
        return report

    def working(self, worker: Worker, queue: JobQueue) -> AbstractAsyncContextManager[asyncio.Task[RunReport]]:
        """Run a worker during the block, and stop it afterwards."""
        return working(worker, queue, *self.others())

    async def enqueue_all(self, queue: JobQueue, entrypoint: str, payloads: Iterable[bytes]) -> None:
        """Enqueue one job for each payload, in one commit if the queue can do that."""
        if queue.capabilities.transactions:
            await queue.enqueue_many([Enqueue(entrypoint, payload) for payload in payloads])
            return
        for payload in payloads:
            await queue.enqueue(entrypoint, payload)

    async def in_progress(self, queue: JobQueue) -> int:
        """Return the number of claimed jobs."""
        return len((await queue.read_state()).in_progress_jobs())

    async def until_empty(self, queue: JobQueue) -> None:
        """Wait until no job is left. A listing of a folder may miss a file that is renamed meanwhile: look twice."""

        async def is_empty() -> bool:
            return not (await queue.read_state()).jobs and not (await queue.read_state()).jobs

        await self.until(is_empty)

    async def until_is(self, queue: JobQueue, job: Job, status: JobStatus) -> Job:
        """Wait until a job has a status, and return the job."""

        async def is_so() -> bool:
            return (await self.held(queue, job)).status is status

        await self.until(is_so)
        return await self.held(queue, job)

    def collector(self, worker: Worker, entrypoint: str = "work", **options: Any) -> Counter[bytes]:
        """Register a handler that counts the jobs it got, by payload."""
        seen: Counter[bytes] = Counter()
        arguments: HandlerArguments = options  # type: ignore[assignment]

        @worker.handler(entrypoint, **arguments)
        async def collect(payload: bytes) -> None:
            seen[payload] += 1
            await asyncio.sleep(0)

        return seen


class WorkerContract(WorkerContractBase):
    """Subclass it, and give it a `make_storage` or a `make_queue` fixture."""

    # Normal operation, in which nothing fails.

    async def test_each_job_is_run_once_and_leaves(self, make_queue: QueueFactory) -> None:
        worker = Worker(concurrency=7)
        seen = self.collector(worker)
        payloads = [b"%d" % number for number in range(30)]
        async with self.queues(make_queue) as [queue]:
            await self.enqueue_all(queue, "work", payloads)
            assert await self.drain(worker, queue) == RunReport(succeeded=30)
            assert seen == dict.fromkeys(payloads, 1)
            assert (await queue.read_state()).jobs == ()

    async def test_as_many_jobs_are_claimed_and_run_as_the_concurrency_says_and_no_more(
        self, make_queue: QueueFactory
    ) -> None:
        worker, gate, claimed = Worker(concurrency=3), Gate(), []
        async with self.queues(make_queue, 2) as [queue, observer]:

            @worker.handler("work")
            async def work() -> None:
                await gate.through()
                claimed.append(await self.in_progress(observer))

            await self.enqueue_all(queue, "work", [b""] * 12)
            async with self.working(worker, queue):
                await gate.until_entered(3)
                assert await self.in_progress(observer) == 3, "the worker must claim only for free slots"
                gate.open()
                await self.until_empty(observer)
            assert gate.peak == 3, "as many handlers must run at once as `concurrency` allows"
            most = 3 if queue.capabilities.transactions else 6  # acks and new claims share a commit, or do not
            assert max(claimed) <= most, "more jobs were claimed than there are slots"
            assert gate.entered == 12

    async def test_jobs_that_come_while_it_waits_are_run(self, make_queue: QueueFactory) -> None:
        worker = Worker()
        seen = self.collector(worker)
        async with self.queues(make_queue, 2) as [queue, other], self.working(worker, queue):
            for payload in (b"first", b"second"):
                await other.enqueue("work", payload)
                await self.until_empty(other)
            assert seen == {b"first": 1, b"second": 1}

    async def test_what_goes_with_the_ack_is_done_with_it_or_not_at_all(self, make_queue: QueueFactory) -> None:
        worker, made = Worker(), Worker()
        seen = self.collector(made, "next")

        @worker.handler("work", backoff=AT_ONCE)
        async def work(ctx: Context) -> None:
            ctx.on_ack(Enqueue("next", b"attempt %d" % ctx.attempt))
            if ctx.attempt == 1:
                raise ValueError("the first time")

        async with self.queues(make_queue, 2, needs={"transactions", "delay"}) as [queue, other]:
            await work.using(queue).enqueue()
            async with self.working(worker, queue):

                async def is_made() -> bool:
                    return [job.entrypoint for job in (await other.read_state()).jobs] == ["next"]

                await self.until(is_made)
            await self.drain(made, other)
            assert seen == {b"attempt 2": 1}

    # Retries, and how they end.

    async def test_a_failing_job_is_tried_again_until_it_is_dead(self, make_queue: QueueFactory) -> None:
        worker, attempts = Worker(), []

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

    async def test_a_failed_job_waits_and_a_discarded_one_is_dead(self, make_queue: QueueFactory) -> None:
        worker = Worker()

        @worker.handler("work", backoff=LONG)
        async def work() -> None:
            raise Retry(after=1800, reason="the API is down")

        @worker.handler("discarded", max_attempts=20)
        async def discarded() -> None:
            raise Discard("the user is gone")

        async with self.queues(make_queue, needs={"delay", "errors", "dead_letters"}) as [queue]:
            asked, never = [await handler.using(queue).enqueue() for handler in (work, discarded)]
            assert await self.drain(worker, queue) == RunReport(failed=1, dead=1)
            now = await self.time(queue)
            job = await self.held(queue, asked)
            assert job.run_at is not None
            assert timedelta(seconds=1800 - self.patience) < job.run_at - now <= timedelta(seconds=1800)
            assert (job.status, job.failures, job.error) == (JobStatus.QUEUED, 1, "Retry: the API is down")
            dead = await self.held(queue, never)
            assert (dead.status, dead.error) == (JobStatus.DEAD, "Discard: the user is gone")

    async def test_a_snoozed_job_comes_back_uncharged(self, make_queue: QueueFactory) -> None:
        worker, failures = Worker(), []

        @worker.handler("work", max_attempts=1)
        async def work(ctx: Context) -> None:
            failures.append(ctx.job.failures)
            if ctx.attempt < 3:
                raise Snooze(0.001)

        async with self.queues(make_queue, 2, needs={"delay", "uncharged", "dead_letters"}) as [queue, other]:
            await work.using(queue).enqueue()
            async with self.working(worker, queue) as task:
                await self.until_empty(other)
            assert failures == [1, 1, 1], "a snooze must not count as a failure"
            assert task.result() == RunReport(succeeded=1, snoozed=2)

    async def test_a_job_that_kills_its_workers_is_dead_without_being_run_again(self, make_queue: QueueFactory) -> None:
        worker = Worker()
        seen = self.collector(worker, max_attempts=2)
        async with self.queues(make_queue, 2, needs={"dead_letters"}) as [queue, other]:
            job = await queue.enqueue("work", b"")
            for _ in range(2):  # claimed by workers that die
                assert len(await other.dequeue("work")) == 1
                assert await queue.requeue_stale(0) == 1
            assert await self.drain(worker, queue) == RunReport(dead=1)
            assert (await self.held(queue, job)).status is JobStatus.DEAD
            assert not seen

    async def test_a_job_that_fails_where_the_queue_can_keep_little_is_still_tried_again(
        self, make_queue: QueueFactory
    ) -> None:
        worker, attempts = Worker(), []

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

    # Claims that others have lost or taken, and the end of a worker.

    async def test_a_worker_takes_over_from_one_that_died(self, make_queue: QueueFactory) -> None:
        worker = Worker(claim_timeout=self.patience)
        seen = self.collector(worker)
        async with self.queues(make_queue, 2, needs={"claim_timeout"}) as [queue, other]:
            await queue.enqueue("work", b"left behind")
            assert len(await other.dequeue("work", claim_timeout=self.moment)) == 1
            async with self.working(worker, queue):
                await self.until_empty(other)
            assert seen == {b"left behind": 1}

    async def test_an_outcome_that_comes_after_the_claim_was_lost_changes_nothing(
        self, make_queue: QueueFactory
    ) -> None:
        worker, gates = Worker(concurrency=1), {"finished": Gate(), "failed": Gate()}

        @worker.handler("finished")
        async def finished(ctx: Context) -> None:
            if queue.capabilities.transactions:
                ctx.on_ack(Enqueue("next", b""))
            await gates["finished"].through()

        @worker.handler("failed")
        async def failed() -> None:
            await gates["failed"].through()
            raise ValueError("too late")

        async with self.queues(make_queue, 2, needs={"fencing"}) as [queue, other]:
            for name, gate in gates.items():
                job = await queue.enqueue(name, b"")
                running = asyncio.create_task(worker.run(queue, *self.others(), signals=False))
                await gate.until_entered()
                assert await other.requeue_stale(0) == 1
                [claimed] = await other.dequeue(name)
                worker.stop()
                gate.open()
                assert await running == RunReport(lost=1)
                assert await self.held(other, job) == claimed
                assert [left.id for left in (await other.read_state()).jobs] == [job.id]
                await other.ack(claimed)

    async def test_a_worker_that_is_stopped_finishes_what_runs_and_begins_nothing(
        self, make_queue: QueueFactory
    ) -> None:
        worker, gate = Worker(grace=self.patience), Gate()

        @worker.handler("work")
        async def work() -> None:
            await gate.through()

        async with self.queues(make_queue, 2) as [queue, other]:
            await queue.enqueue("work", b"")
            async with self.working(worker, queue) as task:
                await gate.until_entered()
                worker.stop()
                later = await other.enqueue("work", b"")
                await asyncio.sleep(self.moment)  # shorter than the worker's grace period
                assert (gate.running, gate.entered) == (1, 1)
                gate.open()
                assert await task == RunReport(succeeded=1)
            assert gate.entered == 1
            [left] = (await other.read_state()).jobs
            assert (left.id, left.status) == (later.id, JobStatus.QUEUED)

    async def test_what_does_not_finish_in_time_is_handed_back_and_done_by_another(
        self, make_queue: QueueFactory
    ) -> None:
        first, second, gate = Worker(grace=0), Worker(), Gate()
        seen = [self.collector(second), self.collector(second, "batch")]

        @first.handler("work")
        async def work() -> None:
            await gate.through()

        @first.handler("batch", batch=2)
        async def batch(payloads: list[bytes]) -> None:
            await gate.through()

        async with self.queues(make_queue, 2) as [queue, other]:
            for name in ("work", "batch"):
                await self.enqueue_all(queue, name, [b"1", b"2"])
            async with self.working(first, queue) as task:
                await gate.until_entered(3)
                first.stop()
                assert await task == RunReport(handed_back=4)
            jobs = (await other.read_state()).jobs
            assert {job.status for job in jobs} == {JobStatus.QUEUED}
            if queue.capabilities.uncharged:
                assert {job.failures for job in jobs} == {0}, (
                    "the end of a worker must not count as a failure of its jobs"
                )
            assert await self.drain(second, other) == RunReport(succeeded=4)
            assert seen == [{b"1": 1, b"2": 1}] * 2

    # Two workers, each on a queue object of its own.

    async def test_each_job_is_done_by_one_worker_and_none_is_lost(self, make_queue: QueueFactory) -> None:
        workers = [Worker(concurrency=5), Worker(concurrency=3)]
        seen = [self.collector(worker) for worker in workers]
        payloads = [b"%d" % number for number in range(40)]
        async with self.queues(make_queue, 2) as queues:
            await self.enqueue_all(queues[0], "work", payloads)
            reports = await asyncio.gather(*map(self.drain, workers, queues))
            assert (await queues[0].read_state()).jobs == ()
        assert seen[0] + seen[1] == dict.fromkeys(payloads, 1)
        assert reports[0].succeeded + reports[1].succeeded == 40

    async def test_a_limit_of_running_jobs_holds_for_all_workers_together(self, make_queue: QueueFactory) -> None:
        workers, gate, claimed = [Worker(concurrency=4) for _ in range(2)], Gate(), []
        async with self.queues(make_queue, 3, needs={"limits"}) as [observer, *queues]:

            async def work() -> None:
                await gate.through()
                claimed.append(await self.in_progress(observer))

            for worker in workers:
                worker.handler("work", max_running=2)(work)
            await self.enqueue_all(observer, "work", [b""] * 8)
            async with self.working(workers[0], queues[0]), self.working(workers[1], queues[1]):
                await gate.until_entered(2)
                assert await self.in_progress(observer) == 2
                gate.open()
                await self.until_empty(observer)
        assert gate.entered == 8
        assert max(gate.peak, *claimed) == 2, "all workers together must use the whole limit, and no more"

    # Handlers with `batch=...` get several jobs at once, and each job has an outcome of its own.

    async def test_a_batch_takes_one_slot_and_has_each_job_once_and_never_too_many(
        self, make_queue: QueueFactory
    ) -> None:
        worker, gate, seen = Worker(concurrency=2), Gate(), Counter[int]()

        @worker.handler("work", batch=4)
        async def work(numbers: list[int], ctx: BatchContext) -> None:
            assert [b"%d" % number for number in numbers] == [job.payload for job in ctx.jobs]
            assert [(1, "work")] * len(numbers) == [(each.attempt, each.entrypoint) for each in ctx]
            seen.update(numbers)
            await gate.through()

        async with self.queues(make_queue, 2) as [queue, observer]:
            await self.enqueue_all(queue, "work", [b"%d" % number for number in range(16)])
            async with self.working(worker, queue) as task:
                await gate.until_entered(2)
                assert await self.in_progress(observer) == seen.total() == 8
                gate.open()
                await self.until_empty(observer)
            assert task.result() == RunReport(succeeded=16)
        assert seen == dict.fromkeys(range(16), 1)
        assert (gate.entered, gate.peak) == (4, 2)

    async def test_jobs_of_a_batch_fail_alone_and_what_goes_with_their_acks_is_done(
        self, make_queue: QueueFactory
    ) -> None:
        worker = Worker()
        fates = [None, ValueError("no"), Discard("gone"), Retry(after=1800), Snooze(1800), Discard]

        @worker.handler("work", batch=10, backoff=LONG)
        async def work(places: list[int], ctx: BatchContext) -> list[BaseException | type[BaseException] | None]:
            for place, each in zip(places, ctx, strict=True):
                each.on_ack(Enqueue("next", b"%d" % place))
            return [fates[place] for place in places]

        needs = {"dead_letters", "errors", "delay", "uncharged", "transactions"}
        async with self.queues(make_queue, needs=needs) as [queue]:
            jobs = [await work.using(queue).enqueue(place) for place in range(len(fates))]
            assert await self.drain(worker, queue) == RunReport(succeeded=1, failed=2, dead=2, snoozed=1)
            assert await self.find(queue, jobs[0]) is None
            assert [job.payload for job in await queue.dequeue("next", batch_size=9)] == [b"0"]
            failed, discarded, retried, snoozed, by_class = [await self.held(queue, job) for job in jobs[1:]]
            now = await self.time(queue)
            assert (failed.failures, message_of(failed)) == (1, "ValueError: no")
            assert (discarded.status, discarded.error) == (JobStatus.DEAD, "Discard: gone")
            assert by_class.status is JobStatus.DEAD
            assert (retried.failures, snoozed.failures) == (1, 0)
            for job in (retried, snoozed):
                assert job.run_at is not None
                assert timedelta(seconds=1800 - self.patience) < job.run_at - now <= timedelta(seconds=1800)


class HeartbeatsContract(WorkerContractBase):
    """Heartbeats keep the claims of a worker. Their answers name lost claims and requested cancellations.

    It holds in virtual time only: in real time a machine may stall for longer than a claim lasts.
    """

    async def test_heartbeats_keep_a_job_and_a_batch_that_take_longer_than_their_claims_last(
        self, make_queue: QueueFactory
    ) -> None:
        worker, gate = Worker(claim_timeout=CLAIM, concurrency=2), Gate()

        @worker.handler("work")
        async def work() -> None:
            await gate.through()

        @worker.handler("batch", batch=2)
        async def batch(payloads: list[bytes]) -> None:
            await gate.through()

        async with self.queues(make_queue, 2, needs={"heartbeat", "claim_timeout", "wait"}) as [queue, rival]:
            await self.enqueue_all(queue, "work", [b""])
            await self.enqueue_all(queue, "batch", [b"", b""])
            async with self.working(worker, queue) as task:
                await gate.until_entered(2)
                assert await rival.dequeue(["work", "batch"], wait=1.5 * CLAIM) == [], "a claim was revoked"
                gate.open()
                await self.until_empty(rival)
            assert task.result() == RunReport(succeeded=3)

    async def test_a_handler_whose_claim_is_lost_is_stopped_and_nothing_of_it_is_committed(
        self, make_queue: QueueFactory
    ) -> None:
        worker, gate, stopped = Worker(claim_timeout=CLAIM), Gate(), asyncio.Event()

        @worker.handler("work")
        async def work(ctx: Context) -> None:
            ctx.on_ack(Enqueue("next", b"attempt %d" % ctx.attempt))
            if ctx.attempt > 1:
                await stopped.wait()
                return
            try:
                await gate.through()
            except asyncio.CancelledError:
                assert ctx.is_cancelled
                stopped.set()  # and return, as if it had finished

        async with self.queues(make_queue, 2, needs={"heartbeat", "claim_timeout", "transactions"}) as [queue, other]:
            await queue.enqueue("work", b"")
            async with self.working(worker, queue) as task:
                await gate.until_entered()
                assert await other.requeue_stale(0) == 1
                await stopped.wait()

                async def is_done() -> bool:
                    return all(job.entrypoint == "next" for job in (await other.read_state()).jobs)

                await self.until(is_done)
            [made] = (await other.read_state()).jobs
            assert made.payload != b"attempt 1", "a handler that lost its claim committed something"
            assert task.result().succeeded == 1
            assert task.result().lost >= 1

    async def test_a_job_cancelled_while_it_runs_is_stopped_and_leaves(self, make_queue: QueueFactory) -> None:
        worker, gate, stopped = Worker(claim_timeout=CLAIM), Gate(), asyncio.Event()

        @worker.handler("work")
        async def work(ctx: Context) -> None:
            try:
                await gate.through()
            finally:
                assert ctx.cancelled.is_set()
                stopped.set()

        async with self.queues(make_queue, 2, needs={"heartbeat", "claim_timeout", "cancel_running"}) as [queue, other]:
            job = await queue.enqueue("work", b"")
            async with self.working(worker, queue) as task:
                await gate.until_entered()
                await other.cancel(job.id, running=True)
                await stopped.wait()
                await self.until_empty(other)
            assert task.result() == RunReport(cancelled=1)
            assert gate.entered == 1

    async def test_a_cancelled_job_is_told_and_its_batch_goes_on(self, make_queue: QueueFactory) -> None:
        worker, gate = Worker(claim_timeout=CLAIM), Gate()
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
