"""The ranges that a worker holds: the jobs of each, their outcomes, and the parts in which its claim ends.

A range is one claim on hundreds of jobs of a batch handler. Its batches end in any order, and the claim ends from its
start on. So outcomes are collected here until enough jobs at the start have one. If a batch takes long, the claim ends
around it: from then on, each of its jobs has a claim of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jqueue.domain.models import Job
from jqueue.domain.operations import Ack, Nack
from jqueue.domain.operations.ranges import EndRange
from jqueue.domain.range_jobs import RangeClaim, RangeFailure
from jqueue.domain.segments import CHUNK_ROWS
from jqueue.worker.held_jobs import HeldJob, Outcome

LEAST = CHUNK_ROWS
"""Smallest number of jobs of a range, and of the jobs whose claim ends before that of the others."""

END_AFTER = 1.0
"""Seconds after which outcomes of jobs at the start of a range are sent, however few they are."""

KEEP_AFTER = 10.0
"""Seconds that outcomes wait for jobs before them in their range. Then these get claims of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class RangeEnd:
    """The end of the claim on the first jobs of a range, as it is sent to the queue.

    Attributes:
        operation: the operation.
        until: place behind the last of these jobs.
        outcomes: the outcomes that it tells.
        kept: the jobs that get a claim of their own.
    """

    operation: EndRange
    until: int
    outcomes: Sequence[Outcome] = ()
    kept: Sequence[HeldJob] = ()


class HeldRange:
    """One claimed range, until the queue knows the end of all of its jobs.

    Args:
        claim: the claim.
        confirmed: time of the claim, on the loop's clock.

    Attributes:
        claim: as given, or without the jobs that cannot be read: the end of the range gives them back.
        jobs: its jobs, in order, once they are read.
        confirmed: time at which the store last confirmed the claim, on the loop's clock.
        cancelled: ids of jobs that were cancelled while they are in the range.
        ending: the end that is on its way to the queue, or must be sent again as it is; None if there is none.
        uncertain: True if `ending` was sent before and may have been done.
        closing: True if jobs that were not handed out must be given back.
    """

    def __init__(self, claim: RangeClaim, confirmed: float) -> None:
        self.claim = claim
        self.jobs: Sequence[Job] = ()
        self.confirmed = confirmed
        self.cancelled: set[str] = set()
        self.ending: RangeEnd | None = None
        self.uncertain = False
        self.closing = False
        self._given = 0
        self._ended = 0
        self._decided = 0
        self._held: dict[int, HeldJob] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._oldest: float | None = None

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

    def note(self, outcome: Outcome, now: float) -> None:
        """Take the outcome of a job."""
        self._outcomes[outcome.held.place] = outcome
        while self._decided in self._outcomes:
            self._decided += 1
        if self._oldest is None:
            self._oldest = now

    def due(self, now: float) -> float | None:
        """Return the seconds after which an end must be sent, 0 for at once; None if nothing waits for one."""
        if self.ending is not None or self._decided == self.claim.rows:
            return 0.0
        if self.closing or self._decided - self._ended >= LEAST:
            return 0.0
        if self._oldest is None:
            return None
        return max(0.0, self._oldest + (END_AFTER if self._decided > self._ended else KEEP_AFTER) - now)

    def next_end(self) -> RangeEnd:
        """Return the end to send now: see `due`."""
        if self.ending is None:
            self.ending = self._make_end()
        return self.ending

    def _make_end(self) -> RangeEnd:
        if self.closing:
            until = self._given
        else:
            until = self._decided if self._decided > self._ended else max(self._outcomes) + 1
        if until == self._ended:  # only jobs that were not handed out are left
            return RangeEnd(EndRange(self.claim, nothing_done=True), self.claim.rows)
        outcomes: list[Outcome] = []
        kept: list[HeldJob] = []
        failed: dict[str, RangeFailure | BaseException | str | None] = {}
        returned = []
        for place in range(self._ended, until):
            outcome = self._outcomes.get(place)
            if outcome is None or outcome.companions:
                kept.append(self._held[place])
                continue
            outcomes.append(outcome)
            nack, job_id = outcome.operation, outcome.held.job.id
            if isinstance(nack, Nack):
                if nack.charge or nack.delay is not None or nack.error is not None:
                    failed[job_id] = RangeFailure(nack.error, nack.delay, nack.dead, nack.charge, nack.traceback)
                else:
                    returned.append(job_id)
            else:
                assert isinstance(nack, Ack)
        names = [held.job.id for held in kept]
        operation = EndRange(self.claim, failed, returned, kept=names, jobs=until)
        return RangeEnd(operation, until, outcomes, kept)

    def settle(self, end: RangeEnd) -> list[Outcome]:
        """Note that the queue has done an end. Return the outcomes of kept jobs, which must now be sent one by one."""
        self.ending, self.uncertain = None, False
        kept = [self._outcomes[held.place] for held in end.kept if held.place in self._outcomes]
        for held in end.kept:
            held.range = None
        for place in range(self._ended, end.until):
            self._held.pop(place, None)
            self._outcomes.pop(place, None)
        self._ended = end.until
        self._decided = max(self._decided, end.until)
        while self._decided in self._outcomes:
            self._decided += 1
        if not self._outcomes:
            self._oldest = None
        return kept

    @property
    def is_over(self) -> bool:
        """True if the queue knows the end of all jobs."""
        return self._ended == self.claim.rows

    def lose(self) -> tuple[list[Outcome], list[HeldJob]]:
        """Note that the claim is lost. Return the outcomes that were not sent, and the jobs without one."""
        outcomes, held = list(self._outcomes.values()), list(self._held.items())
        undecided = [each for place, each in held if place not in self._outcomes]
        self._ended = self._given = self._decided = self.claim.rows
        self._held.clear()
        self._outcomes.clear()
        return outcomes, undecided


class HeldRanges:
    """All ranges of one run.

    Attributes:
        rates: by entrypoint: number of jobs that this worker does in a second, as far as it is known.
    """

    def __init__(self) -> None:
        self.rates: dict[str, float] = {}
        self._all: list[HeldRange] = []
        self._places: dict[str, tuple[HeldRange, int]] = {}
        self._singles_due: Counter[str] = Counter()

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

    def due(self, now: float) -> float | None:
        """Return the seconds after which an end of a range must be sent; None if nothing waits for one."""
        return min((due for held in self._all if (due := held.due(now)) is not None), default=None)

    def close(self) -> None:
        """Give back the jobs that were not handed out."""
        for held in self._all:
            held.closing = True
