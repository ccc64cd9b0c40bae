"""The jobs that wait for nothing more, dead or completed: found without looking at the others, and kept for a time."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

from jqueue.domain.job_table import JobTable
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.ready import Entry, LazyHeap
from jqueue.domain.rules import QueueSettings


class EndedJobs:
    """An index of the dead and completed jobs of a table.

    Args:
        jobs: the table.
        settings: say how long dead jobs are kept.

    Attributes:
        retained: those that are kept for a time only, by its end.
    """

    def __init__(self, jobs: JobTable, settings: QueueSettings) -> None:
        self._jobs = jobs
        self._ids: dict[JobStatus, dict[str, None]] = {JobStatus.DEAD: {}, JobStatus.COMPLETED: {}}
        self.keep_by(settings)

    def keep_by(self, settings: QueueSettings) -> None:
        """Find out anew until when each is kept."""
        self._settings = settings
        self.retained = LazyHeap(self._is_retained)
        for job_id in itertools.chain(*self._ids.values()):
            self._retain(self._jobs[job_id])

    def enter(self, job: Job) -> None:
        """Take a job in."""
        self._ids[job.status][job.id] = None
        self._retain(job)

    def leave(self, job: Job) -> None:
        """Forget a job."""
        del self._ids[job.status][job.id]

    def having(self, status: JobStatus) -> list[Job]:
        """The jobs of a status."""
        return [self._jobs[job_id] for job_id in self._ids[status]]

    def kept_until(self, job: Job) -> datetime | None:
        """When a job that waits for nothing more may go; None if never."""
        if job.status is JobStatus.COMPLETED:
            return _later(job.finished_at or job.created_at, job.keep_result or 0.0)
        if job.status is JobStatus.DEAD and self._settings.dead_retention is not None:
            return _later(job.dead_at or job.created_at, self._settings.dead_retention)
        return None

    def _retain(self, job: Job) -> None:
        if (until := self.kept_until(job)) is not None:
            self.retained.push((until, job.id))

    def _is_retained(self, entry: Entry) -> bool:
        job = self._jobs.get(entry[-1])
        return job is not None and self.kept_until(job) == entry[0]


def _later(moment: datetime, seconds: float) -> datetime:
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:  # by hand
        return datetime.max.replace(tzinfo=UTC)
