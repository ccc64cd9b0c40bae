"""Sequence numbers: the places of jobs of one priority. They grow, and are renumbered before they become too large."""

from __future__ import annotations

from collections.abc import Iterable

from jqueue.domain.job import JobRecord

LARGEST_SEQUENCE = 2**52
"""Sequence number above which all jobs are renumbered from 1, because the numbers grow without end."""


def renumbered(jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """Return the jobs with sequence numbers from 1 on, in the same order. Jobs that shared a number still do."""
    jobs = list(jobs)
    places = {sequence: place for place, sequence in enumerate(sorted({job.sequence for job in jobs}), 1)}
    return [job.evolve(sequence=places[job.sequence]) for job in jobs]


def number_unnumbered(jobs: list[JobRecord]) -> list[JobRecord]:
    """Give jobs without a sequence number, added by hand or by 1.0.0, places behind the others, in their order.

    If a place has become too large, all jobs are renumbered.
    """
    if all(0 < job.sequence <= LARGEST_SEQUENCE for job in jobs):
        return jobs
    last = max((job.sequence for job in jobs), default=0)
    placed = []
    for job in jobs:
        if not job.sequence:
            last += 1
        placed.append(job if job.sequence else job.evolve(sequence=last))
    return renumbered(placed) if last > LARGEST_SEQUENCE else placed
