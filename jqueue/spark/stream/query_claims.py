"""The claims of a streaming query: found again after a restart, kept alive while its batches run, and acked after.

Each batch of the query is one claim, made under a name of its own. One commit acks the batch that is done and claims
the next. If the driver dies after that commit, before it writes its offset log, the claim is found by its holder's
name. It becomes the next batch of the restarted query.

* A claim is acked only if Spark begins the next batch at its offset: then all of its rows have gone through the query.
* The jobs of a batch never become more. A repeated batch leaves out jobs that were lost meanwhile, and adds no others.
  So a sink that remembers the numbers of its finished batches may skip a repeated batch.
* Jobs that wait in segments are claimed by ranges, of which only the claims are kept here. A range that is lost is lost
  as a whole.
* If the function of `foreachBatch` has told outcomes of single rows with `end_batch`, the commit that ends the batch
  tells them: see `row_outcomes`. Outcomes of an earlier run of a batch are removed before it is repeated.
* The heartbeat and the query take turns: while one talks to the store about the claims, the other waits.

It lives on one event loop, and one query calls it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import InvalidBlobError, JobCancelledError, JQueueError, SegmentDamagedError
from jqueue.domain.job import Claim
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.lookups import Backlog, HeldBy, JobsInRanges, LastSequence, LookAtBacklog, RangesHeldBy
from jqueue.domain.operations.ranges import ClaimBatch, EndRange
from jqueue.domain.printable import counted
from jqueue.domain.segments import CHUNK_ROWS, FOLDER, RangeClaim
from jqueue.ports.log import logger_of
from jqueue.spark.batch.outcomes import Outcome
from jqueue.spark.stream.offsets import Offset, holder_of, holder_prefix
from jqueue.spark.stream.row_outcomes import OutcomeStore, end_of_job, end_of_range
from jqueue.spark.stream.source_options import MOST_SINGLES, SourceOptions

logger = logger_of("jqueue")

BEATS_PER_TIMEOUT = 3
MAX_HEARTBEAT_DEADLINE = 30.0
"""Seconds that a heartbeat may take: meanwhile the query waits."""

ID_LENGTH = 12


@dataclass(frozen=True)
class BatchSizes:
    """Largest sizes of a batch, whatever the query asks for.

    Attributes:
        singles: largest number of jobs that are claimed one by one: their rows go through the driver.
        ranges: largest number of ranges. The queue has room for 256, and other consumers claim some, too.
        least: smallest number of jobs of a range.
    """

    singles: int = MOST_SINGLES
    ranges: int = 128
    least: int = CHUNK_ROWS


SIZES = BatchSizes()


@dataclass
class Held:
    """The claims of one batch.

    Attributes:
        jobs: the jobs that were claimed one by one.
        ranges: the claims of ranges.
    """

    jobs: list[Job] = field(default_factory=list)
    ranges: list[RangeClaim] = field(default_factory=list)

    @classmethod
    def of(cls, claimed: Iterable[Job | RangeClaim]) -> Held:
        """Return the claims that an operation has made."""
        held = cls()
        for each in claimed:
            held.add(each)
        return held

    def add(self, claimed: Job | RangeClaim) -> None:
        """Add a claim."""
        if isinstance(claimed, Job):
            self.jobs.append(claimed)
        else:
            self.ranges.append(claimed)

    @property
    def number(self) -> int:
        """Number of jobs."""
        return len(self.jobs) + sum(claim.rows for claim in self.ranges)

    @property
    def claims(self) -> list[Job | Claim]:
        """The claims, for heartbeats."""
        return [*self.jobs, *(claim.claim for claim in self.ranges)]

    def without(self, lost: set[str]) -> Held:
        """Return the claims without some, by the ids of jobs and ranges."""
        jobs = [job for job in self.jobs if job.id not in lost]
        return Held(jobs, [claim for claim in self.ranges if claim.id not in lost])


def one_line(error: BaseException) -> str:
    """Return the message of an error, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


class ClaimsOfQuery:
    """The claims of one streaming query, as the process that runs its source knows them.

    Args:
        queue: a queue object for this query alone.
        options: of the query.
        sizes: largest sizes of a batch.
    """

    def __init__(self, queue: DirectQueue, options: SourceOptions, sizes: BatchSizes = SIZES) -> None:
        self._queue = queue
        self._options = options
        self._sizes = sizes
        self._outcomes = OutcomeStore.of(queue.storage)
        self._without_outcomes: set[str] = set()  # claims of which no earlier run has told outcomes
        self._turn = asyncio.Lock()
        self._source: str | None = None  # the query whose claims are known
        self._held: dict[str, Held] = {}  # by claim, in the order in which they become batches
        self._backlog: Backlog | None = None  # as of the last claim
        self._through: int | None = None  # the sequence number of the last job to take
        self._next_poll = float("-inf")
        self._confirmed = 0.0  # when the claims were last confirmed, on the clock of the event loop
        self._heartbeat_task: asyncio.Task[None] | None = None

    def new_id(self) -> str:
        """Return a fresh id. It is short, since it is kept with every job in progress."""
        return self._queue.options.entropy.new_id().replace("-", "")[:ID_LENGTH]

    @property
    def is_due(self) -> bool:
        """True if it is time to look for jobs. Until then the store is left alone."""
        return self._through is not None or self._queue.options.clock.monotonic() >= self._next_poll

    def progress(self) -> dict[str, Any] | None:
        """Return the figures of the query for its progress, as of the last claim; None before it."""
        if self._backlog is None:
            return None
        oldest, now = self._backlog.oldest, self._queue.options.clock.now()
        return {
            "backlog": self._backlog.jobs,
            "oldestAgeSeconds": None if oldest is None else round(max(0.0, (now - oldest).total_seconds()), 3),
            "claimedJobs": self._number,
            "claimedRanges": sum(len(held.ranges) for held in self._held.values()),
        }

    async def freeze(self) -> None:
        """From now on, take only jobs that are in the queue at this moment."""
        [self._through] = await self._queue.apply(LastSequence())

    def begin(self, source: str) -> None:
        """Take an id that has never been used: nothing is claimed under it."""
        self._source, self._held = source, {}

    async def after(self, start: Offset, most: int) -> Offset:
        """Finish the batch that ends at an offset, and claim the next.

        Args:
            start: the start of the next batch.
            most: largest number of jobs in it.

        Returns:
            The end of the next batch; `start` if there is nothing to do.

        Raises:
            JQueueError: the store failed. The next call finds the claims again.
        """
        async with self._turn:
            try:
                is_new = self._source != start.source
                await self._find_claims(start.source)
                if is_new and start.claim and start.claim not in self._held:
                    await self._forget_outcomes(start.claim)  # an earlier process has ended it, or it was lost
                end = await self._next(start, most)
            except BaseException:
                self._source = None  # it may have been done: look again
                raise
            self._keep_alive()
            return end

    async def jobs_of(self, end: Offset) -> Sequence[Job]:
        """Return the jobs that `batch_of` has, without those of ranges."""
        return (await self.batch_of(end)).jobs

    async def batch_of(self, end: Offset) -> Held:
        """Return the claims of the batch that ends at an offset; after a restart, only claims that are still ours."""
        async with self._turn:
            if end.claim not in self._held:
                await self._find_claims(end.source)
                self._keep_alive()
            if self._outcomes is not None and end.claim not in self._without_outcomes:
                await self._outcomes.remove(end.claim)
                self._without_outcomes.add(end.claim)
            return self._held.get(end.claim, Held())

    async def stop(self) -> None:
        """Send no more heartbeats. The claims stay: after a restart the query goes on with them."""
        task, self._heartbeat_task = self._heartbeat_task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _next(self, start: Offset, most: int) -> Offset:
        held = self._held.get(start.claim, Held())
        told, unread = await self._told_of(start.claim, held)
        for name in unread:
            self._queue.suspect_segment(name, InvalidBlobError("another process could not read it"))
            logger.warning(
                "ranges of batch %d are handed back, and all others go on: %s",
                start.batch,
                SegmentDamagedError(FOLDER + name),
            )
        finished = await self._ends(start, held, told or (), unread)
        waiting = next((claim for claim in self._held if claim != start.claim), None)
        operations = [operation for operation, _ in finished]
        claim = self.new_id()
        if waiting is None:
            operations += [
                self._claiming(holder_of(start.source, claim), most),
                LookAtBacklog(self._options.entrypoints),
            ]
        began = asyncio.get_running_loop().time()
        results = await self._queue.apply_each(*operations)
        await self._hand_back_unreadable(operations, results)
        self._held.pop(start.claim, None)
        self._without_outcomes.discard(start.claim)
        if told is not None or unread:
            await self._forget_outcomes(start.claim)
        self._log_refused(start, [jobs for _, jobs in finished], results[: len(finished)])
        if waiting is None:
            claiming, self._backlog = results[-2:]
            if isinstance(claiming, JQueueError):
                raise claiming
            claimed = Held.of(claiming)
            if claimed.number:
                waiting, self._held[claim] = claim, claimed
                self._without_outcomes.add(claim)
                self._confirmed = began
            pause = 0.0 if self._is_full(claimed, most) else self._options.poll_interval
            self._next_poll = self._queue.options.clock.monotonic() + pause
        return start if waiting is None else start.followed_by(waiting)

    async def _told_of(self, claim: str, held: Held) -> tuple[Sequence[Outcome] | None, Sequence[str]]:
        """Return the outcomes that were told of a batch, and the names of the segments that tasks could not read."""
        if self._outcomes is None or not held.number:
            return None, ()
        if not held.ranges:
            return await self._outcomes.read(claim), ()
        return await asyncio.gather(self._outcomes.read(claim), self._outcomes.unread(claim))

    async def _hand_back_unreadable(self, operations: Sequence[Operation], results: Sequence[object]) -> None:
        """Hand back the ranges whose ends were refused, as it cannot be told which of their rows have failed."""
        pairs = zip(operations, results, strict=True)
        refused = [(each, error) for each, error in pairs if isinstance(error, SegmentDamagedError)]
        ends = [EndRange(each.claim, worked_on=0) for each, _ in refused if isinstance(each, EndRange)]
        if ends:
            logger.warning("ranges are handed back, as outcomes of their jobs cannot be noted: %s", refused[0][1])
            await self._queue.apply_each(*ends)

    async def _ends(
        self, start: Offset, held: Held, told: Iterable[Outcome], unread: Collection[str]
    ) -> list[tuple[Operation, int]]:
        """Return the operations that end the claims of a batch, each with its number of jobs.

        Args:
            start: the end of the batch.
            held: its claims.
            told: the outcomes of single rows. All others are done.
            unread: the names of segments that could not be read. Their ranges are handed back.
        """
        by_id = {outcome.job_id: outcome for outcome in told}
        ends: list[tuple[Operation, int]] = [(end_of_job(job, by_id.pop(job.id, None)), 1) for job in held.jobs]
        in_ranges: dict[str, list[Outcome]] = {}
        if by_id and held.ranges:
            [found] = await self._queue.apply(JobsInRanges(tuple(by_id)))
            ours = {claim.id for claim in held.ranges}
            for range_id, job_id in found:
                if range_id in ours:
                    in_ranges.setdefault(range_id, []).append(by_id[job_id])
            for job_id in {each.job_id for several in in_ranges.values() for each in several}:
                del by_id[job_id]
        for claim in held.ranges:
            is_read = claim.segment not in unread
            end = end_of_range(claim, in_ranges.get(claim.id, ())) if is_read else EndRange(claim, worked_on=0)
            ends.append((end, claim.rows))
        if by_id:
            logger.warning(
                "outcomes of %s are ignored: batch %d has no such jobs, or has lost them",
                counted(len(by_id), "row"),
                start.batch,
            )
        return ends

    async def _forget_outcomes(self, claim: str) -> None:
        try:
            if self._outcomes is not None:
                await self._outcomes.remove(claim)
        except JQueueError as error:
            logger.warning("the outcomes of a batch could not be removed; that is done later: %s", one_line(error))

    def _claiming(self, holder: str, most: int) -> Operation:
        """Return the operation that claims a batch of at most a number of jobs."""
        options, sizes = self._options, self._sizes
        if not self._queue.capabilities.ranges:
            return Dequeue(
                options.entrypoints,
                batch_size=min(most, sizes.singles),
                claim_timeout=options.claim_timeout,
                holder=holder,
                through=self._through,
            )
        return ClaimBatch(
            options.entrypoints,
            most,
            singles=sizes.singles,
            ranges=sizes.ranges,
            least=sizes.least,
            claim_timeout=options.claim_timeout,
            holder=holder,
            through=self._through,
        )

    def _is_full(self, claimed: Held, most: int) -> bool:
        """Return True if there may be more jobs, as the batch has reached a largest size."""
        sizes = self._sizes
        return claimed.number >= most or len(claimed.jobs) >= sizes.singles or len(claimed.ranges) >= sizes.ranges

    async def _find_claims(self, source: str) -> None:
        """Find the claims of a query and send a heartbeat for them, unless this process knows them already."""
        if self._source == source:
            return
        prefix = holder_prefix(source)
        kinds = (HeldBy(prefix), RangesHeldBy(prefix)) if self._queue.capabilities.ranges else (HeldBy(prefix),)
        held: dict[str, Held] = {}
        for claimed in await self._queue.apply(*kinds):
            for each in claimed:
                holder = each.holder if isinstance(each, Job) else each.held.holder
                assert holder is not None  # it begins with the prefix
                held.setdefault(holder.removeprefix(prefix), Held()).add(each)
        self._held = held
        await self._send_heartbeat()
        self._source = source
        if self._held:
            logger.info("the query continues with %s that it had claimed before", counted(self._number, "job"))

    @property
    def _number(self) -> int:
        """Number of jobs that the query has claimed."""
        return sum(held.number for held in self._held.values())

    # Heartbeats

    def _keep_alive(self) -> None:
        if self._held and self._heartbeat_task is None:
            self._heartbeat_task = asyncio.get_running_loop().create_task(
                self._send_heartbeats(), name="jqueue-stream-heartbeat"
            )

    async def _send_heartbeats(self) -> None:
        """Send heartbeats for all claims again and again, well before they could be stale."""
        loop, interval = asyncio.get_running_loop(), self._options.claim_timeout / BEATS_PER_TIMEOUT
        while True:
            await asyncio.sleep(max(0.0, self._confirmed + interval - loop.time()))
            try:
                async with self._turn:
                    if loop.time() >= self._confirmed + interval:  # no claim was made meanwhile
                        await self._send_heartbeat()
            except Exception as error:
                logger.warning("a heartbeat for %s failed: %s", counted(self._number, "job"), one_line(error))
                await asyncio.sleep(interval / BEATS_PER_TIMEOUT)

    async def _send_heartbeat(self) -> None:
        """Send a heartbeat for all claims, and forget the lost ones."""
        claims = [claim for held in self._held.values() for claim in held.claims]
        began = asyncio.get_running_loop().time()
        if claims:
            seconds = min(MAX_HEARTBEAT_DEADLINE, self._options.claim_timeout / BEATS_PER_TIMEOUT)
            errors = await self._queue.heartbeat_many(claims, deadline=seconds)
            lost = {error.job_id for error in errors if not isinstance(error, JobCancelledError)}
            if lost:
                before = self._number
                kept = {claim: held.without(lost) for claim, held in self._held.items()}
                self._held = {claim: held for claim, held in kept.items() if held.number}
                logger.warning(
                    "%d of %s that this query had claimed went to other workers after too long without a heartbeat: "
                    "they may be done twice",
                    before - self._number,
                    counted(before, "job"),
                )
        self._confirmed = began

    @staticmethod
    def _log_refused(start: Offset, numbers: Sequence[int], results: Sequence[object]) -> None:
        pairs = zip(numbers, results, strict=True)
        refused = sum(jobs for jobs, outcome in pairs if isinstance(outcome, JQueueError))
        if refused:
            logger.warning(
                "%d of %s of batch %d went to other workers before the batch was finished: they may be done twice",
                refused,
                counted(sum(numbers), "job"),
                start.batch,
            )
