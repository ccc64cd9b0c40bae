"""The jobs of a partition, made into models only if somebody asks for one, each with a mark of its progress.

The marks are in memory that the process of the handlers shares with its parent. So the parent knows which jobs are
done, and which have begun, at whatever instruction that process ends.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Sequence

from jqueue.domain.job import JobRecord
from jqueue.domain.models import Job, job_of
from jqueue.domain.segments import RangeClaim, in_progress

NEW, BEGUN, TOLD, DONE = range(4)
"""The marks of a job: not begun; handed to the worker; ended in another way than done; and done, with no more to tell.

An outcome of a job that is told is in a message of its process. Without one, the job is handed back.
"""

_ANEW = bytes.maketrans(bytes([BEGUN, TOLD]), bytes([NEW, NEW]))


class PartitionRows:
    """The jobs of a partition, in the order in which to do them.

    Args:
        ids: their ids.
        names: their entrypoints.
        job: makes the job of a place.
        claim: the claim of their range; None if each is claimed by itself.

    Attributes:
        ids, names, job, claim: as given.
        marks: a mark for each job. All are new at first.
        places: yields the places of the jobs that nobody has taken.
        cancelled: the places of jobs that were cancelled since they were claimed.
    """

    def __init__(
        self, ids: Sequence[str], names: Sequence[str], job: Callable[[int], Job], claim: RangeClaim | None = None
    ) -> None:
        self.ids = ids
        self.names = names
        self.job = job
        self.claim = claim
        is_shared = ids and hasattr(os, "fork")
        self.marks: bytearray | mmap.mmap = mmap.mmap(-1, len(ids)) if is_shared else bytearray(len(ids))
        self.places: Iterator[int] = iter(range(len(ids)))
        self.cancelled: set[int] = set()
        self._places: dict[str, int] | None = None

    @classmethod
    def of_jobs(cls, jobs: Sequence[Job]) -> PartitionRows:
        """Return the rows of jobs that are claimed one by one."""
        return cls([job.id for job in jobs], [job.entrypoint for job in jobs], jobs.__getitem__)

    @classmethod
    def of_range(cls, claim: RangeClaim, jobs: Sequence[JobRecord]) -> PartitionRows:
        """Return the rows of a range, given its jobs as before the claim. None has its payload in an object."""
        held, ids = claim.held, [job.id for job in jobs]
        return cls(ids, [claim.entrypoint] * len(ids), lambda place: job_of(in_progress(jobs[place], held)), claim)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def done(self) -> int:
        """Number of jobs that are marked as done."""
        return self.marks[:].count(DONE)

    def begin(self, places: Sequence[int]) -> None:
        """Have `places` yield these jobs, and take all that are not done for new."""
        self.marks[:] = self.marks[:].translate(_ANEW)
        self.places = iter(places)

    def place_of(self, job_id: str) -> int:
        """Return the place of a job."""
        if self._places is None:
            self._places = {each: place for place, each in enumerate(self.ids)}
        return self._places[job_id]
