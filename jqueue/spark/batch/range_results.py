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
from jqueue.domain.errors import InvalidBlobError, JQueueError, SegmentDamagedError
from jqueue.domain.models import Job
from jqueue.domain.operations import Operation
from jqueue.domain.operations.ranges import EndRange
from jqueue.domain.range_jobs import RangeClaim, RangeFailure
from jqueue.domain.segments import FOLDER, Span, size_of
from jqueue.ports.log import logger_of
from jqueue.spark.batch.outcomes import Outcome
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
        jobs: the jobs, without payloads, about which the driver must decide, or with which it enqueues others.
        unread: the rows of the jobs that the task could not read. They are handed back.
    """

    range_id: str
    done: int
    others: tuple[Outcome, ...] = ()
    jobs: tuple[Job, ...] = ()
    unread: tuple[Span, ...] = ()

    @classmethod
    def of(cls, claim: RangeClaim, rows: PartitionRows, outcomes: Iterable[Outcome]) -> RangeResult:
        """Return the result, given the jobs of the range and the outcomes of jobs that are not marked as done."""
        known = {outcome.job_id: outcome for outcome in outcomes}
        others, open_jobs, done = [], [], rows.done
        for place, mark in enumerate(rows.marks[:]) if done < len(rows) else ():
            if mark == DONE:
                continue
            outcome = known.get(rows.ids[place])
            if outcome is None:
                others.append(Outcome(*rows.job(place).claim, "handed_back"))
            elif outcome.kind == "done" and not outcome.added:
                done += 1
            else:
                others.append(outcome)
                if outcome.added or outcome.kind in ("killed", "overdue"):
                    open_jobs.append(rows.job(place).evolve(payload=b"", payload_object=None))
        return cls(claim.id, done, tuple(others), tuple(open_jobs), claim.unread)

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
            "jobs": [encode_job(job).decode() for job in self.jobs],
            "unread": self.unread,
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
            jobs = tuple(job for line in said["jobs"] if isinstance(job := read_line(line.encode()), Job))
            unread = tuple((int(first), int(last)) for first, last in said["unread"])
            return cls(said["range"], int(said["done"]), tuple(map(Outcome.of_plain, said["others"])), jobs, unread)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise InvalidBlobError("an object with the outcomes of a range is damaged or incomplete") from None

    def operation(self, claim: RangeClaim, decide: Decide | None = None) -> EndRange | None:
        """Return the operation that ends the range; None if the driver must decide and this is not the driver.

        Args:
            claim: the claim of the range.
            decide: decides about jobs whose process ended; None if this is not the driver.
        """
        if self.jobs and decide is None:
            return None
        whole = {job.id: job for job in self.jobs}
        failed: dict[str, RangeFailure | BaseException | str | None] = {}
        returned, kept = [], []
        for outcome in self.others:
            if outcome.added:
                kept.append(outcome.job_id)
                continue
            if outcome.job_id in whole and decide is not None:
                outcome = decide(whole[outcome.job_id], outcome)
            if outcome.kind == "handed_back":
                returned.append(outcome.job_id)
            else:
                charge = outcome.kind != "snoozed"
                failed[outcome.job_id] = RangeFailure(outcome.error, outcome.delay, outcome.kind == "dead", charge)
        return EndRange(claim.without(self.unread), failed, returned, kept=kept)

    def counts(self, decide: Decide) -> Counter[str]:
        """Return the number of jobs of each kind of outcome, without jobs that enqueue others."""
        whole = {job.id: job for job in self.jobs}
        counts = Counter({"done": self.done, "handed_back": size_of(self.unread)})
        for outcome in self.others:
            if outcome.kind in ("killed", "overdue"):
                counts["killed"] += 1
                outcome = decide(whole[outcome.job_id], outcome)
            counts[outcome.kind] += not outcome.added
        return counts


async def end_ranges(
    ranges: Sequence[RangeClaim],
    results: Mapping[str, RangeResult],
    decide: Decide,
    end: Callable[[Sequence[Operation]], Awaitable[list[Any]]],
) -> tuple[Counter[str], list[Job], list[Outcome]]:
    """End the ranges of a batch in one commit, as far as their tasks have not done so.

    Args:
        ranges: their claims.
        results: the results that are known, by id. All jobs of the other ranges are handed back unharmed.
        decide: decides about jobs whose process ended.
        end: does operations in one commit, each by itself.

    Returns:
        The numbers of jobs by outcome; jobs that have claims of their own now, and their outcomes.
    """
    operations = []
    for claim in ranges:
        result = results.get(claim.id)
        ended = None if result is None else result.operation(claim, decide)
        operations.append(ended or EndRange(claim, nothing_done=True))
    _warn_of_unread(ranges, results)
    counts: Counter[str] = Counter()
    kept: list[Job] = []
    outcomes: list[Outcome] = []
    for claim, answer in zip(ranges, await end(operations) if operations else (), strict=True):
        result = results.get(claim.id)
        if isinstance(answer, JQueueError):
            counts["lost"] += claim.rows
        elif result is None:
            counts["handed_back"] += claim.rows
        else:
            counts.update(result.counts(decide))
            added = {outcome.job_id: outcome for outcome in result.others if outcome.added}
            kept += [job for job in result.jobs if job.id in added]
            outcomes += added.values()
    return counts, kept, outcomes


def _warn_of_unread(ranges: Sequence[RangeClaim], results: Mapping[str, RangeResult]) -> None:
    """Log which segments tasks could not read."""
    unread: dict[str, list[Span]] = {}
    for claim in ranges:
        if claim.id in results and results[claim.id].unread:
            unread.setdefault(claim.segment, []).extend(results[claim.id].unread)
    for name, rows in unread.items():
        logger.warning(
            "jobs of a batch are handed back, and all others go on: %s", SegmentDamagedError(FOLDER + name, rows)
        )
