"""Looking, for who claims under a name of its own: what it holds, and what there is to claim by now.

Whoever is restarted finds its claims by the name of their holder; whoever shall take what is there, and nothing that
comes later, notes how far that goes. Both change nothing, and are answered from a fresh read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from jqueue.domain.draft import Draft
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.operations.base import Operation, Preparation
from jqueue.domain.operations.dequeue import sought_names

LIVE = (JobStatus.QUEUED, JobStatus.IN_PROGRESS)


@dataclass(frozen=True, slots=True)
class HeldBy(Operation):
    """Look which jobs are in progress under holders whose names begin so. Its result is their list, by place.

    Attributes:
        prefix: how the name begins.
    """

    prefix: str

    def change(self, draft: Draft, now: datetime) -> list[Job]:
        """Nothing is changed."""
        claimed = (draft.jobs[job_id] for job_id in draft.claimed)
        held = [job for job in claimed if job.holder is not None and job.holder.startswith(self.prefix)]
        return sorted(held, key=lambda job: (job.priority, job.sequence))


class Bound(NamedTuple):
    """What there was at one moment.

    Attributes:
        through: no job had a larger sequence number.
        jobs: how many could be claimed then, or later.
    """

    through: int
    jobs: int


@dataclass(frozen=True, slots=True)
class FindBound(Operation):
    """Look how far the queue goes at this moment. Its result is a `Bound`.

    Attributes:
        entrypoints: whose jobs count; one name, several, or None for all.
    """

    entrypoints: str | tuple[str, ...] | None = None

    def prepared(self, preparation: Preparation) -> FindBound:
        """With the entrypoints as a tuple."""
        return self if self.entrypoints is None else replace(self, entrypoints=sought_names(self.entrypoints))

    def change(self, draft: Draft, now: datetime) -> Bound:
        """Nothing is changed."""
        through = jobs = 0
        for entry in draft.jobs.entries.values():
            if isinstance(entry, Job):
                entrypoint, status, sequence = entry.entrypoint, entry.status, entry.sequence
            else:
                entrypoint, _, status, _, _, sequence, *_ = entry
            through = max(through, sequence)
            jobs += status in LIVE and (self.entrypoints is None or entrypoint in self.entrypoints)
        return Bound(through, jobs)
