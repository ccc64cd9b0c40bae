"""The claims of a worker: on single jobs, and on ranges of the jobs of batch handlers, which look like single ones.

A range costs a commit for its claim and one for its end, whatever the number of its jobs. So it is claimed
only if it holds at least a chunk of a segment. Its jobs are held in memory, so none has a payload in an object of its
own. It has only as many jobs as this worker does within a moment, because no other worker can have them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jqueue.domain.errors import (
    ClaimLostError,
    JobCancelledError,
    JobNotFoundError,
    JQueueError,
    SegmentDamagedError,
    UnknownOutcomeError,
)
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import Nack
from jqueue.domain.operations.ranges import EndRange
from jqueue.domain.printable import counted
from jqueue.domain.segments import CHUNK_ROWS, RangeClaim, RangeFailure
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.queue import SupportsRanges, Wait
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import process_name
from jqueue.worker.executions import HeldJob
from jqueue.worker.queue_health import RETRIED_ERRORS
from jqueue.worker.run_state import RunState

logger: Logger = logger_of("jqueue.worker")

LEAST, MOST = CHUNK_ROWS, 4096
"""Smallest and largest number of jobs of a range."""

SECONDS = 2.0
"""Seconds that the jobs of a range may take this worker, by the last batches."""

BEATS_PER_TIMEOUT = 3
"""Number of heartbeats in the time after which a claim without them is stale."""

HANDED_BACK = RangeFailure(charge=False)
"""The end of a job that nobody worked on, or whose handler was stopped with the worker."""


class Claims:
    """Claims the jobs of one run, keeps their claims alive, and says when the claims on ranges end.

    Args:
        state: the state of the run.

    Attributes:
        limit: largest number of jobs in one call.
        due: ranges whose end must be sent.
    """

    def __init__(self, state: RunState) -> None:
        queue, timeout = state.queue, state.claim_timeout
        self.limit: int = options_of(queue).limits.batch_size
        self.due: list[Range] = []
        self._state = state
        self._queue = queue
        self._options: dict[str, Any] = {}
        if timeout is not None and queue.capabilities.claim_timeout:
            self._options["claim_timeout"] = timeout
        if queue.capabilities.holders:
            self._options["holder"] = f"{state.name}@{process_name()}"
        self._usual_timeout = DEFAULT_CLAIM_TIMEOUT.total_seconds() if timeout is None else timeout
        self._range_owner = queue if queue.capabilities.ranges and isinstance(queue, SupportsRanges) else None
        self._ranges: list[Range] = []
        self._places: dict[str, tuple[Range, int]] = {}
        self._rates: dict[str, float] = {}  # by entrypoint: number of jobs that this worker does in a second
        self._companions: dict[str, float] = {}  # by entrypoint: operations for each job of its last range
        self._singles_first: Counter[str] = Counter()

    # Claiming

    async def claim(self, names: Sequence[str], count: int, deadline: float | None = None) -> list[Job]:
        """Claim up to `count` jobs that are ready now. Fewer than that only if no more are ready."""
        jobs: list[Job] = []
        for name in names if self._ranges else ():
            jobs += self._hand_out(name, count - len(jobs))
        name = names[0] if len(names) == 1 else ""
        try:
            while len(jobs) < count and (rows := self._rows(name, count - len(jobs))):
                if not await self._claim_range(name, rows):
                    self._singles_first[name] = LEAST
                jobs += self._hand_out(name, count - len(jobs))
            if len(jobs) < count:
                more = await self._queue.dequeue(
                    names, batch_size=count - len(jobs), deadline=deadline, **self._options
                )
                self._singles_first[name] -= len(more)
                jobs += more
        except BaseException:  # nobody receives the jobs
            for each, number in Counter(found[0] for job in jobs if (found := self._find(job))).items():
                each.given -= number
                self._end_if_due(each)
            raise
        return jobs

    async def wait(self, names: Sequence[str], count: int, wait: Wait) -> list[Job]:
        """Claim up to `count` jobs as soon as there are any, by a long poll."""
        return await self._queue.dequeue(names, batch_size=count, wait=wait, **self._options)

    def note_speed(self, entrypoint: str, jobs: int, seconds: float) -> None:
        """Note that a number of jobs took this worker a number of seconds."""
        rate = jobs / max(seconds, 1e-6)
        self._rates[entrypoint] = (self._rates.get(entrypoint, rate) + rate) / 2

    def _rows(self, name: str, count: int) -> int:
        """Return the number of jobs to claim by a range when `count` are wanted; 0 to claim them one by one."""
        if self._range_owner is None or not name or self._singles_first[name] > 0:
            return 0
        options = self._state.handlers[name].options
        size = options.batch
        if size is None or options.keep_result is not None:
            return 0
        most = int((self.limit - 1) / max(1.0, self._companions.get(name, 0.0)))  # its end is one call
        seconds = min(SECONDS, self._usual_timeout / BEATS_PER_TIMEOUT)
        rows = min(MOST, most, int(self._rates.get(name, 0.0) * seconds))
        if len(self._state.handlers) > 1:  # the next batch may have to wait for jobs of other entrypoints
            rows = min(rows, count)
        if rows > size:
            rows -= rows % size
        return rows if rows >= LEAST else 0

    async def _claim_range(self, name: str, rows: int) -> bool:
        """Claim a range, and read its jobs. Return False if there is none."""
        assert self._range_owner is not None
        claim = await self._range_owner.claim_range(name, rows, least=LEAST, inline=True, **self._options)
        if claim is None:
            return False
        claimed = Range(claim, self._state.loop.time())
        self._ranges.append(claimed)
        self._state.open_claims += 1
        self._state.claimed.set()
        try:
            jobs = [job async for job in self._range_owner.read_range(claim)]
        except BaseException as error:
            self._close(claimed)
            if not isinstance(error, JQueueError):
                raise
            logger.warning("%s of %s cannot be read, and are handed back: %s", counted(claim.rows, "job"), name, error)
            return False
        claimed.jobs = jobs
        self._places.update((job.id, (claimed, place)) for place, job in enumerate(jobs))
        return True

    def _hand_out(self, entrypoint: str, count: int) -> list[Job]:
        """Return up to `count` jobs of the ranges of an entrypoint."""
        found: list[Job] = []
        for each in self._ranges:
            if each.claim.entrypoint == entrypoint and not each.closing:
                found += each.hand_out(count - len(found))
        return found

    def _find(self, job: Job) -> tuple[Range, int] | None:
        """Return the range of a job and its place there; None if the job is claimed by itself."""
        found = self._places.get(job.id) if self._places else None
        return found if found is not None and found[0].jobs[found[1]] is job else None

    # Heartbeats

    def confirmed(self, job: Job, now: float) -> float:
        """Return the time at which the store last confirmed the claim on a job that was just returned by `claim`."""
        found = self._find(job)
        return now if found is None else found[0].confirmed

    def shortest_timeout(self) -> float:
        """Return the shortest time in seconds that any claim lasts without a heartbeat."""
        claims: list[HeldJob | Range] = [*self._state.held, *self._ranges]
        return min((each.claim_timeout for each in claims if each.claim_timeout), default=self._usual_timeout)

    async def heartbeat_many(
        self, jobs: Sequence[Job], deadline: float
    ) -> tuple[Sequence[JobNotFoundError], dict[str, Exception]]:
        """Keep the claims on some jobs alive, and those on all ranges, by calls of which each may fail alone.

        Returns:
            What is wrong, by the ids of jobs; and the ids of jobs whose heartbeat failed, with the errors.
        """
        ranges = {each.claim.id: each for each in self._ranges}
        claims = [job.claim for job in jobs if self._find(job) is None]
        claims += [each.claim.claim for each in ranges.values()]
        lots = [claims[start : start + self.limit] for start in range(0, len(claims), self.limit)]
        calls = [self._queue.heartbeat_many(lot, deadline=deadline) for lot in lots]
        answers: list[JobNotFoundError] = []
        failed: dict[str, Exception] = {}
        for lot, answer in zip(lots, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(answer, RETRIED_ERRORS):
                failed.update((claim.job_id, answer) for claim in lot)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers += answer
        for each in ranges.values():
            if (error := failed.get(each.claim.id)) is None:
                each.confirmed = self._state.loop.time()
            else:
                failed.update((job.id, error) for job in each.jobs)
        errors: list[JobNotFoundError] = []
        for error in answers:
            claimed = ranges.get(getattr(error, "range_id", None) or error.job_id)
            if claimed is None:
                errors.append(error)
            elif isinstance(error, JobCancelledError):
                claimed.cancelled.add(error.job_id)
                owner, place = self._places.get(error.job_id, (None, 0))
                if owner is claimed:
                    errors.append(JobCancelledError(*claimed.jobs[place].claim))
            elif claimed in self._ranges and not getattr(error, "ended_here", False):
                errors += [ClaimLostError(*job.claim) for job in claimed.undecided]
                self._lose(claimed, "another worker has them, or they were removed")
        return errors, failed

    def lose(self, job: Job) -> None:
        """Note that the claim on a job is lost. Nothing more is sent for the range that it may be in."""
        found = self._find(job)
        if found is not None:
            self._lose(found[0], "a claim on one of them is lost")

    def _lose(self, lost: Range, why: str) -> None:
        count, entrypoint = counted(lost.claim.rows, "job"), lost.claim.entrypoint
        logger.warning("%s of %s are no longer claimed here: %s", count, entrypoint, why)
        if not lost.uncertain:
            for held in lost.outcomes.values():
                held.outcome = "lost"
        self._remove(lost)

    # Ends

    def collect(self, held: HeldJob) -> bool:
        """Take an outcome, to send it when all jobs of its range have one. False if its job is claimed by itself."""
        found = self._find(held.job)
        if found is None:
            return False
        found[0].outcomes[found[1]] = held
        self._end_if_due(found[0])
        return True

    def close(self) -> None:
        """Hand out no more jobs. Those that were not handed out are given back."""
        for each in self._ranges:
            self._close(each)

    def _close(self, claimed: Range) -> None:
        claimed.closing = True
        self._end_if_due(claimed)

    def _end_if_due(self, claimed: Range) -> None:
        """Have the end of a range sent if nothing is left to do in it."""
        if claimed.is_due:
            claimed.ending = True
            self._companions[claimed.claim.entrypoint] = len(claimed.companions) / claimed.claim.rows
            self._send(claimed)

    def _send(self, claimed: Range) -> None:
        self.due.append(claimed)
        self._state.has_outcomes.set()

    def ended(self, claimed: Range) -> None:
        """Note that the end of a range is in the queue."""
        for held in claimed.outcomes.values():
            if claimed.spoiled or (claimed.refused is not None and held.companions):
                held.outcome = "handed_back"
        if claimed in self._ranges:
            self._remove(claimed, is_certain=True)

    def refused(self, claimed: Range, error: BaseException) -> None:
        """Send the end of a range anew that the queue refused: the jobs that it may be for are given back."""
        if claimed not in self._ranges:
            return
        is_lost = isinstance(error, JobNotFoundError) and error.job_id == claimed.claim.id
        if not isinstance(error, JQueueError):
            claimed.refused = claimed.refused or "the worker ended before the queue answered"
        elif not is_lost and claimed.companions:
            claimed.refused = f"{type(error).__name__}: {error}"
        elif isinstance(error, SegmentDamagedError) and not claimed.spoiled:
            claimed.spoiled = True
        elif not isinstance(error, UnknownOutcomeError):
            self._lose(claimed, str(error))
            return
        self._send(claimed)

    def _remove(self, over: Range, *, is_certain: bool = False) -> None:
        """Drop a range whose claim has ended, and count its jobs: their outcomes are certainly in the queue, or not."""
        self._ranges.remove(over)
        for job in over.jobs:
            if self._find(job) is not None:
                del self._places[job.id]
        for held in over.outcomes.values():
            self._state.finish(held, is_certain=is_certain)
        self._state.open_claims -= 1
        self._state.wake_waiting()


@dataclass(eq=False)
class Range:
    """One claimed range, until the queue knows its end.

    Attributes:
        claim: the claim.
        confirmed: time at which the store last confirmed the claim, on the loop's clock.
        jobs: its jobs, in order, once they are read.
        given: number of jobs that were handed out.
        cancelled: ids of jobs that were cancelled while they are in the range.
        outcomes: its jobs that have outcomes, by their places.
        ending: True once its end is on its way to the queue.
        uncertain: True if its end was sent before and may have been done.
        closing: True if jobs that were not handed out must be given back.
        refused: why jobs that enqueue others are given back instead of acked; None if they are acked.
        spoiled: True if all jobs must be given back, as nothing can be noted with those that failed.
    """

    claim: RangeClaim
    confirmed: float
    jobs: list[Job] = field(default_factory=list)
    given: int = 0
    cancelled: set[str] = field(default_factory=set)
    outcomes: dict[int, HeldJob] = field(default_factory=dict)
    ending: bool = False
    uncertain: bool = False
    closing: bool = False
    refused: str | None = None
    spoiled: bool = False

    @property
    def claim_timeout(self) -> float:
        """Seconds that the claim lasts without a heartbeat."""
        return self.claim.held.claim_timeout

    def hand_out(self, count: int) -> list[Job]:
        """Return the next jobs, `count` at most."""
        first, self.given = self.given, min(self.given + count, len(self.jobs))
        for place in range(first, self.given) if self.cancelled else ():
            if self.jobs[place].id in self.cancelled:
                self.jobs[place] = self.jobs[place].evolve(cancel_requested=True)
        return self.jobs[first : self.given]

    @property
    def undecided(self) -> list[Job]:
        """The jobs that were handed out and have no outcome."""
        return [self.jobs[place] for place in range(self.given) if place not in self.outcomes]

    @property
    def is_due(self) -> bool:
        """True if its end must be sent now: nothing is left to do."""
        is_given = self.closing or self.given == len(self.jobs) > 0
        return is_given and not self.ending and len(self.outcomes) == self.given

    @property
    def companions(self) -> tuple[Operation, ...]:
        """Operations to do in the commit of its end, all or nothing."""
        if self.refused is not None or self.spoiled:
            return ()
        return tuple(companion for held in self.outcomes.values() for companion in held.companions)

    @property
    def operation(self) -> EndRange:
        """The end, with the outcomes of all jobs. Those behind the last one that was worked on wait again as a run."""
        ends = [] if self.spoiled else [self._failure(self.outcomes[place]) for place in range(self.given)]
        while ends and ends[-1] == HANDED_BACK:
            ends.pop()
        failed = {self.jobs[place].id: end for place, end in enumerate(ends) if end is not None}
        return EndRange(self.claim, failed, worked_on=len(ends))

    def _failure(self, held: HeldJob) -> RangeFailure | None:
        """Return how the end of the range names a job; None if the job is done."""
        end = held.operation
        if isinstance(end, Nack):
            return RangeFailure(end.error, end.delay, end.dead, end.charge, end.traceback)
        is_refused = self.refused is not None and held.companions
        return RangeFailure(self.refused, charge=False) if is_refused else None
