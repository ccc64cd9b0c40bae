"""The operation that waits for the result of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from jqueue.domain.draft import Draft
from jqueue.domain.errors import JobFailedError, ResultNotKeptError
from jqueue.domain.limits import check_name
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.operations.base import JobReference, Operation, Preparation


@dataclass(frozen=True, slots=True)
class AwaitResult(Operation):
    """Look for the result of a job. Its result is a list: the finished job, or nothing while it has not finished.

    It is applied after the other operations of a commit, like a dequeue: a job that they finish is seen at once.
    """

    claims_jobs: ClassVar[bool] = True
    needs_space: ClassVar[bool] = False
    always_needs: ClassVar[tuple[str, ...]] = ("results",)

    job_id: str

    def prepared(self, preparation: Preparation) -> AwaitResult:
        """Check the arguments."""
        check_name("job_id", self.job_id, preparation.limits)
        return self

    def change(self, draft: Draft, now: datetime) -> list[Job]:
        """Return the finished job in a list; an empty list while it has not finished.

        Raises:
            JobFailedError: it is dead.
            ResultNotKeptError: it has finished, and its result was not kept or is no longer kept.
            JobNotFoundError: it is not in the queue, and not among the finished ids.
        """
        if self.job_id not in draft.jobs.entries and self.job_id in draft.header.finished:
            raise ResultNotKeptError(self.job_id)
        job = draft.get(self.job_id)
        if job.status is JobStatus.DEAD:
            raise JobFailedError(job.id, job.error, job.error_dropped)
        if job.status is not JobStatus.COMPLETED:
            return []
        kept_until = draft.jobs.order.ended.kept_until(job)
        if kept_until is not None and kept_until <= now:  # its time is over: the next change of the queue removes it
            raise ResultNotKeptError(job.id)
        if job.result_dropped:
            raise ResultNotKeptError(job.id, job.result_dropped)
        return [job]

    def references(self) -> Sequence[JobReference]:
        """Return the id of the job."""
        return (self.job_id,)
