"""The operation that claims a batch: ranges where many jobs wait in a segment, and jobs one by one elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from typing import ClassVar

from jqueue.domain.draft import Draft
from jqueue.domain.durations import Duration
from jqueue.domain.job import Claim, JobRecord
from jqueue.domain.limits import check_integer
from jqueue.domain.models import COUNT_MAX
from jqueue.domain.operations.base import ClaimLog, Operation, Preparation
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.ranges import ClaimRange, only_through
from jqueue.domain.range_jobs import RangeClaim
from jqueue.domain.segment_rows import RowsMissingError
from jqueue.domain.segments import CHUNK_ROWS


@dataclass(frozen=True, slots=True)
class ClaimBatch(Operation):
    """Claim the next jobs, by priority and then by commit order. Its result is a list of jobs and claims of ranges.

    Behind the largest number of ranges, jobs are claimed one by one. At the largest number of such jobs, the batch ends
    early. A range has no job whose priority is lower than that of a job beside it. Among jobs of equal priority, those
    of a range are claimed before jobs that were enqueued between them.

    Attributes:
        entrypoints: the entrypoints of the jobs: one name, several, or None for all.
        jobs: largest number of jobs.
        singles: largest number of jobs that are claimed one by one.
        ranges: largest number of ranges.
        least: smallest number of jobs of a range. A range is tried again after as many single jobs.
        claim_timeout: time that the claims last without a heartbeat; None means the queue's own.
        holder: name kept with the claims; None: the queue object's own.
        through: claim only jobs whose `sequence` is not larger, which were enqueued before a certain moment.
        claim: the claim of one job after another; set when the operation is prepared.
        range_claim: the claim of a range; set when the operation is prepared.
    """

    claims_jobs: ClassVar[bool] = True
    hands_out_jobs: ClassVar[bool] = True
    always_needs: ClassVar[tuple[str, ...]] = ("ranges", "holders", "claim_timeout")

    entrypoints: str | Sequence[str] | None
    jobs: int
    _: KW_ONLY
    singles: int
    ranges: int
    least: int = CHUNK_ROWS
    claim_timeout: Duration | None = None
    holder: str | None = None
    through: int | None = None
    claim: Dequeue = field(default_factory=Dequeue)
    range_claim: ClaimRange = field(default_factory=lambda: ClaimRange("", 1))

    def prepared(self, preparation: Preparation) -> ClaimBatch:
        """Return the operation, checked and completed."""
        for name in ("jobs", "singles", "ranges"):
            check_integer(name, getattr(self, name), 0, COUNT_MAX)
        timeout, holder, through = self.claim_timeout, self.holder, self.through
        claim = Dequeue(self.entrypoints, claim_timeout=timeout, holder=holder, through=through)
        in_ranges = ClaimRange(
            "any", 1, least=self.least, inline=True, claim_timeout=timeout, holder=holder, through=through
        )
        return replace(self, claim=claim.prepared(preparation), range_claim=in_ranges.prepared(preparation))

    def change(self, draft: Draft, now: datetime) -> list[JobRecord | RangeClaim]:
        """Claim the jobs.

        Raises:
            RowsMissingError: rows are not loaded. It names those of all segments that the batch may need.
        """
        self.claim.tidy(draft, now)
        try:
            with only_through(draft, self.through):
                return self._claim(draft, now)
        except RowsMissingError as error:
            missing = error.wanted
        rows, names = draft.jobs.rows, self.claim.entrypoints
        assert names is None or isinstance(names, tuple)
        raise RowsMissingError({*missing, *rows.upcoming(rows.unloaded(names), self.jobs)})

    def _claim(self, draft: Draft, now: datetime) -> list[JobRecord | RangeClaim]:
        found: list[JobRecord | RangeClaim] = []
        left, singles, ranges = self.jobs, self.singles, self.ranges
        while left and singles:
            if not draft.header.segments or not ranges:
                return [*found, *self.claim.claim_next(draft, now, min(left, singles))]
            claimed = self._range(draft, now, left, self.ranges - ranges)
            if claimed is not None:
                found.append(claimed)
                left, ranges = left - claimed.rows, ranges - 1
                continue
            jobs = self.claim.claim_next(draft, now, min(left, singles, self.least))
            if not jobs:
                break
            found += jobs
            left, singles = left - len(jobs), singles - len(jobs)
        return found

    def _range(self, draft: Draft, now: datetime, most: int, number: int) -> RangeClaim | None:
        """Claim a range from the next job on; None if it cannot be one.

        Args:
            draft: the queue.
            now: the time.
            most: largest number of jobs.
            number: number of ranges that were claimed before.
        """
        names, order, first = self.claim.entrypoints, draft.jobs.order, self.range_claim
        assert names is None or isinstance(names, tuple)
        entry = order.next_entry(names, now)
        if entry is None:
            return None
        wanted = replace(first, entrypoint=entry[2], rows=most, range_id=f"{first.range_id}-{number}")
        return wanted.claim_at(draft, entry[-1], now, lambda name: order.best_priority_beside(name, names, now))

    def claims(self, result: list[JobRecord | RangeClaim]) -> Sequence[Claim]:
        """Return the claims of the jobs and of the ranges."""
        return [each.claim for each in result]

    def tell(self, claims: ClaimLog, result: list[JobRecord | RangeClaim]) -> None:
        """Report that claims on these jobs were handed out."""
        if jobs := [each for each in result if isinstance(each, JobRecord)]:
            claims.remember(jobs)

    def may_miss(self, result: list[JobRecord | RangeClaim]) -> bool:
        """Return True if there are fewer jobs than were asked for."""
        return sum(each.rows if isinstance(each, RangeClaim) else 1 for each in result) < self.jobs
