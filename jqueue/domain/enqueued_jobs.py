"""The answer of a bulk enqueue of more jobs than a list should hold: it knows their ids, and no payloads."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from datetime import datetime
from typing import overload

from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations.bulk import BulkAdded
from jqueue.domain.segment_index import id_hashes, uuid_hash

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


def bulk_hash_base(rest: str) -> int | None:
    """Return the number whose XOR with the first 32 bits of an id, shifted by 32, is the hash of the id as an own one.

    It is None if the ids are not UUIDs.

    Args:
        rest: the end of the ids: see `bulk_id`.
    """
    return uuid_hash(bulk_id(0, rest))


def bulk_hashes(numbers: Sequence[int], rest: str) -> array[int]:
    """Return the hashes of the ids of some jobs in a bulk enqueue, as a segment with `own_ids` has them.

    Args:
        numbers: of the jobs.
        rest: the end of the ids of all its jobs.
    """
    base = bulk_hash_base(rest)
    if base is None:
        return id_hashes([bulk_id(number, rest) for number in numbers], own=True)
    return array("Q", [base ^ (number * SCATTER & 0xFFFFFFFF) << 32 for number in numbers])


class NumberedTexts:
    """Texts by number, without an object for each."""

    def __init__(self) -> None:
        self._numbers = array("I")
        self._ends = array("Q")
        self._content = bytearray()

    def add(self, number: int, text: str) -> None:
        """Add the text of a number above all others."""
        self._numbers.append(number)
        self._content += text.encode()
        self._ends.append(len(self._content))

    def get(self, number: int) -> str | None:
        """Return the text of a number; None if it has none."""
        place = bisect_left(self._numbers, number)
        if place == len(self._numbers) or self._numbers[place] != number:
            return None
        return self._content[self._ends[place - 1] if place else 0 : self._ends[place]].decode()


class GivenJobs:
    """Facts about the jobs of a bulk enqueue that is under way, in a few bytes for each. They are numbered from 1 on.

    Args:
        rest: the end of the ids of jobs without an id of their caller's: see `bulk_id`.
        created_at: the time of the call.
    """

    def __init__(self, rest: str, created_at: datetime) -> None:
        self.rest = rest
        self.created_at = created_at
        self._ids = NumberedTexts()
        self._entrypoints: dict[str, int] = {}
        self._names: list[str] = []
        self._entrypoint_of = array("I")
        self._priorities = array("i")

    def __len__(self) -> int:
        return len(self._entrypoint_of)

    def add(self, entrypoint: str, priority: int = 0, job_id: str | None = None) -> int:
        """Add a job, and return its number."""
        self.extend([entrypoint])
        number = len(self)
        self._priorities[number - 1] = priority
        if job_id is not None:
            self._ids.add(number, job_id)
        return number

    def extend(self, entrypoints: Sequence[str]) -> None:
        """Add jobs of priority 0, none of which has an id of its caller's."""
        for entrypoint in {*entrypoints} - self._entrypoints.keys():
            self._entrypoints[entrypoint] = len(self._names)
            self._names.append(entrypoint)
        self._entrypoint_of.extend(map(self._entrypoints.__getitem__, entrypoints))
        self._priorities.frombytes(bytes(self._priorities.itemsize * len(entrypoints)))

    def job(self, number: int, outcome: BulkAdded) -> Job:
        """Return a job as it was added, without its payload and its other options.

        Args:
            number: of the job.
            outcome: of its commit.
        """
        place, given = number - 1, self._ids.get(number)
        attempt = 0 if given is None else outcome.attempt
        return job_of(
            JobRecord(
                bulk_id(number, self.rest) if given is None else given,
                self._names[self._entrypoint_of[place]],
                b"",
                JobStatus.QUEUED,
                outcome.offset + number,
                self.created_at,
                self._priorities[place],
                attempt,
                attempt,
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
