"""The claims of a batch: kept alive while Spark works on the jobs, and ended in one commit.

Jobs in segments are claimed by ranges, of which the driver holds only the claims. All other jobs are claimed one by
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from jqueue.connect import connect
from jqueue.core.direct import DirectQueue
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.domain.errors import (
    JQueueError,
    QueueFullError,
    QueueMissingError,
    StorageError,
    StorageFatalError,
    UnknownOutcomeError,
)
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ranges import ClaimRange
from jqueue.domain.printable import counted
from jqueue.domain.segments import CHUNK_ROWS, RangeClaim
from jqueue.ports.log import logger_of
from jqueue.worker import Worker
from jqueue.worker.declaring import declare
from jqueue.worker.queue_health import QueueHealth

logger = logger_of("jqueue.spark")

DEADLINE = 60.0
"""Seconds that one call of the queue may take: it carries thousands of jobs."""

LEAST = 0.1
"""Seconds that a call may take even if the claims end sooner."""

LEAST_ROWS = CHUNK_ROWS
"""Smallest number of jobs of a range. Fewer are claimed one by one."""

MOST_ROWS = 100_000
"""Largest number of jobs of a range. They are repeated together if its task fails."""

MOST_RANGES = 200
"""Largest number of ranges of a batch."""

SINGLES = 1000
"""Number of jobs that are claimed one by one before another try to claim a range."""

MOST_SINGLES = 10_000
"""Largest number of jobs that are claimed one by one beside ranges."""


def queue_for(url: str, most: int) -> DirectQueue:
    """Return a queue object that takes this many jobs in one call."""
    return connect(url, DirectQueue, limits=Limits(batch_size=max(most, Limits().batch_size)), deadline=DEADLINE)


def rows_of_range(jobs: int, parts: int) -> int:
    """Return the largest number of jobs of a range.

    Args:
        jobs: number of all jobs.
        parts: least number of ranges, if they are large enough.
    """
    return max(LEAST_ROWS, min(MOST_ROWS, -(-jobs // parts)))


class BatchClaims:
    """The work of the driver on the queue. All of it runs on one event loop.

    Args:
        queue: takes as many operations in one call as there may be jobs.
        names: the entrypoints whose jobs are claimed.
        most: largest number of jobs.
        claim_timeout: seconds that a claim lasts without a heartbeat; None: as the queue says.
        holder: kept with the jobs while they are claimed.
        parts: least number of ranges of a batch that is large enough; 0 for no ranges.

    Attributes:
        queue: as given.
        jobs: the jobs that are claimed one by one.
        ranges: the claims of ranges.
    """

    def __init__(
        self,
        queue: DirectQueue,
        names: Sequence[str],
        most: int,
        claim_timeout: float | None,
        holder: str,
        parts: int = 0,
    ) -> None:
        self.queue = queue
        self.jobs: list[Job] = []
        self.ranges: list[RangeClaim] = []
        self._parts = parts
        self._claim = Dequeue(tuple(names), batch_size=most, claim_timeout=claim_timeout, holder=holder)
        self._names = names
        self._patience = DEFAULT_CLAIM_TIMEOUT.total_seconds() if claim_timeout is None else claim_timeout
        self._beats: HeartbeatManager | None = None
        self._ends = False

    async def begin(self, worker: Worker) -> list[Job]:
        """Set the limits and schedules that the handlers declare, claim jobs, and keep the claims alive from now on."""
        handlers = [worker.handlers[name] for name in self._names]
        crons = [cron for cron in worker.crons if cron.handler.entrypoint in self._names]
        await declare(self.queue, handlers, crons, QueueHealth("the queue", self.queue.options.entropy))
        left = self._claim.batch_size
        if self._parts and (ready := await self._jobs_of_a_deep_queue()):
            left = await self._claim_ranges(worker, left, rows_of_range(min(left, ready), self._parts))
        if left:
            self.jobs += (await self.queue.apply(replace(self._claim, batch_size=left)))[0]
        if self.jobs or self.ranges:
            # A lost claim does not affect the others. The loss is found when the claim is to be ended.
            self._beats = HeartbeatManager(self.queue, [*self.jobs, *self.ranges], on_lost="event")
            await self._beats.__aenter__()
        return self.jobs

    @property
    def number(self) -> int:
        """Number of claimed jobs."""
        return len(self.jobs) + sum(claim.rows for claim in self.ranges)

    async def _jobs_of_a_deep_queue(self) -> int:
        """Return the number of ready jobs of the entrypoints; 0 if the queue has not enough in segments for a range."""
        if not self.queue.capabilities.ranges:
            return 0
        try:
            stats = await self.queue.stats()
        except QueueMissingError:  # nothing was enqueued yet
            return 0
        if stats.segment_jobs < LEAST_ROWS:
            return 0
        return sum(known.ready for name, known in (stats.entrypoints or {}).items() if name in self._names)

    async def _claim_ranges(self, worker: Worker, left: int, rows: int) -> int:
        """Claim ranges, and one by one the jobs before and between them. Return the number of jobs still to claim.

        Args:
            worker: has the handlers.
            left: largest number of jobs.
            rows: largest number of jobs of a range.
        """
        queue, claim = self.queue, self._claim
        whole = [name for name in self._names if worker.handlers[name].options.keep_result is None]
        singles = MOST_SINGLES
        while left and len(self.ranges) < MOST_RANGES and singles > 0:
            name = self._names[0]
            if len(self._names) > 1:
                next_jobs = await queue.peek(claim.entrypoints, batch_size=1)
                name = next_jobs[0].entrypoint if next_jobs else ""
            found: list[RangeClaim] = []
            if name in whole and left >= LEAST_ROWS:
                operation = ClaimRange(
                    name,
                    min(left, rows),
                    least=LEAST_ROWS,
                    inline=True,
                    claim_timeout=claim.claim_timeout,
                    holder=claim.holder,
                )
                [found] = await queue.apply(operation)  # several in one commit take longer: each reads rows anew
            if found:
                self.ranges += found
                left -= sum(each.rows for each in found)
                continue
            [jobs] = await queue.apply(replace(claim, batch_size=min(left, SINGLES)))
            self.jobs += jobs
            left, singles = left - len(jobs), singles - len(jobs)
            if not jobs:
                return 0
        return 0

    async def end(self, operations: Sequence[Operation]) -> list[Any]:
        """Do all operations in one commit, each by itself. Return the result or the refusal of each.

        The commit is tried while the claims last.

        Raises:
            StorageError: the queue could not be written.
        """
        self._ends, queue = True, self.queue
        clock, health = queue.options.clock, QueueHealth("the queue", queue.options.entropy)
        until = clock.monotonic() + self._patience
        unknown: UnknownOutcomeError | None = None
        while True:
            failure: Exception
            deadline = min(DEADLINE, max(LEAST, until - clock.monotonic()))
            try:
                if unknown is None:
                    return await queue.apply_each(*operations, deadline=deadline)
                return list(await unknown.resolve(deadline))
            except UnknownOutcomeError as error:  # sent again, the operations might be done twice
                failure = unknown = error
            except StorageFatalError:
                raise
            except (StorageError, QueueFullError) as error:  # they were certainly not done
                failure, unknown = error, None
            if clock.monotonic() >= until:
                raise failure
            await asyncio.sleep(health.failed("sending outcomes of jobs", failure))

    async def close(self) -> None:
        """Hand back the jobs if their claims were not ended, and close the queue."""
        if self.number and not self._ends:  # the batch was interrupted
            try:
                await self.queue.nack_many(self.jobs, charge=False)
                for claim in self.ranges:
                    await self.queue.end_range(claim, worked_on=0)
            except JQueueError as error:
                logger.warning("%s could not be handed back: %s", counted(self.number, "job"), error)
        if self._beats is not None:
            beats, self._beats = self._beats, None
            await beats.__aexit__(None, None, None)
        await self.queue.aclose()
