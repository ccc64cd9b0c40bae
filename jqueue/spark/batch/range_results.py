"""The results of a range of a batch: the number of jobs that are done, and all other outcomes one by one.

The task that does a range ends it in one operation. If an outcome needs the options of a handler, or enqueues jobs, the
driver ends the range. At last the driver tells the ends of all ranges: repeating one changes nothing, and if a task was
lost before it ended its range, what it has staged is told now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from jqueue.domain.errors import InvalidBlobError, JobNotFoundError, JQueueError, SegmentDamagedError
from jqueue.domain.job import JobRecord
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import AllOrNothing
from jqueue.domain.operations.ranges import EndRange
from jqueue.domain.segments import FOLDER, RangeClaim, RangeFailure
from jqueue.ports.log import logger_of
from jqueue.spark.batch.outcomes import Outcome, enqueue_of_plain

logger = logger_of("jqueue.spark")

Decide = Callable[[Job, Outcome], Outcome]
"""Returns the outcome of a job whose process ended, by the options of its handler."""


class RangeResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcomes of the jobs of a range. Encoded as JSON, it is a staged object.

    Attributes:
        range_id: id of the range.
        done: number of jobs that are done, without the ones below.
        others: the outcomes of the other jobs.
        jobs: the jobs, without payloads, about which the driver must decide.
        left: number of jobs at the end of the range that nobody worked on. They wait again.
        unreadable: the reason if the task could not read the jobs, so that all are left.
    """

    range_id: str
    done: int
    others: tuple[Outcome, ...] = ()
    jobs: tuple[JobRecord, ...] = ()
    left: int = 0
    unreadable: str | None = None

    @classmethod
    def of(cls, claim: RangeClaim, jobs: Sequence[JobRecord], outcomes: Mapping[str, Outcome]) -> RangeResult:
        """Return the result, given the jobs of the range and their outcomes. Jobs without one are handed back."""
        last = len(jobs)
        while last and jobs[last - 1].id not in outcomes:
            last -= 1
        others, open_jobs = list[Outcome](), list[JobRecord]()
        for job in jobs[:last]:
            outcome = outcomes.get(job.id) or Outcome(job.id, job.attempt, "handed_back")
            if outcome.kind != "done" or outcome.added:
                others.append(outcome)
            if outcome.kind in ("killed", "overdue"):
                open_jobs.append(job.evolve(payload=b"", payload_object=None))
        return cls(claim.id, last - len(others), tuple(others), tuple(open_jobs), len(jobs) - last)

    @property
    def all_done(self) -> int:
        """Number of all done jobs, also of jobs that enqueue others."""
        return self.done + sum(outcome.kind == "done" for outcome in self.others)

    def encode(self) -> bytes:
        """Return it as a staged object."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, content: bytes) -> RangeResult:
        """Return the result from a staged object.

        Raises:
            InvalidBlobError: the object is damaged, or cut short.
        """
        try:
            return msgspec.json.decode(content, type=cls)
        except ValueError:
            raise InvalidBlobError("an object with the outcomes of a range is damaged or incomplete") from None

    def operation(
        self, claim: RangeClaim, decide: Decide | None = None, refused: JQueueError | None = None
    ) -> Operation | None:
        """Return the operation that ends the range; None if only the driver may end it, and this is not the driver.

        Args:
            claim: the claim of the range.
            decide: decides about jobs whose process ended; None if this is not the driver.
            refused: why the queue refused to enqueue what jobs add: these jobs are handed back.
        """
        added = [outcome for outcome in self.others if outcome.added]
        if decide is None and (self.jobs or added):
            return None
        failed: dict[str, RangeFailure | BaseException | str | None] = {}
        for outcome in self._decided(decide):
            if outcome.kind != "done":
                failed[outcome.job_id] = outcome.failure
            elif refused is not None:
                failed[outcome.job_id] = RangeFailure(refused, charge=False)
        end = EndRange(claim, failed, worked_on=claim.rows - self.left)
        if not added or refused is not None:
            return end
        return AllOrNothing((*(enqueue_of_plain(each) for outcome in added for each in outcome.added), end))

    def counts(self, decide: Decide, refused: JQueueError | None = None) -> Counter[str]:
        """Return the number of jobs of each kind of outcome; the arguments are as in `operation`."""
        counts = Counter({"done": self.done, "handed_back": self.left, "killed": len(self.jobs)})
        counts.update(
            "handed_back" if outcome.added and refused is not None else outcome.kind
            for outcome in self._decided(decide)
        )
        return counts

    def _decided(self, decide: Decide | None) -> Sequence[Outcome]:
        """Return the other outcomes, with a decision about each job whose process ended."""
        if decide is None:
            return self.others
        open_jobs = {job.id: job_of(job) for job in self.jobs}
        return [decide(open_jobs[each.job_id], each) if each.job_id in open_jobs else each for each in self.others]


async def end_ranges(
    ranges: Sequence[RangeClaim],
    results: Mapping[str, RangeResult],
    decide: Decide,
    end: Callable[[Sequence[Operation]], Awaitable[list[Any]]],
) -> Counter[str]:
    """End the ranges of a batch, as far as their tasks have not done so. Return the numbers of jobs by outcome.

    All end in one commit. If the queue refuses to enqueue what jobs of a range add, these jobs are handed back in a
    second one: done again by themselves, each is refused for itself.

    Args:
        ranges: their claims.
        results: the results that are known, by id. All jobs of the other ranges are handed back unharmed.
        decide: decides about jobs whose process ended.
        end: does operations in one commit, each by itself.
    """
    counts: Counter[str] = Counter()
    refusals: dict[str, JQueueError | None] = {claim.id: None for claim in ranges}
    for name, why in {claim.segment: results[claim.id].unreadable for claim in ranges if claim.id in results}.items():
        if why is not None:
            logger.warning("jobs of a batch are handed back: %s", SegmentDamagedError(FOLDER + name, why))
    while refusals:
        told = [claim for claim in ranges if claim.id in refusals]
        operations = [
            (results[claim.id].operation(claim, decide, refusals[claim.id]) if claim.id in results else None)
            or EndRange(claim, worked_on=0)
            for claim in told
        ]
        again: dict[str, JQueueError | None] = {}
        for claim, operation, answer in zip(told, operations, await end(operations), strict=True):
            result = results.get(claim.id)
            if isinstance(answer, JQueueError):
                is_lost = isinstance(answer, JobNotFoundError) and answer.job_id == claim.id
                if isinstance(operation, EndRange) or is_lost:
                    counts["lost"] += claim.rows
                else:
                    again[claim.id] = answer
            elif result is None:
                counts["handed_back"] += claim.rows
            else:
                counts.update(result.counts(decide, refusals[claim.id]))
        refusals = again
    return counts
