"""Looking, for who claims under a name of its own: what it holds, and how far what is there by now goes.

Whoever is restarted finds its claims by the name of their holder; whoever shall take what is there, and nothing that
comes later, notes the last number that was given. Both change nothing, and are answered from a fresh read.
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
    """Look which jobs are in progress under holders whose names begin so. Its result is their list, by place.

    Attributes:
        prefix: how the name begins.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("holders",)

    prefix: str

    def change(self, draft: Draft, now: datetime) -> list[Job]:
        """Nothing is changed."""
        claimed = (draft.jobs[job_id] for job_id in draft.jobs.claimed)
        held = [job for job in claimed if job.holder is not None and job.holder.startswith(self.prefix)]
        return sorted(held, key=lambda job: (job.priority, job.sequence))


@dataclass(frozen=True, slots=True)
class LastSequence(Operation):
    """Look which sequence number was the last that was given. What comes later gets a higher one."""

    always_needs: ClassVar[tuple[str, ...]] = ("holders",)

    def change(self, draft: Draft, now: datetime) -> int:
        """Nothing is changed."""
        return draft.jobs.last_sequence
