"""The worker contract: several workers on one queue run each job once, and respect limits and schedules together."""

from __future__ import annotations

import asyncio
from collections import Counter

from jqueue.worker.context import Context
from jqueue.worker.handler_options import Rate
from tests.contract.worker.base import Gate, QueueFactory, WorkerContractBase

EVERY_SECOND = "* * * * * *"


class SharingContract(WorkerContractBase):
    """Two workers, each on a queue object of its own."""

    async def test_each_job_is_done_by_one_worker_and_none_is_lost(self, make_queue: QueueFactory) -> None:
        workers = [self.new_worker(concurrency=5), self.new_worker(concurrency=3)]
        seen = [self.collector(worker) for worker in workers]
        payloads = [b"%d" % number for number in range(40)]
        async with self.queues(make_queue, 2) as queues:
            await self.enqueue_all(queues[0], "work", payloads)
            reports = await asyncio.gather(*map(self.drain, workers, queues))
            assert (await queues[0].read_state()).jobs == ()
        assert seen[0] + seen[1] == dict.fromkeys(payloads, 1)
        assert reports[0].succeeded + reports[1].succeeded == 40

    async def test_a_limit_of_running_jobs_holds_for_all_workers_together(self, make_queue: QueueFactory) -> None:
        workers, gate, claimed = [self.new_worker(concurrency=4) for _ in range(2)], Gate(), []
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

    async def test_a_limit_of_rate_holds_for_all_workers_together(self, make_queue: QueueFactory) -> None:
        workers = [self.new_worker(concurrency=4) for _ in range(2)]
        seen = [self.collector(worker, rate=Rate(3, per=3600)) for worker in workers]
        async with self.queues(make_queue, 2, needs={"limits"}) as queues:
            await self.enqueue_all(queues[0], "work", [b"%d" % number for number in range(8)])
            await asyncio.gather(*map(self.drain, workers, queues))
            assert (seen[0] + seen[1]).total() == 3
            left = (await queues[0].read_state()).queued_jobs()
            assert [job.attempt for job in left] == [0] * 5

    async def test_jobs_that_share_a_key_run_one_after_the_other(self, make_queue: QueueFactory) -> None:
        workers, gate = [self.new_worker(concurrency=4) for _ in range(2)], Gate(is_open=True)

        async def work() -> None:
            await asyncio.gather(gate.through(), asyncio.sleep(0.001))

        for worker in workers:
            worker.handler("one")(work)
            worker.handler("two")(work)
        async with self.queues(make_queue, 2, needs={"limits"}) as queues:
            for name in ("one", "two") * 3:
                await queues[0].enqueue(name, b"", concurrency_key="account 7")
            async with self.working(workers[0], queues[0]), self.working(workers[1], queues[1]):
                await self.until_empty(queues[0])
        assert (gate.entered, gate.peak) == (6, 1)

    async def test_a_schedule_fires_once_each_time_whatever_the_number_of_workers(
        self, make_queue: QueueFactory
    ) -> None:
        workers, occurrences = [self.new_worker() for _ in range(2)], Counter[str]()
        twice = asyncio.Event()

        async def tick(ctx: Context) -> None:
            occurrences[ctx.headers["jqueue-scheduled-for"]] += 1
            if len(occurrences) == 2:
                twice.set()

        for worker in workers:
            worker.cron(EVERY_SECOND, name="tick")(tick)
        async with self.queues(make_queue, 2, needs={"schedules", "headers"}) as queues:
            async with self.working(workers[0], queues[0]), self.working(workers[1], queues[1]):
                await twice.wait()
            assert [schedule.name for schedule in await queues[0].schedules()] == ["tick"]
        assert set(occurrences.values()) == {1}
