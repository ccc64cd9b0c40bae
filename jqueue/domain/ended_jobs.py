"""An index of the dead and completed jobs: it finds them without looking at the others, and says when each may go."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from jqueue.domain.job import COMPLETED, DEAD, JobRecord, JobStatus
from jqueue.domain.lazy_heap import Entry, LazyHeap
from jqueue.domain.rules import QueueSettings


class EndedJobs:
    """An index of the dead and completed jobs of a table.

    Args:
        jobs: the table.
        settings: the queue's settings, which say how long dead jobs are kept.

    Attributes:
        retained: heap of the jobs that are kept for a limited time, the first to go first.
    """

    def __init__(self, jobs: Mapping[str, JobRecord], settings: QueueSettings) -> None:
        self._jobs = jobs
        self._ids: dict[JobStatus, dict[str, None]] = {DEAD: {}, COMPLETED: {}}
        self.apply_settings(settings)

    def __len__(self) -> int:
        return sum(map(len, self._ids.values()))

    def apply_settings(self, settings: QueueSettings) -> None:
        """Apply new settings: compute again until when each job is kept."""
        self._settings = settings
        self.retained = LazyHeap(self._is_retained)
        for job_id in itertools.chain(*self._ids.values()):
            self._retain(self._jobs[job_id])

    def add(self, job: JobRecord) -> None:
        """Add a job."""
        self._ids[job.status][job.id] = None
        self._retain(job)

    def remove(self, job: JobRecord) -> None:
        """Remove a job."""
        del self._ids[job.status][job.id]

    def with_status(self, status: JobStatus) -> list[JobRecord]:
        """Return the jobs of a status, dead or completed."""
        return [self._jobs[job_id] for job_id in self._ids[status]]

    def kept_until(self, job: JobRecord) -> datetime | None:
        """Return the time from which a dead or completed job may be removed; None if never."""
        if job.status is COMPLETED:
            return _later(job.finished_at or job.created_at, job.keep_result or 0.0)
        if job.status is DEAD and self._settings.dead_retention is not None:
            return _later(job.dead_at or job.created_at, self._settings.dead_retention)
        return None

    def _retain(self, job: JobRecord) -> None:
        if (until := self.kept_until(job)) is not None:
            self.retained.push((until, job.id))

    def _is_retained(self, entry: Entry) -> bool:
        job = self._jobs.get(entry[-1])
        return job is not None and self.kept_until(job) == entry[0]


def _later(moment: datetime, seconds: float) -> datetime:
    try:
        return moment + timedelta(seconds=seconds)
    except OverflowError:  # a blob edited by hand
        return datetime.max.replace(tzinfo=UTC)
