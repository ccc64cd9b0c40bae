"""The worker contract for jobs that go through a batch: claimed together, done as a partition, ended in one commit.

It runs without Spark and without child processes, because they do not change the outcomes of handlers.
"""

import asyncio
from typing import Any

import pytest

from jqueue import DirectQueue, InMemoryStorage
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.spark.batch.children import in_order
from jqueue.spark.batch.outcomes import Outcome
from jqueue.spark.batch.partition_queue import PartitionQueue
from jqueue.spark.batch.partition_rows import PartitionRows
from jqueue.spark.batch.settling import best_of, settle
from jqueue.worker import RunReport, Worker
from jqueue.worker.declaring import declare
from tests.contract.places import without
from tests.contract.worker_contract import WorkerContract

AT_ONCE = 5


class BatchWorker(Worker):
    """A worker that runs batches until it is stopped or no job is ready."""

    stopping = False

    async def run(self, queue: Any, *, drain: bool = False, signals: bool = True) -> RunReport:
        self.stopping = False
        total = RunReport()
        names = tuple(self.handlers)
        await declare(queue, self.handlers.values(), self.crons, queue.options.entropy)
        while not self.stopping:
            jobs = await queue.dequeue(names, batch_size=AT_ONCE, claim_timeout=self.claim_timeout)
            if not jobs:
                if drain:
                    break
                await asyncio.sleep(0.01)
                continue
            total = added(total, await self._batch(queue, jobs))
        return total

    async def _batch(self, queue: Any, jobs: list[Any]) -> RunReport:
        said: list[Outcome] = []
        rows = PartitionRows.of_jobs(jobs)
        partition: Any = PartitionQueue(rows, lambda begun: None, said.extend, make_queue=lambda: queue)
        async with HeartbeatManager(queue, jobs, on_lost="event"):
            await Worker.run(self, partition, drain=True, signals=False)
            plain = [Outcome.of_plain(outcome.plain()) for outcome in in_order(rows, said)]
            report = await settle(
                jobs, best_of(plain), self, lambda operations: queue.apply_each(*operations), queue.options.entropy
            )
        return RunReport(
            succeeded=report.done,
            failed=report.retried,
            dead=report.dead,
            snoozed=report.snoozed,
            handed_back=report.handed_back,
            cancelled=report.cancelled,
            lost=report.lost,
        )

    def stop(self) -> None:
        self.stopping = True
        super().stop()


def added(one: RunReport, two: RunReport) -> RunReport:
    return RunReport(**{name: getattr(one, name) + getattr(two, name) for name in RunReport.__dataclass_fields__})


# A batch does not keep these parts of the contract. It claims more jobs than run at a time, and claims again only when
# all of them are done.
@without(
    "test_as_many_jobs_are_claimed_and_run_as_the_concurrency_says_and_no_more",
    "test_a_free_slot_is_filled_while_other_jobs_go_on",
    "test_a_batch_takes_one_slot_and_claims_no_more_jobs_than_it_holds",
)
class TestBatches(WorkerContract):
    kind = DirectQueue
    worker_kind = BatchWorker
    moment = 0.05

    @pytest.fixture
    def make_storage(self) -> Any:
        storage = InMemoryStorage()
        return lambda: storage
