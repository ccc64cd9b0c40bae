"""One version of a queue to look at. Its jobs become models one by one, as they are looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from jqueue.core.engine.lazy_state import LazyState
from jqueue.domain.job_table import status_of, unpacked
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, JobStatus, QueueState
from jqueue.domain.stats import Census, QueueStats


@dataclass(frozen=True, slots=True)
class QueueView:
    """One version of a queue.

    Attributes:
        header: the state without its jobs.
        size: bytes of the blob; 0 if there is none. In the formats of older queues, bytes of the payloads.
        etag: the store's token of this version; None if the store has none.
    """

    _content: LazyState = field(repr=False)
    _limits: Limits = field(repr=False)
    _taken: int = field(repr=False)
    size: int
    etag: str | None = None

    @property
    def header(self) -> QueueState:
        """The state without its jobs."""
        return self._content.header

    def __len__(self) -> int:
        """Number of jobs."""
        return len(self._content.entries)

    def ids(self) -> Iterator[str]:
        """Iterate over the ids of the jobs. No job becomes a model."""
        return iter(self._content.entries)

    def jobs(self, *statuses: JobStatus) -> Iterator[Job]:
        """Iterate over the jobs, in the order in which the queue keeps them.

        Args:
            statuses: statuses of the jobs, all by default. Other jobs do not become models.
        """
        if not statuses:
            return self._content.jobs()
        entries = self._content.entries.items()
        return (unpacked(job_id, entry) for job_id, entry in entries if status_of(entry) in statuses)

    def named(self, prefix: str) -> Iterator[Job]:
        """Iterate over the jobs whose ids begin with a text. Other jobs do not become models."""
        entries = self._content.entries.items()
        return (unpacked(job_id, entry) for job_id, entry in entries if job_id.startswith(prefix))

    def stats(self, now: datetime) -> QueueStats:
        """Return the statistics of this version at a time."""
        census = Census(now)
        census.count_entries(self._content.entries.items())
        return census.figures(self.header, self._content.set_aside, self.size, self._taken, self._limits)
