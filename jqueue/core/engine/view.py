"""One version of a queue to look at. Its jobs become models one by one, as they are looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from jqueue.core.engine.lazy_state import LazyState
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, QueueState
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

    def jobs(self) -> Iterator[Job]:
        """Iterate over the jobs, in the order in which the queue keeps them."""
        return self._content.jobs()

    def stats(self, now: datetime) -> QueueStats:
        """Return the statistics of this version at a time."""
        census = Census(now)
        for job in self.jobs():
            census.count(job)
        return census.figures(self.header, self._content.set_aside, self.size, self._taken, self._limits)
