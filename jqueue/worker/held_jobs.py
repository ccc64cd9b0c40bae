"""The jobs that a worker holds: the call that each is in, and its outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from jqueue.domain.job import Claim
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import Nack
from jqueue.domain.operations.ranges import EndRange
from jqueue.domain.printable import counted
from jqueue.domain.segments import CHUNK_ROWS, RangeClaim, RangeFailure
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.handlers import Handler
from jqueue.worker.job_log import about
from jqueue.worker.retries import OutcomeKind

Reason = Literal["timeout", "cancelled", "lost", "stop"]
"""The reason for which a handler was told to stop."""


class Work:
    """One call of a handler, for one job or for a batch of them. It takes one slot.

    Attributes:
        handler: the handler.
        call: calls the handler.
        batch: largest number of jobs; None if the handler takes single jobs.
        jobs: the jobs to call it with. Jobs that fail before the call leave this list.
        unstopped: number of those jobs that were neither told to stop nor decided about.
        holds: number of reasons for which its slot is taken: its handler, until it has ended, and each of its jobs,
            until the outcome is on its way to the queue.
        context: the context of the call; None if neither the handler nor middleware takes one.
        task: the task that runs the handler.
        gathering: True while more jobs are claimed for the batch.
        started: True once the task has begun.
        stopped: True once the handler was told to stop.
        ended: True once the handler has ended.
        began: time at which the handler was called, on the loop's clock; None if it was not.
        timer: runs until the handler's timeout, or until a handler that was told to stop counts as stuck.
    """

    __slots__ = (
        "batch",
        "began",
        "call",
        "context",
        "ended",
        "gathering",
        "handler",
        "holds",
        "jobs",
        "started",
        "stopped",
        "task",
        "timer",
        "unstopped",
    )

    def __init__(self, handler: Handler[..., Any], call: Any, batch: int | None = None) -> None:
        self.handler = handler
        self.call = call
        self.batch = batch
        self.jobs: list[HeldJob] = []
        self.unstopped = 0
        self.holds = 0
        self.context: Context | BatchContext | None = None
        self.task: asyncio.Task[None] | None = None
        self.gathering = False
        self.started = False
        self.stopped = False
        self.ended = False
        self.began: float | None = None
        self.timer: asyncio.TimerHandle | None = None

    def drop(self, held: HeldJob) -> None:
        """Remove a job before the call of the handler."""
        self.jobs.remove(held)
        self.unstopped -= held.reason is None

    @property
    def name(self) -> str:
        """The job, or the number of jobs, for the log."""
        if self.batch is not None:
            return f"a batch of {counted(len(self.jobs), 'job')} ({self.handler.entrypoint})"
        job = self.jobs[0].job
        return f"job {job.id} ({job.entrypoint}, attempt {job.tries})"

    @property
    def about(self) -> dict[str, Any]:
        """The `extra` of a record of the log about this call."""
        if self.batch is not None:
            return {"entrypoint": self.handler.entrypoint}
        return about(self.jobs[0].job)


class HeldJob:
    """One claimed job, from its claim until its outcome is in the queue and its handler has ended.

    Attributes:
        job: the job as it was claimed.
        work: the call of its handler.
        context: the context of the job; None if neither the handler nor middleware takes one.
        confirmed: time at which the store last confirmed the claim, on the loop's clock.
        reason: the reason for which its handler must stop the work on it; None if there is none.
        decided: True once it is decided what becomes of the job.
        sent: True once the outcome is on its way to the queue, or there.
        range: the range that it is claimed with; None if it is claimed by itself.
        place: its place in the range.
    """

    __slots__ = ("confirmed", "context", "decided", "job", "place", "range", "reason", "sent", "work")

    def __init__(self, job: Job, work: Work, confirmed: float) -> None:
        self.job = job
        self.work = work
        self.context: Context | None = None
        self.confirmed = confirmed
        self.reason: Reason | None = None
        self.decided = False
        self.sent = False
        self.range: HeldRange | None = None
        self.place = 0

    @property
    def claim(self) -> Claim:
        """The claim on the job, or on its range."""
        return self.job.claim if self.range is None else self.range.claim.claim


class Outcome:
    """The end of one job, as it is sent to the queue.

    Attributes:
        held: the job.
        kind: the field of the report that counts it.
        operation: the ack or nack that tells the queue.
        companions: operations to do in the same commit, all or nothing.
        uncertain: True if it was sent before and may have been done.
    """

    __slots__ = ("companions", "held", "kind", "operation", "uncertain")

    def __init__(
        self, held: HeldJob, kind: OutcomeKind, operation: Operation, companions: tuple[Operation, ...] = ()
    ) -> None:
        self.held = held
        self.kind = kind
        self.operation = operation
        self.companions = companions
        self.uncertain = False


LEAST = CHUNK_ROWS
"""Smallest number of jobs of a range."""

HANDED_BACK = RangeFailure(charge=False)
"""The end of a job that nobody worked on, or whose handler was stopped with the worker."""


class HeldRange:
    """One claimed range, until the queue knows its end.

    Args:
        claim: the claim.
        confirmed: time of the claim, on the loop's clock.

    Attributes:
        claim: as given.
        jobs: its jobs, in order, once they are read.
        confirmed: time at which the store last confirmed the claim, on the loop's clock.
        cancelled: ids of jobs that were cancelled while they are in the range.
        outcomes: the outcomes of its jobs, by their places.
        ending: True while its end is on its way to the queue.
        uncertain: True if its end was sent before and may have been done.
        closing: True if jobs that were not handed out must be given back.
        refused: why jobs that enqueue others are given back instead of acked; None if they are acked.
        spoiled: True if all jobs must be given back, as nothing can be noted with those that failed.
    """

    def __init__(self, claim: RangeClaim, confirmed: float) -> None:
        self.claim = claim
        self.jobs: Sequence[Job] = ()
        self.confirmed = confirmed
        self.cancelled: set[str] = set()
        self.outcomes: dict[int, Outcome] = {}
        self.ending = False
        self.uncertain = False
        self.closing = False
        self.refused: str | None = None
        self.spoiled = False
        self._given = 0
        self._held: dict[int, HeldJob] = {}

    @property
    def left(self) -> int:
        """Number of jobs that were not handed out."""
        return 0 if self.closing else len(self.jobs) - self._given

    def take(self, count: int) -> list[tuple[Job, int]]:
        """Hand out jobs, each with its place."""
        first = self._given
        self._given = min(first + count, len(self.jobs))
        return [(self.jobs[place], place) for place in range(first, self._given)]

    def put_back(self, count: int) -> None:
        """Take back the jobs that were handed out last, because nobody received them."""
        self._given -= count

    def hold(self, held: HeldJob, place: int) -> None:
        """Note that a job which was handed out is held."""
        self._held[place] = held

    @property
    def is_due(self) -> bool:
        """True if its end must be sent now: nothing is left to do."""
        is_given = self.closing or self._given == len(self.jobs) > 0
        return is_given and not self.ending and len(self.outcomes) == self._given

    @property
    def companions(self) -> tuple[Operation, ...]:
        """Operations to do in the commit of its end, all or nothing."""
        if self.refused is not None or self.spoiled:
            return ()
        return tuple(companion for outcome in self.outcomes.values() for companion in outcome.companions)

    @property
    def operation(self) -> EndRange:
        """The end, with the outcomes of all jobs. Those behind the last one that was worked on wait again as a run."""
        ends = [] if self.spoiled else [self._failure(self.outcomes[place]) for place in range(self._given)]
        while ends and ends[-1] == HANDED_BACK:
            ends.pop()
        failed = {self.jobs[place].id: end for place, end in enumerate(ends) if end is not None}
        return EndRange(self.claim, failed, worked_on=len(ends))

    def _failure(self, outcome: Outcome) -> RangeFailure | None:
        """Return how the end of the range names a job; None if the job is done."""
        end = outcome.operation
        if isinstance(end, Nack):
            return RangeFailure(end.error, end.delay, end.dead, end.charge, end.traceback)
        is_refused = self.refused is not None and outcome.companions
        return RangeFailure(self.refused, charge=False) if is_refused else None

    def lose(self) -> tuple[list[Outcome], list[HeldJob]]:
        """Note that the claim is lost. Return the outcomes that were not sent, and the jobs without one."""
        undecided = [held for place, held in self._held.items() if place not in self.outcomes]
        outcomes = list(self.outcomes.values())
        self.closing, self._given = True, 0
        self._held.clear()
        self.outcomes.clear()
        return outcomes, undecided


class HeldRanges:
    """All ranges of one run.

    Attributes:
        rates: by entrypoint: number of jobs that this worker does in a second, as far as it is known.
        added: by entrypoint: number of operations that each job of its last range has added to the end of that range.
    """

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}
        self.added: dict[str, float] = {}
        self._all: list[HeldRange] = []
        self._places: dict[str, tuple[HeldRange, int]] = {}

    def __iter__(self) -> Iterator[HeldRange]:
        return iter(tuple(self._all))

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, held: HeldRange) -> None:
        """Add a range."""
        self._all.append(held)

    def remove(self, held: HeldRange) -> None:
        """Remove a range that is over or lost."""
        self._all.remove(held)

    def take(self, entrypoint: str, count: int) -> list[Job]:
        """Hand out up to `count` jobs of the ranges of an entrypoint."""
        found: list[Job] = []
        for held in self._all:
            if held.claim.entrypoint == entrypoint and held.left and len(found) < count:
                for job, place in held.take(count - len(found)):
                    self._places[job.id] = held, place
                    found.append(job)
        return found

    def put_back(self, jobs: Sequence[Job]) -> None:
        """Take back jobs that were handed out last, because nobody received them."""
        for held, count in Counter(self._places.pop(job.id)[0] for job in jobs if job.id in self._places).items():
            held.put_back(count)

    def hold(self, held: HeldJob) -> None:
        """Note that a job is held, if it was handed out here."""
        found = self._places.pop(held.job.id, None) if self._places else None
        if found is not None:
            owner, place = found
            held.range, held.place, held.confirmed = owner, place, owner.confirmed
            owner.hold(held, place)

    def note_speed(self, entrypoint: str, jobs: int, seconds: float) -> None:
        """Note that a number of jobs took this worker a number of seconds."""
        rate = jobs / max(seconds, 1e-6)
        self.rates[entrypoint] = (self.rates.get(entrypoint, rate) + rate) / 2

    @property
    def due(self) -> list[HeldRange]:
        """The ranges whose ends must be sent now."""
        return [held for held in self._all if held.is_due]

    def close(self) -> None:
        """Give back the jobs that were not handed out."""
        for held in self._all:
            held.closing = True
