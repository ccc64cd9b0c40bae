"""The content of a queue as it was read, with jobs that are not yet models."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, Self

from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.models import QueueState, SetAside, job_of
from jqueue.domain.sequence_numbers import LARGEST_SEQUENCE, number_unnumbered
from jqueue.domain.slices import JOBS_PER_SLICE, Slices
from jqueue.domain.stats import Census

Looked = Callable[[int], None]
Noticed = Callable[[str, str], None]


class JobRows(Protocol):
    """The jobs of one version of a queue that are not in the queue's object."""

    def rows(
        self, statuses: frozenset[JobStatus], entrypoints: frozenset[str], prefix: str
    ) -> AsyncGenerator[JobRecord, None]:
        """Iterate over the jobs that fit all three arguments. An empty argument fits every job.

        Args:
            statuses: statuses of the jobs.
            entrypoints: entrypoints of the jobs.
            prefix: beginning of their ids.

        Raises:
            JobsUnreadableError: at the end, if some of them are missing or damaged.
            StorageError: the store failed.
        """

    def telling(self, looked: Looked | None = None, noticed: Noticed | None = None) -> Self:
        """Return the same jobs. What is told already goes on being told, unless it is given again.

        Args:
            looked: called with the number of jobs after each read of some of them.
            noticed: called with the end of the name of what is missing or damaged, and the reason, as soon as that is
                known.
        """

    def ids(self, prefix: str) -> AsyncGenerator[str, None]:
        """Iterate over the ids of the jobs that begin like this, faster than `rows`. Errors are as for `rows`."""

    def in_order(
        self, entrypoints: frozenset[str] = frozenset(), *, scheduled: bool
    ) -> AsyncGenerator[JobRecord, None]:
        """Iterate over ready jobs as they are served, or over scheduled jobs as they are due.

        Jobs are read when they come up.

        Args:
            entrypoints: their entrypoints; all if empty.
            scheduled: True for the jobs that were scheduled when they were written.

        Raises:
            JobsUnreadableError: at the end, if some of them are missing or damaged.
            StorageError: the store failed.
        """

    async def find(self, job_id: str) -> JobRecord | None:
        """Return the job with an id; None if it is not among them.

        Raises:
            JobsUnreadableError: it may be among jobs that are missing or damaged.
            StorageError: the store failed.
        """

    async def count(self, census: Census, deadline: float | None = None) -> None:
        """Count the jobs, without a look at each. All other jobs of the queue have been counted before.

        Args:
            census: counts.
            deadline: maximum seconds; None: that of the call that has read the queue.

        Raises:
            StorageError: the store failed.
        """


@dataclass(slots=True)
class LazyState:
    """The content of a queue: a state whose jobs are records.

    Attributes:
        header: the state without its jobs.
        set_aside: the lines that cannot be read as jobs.
        entries: the jobs by id.
        rows: the jobs that are not in the queue's object; None if there are none.
        absent: True if there is no queue yet.
    """

    header: QueueState
    set_aside: tuple[SetAside, ...]
    entries: Mapping[str, JobRecord] = field(repr=False)  # payloads must not appear in a repr or a log
    rows: JobRows | None = field(default=None, repr=False)
    absent: bool = False

    def parts(
        self,
        statuses: frozenset[JobStatus] = frozenset(),
        entrypoints: frozenset[str] = frozenset(),
        prefix: str = "",
    ) -> Iterator[list[JobRecord]]:
        """Yield the jobs that fit the arguments, those of a thousand jobs at a time.

        Args:
            statuses: statuses of the jobs; all if empty.
            entrypoints: entrypoints of the jobs; all if empty.
            prefix: beginning of their ids.
        """
        entries = iter(self.entries.values())
        while part := list(islice(entries, JOBS_PER_SLICE)):
            if statuses or entrypoints or prefix:
                part = [
                    job
                    for job in part
                    if (not statuses or job.status in statuses)
                    and (not entrypoints or job.entrypoint in entrypoints)
                    and job.id.startswith(prefix)
                ]
            yield part

    def to_state(self) -> Slices[QueueState]:
        """Return the state as a value, in slices."""
        jobs = []
        placed = True
        for job in self.entries.values():
            jobs.append(job)
            placed = placed and 0 < job.sequence <= LARGEST_SEQUENCE
            if len(jobs) % JOBS_PER_SLICE == 0:
                yield
        found = tuple(map(job_of, jobs if placed else number_unnumbered(jobs)))
        return self.header.model_copy(update={"jobs": found, "set_aside": self.set_aside})
