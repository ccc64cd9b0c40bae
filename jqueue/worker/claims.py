"""The claims of a worker: on single jobs, and on ranges of the jobs of batch handlers, which look like single ones.

A range costs a commit for its claim and one for its end, whatever the number of its jobs. So it is claimed
only if it holds at least a chunk of a segment. Its jobs are held in memory, so none has a payload in an object of its
own. It has only as many jobs as this worker does within a moment, because no other worker can have them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jqueue.domain.errors import (
    ClaimLostError,
    JobCancelledError,
    JobNotFoundError,
    JQueueError,
    QueueClosedError,
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
from jqueue.ports.log import logger_of
from jqueue.ports.queue import JobQueue, SupportsRanges
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import process_name
from jqueue.worker.executions import HeldJob
from jqueue.worker.handlers import Handler
from jqueue.worker.queue_health import RETRIED_ERRORS, CallFailures
from jqueue.worker.run_state import RunState

logger = logger_of("jqueue.worker")

LEAST, MOST = CHUNK_ROWS, 4096
"""Smallest and largest number of jobs of a range."""

SECONDS = 2.0
"""Seconds that the jobs of a range may take this worker, by the last batches."""

BEATS_PER_TIMEOUT = 3
"""Number of heartbeats in the time after which a claim without them is stale."""

RESOLVE_TIMEOUT = 300.0
"""Seconds to find out if an outcome that must not be done twice was done, if its claim has no timeout."""

HANDED_BACK = RangeFailure(charge=False)
"""The end of a job that nobody worked on, or whose handler was stopped with the worker."""


class Claims:
    """Claims the jobs of one run, keeps their claims alive, and ends the claims on ranges.

    Args:
        queue: the queue to claim from.
        claim_timeout: seconds that a claim lasts without a heartbeat; None for the queue's default.
        name: name of the worker, kept with its claims.
        handlers: the handlers of the worker, by entrypoint.
        state: the state of the run.
        failures: the failed calls that send outcomes.

    Attributes:
        queue: as given.
        limit: largest number of jobs in one call.
        waits: True if the queue has a long poll.
    """

    def __init__(
        self,
        queue: JobQueue,
        claim_timeout: float | None,
        name: str,
        handlers: Mapping[str, Handler[..., Any]],
        state: RunState,
        failures: CallFailures,
    ) -> None:
        self.queue = queue
        self.limit = options_of(queue).limits.batch_size
        self.waits = queue.capabilities.wait
        self._state = state
        self._failures = failures
        self._options: dict[str, Any] = {}
        if claim_timeout is not None and queue.capabilities.claim_timeout:
            self._options["claim_timeout"] = claim_timeout
        if queue.capabilities.holders:
            self._options["holder"] = f"{name}@{process_name()}"
        self._sizes = {
            name: handler.options.batch
            for name, handler in handlers.items()
            if handler.options.batch is not None and handler.options.keep_result is None
        }
        self._is_alone = len(handlers) == 1
        self._usual_timeout = DEFAULT_CLAIM_TIMEOUT.total_seconds() if claim_timeout is None else claim_timeout
        self._range_owner = queue if queue.capabilities.ranges and isinstance(queue, SupportsRanges) else None
        self._ranges: list[_Range] = []
        self._places: dict[str, tuple[_Range, int]] = {}
        self._rates: dict[str, float] = {}  # by entrypoint: number of jobs that this worker does in a second
        self._companions: dict[str, float] = {}  # by entrypoint: operations for each job of its last range
        self._singles_first: Counter[str] = Counter()
        self._ends: set[asyncio.Task[None]] = set()
        self._is_over = False

    # Claiming

    async def claim(self, entrypoints: str | Sequence[str], count: int) -> list[Job]:
        """Claim up to `count` jobs that are ready now. Fewer than that only if no more are ready."""
        names = (entrypoints,) if isinstance(entrypoints, str) else entrypoints
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
                more = await self.queue.dequeue(entrypoints, batch_size=count - len(jobs), **self._options)
                if name in self._sizes:
                    self._singles_first[name] -= len(more)
                jobs += more
        except BaseException:  # nobody receives the jobs
            for each, number in Counter(found[0] for job in jobs if (found := self._find(job))).items():
                each.given -= number
                self._end_if_due(each)
            raise
        return jobs

    async def wait(self, entrypoints: str | Sequence[str], count: int, seconds: float) -> list[Job]:
        """Claim up to `count` jobs as soon as there are any, by a long poll."""
        return await self.queue.dequeue(entrypoints, batch_size=count, wait=seconds, **self._options)

    async def settle(self, entrypoints: Sequence[str], seconds: float) -> None:
        """Wait until the jobs that a cancelled call may have claimed are handed back, but no longer than `seconds`.

        A queue hands them back behind the calls that it has when the cancelled call ends. The first call here waits for
        that end, and the second one for the jobs.
        """
        try:
            async with asyncio.timeout(seconds):
                for _ in range(2):
                    await self.queue.dequeue(entrypoints, batch_size=0, deadline=seconds)
        except Exception as error:
            logger.debug("the queue has not confirmed the end of a claim: %s", type(error).__name__)

    def note_speed(self, entrypoint: str, jobs: int, seconds: float) -> None:
        """Note that a number of jobs took this worker a number of seconds."""
        rate = jobs / max(seconds, 1e-6)
        self._rates[entrypoint] = (self._rates.get(entrypoint, rate) + rate) / 2

    def _rows(self, name: str, count: int) -> int:
        """Return the number of jobs to claim by a range when `count` are wanted; 0 to claim them one by one."""
        size = self._sizes.get(name)
        if size is None or self._range_owner is None or self._singles_first[name] > 0:
            return 0
        most = int((self.limit - 1) / max(1.0, self._companions.get(name, 0.0)))  # its end is one call
        seconds = min(SECONDS, self._usual_timeout / BEATS_PER_TIMEOUT)
        rows = min(MOST, most, int(self._rates.get(name, 0.0) * seconds))
        if not self._is_alone:  # the next batch may have to wait for jobs of other entrypoints
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
        claimed = _Range(claim, asyncio.get_running_loop().time())
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

    def _find(self, job: Job) -> tuple[_Range, int] | None:
        """Return the range of a job and its place there; None if the job is claimed by itself."""
        found = self._places.get(job.id) if self._places else None
        return found if found is not None and found[0].jobs[found[1]] is job else None

    # Heartbeats

    def confirmed(self, job: Job, now: float) -> float:
        """Return the time at which the store last confirmed the claim on a job that was just returned by `claim`."""
        found = self._find(job)
        return now if found is None else found[0].confirmed

    def shortest_timeout(self, jobs: Sequence[Job]) -> float:
        """Return the seconds that the claims on some jobs, and all claims on ranges, last without a heartbeat."""
        timeouts = [job.claim_timeout for job in jobs if job.claim_timeout]
        timeouts += [each.claim.held.claim_timeout for each in self._ranges]
        return min(timeouts, default=self._usual_timeout)

    async def heartbeat_many(self, jobs: Sequence[Job], deadline: float) -> Sequence[JobNotFoundError]:
        """Keep the claims on some jobs alive, and those on all ranges. Return what is wrong, by the ids of jobs."""
        ranges = {each.claim.id: each for each in self._ranges}
        claims = [job.claim for job in jobs if self._find(job) is None]
        claims += [each.claim.claim for each in ranges.values()]
        answers: list[JobNotFoundError] = []
        for start in range(0, len(claims), self.limit):
            answers += await self.queue.heartbeat_many(claims[start : start + self.limit], deadline=deadline)
        for each in ranges.values():
            each.confirmed = asyncio.get_running_loop().time()
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
        return errors

    def lose(self, job: Job) -> None:
        """Note that the claim on a job is lost. Nothing more is sent for the range that it may be in."""
        found = self._find(job)
        if found is not None:
            self._lose(found[0], "a claim on one of them is lost")

    def _lose(self, lost: _Range, why: str) -> None:
        logger.warning("%s of %s are no longer claimed here: %s", *lost.about, why)
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
        for each in tuple(self._ranges):
            self._close(each)

    def abandon(self) -> None:
        """Send no more ends of ranges."""
        self._is_over = True
        for task in self._ends:
            task.cancel()

    def _close(self, claimed: _Range) -> None:
        claimed.closing = True
        self._end_if_due(claimed)

    def _end_if_due(self, claimed: _Range) -> None:
        """Begin to send the end of a range if nothing is left to do in it."""
        if claimed.is_due:
            claimed.ending = True
            task = asyncio.create_task(self._end(claimed), name="jqueue-worker-outcome")
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

    async def _end(self, claimed: _Range) -> None:
        """Send the end of a range until the queue has answered, or the claim is lost."""
        claim = claimed.claim
        self._companions[claim.entrypoint] = len(claimed.companions) / claim.rows
        while claimed in self._ranges:
            try:
                await self.commit_once(claimed, claim.held.claim_timeout)
            except QueueClosedError as error:
                self._state.fail(error)
                return
            except JQueueError as error:
                self._refused(claimed, error)
            except asyncio.CancelledError:
                if self._is_over:
                    raise
                claimed.uncertain = True  # a program that ends cancels all of its tasks
                claimed.refused = claimed.refused or "the worker ended before the queue answered"
            except Exception as error:  # raised by an operation or a queue of a user
                self._refused(claimed, JQueueError(f"the queue raised {type(error).__name__}"))
            else:
                self._failures.clear()
                for held in claimed.outcomes.values():
                    if claimed.spoiled or (claimed.refused is not None and held.companions):
                        held.outcome = "handed_back"
                if claimed in self._ranges:
                    self._remove(claimed, is_certain=True)

    def _refused(self, claimed: _Range, error: JQueueError) -> None:
        """Decide how a range ends whose end the queue refused: the jobs that it may be for are given back."""
        if claimed not in self._ranges:
            return
        is_lost = isinstance(error, JobNotFoundError) and error.job_id == claimed.claim.id
        if not is_lost and claimed.companions:
            claimed.refused = f"{type(error).__name__}: {error}"
        elif isinstance(error, SegmentDamagedError) and not claimed.spoiled:
            claimed.spoiled = True
        elif not isinstance(error, UnknownOutcomeError):
            self._lose(claimed, str(error))

    def _remove(self, over: _Range, *, is_certain: bool = False) -> None:
        """Drop a range whose claim has ended, and count its jobs: their outcomes are certainly in the queue, or not."""
        self._ranges.remove(over)
        for job in over.jobs:
            if self._find(job) is not None:
                del self._places[job.id]
        for held in over.outcomes.values():
            self._state.finish(held, is_certain=is_certain)
        self._state.sending -= len(over.outcomes)
        self._state.open_claims -= 1
        self._state.wake_waiting()

    async def commit_once(self, end: HeldJob | _Range, claim_timeout: float | None) -> object:
        """Have an end and its companions done in one commit, and not twice. Return the answer to the end.

        Raises:
            UnknownOutcomeError: it cannot be found out if they were done, and sent again they could be done twice. The
                caller sends a nack instead, which finds the claim lost if they were done.
            JQueueError: the queue refused them.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + (claim_timeout or RESOLVE_TIMEOUT)
        unknown: UnknownOutcomeError | None = None
        while True:
            last_error: Exception
            try:
                if unknown is None:
                    results = await self.queue.apply(*end.companions, end.operation)
                else:
                    results = await unknown.resolve()
                return results[-1]
            except UnknownOutcomeError as error:
                end.uncertain = True
                if loop.time() >= until:
                    raise
                last_error = unknown = error
            except RETRIED_ERRORS as error:  # it was certainly not done
                if isinstance(error, SegmentDamagedError) and error.lasts:
                    raise
                last_error, unknown = error, None
            await asyncio.sleep(self._failures.add(last_error))


class _Range:
    """One claimed range, until the queue knows its end.

    Args:
        claim: the claim.
        confirmed: time of the claim, on the loop's clock.

    Attributes:
        claim: as given.
        jobs: its jobs, in order, once they are read.
        given: number of jobs that were handed out.
        confirmed: time at which the store last confirmed the claim, on the loop's clock.
        cancelled: ids of jobs that were cancelled while they are in the range.
        outcomes: its jobs that have outcomes, by their places.
        ending: True once its end is on its way to the queue.
        uncertain: True if its end was sent before and may have been done.
        closing: True if jobs that were not handed out must be given back.
        refused: why jobs that enqueue others are given back instead of acked; None if they are acked.
        spoiled: True if all jobs must be given back, as nothing can be noted with those that failed.
    """

    def __init__(self, claim: RangeClaim, confirmed: float) -> None:
        self.claim = claim
        self.jobs: list[Job] = []
        self.given = 0
        self.confirmed = confirmed
        self.cancelled: set[str] = set()
        self.outcomes: dict[int, HeldJob] = {}
        self.ending = False
        self.uncertain = False
        self.closing = False
        self.refused: str | None = None
        self.spoiled = False

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

    @property
    def about(self) -> tuple[str, str]:
        """The number of its jobs and their entrypoint, for the log."""
        return counted(self.claim.rows, "job"), self.claim.entrypoint
