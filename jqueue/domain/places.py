"""The places of jobs among those of one priority: numbers that grow, given anew before they become too large."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from jqueue.domain.models import Job

PLACES = 2**52
"""Where a sequence number is larger than this, all are given anew: there is no end to their growth."""


def renumbered(jobs: Iterable[Job]) -> list[Job]:
    """Jobs with sequence numbers from 1 on, in the same order. Those that shared a number still do."""
    jobs = list(jobs)
    places = {sequence: place for place, sequence in enumerate(sorted({job.sequence for job in jobs}), 1)}
    return [job.evolve(sequence=places[job.sequence]) for job in jobs]


def place_unplaced(jobs: list[Job]) -> list[Job]:
    """Give jobs that came without a sequence, added by hand or by 1.0.0, a place behind the others, in their order.

    Where places have become too large, all are given anew.
    """
    if all(0 < job.sequence <= PLACES for job in jobs):
        return jobs
    last = max((job.sequence for job in jobs), default=0)
    placed = []
    for job in jobs:
        if not job.sequence:
            last += 1
        placed.append(job if job.sequence else job.evolve(sequence=last))
    return renumbered(placed) if last > PLACES else placed


class EncodedJobs(Protocol):
    """Jobs whose lines in the blob were written before it was known where and when they would be placed.

    Attributes:
        jobs: how many.
        size: about how many bytes they take in the blob.
    """

    @property
    def jobs(self) -> int:
        """How many."""

    @property
    def size(self) -> int:
        """About how many bytes they take in the blob."""

    def text(self, first: int, now: datetime) -> bytes:
        """Their lines, joined as they stand in the blob, with sequence numbers from `first` on, created now."""


@dataclass(frozen=True, slots=True)
class PlacedJobs:
    """Encoded jobs, and their place.

    Attributes:
        encoded: the jobs.
        first: the sequence number of the first; the others follow.
        now: when they were enqueued.
    """

    encoded: EncodedJobs
    first: int
    now: datetime

    @property
    def text(self) -> bytes:
        """Their lines, joined as they stand in the blob."""
        return self.encoded.text(self.first, self.now)
