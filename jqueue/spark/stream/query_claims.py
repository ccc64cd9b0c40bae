"""The claims of a streaming query: found again after a restart, kept alive while its batches run, and acked after.

Each batch of the query is one claim, made under a name of its own. One commit acks the batch that is done and claims
the next. If the driver dies after that commit, before it writes its offset log, the claim is found by its holder's
name. It becomes the next batch of the restarted query.

* A claim is acked only if Spark begins the next batch at its offset: then all of its rows have gone through the query.
* The jobs of a batch never become more. A repeated batch leaves out jobs that were lost meanwhile, and adds no others.
  So a sink that remembers the numbers of its finished batches may skip a repeated batch.
* Jobs that wait in segments are leased, and only the leases are kept here. A lease that is lost is lost
  as a whole.
* The function of `foreachBatch` runs in another process. With `end_batch` it stages outcomes of single rows, in an
  object that is named by the claim of the batch. Tasks note there the segments that they could not read. The source
  reads it when Spark has noted that the batch is done, for the commit that ends the batch: nothing is told of a batch
  that failed, and nothing twice. The object of an earlier run of a batch is removed before the batch is repeated.

An offset names a claim, as a queue has no positions to continue from. All of it runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import InvalidBlobError, InvalidJobError, JQueueError, SegmentDamagedError
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.leases import EndLease
from jqueue.domain.operations.lookups import PATIENCE, Backlog, JobsInLeases, LastSequence, LookAtBacklog, LookAtHeld
from jqueue.domain.printable import counted
from jqueue.domain.segments import FOLDER, Lease
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.storage import SupportsScratch
from jqueue.spark.claims import (
    Heartbeats,
    Held,
    Outcome,
    Staged,
    check_queue,
    claiming,
    claims_held_by,
    end_claims,
    end_of_job,
    end_of_lease,
)
from jqueue.spark.staging import PREFIX, StagedObjects, Staging

logger: Logger = logger_of("jqueue")

BEATS_PER_TIMEOUT = 3
MAX_HEARTBEAT_DEADLINE = 30.0
"""Seconds that the heartbeat for claims that were found again may take."""

OUTCOMES_DEADLINE = 30.0
"""Seconds to read or write outcomes, repetitions included."""

LOOK = 1.0
"""Seconds between two looks for jobs of others whose claims are stale."""

ID_LENGTH = 12


class Offset(msgspec.Struct, frozen=True):
    """The end of one batch, and the start of the next.

    Attributes:
        source: the query's own id, drawn when it first starts, and kept by its checkpoint.
        batch: number of batches until then; for people.
        claim: the id of the claim that took the jobs of this batch; empty if there is none.
    """

    source: Annotated[str, msgspec.Meta(min_length=1)]
    batch: int
    claim: str

    @classmethod
    def read(cls, values: object) -> Offset:
        """Return the offset that Spark gives back.

        Raises:
            InvalidJobError: it is not an offset of ours.
        """
        try:
            return msgspec.convert(values, cls)
        except msgspec.ValidationError:
            raise InvalidJobError(
                "the checkpoint holds an offset that is not of a queue: was it made by a query on another source?"
            ) from None


HOLDERS = "spark/"
"""Start of the names of the holders of all claims of queries."""


def claim_of(holder: str) -> str:
    """Return the claim that took the jobs of a holder: see `holder_of`."""
    return holder.rpartition("/")[2]


def holder_of(source: str, claim: str = "") -> str:
    """Return the holder of the jobs that one claim of a query took; without a claim, the start of all such names."""
    return f"{HOLDERS}{source}/{claim}"


def name_of_outcomes(claim: str) -> str:
    """Return the name of the object with the outcomes of a batch, by its claim."""
    return f"{PREFIX}stream-{claim}"


@dataclass
class ClaimsOfQuery:
    """The claims of one streaming query, as the process that runs its source knows them.

    Attributes:
        queue: a queue object for this query alone.
        entrypoints: the entrypoints whose jobs it takes; None for all.
        claim_timeout: seconds without a heartbeat after which its jobs may go to other workers.
        poll_interval: seconds between two looks for jobs, unless the last one found a full batch.
    """

    queue: DirectQueue
    entrypoints: tuple[str, ...] | None
    claim_timeout: float
    poll_interval: float
    _without_outcomes: set[str] = field(default_factory=set)  # claims of which no earlier run has staged outcomes
    _is_checked: bool = False  # True if there is a queue
    _source: str | None = None  # the query whose claims are known
    _held: dict[str, Held] = field(default_factory=dict)  # by claim, in the order in which they become batches
    _backlog: Backlog | None = None  # as of the last claim
    _through: int | None = None  # the sequence number of the last job to take
    _next_poll: float = float("-inf")

    def __post_init__(self) -> None:
        assert isinstance(self.queue.storage, SupportsScratch)  # the source refuses URLs of others
        self._objects = StagedObjects(Staging("", OUTCOMES_DEADLINE), self.queue.storage)  # which close releases
        self._beats = Heartbeats(self.queue)

    def new_id(self) -> str:
        """Return a fresh id. It is short, since it is kept with every job in progress."""
        return self.queue.options.entropy.new_id().replace("-", "")[:ID_LENGTH]

    @property
    def is_due(self) -> bool:
        """True if it is time to look for jobs. Until then the store is left alone."""
        return self._through is not None or self.queue.options.clock.monotonic() >= self._next_poll

    def progress(self) -> dict[str, Any] | None:
        """Return the figures of the query for its progress, as of the last claim; None before it."""
        if self._backlog is None:
            return None
        oldest, now = self._backlog.oldest, self.queue.options.clock.now()
        return {
            "backlog": self._backlog.jobs,
            "oldestAgeSeconds": None if oldest is None else round(max(0.0, (now - oldest).total_seconds()), 3),
            "claimedJobs": self._number,
            "leases": sum(len(held.leases) for held in self._held.values()),
        }

    async def freeze(self) -> None:
        """From now on, take only jobs that are in the queue at this moment."""
        [self._through] = await self.queue.apply(LastSequence())

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
        try:
            if not self._is_checked:
                await check_queue(self.queue)
                self._is_checked = True
            is_new = self._source != start.source
            await self._find_claims(start.source)
            if is_new and start.claim and start.claim not in self._held:
                await self._remove_outcomes(start.claim)  # an earlier process has ended it, or it was lost
            end = await self._next(start, most)
            if end == start and self._through is not None:
                end = await self._wait_for_silent(start, most)
        except BaseException:
            self._source = None  # it may have been done: look again
            raise
        await self._beats.keep(self._held.values())
        return end

    async def _wait_for_silent(self, start: Offset, most: int) -> Offset:
        """Claim jobs of others whose claims are stale by the clock of the store, before a query of present jobs ends.

        This process may not revoke them at once. If there are none, say how many jobs others hold. Arguments and result
        are as for `after`.
        """
        clock, end = self.queue.options.clock, start
        until = clock.monotonic() + PATIENCE
        while end == start:
            [held] = await self.queue.apply(LookAtHeld(self.entrypoints))
            if not held.silent or clock.monotonic() > until:
                if held.jobs:
                    logger.warning("the query ends, and others hold %s", counted(held.jobs, "job"))
                break
            await asyncio.sleep(LOOK)
            end = await self._next(start, most)
            if end == start:  # jobs whose claims were just revoked have new sequence numbers
                [self._through] = await self.queue.apply(LastSequence())
                end = await self._next(start, most)
        return end

    async def batch_of(self, end: Offset) -> Held:
        """Return the claims of the batch that ends at an offset; after a restart, only claims that are still ours."""
        if end.claim not in self._held:
            await self._find_claims(end.source)
        if end.claim not in self._without_outcomes:
            await self._objects.remove(name_of_outcomes(end.claim))
            self._without_outcomes.add(end.claim)
        return self._held.get(end.claim, Held())

    async def stop(self) -> None:
        """Send no more heartbeats, and close the queue. A restarted query goes on with the claims."""
        await self._beats.keep(())
        await self.queue.aclose()

    async def _next(self, start: Offset, most: int) -> Offset:
        """End a batch and claim the next, in one commit. Return the end of the next batch."""
        held = self._held.get(start.claim, Held())
        content = None
        if held.number:
            [content] = await self._objects.read([name_of_outcomes(start.claim)])
        staged = Staged.decode(content)
        for name, why in staged.unread.items():
            self.queue.suspect_segment(name, InvalidBlobError(why))
            damage = SegmentDamagedError(FOLDER + name)
            logger.warning("leases of batch %d are handed back, and all others go on: %s", start.batch, damage)
        outcomes = await self._outcomes(start, held, staged)
        waiting = next((claim for claim in self._held if claim != start.claim), None)
        next_claim = self.new_id()
        beside: list[Operation] = []
        if waiting is None:
            holder, seconds = holder_of(start.source, next_claim), self.claim_timeout
            claims = claiming(self.entrypoints, most, seconds, holder, through=self._through)
            beside = [claims, LookAtBacklog(self.entrypoints)]
        batch = Held()

        def end_of(each: Job | Lease, refused: JQueueError | None) -> Operation:
            if isinstance(each, Job):
                return end_of_job(
                    each, outcomes[each.id][0] if each.id in outcomes else Outcome(*each.claim, "succeeded")
                )
            if refused is not None:
                logger.warning("a lease is handed back, as outcomes of its jobs cannot be noted: %s", refused)
            if refused is not None or each.segment in staged.unread:
                return EndLease(each, worked_on=0)
            return end_of_lease(each, Staged(tuple(outcomes.get(each.id, ()))))

        async def commit(ends: Sequence[Operation]) -> Sequence[Any]:
            results = await self.queue.apply_each(*ends, *beside)
            if beside:  # in the first commit
                beside.clear()
                claimed, self._backlog = results[-2:]
                if isinstance(claimed, JQueueError):
                    raise claimed
                batch.extend(claimed)
            return results[: len(ends)]

        lost = await end_claims(held, end_of, commit)
        if lost.number:
            logger.warning(
                "%d of %s of batch %d went to other workers before the batch was finished: they may be done twice",
                lost.number,
                counted(held.number, "job"),
                start.batch,
            )
        self._held.pop(start.claim, None)
        self._without_outcomes.discard(start.claim)
        if content is not None:
            await self._remove_outcomes(start.claim)
        if waiting is None:
            if batch.number:
                waiting, self._held[next_claim] = next_claim, batch
                self._without_outcomes.add(next_claim)
            pause = 0.0 if batch.is_full(most) else self.poll_interval
            self._next_poll = self.queue.options.clock.monotonic() + pause
        return start if waiting is None else Offset(start.source, start.batch + 1, waiting)

    async def _outcomes(self, start: Offset, held: Held, staged: Staged) -> dict[str, list[Outcome]]:
        """Return the staged outcomes by the ids of single jobs and leases. All other rows are done."""
        by_id = {outcome.job_id: outcome for outcome in staged.outcomes}
        outcomes = {job.id: [by_id.pop(job.id)] for job in held.jobs if job.id in by_id}
        pairs: list[tuple[str, str]] = []
        if by_id and held.leases:
            [pairs] = await self.queue.apply(JobsInLeases(tuple(by_id)))
            ours = {claim.id for claim in held.leases}
            pairs = [pair for pair in pairs if pair[0] in ours]
        for lease_id, job_id in pairs:
            outcomes.setdefault(lease_id, []).append(by_id[job_id])
        if others := len(by_id) - len({job_id for _, job_id in pairs}):
            rows = counted(others, "row")
            logger.warning("outcomes of %s are ignored: batch %d has no such jobs, or has lost them", rows, start.batch)
        return outcomes

    async def _remove_outcomes(self, claim: str) -> None:
        try:
            await self._objects.remove(name_of_outcomes(claim))
        except JQueueError as error:
            logger.warning("the outcomes of a batch could not be removed: %s", error)

    async def _find_claims(self, source: str) -> None:
        """Find the claims of a query and send a heartbeat for them, unless this process knows them already."""
        if self._source == source:
            return
        self._held = {}
        for each in await claims_held_by(self.queue, holder_of(source)):
            holder = each.holder if isinstance(each, Job) else each.entry.holder
            assert holder is not None  # it begins so
            self._held.setdefault(claim_of(holder), Held()).append(each)
        claims = [each.claim for held in self._held.values() for each in held]
        if claims:
            seconds = min(MAX_HEARTBEAT_DEADLINE, self.claim_timeout / BEATS_PER_TIMEOUT)
            await self.queue.heartbeat_many(claims, deadline=seconds)
            logger.info("the query continues with %s that it had claimed before", counted(self._number, "job"))
        await self._beats.keep(self._held.values())
        self._source = source

    @property
    def _number(self) -> int:
        """Number of jobs that the query has claimed."""
        return sum(held.number for held in self._held.values())
