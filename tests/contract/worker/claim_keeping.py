"""The worker contract: a worker keeps its claims, gives them back when it ends, and does nothing without them."""

from __future__ import annotations

import asyncio

from jqueue.domain.models import JobStatus
from jqueue.domain.operations import Enqueue
from jqueue.worker.context import Context
from jqueue.worker.report import RunReport
from tests.contract.worker.base import MANY_BEATS, Gate, QueueFactory, WorkerContractBase

SHORT, SAFE = 3.0, 6.0
"""Lifetimes of a claim, in moments: one short enough to lose it soon, one long enough to keep it on a slow machine."""


class ClaimingContract(WorkerContractBase):
    """Heartbeats, lost claims, cancelled jobs, and the end of a worker."""

    async def test_heartbeats_keep_a_job_that_takes_longer_than_its_claim_lasts(self, make_queue: QueueFactory) -> None:
        patience = [SAFE, 3 * SAFE, 9 * SAFE]  # retried: a store that stalls for a whole claim proves nothing
        reports = [await self._outlast(make_queue, patience.pop(0) * self.moment)]
        while patience and reports[-1].lost:
            reports.append(await self._outlast(make_queue, patience.pop(0) * self.moment))
        assert reports[-1] == RunReport(succeeded=3)

    async def _outlast(self, make_queue: QueueFactory, timeout: float) -> RunReport:
        """Work on a job and a batch for longer than claims last. A rival would take them if no heartbeats came."""
        worker, gate = self.new_worker(claim_timeout=timeout, concurrency=2), Gate()

        @worker.handler("work")
        async def work() -> None:
            await gate.through()

        @worker.handler("batch", batch=2)
        async def batch(payloads: list[bytes]) -> None:
            await gate.through()

        async with self.queues(make_queue, 2, needs={"heartbeat", "claim_timeout"}) as [queue, rival]:
            await self.enqueue_all(queue, "work", [b""])
            await self.enqueue_all(queue, "batch", [b"", b""])
            async with self.working(worker, queue) as task:
                await gate.until_entered(2)
                loop = asyncio.get_running_loop()
                began = loop.time()
                while loop.time() < began + 1.5 * timeout:  # the rival watches the claims, and would revoke them
                    if stolen := await rival.dequeue(["work", "batch"]):
                        await rival.ack(stolen[0])
                        break
                    await asyncio.sleep(self.moment / 4)
                gate.open()
                await self.until_empty(rival)
            return task.result()

    async def test_a_worker_takes_over_from_one_that_died(self, make_queue: QueueFactory) -> None:
        worker = self.new_worker(claim_timeout=SAFE * self.moment)
        seen = self.collector(worker)
        async with self.queues(make_queue, 2, needs={"claim_timeout"}) as [queue, other]:
            await queue.enqueue("work", b"left behind")
            assert len(await other.dequeue("work", claim_timeout=self.moment)) == 1
            async with self.working(worker, queue):
                await self.until_empty(other)
            assert seen == {b"left behind": 1}

    async def test_a_handler_whose_claim_is_lost_is_stopped_and_nothing_of_it_is_committed(
        self, make_queue: QueueFactory
    ) -> None:
        worker, gate, stopped = self.new_worker(claim_timeout=SHORT * self.moment), Gate(), asyncio.Event()

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

    async def test_an_outcome_that_comes_after_the_claim_was_lost_changes_nothing(
        self, make_queue: QueueFactory
    ) -> None:
        worker, gates = self.new_worker(concurrency=1), {"finished": Gate(), "failed": Gate()}

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
                running = asyncio.create_task(worker.run(queue, signals=False))
                await gate.until_entered()
                assert await other.requeue_stale(0) == 1
                [claimed] = await other.dequeue(name)
                worker.stop()
                gate.open()
                assert await running == RunReport(lost=1)
                assert await self.held(other, job) == claimed
                assert [left.id for left in (await other.read_state()).jobs] == [job.id]
                await other.ack(claimed)

    async def test_a_job_cancelled_while_it_runs_is_stopped_and_leaves(self, make_queue: QueueFactory) -> None:
        worker, gate, stopped = self.new_worker(claim_timeout=MANY_BEATS * self.moment), Gate(), asyncio.Event()

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

    async def test_a_worker_that_is_stopped_finishes_what_runs_and_begins_nothing(
        self, make_queue: QueueFactory
    ) -> None:
        worker, gate = self.new_worker(grace=self.patience), Gate()

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
        first, second, gate = self.new_worker(grace=0), self.new_worker(), Gate()
        seen = self.collector(second)

        @first.handler("work")
        async def work() -> None:
            await gate.through()

        async with self.queues(make_queue, 2) as [queue, other]:
            payloads = [b"%d" % number for number in range(4)]
            await self.enqueue_all(queue, "work", payloads)
            async with self.working(first, queue) as task:
                await gate.until_entered(4)
                first.stop()
                assert await task == RunReport(handed_back=4)
            jobs = (await other.read_state()).jobs
            assert {job.status for job in jobs} == {JobStatus.QUEUED}
            if queue.capabilities.uncharged:
                assert {job.failures for job in jobs} == {0}, (
                    "the end of a worker must not count as a failure of its jobs"
                )
            assert await self.drain(second, other) == RunReport(succeeded=4)
            assert seen == dict.fromkeys(payloads, 1)
