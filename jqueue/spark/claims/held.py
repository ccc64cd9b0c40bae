"""The claims of a batch, for `run_batch` and for streaming queries: made in one operation, kept alive, ended in one.

Jobs that wait in segments are claimed by ranges, of which the driver holds only the claims. All others are claimed one
by one, and their rows go through the driver.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jqueue.connect import connect
from jqueue.core.direct import DirectQueue
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.domain.durations import Duration
from jqueue.domain.errors import JobNotFoundError, JQueueError, QueueMissingError
from jqueue.domain.job import Claim, JobRecord, JobStatus
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import AllOrNothing
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.operations.lookups import HeldBy, RangesHeldBy
from jqueue.domain.operations.ranges import ClaimBatch, EndRange
from jqueue.domain.segments import CHUNK_ROWS, RANGES_KEPT, RangeClaim, RangeFailure, in_progress
from jqueue.ports.storage import describe
from jqueue.spark.claims.outcomes import Outcome

DEADLINE = 60.0
"""Seconds that one call of the queue may take: it may read the indexes of many segments, and carry many outcomes."""

MOST_SINGLES = 100_000
"""Largest number of jobs in one batch that are claimed one by one: their rows go through the driver."""

MOST_RANGES = 128
"""Largest number of ranges of a batch. The queue has room for 256, and other consumers claim some, too."""

LEAST_ROWS = CHUNK_ROWS
"""Smallest number of jobs of a range."""


MOST_ROWS = 1_000_000
"""Largest number of jobs of a range."""


def open_queue(url: str, claim_timeout: float, deadline: float = DEADLINE) -> DirectQueue:
    """Return a queue object for one batch or query. It takes a call that ends a batch and claims another.

    Raises:
        InvalidURLError: the URL is wrong.
    """
    limits = Limits(batch_size=2 * (MOST_SINGLES + RANGES_KEPT) + 2)
    return connect(url, DirectQueue, limits=limits, stale_timeout=claim_timeout, deadline=deadline)


async def check_queue(queue: DirectQueue) -> None:
    """Check that there is a queue. Claims of a queue that does not exist are no error: they find no jobs.

    Raises:
        QueueMissingError: there is none.
    """
    if (await queue.view()).absent:
        raise QueueMissingError(describe(queue.storage))


def claiming(
    entrypoints: tuple[str, ...] | None,
    jobs: int,
    claim_timeout: float,
    holder: str,
    *,
    through: int | None = None,
    rows: int = MOST_ROWS,
    alone: tuple[str, ...] = (),
) -> ClaimBatch:
    """Return the operation that claims a batch.

    Args:
        entrypoints: of the jobs; None for all.
        jobs: largest number of jobs.
        claim_timeout: seconds that a claim lasts without a heartbeat.
        holder: kept with the jobs while they are claimed.
        through: sequence number of the last job to claim; None for no limit.
        rows: largest number of jobs of a range.
        alone: entrypoints whose jobs are claimed one by one.
    """
    return ClaimBatch(
        entrypoints,
        jobs,
        singles=MOST_SINGLES,
        ranges=MOST_RANGES,
        least=LEAST_ROWS,
        rows=rows,
        alone=alone,
        claim_timeout=claim_timeout,
        holder=holder,
        through=through,
    )


async def claims_held_by(queue: DirectQueue, prefix: str) -> list[Job | RangeClaim]:
    """Return the single jobs and the claims of ranges whose holder's name begins with a prefix."""
    jobs, ranges = await queue.apply(HeldBy(prefix), RangesHeldBy(prefix))
    return [*jobs, *ranges]


@dataclass(frozen=True)
class ClaimedJobs:
    """The jobs of a partition of a batch, in order.

    Attributes:
        rows: the jobs: as they were claimed by themselves, or the rows of a range as they were before its claim.
        claim: the claim of the range; None if there is none.
    """

    rows: list[JobRecord]
    claim: RangeClaim | None = None

    def job(self, place: int) -> JobRecord:
        """Return a job as it is claimed."""
        row = self.rows[place]
        return row if self.claim is None else in_progress(row, self.claim.held)

    @property
    def failures(self) -> int:
        """Number of failures that the claim of a range adds to those of its rows."""
        return 0 if self.claim is None else self.claim.held.failures

    @property
    def claim_timeout(self) -> float | None:
        """Seconds that the claims last without a heartbeat."""
        return self.rows[0].claim_timeout if self.claim is None else self.claim.held.claim_timeout

    async def look(self, queue: DirectQueue) -> tuple[set[str], set[str]]:
        """Return the ids of the jobs whose claims are lost, and of jobs that were cancelled, by a look at the queue.

        Raises:
            StorageError: the queue could not be read.
        """
        view, claim = await queue.view(), self.claim
        if claim is not None:
            held = view.header.ranges.get(claim.id)
            if held is None or held.claims != claim.attempt:
                return {row.id for row in self.rows}, set()
            return set(), set(held.cancelled)
        now = {job.claim: job for job in view.records.values() if job.status is JobStatus.IN_PROGRESS}
        lost = {row.id for row in self.rows if row.claim not in now}
        return lost, {job.id for job in now.values() if job.cancel_requested}


class Held(list[Job | RangeClaim]):
    """The claims of one batch: jobs that were claimed one by one, and ranges."""

    @property
    def jobs(self) -> list[Job]:
        """The jobs that were claimed one by one."""
        return [each for each in self if isinstance(each, Job)]

    @property
    def ranges(self) -> list[RangeClaim]:
        """The claims of ranges."""
        return [each for each in self if isinstance(each, RangeClaim)]

    @property
    def number(self) -> int:
        """Number of jobs."""
        return len(self.jobs) + sum(claim.rows for claim in self.ranges)

    def is_full(self, most: int) -> bool:
        """Return True if there may be more jobs, as the batch has reached a largest size."""
        return self.number >= most or len(self.jobs) >= MOST_SINGLES or len(self.ranges) >= MOST_RANGES


class Heartbeats:
    """Keeps claims alive, and loses none of the others with one. A loss is seen when the claim is to be ended."""

    def __init__(self, queue: DirectQueue) -> None:
        self._queue = queue
        self._claims: list[Claim] = []
        self._manager: HeartbeatManager | None = None

    async def keep(self, batches: Iterable[Held]) -> None:
        """From now on, keep the claims of these batches alive, and no others."""
        held = [each for batch in batches for each in batch]
        claims = [each.claim for each in held]
        if claims == self._claims:
            return
        manager, self._manager, self._claims = self._manager, None, claims
        if manager is not None:
            await manager.__aexit__(None, None, None)
        if held:
            self._manager = HeartbeatManager(self._queue, held, on_lost="event")
            await self._manager.__aenter__()


def end_of_job(job: Job, outcome: Outcome) -> Operation:
    """Return the operation that ends the claim on a single job. Its process has not ended, or a decision was made."""
    if outcome.kind != "done":
        failure = outcome.failure
        return Nack(job.claim, failure.delay, failure.error, failure.dead, failure.charge, traceback=failure.traceback)
    ack = Ack(job.claim, outcome.result, outcome.keep_result)
    return AllOrNothing((*outcome.enqueues, ack)) if outcome.added else ack


def end_of_range(
    claim: RangeClaim, outcomes: Sequence[Outcome], left: int = 0, refused: JQueueError | None = None
) -> Operation:
    """Return the operation that ends a range. Its jobs are done, but for those with an outcome of their own.

    Args:
        claim: the claim of the range.
        outcomes: these outcomes.
        left: number of jobs at its end that nobody worked on.
        refused: why the queue refused to enqueue what jobs add: these jobs are handed back.
    """
    failed: dict[str, RangeFailure | BaseException | str | None] = {}
    results: dict[str, tuple[Any, Duration]] = {}
    added: list[Operation] = []
    for each in outcomes:
        if each.kind != "done":
            failed[each.job_id] = each.failure
        elif each.added and refused is not None:
            failed[each.job_id] = RangeFailure(refused, charge=False)
        else:
            added += each.enqueues
            if each.keep_result is not None:
                results[each.job_id] = each.result, each.keep_result
    end = EndRange(claim, failed, results=results, worked_on=claim.rows - left)
    return AllOrNothing((*added, end)) if added else end


async def end_claims(
    held: Held,
    end_of: Callable[[Job | RangeClaim, JQueueError | None], Operation],
    commit: Callable[[Sequence[Operation]], Awaitable[Sequence[Any]]],
) -> Held:
    """End the claims of a batch in one commit, and in a second one the claims whose end the queue has refused.

    Args:
        held: the claims.
        end_of: returns the operation that ends a claim, given why the queue has refused the first one.
        commit: does operations in one commit, each by itself, and returns the result or the refusal of each.

    Returns:
        The lost claims: other workers have their jobs, or the queue has refused both operations.
    """
    lost, refused, left = Held(), dict[str, JQueueError](), list(held)
    while True:
        again = []
        answers = await commit([end_of(each, refused.get(each.id)) for each in left])
        for each, answer in zip(left, answers, strict=True):
            if not isinstance(answer, JQueueError):
                continue
            if each.id in refused or (isinstance(answer, JobNotFoundError) and answer.job_id == each.id):
                lost.append(each)
            else:
                refused[each.id] = answer
                again.append(each)
        if not again:
            return lost
        left = again
