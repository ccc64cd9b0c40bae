"""Operations for callers that claim under a holder's name: the jobs and ranges that they hold, and the last number.

A restarted caller finds its claims by their holder's name. A caller that is to take only jobs that are there now reads
the last sequence number, and passes it to its dequeues as `through`. These operations change nothing, and are answered
from a fresh read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from jqueue.domain.draft import Draft
from jqueue.domain.errors import SegmentDamagedError
from jqueue.domain.job import JobRecord
from jqueue.domain.operations.base import Operation
from jqueue.domain.range_jobs import RangeClaim
from jqueue.domain.segment_rows import RowsMissingError, Wanted


@dataclass(frozen=True, slots=True)
class HeldBy(Operation):
    """Look up the jobs in progress whose holder's name begins with a prefix. Its result is their list, in order.

    Attributes:
        prefix: the prefix of the name.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("holders",)
    hands_out_jobs: ClassVar[bool] = True

    prefix: str

    def change(self, draft: Draft, now: datetime) -> list[JobRecord]:
        """Return the jobs, by priority and sequence, and change nothing."""
        claimed = (draft.jobs[job_id] for job_id in draft.jobs.claimed)
        held = [job for job in claimed if job.holder is not None and job.holder.startswith(self.prefix)]
        return sorted(held, key=lambda job: (job.priority, job.sequence))


@dataclass(frozen=True, slots=True)
class RangesHeldBy(Operation):
    """Look up the claims of ranges whose holder's name begins with a prefix. Its result is their list.

    Attributes:
        prefix: the prefix of the name.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("holders", "ranges")

    prefix: str

    def change(self, draft: Draft, now: datetime) -> list[RangeClaim]:
        """Return the claims, by segment and row, and change nothing."""
        header = draft.header
        held = [
            RangeClaim(range_id, each.segment, header.segments[each.segment], each)
            for range_id, each in header.ranges.items()
            if each.holder is not None and each.holder.startswith(self.prefix)
        ]
        return sorted(held, key=lambda claim: (claim.segment, claim.held.first))


@dataclass(frozen=True, slots=True)
class JobsInRanges(Operation):
    """Look up jobs by their ids. Its result has an entry for each job in progress in a range: ids of range and job.

    If the row of a job can no longer be read, its result has an entry for each range that may have the job.

    Attributes:
        ids: the ids.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("ranges",)

    ids: tuple[str, ...]

    def change(self, draft: Draft, now: datetime) -> list[tuple[str, str]]:
        """Return the ids, and change nothing.

        Raises:
            RowsMissingError: rows are not loaded. It names those of all jobs.
        """
        found, missing, rows = list[tuple[str, str]](), set[Wanted](), draft.jobs.rows
        for job_id in self.ids:
            try:
                job = draft.jobs.find(job_id)
            except SegmentDamagedError:
                found += [(range_id, job_id) for range_id in rows.ranges_with(job_id)]
                continue
            except RowsMissingError as error:
                missing |= error.wanted
                continue
            range_id = rows.range_of(job_id)
            if job is not None and range_id is not None:
                found.append((range_id, job_id))
        if missing:
            raise RowsMissingError(missing)
        return found


@dataclass(frozen=True, slots=True)
class LastSequence(Operation):
    """Look up the last sequence number that was given to a job. Jobs that come later get higher numbers."""

    always_needs: ClassVar[tuple[str, ...]] = ("holders",)

    def change(self, draft: Draft, now: datetime) -> int:
        """Return the number, and change nothing."""
        return draft.jobs.last_sequence
