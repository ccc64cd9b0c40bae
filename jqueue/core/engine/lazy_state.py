"""The content of a queue as it was read, with jobs that are not yet models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from jqueue.core.engine.slices import JOBS_PER_SLICE, Slices
from jqueue.domain.job_table import Packed, unpacked
from jqueue.domain.models import Job, QueueState, SetAside
from jqueue.domain.sequence_numbers import LARGEST_SEQUENCE, number_unnumbered


@dataclass(slots=True)
class LazyState:
    """The content of a queue: a state whose jobs are not yet models.

    Attributes:
        header: the state without its jobs.
        set_aside: the lines that cannot be read as jobs.
        entries: the jobs by id, some of them packed.
    """

    header: QueueState
    set_aside: tuple[SetAside, ...]
    entries: dict[str, Job | Packed] = field(repr=False)  # payloads must not appear in a repr or a log

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs in the order in which they were read."""
        return (unpacked(job_id, entry) for job_id, entry in self.entries.items())

    def to_state(self) -> Slices[QueueState]:
        """Return the state as a value, in slices."""
        jobs = []
        placed = True
        for job in self.jobs():
            jobs.append(job)
            placed = placed and 0 < job.sequence <= LARGEST_SEQUENCE
            if len(jobs) % JOBS_PER_SLICE == 0:
                yield
        found = tuple(jobs if placed else number_unnumbered(jobs))
        return self.header.model_copy(update={"jobs": found, "set_aside": self.set_aside})
