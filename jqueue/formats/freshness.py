"""Decides when to read the store before a claim, although the mirror of it still shows ready jobs.

A claim of a job in the mirror succeeds even if other programs have added older jobs to the store. Without a read now
and then, a program that always has ready jobs of its own would never serve theirs. A read before each claim would be
too expensive: it lists the whole store.
"""

from __future__ import annotations

from collections.abc import Sequence

from jqueue.core.requests import Outcome, Request
from jqueue.ports.clock import Clock

MAX_AGE = 0.1
"""Age of the mirror, in seconds, from which a claim reads the store first."""

MAX_CLAIMS = 100
"""Number of claims after which the store is read, however little time has passed."""

READ_INTERVAL_FACTOR = 10
"""Time between two reads, as a multiple of the duration of one read: reads take at most a tenth of the time."""


class Freshness:
    """The age of a mirror, in seconds and in claims.

    Args:
        clock: measures the seconds.
        in_order: True if the store must be read before each claim.
    """

    def __init__(self, clock: Clock, *, in_order: bool) -> None:
        self._clock = clock
        self._in_order = in_order
        self._read_at = self._took = 0.0
        self._jobs = self._claims = 0

    def note_read(self, started: float, jobs: int) -> None:
        """Take note of a read.

        Args:
            started: start of the read, on the monotonic clock.
            jobs: number of jobs found.
        """
        self._read_at, self._took = started, self._clock.monotonic() - started
        self._jobs, self._claims = jobs, 0

    def note_claims(self, outcomes: Sequence[tuple[Request, Outcome]]) -> None:
        """Take note of the jobs that a commit hands out."""
        for request, outcome in outcomes:
            if request.claims_jobs and isinstance(outcome, list):
                self._claims += sum(len(result) for result in outcome if isinstance(result, list))

    def must_read(self) -> bool:
        """Return True if the store must be read before the next claim.

        A longer queue allows more claims between two reads, so that each claim pays for reading at most one job.
        """
        if self._in_order or self._claims >= max(MAX_CLAIMS, self._jobs):
            return True
        return self._clock.monotonic() - self._read_at >= max(MAX_AGE, READ_INTERVAL_FACTOR * self._took)
