"""The jobs of a partition as rows, made into models only if somebody asks for one.

Their marks are in memory that the process of the handlers shares with its parent. So the parent knows which jobs are
done, and which have begun, at whatever instruction that process ends.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from collections.abc import Set as AnySet

from jqueue.domain.job import JobRecord
from jqueue.domain.models import Job, job_of
from jqueue.domain.segments import RangeClaim, in_progress
from jqueue.worker.rows import Marks, Rows


class PartitionRows(Rows):
    """The jobs of a partition.

    Args:
        ids: their ids.
        names: their entrypoints.
        payloads: as in `Rows`.
        job: as in `Rows`.
        doubtful: as in `Rows`.
        claim: the claim of their range; None if each is claimed by itself.

    Attributes:
        ids, claim: as given.
    """

    def __init__(
        self,
        ids: Sequence[str],
        names: Sequence[str],
        payloads: Sequence[bytes | None],
        job: Callable[[int], Job],
        doubtful: AnySet[int],
        claim: RangeClaim | None = None,
    ) -> None:
        super().__init__(names, payloads, job, doubtful=doubtful, marks=_shared_marks(len(ids)))
        self.ids = ids
        self.claim = claim
        self._places: dict[str, int] | None = None

    @classmethod
    def of_jobs(cls, jobs: Sequence[Job]) -> PartitionRows:
        """Return the rows of jobs that are claimed one by one."""
        return cls(
            [job.id for job in jobs],
            [job.entrypoint for job in jobs],
            [None if _is_special(job) else job.payload for job in jobs],
            jobs.__getitem__,
            {place for place, job in enumerate(jobs) if job.failures > 1},
        )

    @classmethod
    def of_range(cls, claim: RangeClaim, jobs: Sequence[JobRecord]) -> PartitionRows:
        """Return the rows of a range, given its jobs as before the claim. None has its payload in an object."""
        held = claim.held
        return cls(
            [job.id for job in jobs],
            [claim.entrypoint] * len(jobs),
            [job.payload for job in jobs],
            lambda place: job_of(in_progress(jobs[place], held)),
            {place for place, job in enumerate(jobs) if job.failures + held.failures > 1},
            claim,
        )

    def place_of(self, job_id: str) -> int:
        """Return the place of a job."""
        if self._places is None:
            self._places = {each: place for place, each in enumerate(self.ids)}
        return self._places[job_id]


def _is_special(job: Job) -> bool:
    """Return True if only the job runner can do a job: its result is kept, or its payload is not here."""
    return job.keep_result is not None or job.payload_object is not None or job.cancel_requested


def _shared_marks(count: int) -> Marks:
    """Return the marks of new jobs, in memory that a fork shares."""
    if not count or not hasattr(os, "fork"):
        return bytearray(count)
    return mmap.mmap(-1, count)
