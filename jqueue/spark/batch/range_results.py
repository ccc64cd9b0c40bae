"""The results of a range of a batch: the number of jobs that are done, and all other outcomes one by one.

The task that does a range ends it in one operation. If an outcome needs the options of a handler, or enqueues jobs, the
driver ends the range. At last the driver tells the ends of all ranges: repeating one changes nothing, and if a task was
lost before it ended its range, what it has staged is told now.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jqueue.core.blob.lines import encode_job, read_line
from jqueue.domain.errors import InvalidBlobError, JobNotFoundError, JQueueError, SegmentDamagedError
from jqueue.domain.job import JobRecord
from jqueue.domain.models import Job, job_of, record_of
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.codec import AllOrNothing
from jqueue.domain.operations.ranges import EndRange
from jqueue.domain.segments import FOLDER, RangeClaim, RangeFailure
from jqueue.ports.log import logger_of
from jqueue.spark.batch.outcomes import Outcome, enqueue_of_plain
from jqueue.spark.batch.partition_rows import PartitionRows
from jqueue.worker.rows import DONE

logger = logger_of("jqueue.spark")

Decide = Callable[[Job, Outcome], Outcome]
"""Returns the outcome of a job whose process ended, by the options of its handler."""


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The outcomes of the jobs of a range.

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
    jobs: tuple[Job, ...] = ()
    left: int = 0
    unreadable: str | None = None

    @classmethod
    def of(cls, claim: RangeClaim, rows: PartitionRows, outcomes: Iterable[Outcome]) -> RangeResult:
        """Return the result, given the jobs of the range and the outcomes of jobs that are not marked as done."""
        known = {outcome.job_id: outcome for outcome in outcomes}
        ended_ids = {job_id for job_id, outcome in known.items() if outcome.kind != "handed_back"}
        marks, last = rows.marks[:], len(rows)
        while last and marks[last - 1] != DONE and rows.ids[last - 1] not in ended_ids:
            last -= 1
        others, open_jobs = list[Outcome](), list[Job]()
        for place in range(last) if rows.done < last else ():
            if marks[place] == DONE:
                continue
            outcome = known.get(rows.ids[place]) or Outcome(*rows.job(place).claim, "handed_back")
            if outcome.kind != "done" or outcome.added:
                others.append(outcome)
            if outcome.kind in ("killed", "overdue"):
                open_jobs.append(rows.job(place).evolve(payload=b"", payload_object=None))
        return cls(claim.id, last - len(others), tuple(others), tuple(open_jobs), len(rows) - last)

    @property
    def all_done(self) -> int:
        """Number of all done jobs, also of jobs that enqueue others."""
        return self.done + sum(outcome.kind == "done" for outcome in self.others)

    def encode(self) -> bytes:
        """Return it as a staged object."""
        content = {
            "range": self.range_id,
            "done": self.done,
            "others": [outcome.plain() for outcome in self.others],
            "jobs": [encode_job(record_of(job)).decode() for job in self.jobs],
            "left": self.left,
            "unreadable": self.unreadable,
        }
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, content: bytes) -> RangeResult:
        """Return the result from a staged object.

        Raises:
            InvalidBlobError: the object is damaged, or cut short.
        """
        try:
            said = json.loads(content)
            jobs = tuple(
                job_of(job) for job in map(read_line, map(str.encode, said["jobs"])) if isinstance(job, JobRecord)
            )
            others = tuple(map(Outcome.of_plain, said["others"]))
            return cls(said["range"], int(said["done"]), others, jobs, int(said["left"]), said["unreadable"])
        except (ValueError, LookupError, TypeError, AttributeError):
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
        whole = {job.id: job for job in self.jobs}
        failed: dict[str, RangeFailure | BaseException | str | None] = {}
        for outcome in self.others:
            if outcome.job_id in whole and decide is not None:
                outcome = decide(whole[outcome.job_id], outcome)
            if outcome.kind == "done":
                if refused is not None:
                    failed[outcome.job_id] = RangeFailure(refused, charge=False)
                continue
            charge = outcome.kind not in ("snoozed", "handed_back")
            failed[outcome.job_id] = RangeFailure(outcome.error, outcome.delay, outcome.kind == "dead", charge)
        end = EndRange(claim, failed, worked_on=claim.rows - self.left)
        if not added or refused is not None:
            return end
        return AllOrNothing((*(enqueue_of_plain(each) for outcome in added for each in outcome.added), end))

    def counts(self, decide: Decide, refused: JQueueError | None = None) -> Counter[str]:
        """Return the number of jobs of each kind of outcome; the arguments are as in `operation`."""
        whole = {job.id: job for job in self.jobs}
        counts = Counter({"done": self.done, "handed_back": self.left})
        for outcome in self.others:
            if outcome.kind in ("killed", "overdue"):
                counts["killed"] += 1
                outcome = decide(whole[outcome.job_id], outcome)
            counts["handed_back" if outcome.added and refused is not None else outcome.kind] += 1
        return counts


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
