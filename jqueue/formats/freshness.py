"""When a place is read before a claim, although the mirror of it still shows ready jobs.

A claim of a job in the mirror succeeds, whatever other programs have added to the place since it was read. Without a
look now and then, a program that always has ready jobs of its own would never serve theirs. A look before each claim
would be dear: it lists the place.
"""

from __future__ import annotations

from collections.abc import Sequence

from jqueue.core.engine.requests import Outcome, Request
from jqueue.ports.clock import Clock

SECONDS = 0.1
"""Age of the mirror in seconds from which a claim reads the place first."""

CLAIMS = 100
"""Number of claims after which the place is read, however little time has passed."""

READS_APART = 10
"""Time between two reads, as a multiple of the time that one takes: reads take a tenth of the time at the most."""


class Freshness:
    """The age of a mirror, in seconds and in claims.

    Args:
        clock: measures the seconds.
        in_order: True if the place must be read before each claim.
    """

    def __init__(self, clock: Clock, *, in_order: bool) -> None:
        self._clock = clock
        self._in_order = in_order
        self._read_at = self._took = 0.0
        self._jobs = self._claims = 0

    def read(self, started: float, jobs: int) -> None:
        """Take note of a read.

        Args:
            started: when it began, on the monotonic clock.
            jobs: number of jobs found.
        """
        self._read_at, self._took = started, self._clock.monotonic() - started
        self._jobs, self._claims = jobs, 0

    def written(self, outcomes: Sequence[tuple[Request, Outcome]]) -> None:
        """Take note of the jobs that a commit hands out."""
        for request, outcome in outcomes:
            if request.claims_jobs and isinstance(outcome, list):
                self._claims += sum(len(result) for result in outcome if isinstance(result, list))

    def is_over(self) -> bool:
        """True if the place must be read before the next claim.

        In a long queue more claims fit between two reads: a claim costs a look at one job at the most.
        """
        if self._in_order or self._claims >= max(CLAIMS, self._jobs):
            return True
        return self._clock.monotonic() - self._read_at >= max(SECONDS, READS_APART * self._took)
