"""Operations for callers that claim under a holder's name: the jobs that they hold, and the last sequence number.

A restarted caller finds its claims by their holder's name. A caller that is to take only jobs that are there now reads
the last sequence number, and passes it to its dequeues as `through`. Both operations change nothing, and are answered
from a fresh read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from jqueue.domain.draft import Draft
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation


@dataclass(frozen=True, slots=True)
class HeldBy(Operation):
    """Look up the jobs in progress whose holder's name begins with a prefix. Its result is their list, in order.

    Attributes:
        prefix: the prefix of the name.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("holders",)
    hands_out_jobs: ClassVar[bool] = True

    prefix: str

    def change(self, draft: Draft, now: datetime) -> list[Job]:
        """Return the jobs, by priority and sequence, and change nothing."""
        claimed = (draft.jobs[job_id] for job_id in draft.jobs.claimed)
        held = [job for job in claimed if job.holder is not None and job.holder.startswith(self.prefix)]
        return sorted(held, key=lambda job: (job.priority, job.sequence))


@dataclass(frozen=True, slots=True)
class LastSequence(Operation):
    """Look up the last sequence number that was given to a job. Jobs that come later get higher numbers."""

    always_needs: ClassVar[tuple[str, ...]] = ("holders",)

    def change(self, draft: Draft, now: datetime) -> int:
        """Return the number, and change nothing."""
        return draft.jobs.last_sequence
