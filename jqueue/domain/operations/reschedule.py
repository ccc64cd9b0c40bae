"""Operations that give a queued job another time or priority."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from jqueue.domain.draft import Draft
from jqueue.domain.durations import Duration, check_time, to_seconds
from jqueue.domain.errors import InvalidJobError, JobStateError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.limits import check_name, check_priority
from jqueue.domain.operations.base import JobReference, Operation, Preparation
from jqueue.domain.operations.jobs import drop_outlived
from jqueue.domain.transitions import Verb


def _queued(draft: Draft, job_id: str, now: datetime, what: str) -> JobRecord:
    drop_outlived(draft, now)
    job = draft.get(job_id)
    if job.status is not JobStatus.QUEUED:
        raise JobStateError(job.id, job.status, f"only a queued job can be {what}")
    return job


@dataclass(frozen=True, slots=True)
class Reschedule(Operation):
    """Set another time for a queued job. Its result is the job. Give either `delay` or `run_at`.

    Attributes:
        job_id: the id of the job.
        delay: time from now before which the job is not claimed; 0 means at once.
        run_at: time before which the job is not claimed.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("reschedule",)

    job_id: str
    _: KW_ONLY
    delay: Duration | None = None
    run_at: datetime | None = None

    def prepared(self, preparation: Preparation) -> Reschedule:
        """Return the operation, checked, with the delay in seconds and the time in UTC."""
        check_name("job_id", self.job_id, preparation.limits)
        if (self.delay is None) == (self.run_at is None):
            raise InvalidJobError("give one of delay and run_at")
        delay = None if self.delay is None else to_seconds("delay", self.delay)
        run_at = None if self.run_at is None else check_time("run_at", self.run_at).astimezone(UTC)
        return replace(self, delay=delay, run_at=run_at)

    def change(self, draft: Draft, now: datetime) -> JobRecord:
        """Set the time of the job.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is not queued.
        """
        job = _queued(draft, self.job_id, now, "rescheduled")
        run_at = self.run_at
        if self.delay:  # 0 sets no time: ready at once by every clock
            run_at = now + timedelta(seconds=to_seconds("delay", self.delay))
        after = job.evolve(run_at=run_at)
        if after != job:
            draft.move(job, Verb.RESCHEDULE, after, JobStatus.QUEUED)
        return after

    def references(self) -> Sequence[JobReference]:
        """Return the id of the job."""
        return (self.job_id,)


@dataclass(frozen=True, slots=True)
class Reprioritise(Operation):
    """Give a queued job another priority. Its sequence number gives its place among jobs of that priority.

    Its result is the job.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("reschedule",)

    job_id: str
    priority: int

    def prepared(self, preparation: Preparation) -> Reprioritise:
        """Check the arguments."""
        check_name("job_id", self.job_id, preparation.limits)
        check_priority(self.priority)
        return self

    def change(self, draft: Draft, now: datetime) -> JobRecord:
        """Set the priority of the job.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is not queued.
        """
        job = _queued(draft, self.job_id, now, "given another priority")
        after = job.evolve(priority=self.priority)
        if after.priority != job.priority:
            draft.move(job, Verb.REPRIORITISE, after, JobStatus.QUEUED)
        return after

    def references(self) -> Sequence[JobReference]:
        """Return the id of the job."""
        return (self.job_id,)
