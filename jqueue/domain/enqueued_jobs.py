"""The answer of a bulk enqueue of more jobs than a list should hold: it knows their ids, and no payloads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import overload

from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations.bulk import BulkAdded

SCATTER = 0x9E3779B1
"""An odd number. Its multiples modulo 2**32 all differ, and neighbours begin with different digits."""

UUID_LENGTH, UUID_HEAD = 36, 8
"""Number of characters of a UUID, and of the part before its first hyphen."""


def bulk_rest(base: str) -> str:
    """Return the end of the ids of all jobs of a bulk enqueue: see `bulk_id`.

    Args:
        base: an id that no other job or bulk enqueue has.
    """
    return base[UUID_HEAD:] if len(base) == UUID_LENGTH and base[UUID_HEAD] == "-" else f"-{base}"


def bulk_id(number: int, rest: str) -> str:
    """Return the id of a job in a bulk enqueue.

    Args:
        number: of the job, below 2**32.
        rest: the end of the ids of all its jobs.
    """
    return f"{number * SCATTER & 0xFFFFFFFF:08x}{rest}"


class GivenJobs:
    """Facts about the jobs of a bulk enqueue that is under way, in a few bytes for each. They are numbered from 1 on.

    Args:
        rest: the end of the ids of jobs without an id of their caller's: see `bulk_id`.
        created_at: the time of the call.
    """

    def __init__(self, rest: str, created_at: datetime) -> None:
        self._rest = rest
        self._created_at = created_at
        self._ids: dict[int, str] = {}
        self._kinds: list[tuple[str, int]] = []
        self._known_kinds: dict[tuple[str, int], tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._kinds)

    def add(self, jobs: Sequence[JobRecord], given: Sequence[bool]) -> None:
        """Add jobs, whose places are their numbers.

        Args:
            jobs: the jobs.
            given: for each, True if the caller has chosen its id.
        """
        kinds, known = [(job.entrypoint, job.priority) for job in jobs], self._known_kinds
        self._kinds += [known.setdefault(kind, kind) for kind in kinds]
        self._ids.update((job.sequence, job.id) for job, own in zip(jobs, given, strict=True) if own)

    def job(self, number: int, outcome: BulkAdded) -> Job:
        """Return a job as it was added, without its payload and its other options.

        Args:
            number: of the job.
            outcome: of its commit.
        """
        job_id, (entrypoint, priority) = self._ids.get(number), self._kinds[number - 1]
        return job_of(
            JobRecord(
                bulk_id(number, self._rest) if job_id is None else job_id,
                entrypoint,
                b"",
                JobStatus.QUEUED,
                outcome.offset + number,
                self._created_at,
                priority,
                attempt=0 if job_id is None else outcome.attempt,
                attempts_before=0 if job_id is None else outcome.attempt,
            )
        )


class EnqueuedJobs(Sequence[Job]):
    """The jobs of a bulk enqueue, in the order in which they were given.

    A new job is shown with its id, entrypoint, priority, place and time, but without its payload and its other options:
    only the queue has them. A job that was there already is shown as it was.

    Args:
        given: the jobs.
        outcome: of their commit.

    Attributes:
        existing: number of jobs that were not added, because their id or their unique key was taken.
    """

    def __init__(self, given: GivenJobs, outcome: BulkAdded) -> None:
        self._given = given
        self._outcome = outcome
        self.existing = outcome.existing

    def __len__(self) -> int:
        return len(self._given)

    @property
    def added(self) -> int:
        """Number of jobs that were added."""
        return len(self) - self.existing

    @overload
    def __getitem__(self, index: int) -> Job: ...

    @overload
    def __getitem__(self, index: slice) -> list[Job]: ...

    def __getitem__(self, index: int | slice) -> Job | list[Job]:
        places = range(len(self))[index]
        return self._job(places) if isinstance(places, int) else [self._job(place) for place in places]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(added={self.added}, existing={self.existing})"

    def _job(self, place: int) -> Job:
        alone = self._outcome.one_by_one.get(place + 1)
        return self._given.job(place + 1, self._outcome) if alone is None else job_of(alone)
