"""The jobs of ranges, and the claim of a range as its holder has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import ClassVar

from jqueue.domain.durations import Duration
from jqueue.domain.job import Claim, JobRecord, JobStatus
from jqueue.domain.segments import Range, Segment


def in_progress(job: JobRecord, claim: Range) -> JobRecord:
    """Return the job of a row as it is in progress under the claim of its range."""
    return job.evolve(
        status=JobStatus.IN_PROGRESS,
        attempt=job.attempt + claim.claims,
        failures=job.failures + claim.failures,
        heartbeat_at=claim.heartbeat_at,
        claim_timeout=claim.claim_timeout,
        holder=claim.holder,
        claimed_at=None if claim.holder is None else claim.claimed_at,
        cancel_requested=job.id in claim.cancelled,
    )


def with_tries(job: JobRecord, tries: tuple[int, int]) -> JobRecord:
    """Return the job of a row with the claims and failures of ranges added."""
    if tries == (0, 0):
        return job
    return job.evolve(attempt=job.attempt + tries[0], failures=job.failures + tries[1])


def job_of_row(segment: Segment, held: Iterable[Range], row: int, job: JobRecord) -> JobRecord | None:
    """Return the job of a row, which waits or is in progress in a range; None if it is elsewhere, or has left.

    Args:
        segment: the entry of the segment in the manifest.
        held: the claims of ranges of the segment.
        row: the number of the row.
        job: the job on its line.
    """
    if not segment.is_taken(row):
        return with_tries(job, segment.tries_of(row))
    return next((in_progress(job, each) for each in held if each.has(row)), None)


SINGLE = ("keep_result", "concurrency_key", "expires_at", "unique_for")
"""Options of a job that is never in a range: it must be claimed, expire or end by itself."""


_single_options, _NO_OPTIONS = attrgetter(*SINGLE), (None,) * len(SINGLE)


def is_single(job: JobRecord) -> bool:
    """Return True if a job is never in a range."""
    return _single_options(job) != _NO_OPTIONS


@dataclass(frozen=True, slots=True)
class RangeClaim:
    """The right to work on a range. It is small and can be pickled; its jobs are read with `read_range`.

    Attributes:
        id: of the range.
        segment: name of the segment.
        entry: the entry of the segment in the manifest, at the time of the claim.
        held: the claim as the header keeps it.
        payload_object: None, so that a list may have jobs and ranges: payloads of a range are loaded with its jobs.
    """

    payload_object: ClassVar[None] = None

    id: str
    segment: str
    entry: Segment = field(repr=False)
    held: Range = field(repr=False)

    @property
    def rows(self) -> int:
        """Number of jobs."""
        return self.held.rows

    @property
    def entrypoint(self) -> str:
        """Entrypoint of the jobs."""
        return self.held.entrypoint

    @property
    def attempt(self) -> int:
        """Number of claims of these jobs as parts of ranges, this one included: the fencing token of the range."""
        return self.held.claims

    @property
    def claim(self) -> Claim:
        """The claim, for heartbeats."""
        return Claim(self.id, self.held.claims)

    @property
    def claimed_at(self) -> datetime:
        """Time of the claim."""
        return self.held.claimed_at


@dataclass(frozen=True, slots=True)
class RangeFailure:
    """The failure of one job of a range.

    Attributes:
        error: an exception or a text to keep with the job.
        delay: time before which the job is not claimed again.
        dead: True if the job must not be tried again.
        charge: True if the attempt counts as a failure; if not, the job is given back unharmed.
        traceback: frames of the error's traceback: see `Job.traceback`.
    """

    error: BaseException | str | None = None
    delay: Duration | None = None
    dead: bool = False
    charge: bool = True
    traceback: str | None = None
