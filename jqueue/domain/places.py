"""The places of jobs among those of one priority: numbers that grow, given anew before they become too large."""

from __future__ import annotations

from collections.abc import Iterable

from jqueue.domain.models import Job

PLACES = 2**52
"""Where a sequence number is larger than this, all are given anew: there is no end to their growth."""


def renumbered(jobs: Iterable[Job]) -> list[Job]:
    """Jobs with sequence numbers from 1 on, in the same order. Those that shared a number still do."""
    jobs = list(jobs)
    places = {sequence: place for place, sequence in enumerate(sorted({job.sequence for job in jobs}), 1)}
    return [job.evolve(sequence=places[job.sequence]) for job in jobs]
