"""A queue in memory with streaming queries, and an audit of its jobs."""

import asyncio
from collections.abc import Callable
from typing import Any

from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.core.blob import codec
from jqueue.core.direct import DirectQueue
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job
from jqueue.domain.operations import Enqueue
from jqueue.spark.rows import SNAPSHOT_SCHEMA
from jqueue.spark.stream.source import ClaimReader
from jqueue.testing.fake_clock import FakeClock
from jqueue.testing.faults import FaultyObjects
from tests.spark.stream.stream_driver import Checkpoint, Killed, Query, Sink

LIMITS = Limits(batch_size=1_000_000)


class StreamWorld:
    """One queue, one checkpoint, one sink, and any number of runs of the query.

    Attributes:
        storage: the storage of the query, which counts requests and can inject faults.
        elsewhere: the queue for other processes.
        by_others: ids of jobs acked by other workers.
        steps: names of the steps so far, over all runs of the query.
    """

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.memory = InMemoryStorage(clock=self.clock)
        self.storage = FaultyObjects(self.memory)
        self.options = {"path": "memory://", "maxJobsPerTrigger": "10", **{k: str(v) for k, v in options.items()}}
        self.checkpoint, self.sink = Checkpoint(), Sink()
        self.enqueued: list[str] = []
        self.by_others: set[str] = set()
        self.steps: list[str] = []

    def have(self, work: Callable[[DirectQueue], Any]) -> Any:
        """Run a function on the queue in place of another process."""

        async def do() -> Any:
            async with DirectQueue(self.memory, clock=self.clock) as queue:
                return await work(queue)

        return asyncio.run(do())

    def enqueue(self, count: int, entrypoint: str = "work", payload: bytes = b"payload", **fields: Any) -> list[str]:
        """Enqueue jobs and return their ids."""
        jobs = self.have(lambda queue: queue.enqueue_many([Enqueue(entrypoint, payload, **fields)] * count))
        ids = [job.id for job in jobs]
        self.enqueued += ids
        return ids

    def steal(self, count: int) -> list[str]:
        """Revoke every claim, and claim and ack some jobs, as another worker. Returns their ids."""

        async def work(queue: DirectQueue) -> list[str]:
            await queue.requeue_stale(0)
            jobs = await queue.dequeue(batch_size=count)
            await queue.ack_many(jobs)
            return [job.id for job in jobs]

        stolen: list[str] = self.have(work)
        self.by_others.update(stolen)
        return stolen

    @property
    def jobs(self) -> list[Job]:
        """The jobs of the queue now."""
        content, _ = asyncio.run(self.memory.read())
        return list(codec.decode(content).jobs)

    def reader(self, **options: Any) -> ClaimReader:
        """A source of the query."""
        given = {**self.options, **{k: str(v) for k, v in options.items()}}
        return ClaimReader(given, SNAPSHOT_SCHEMA, opened=self.open)

    def open(self, options: Any) -> DirectQueue:
        """The queue of the source."""
        return DirectQueue(self.storage, clock=self.clock, limits=LIMITS, stale_timeout=options.claim_timeout)

    def live(
        self,
        *,
        kill_at: int | None = None,
        on_step: Callable[[str], object] | None = None,
        audit: bool = True,
        **how: Any,
    ) -> bool:
        """Run the query once. Returns True if it ended without being killed.

        Args:
            kill_at: number of steps before the one at which the query is killed.
            on_step: function called at each step.
            audit: False if jobs may leave otherwise than done.
            how: see `Query`.
        """
        left = kill_at

        def step(name: str) -> None:
            nonlocal left
            self.steps.append(name)
            if audit:
                self.audit()
            if on_step is not None:
                on_step(name)
            if left is not None:
                left -= 1
                if left < 0:
                    raise Killed(name)

        try:
            Query(self.reader, self.checkpoint, self.sink, step=step, **how).run()
        except Killed:
            return False
        if audit:
            self.audit()
        return True

    def audit(self) -> None:
        """Assert that each job removed from the queue is in a finished batch of the sink, or was acked by others."""
        done = {job_id for batch in self.checkpoint.commits for job_id in self.sink.batches[batch]}
        gone = set(self.enqueued) - {job.id for job in self.jobs}
        assert set() == gone - done - self.by_others, "acked, but not in a finished batch"

    def audit_end(self, *, once: bool = True) -> None:
        """Assert that all jobs were delivered and removed; with `once`, each in exactly one batch."""
        assert [] == self.jobs
        assert set(self.enqueued) == set(self.sink.ids) | self.by_others
        if once:
            assert sorted(self.enqueued) == sorted(self.sink.ids)
