"""Operations that revoke claims whose holders no longer beat: the sweep, and an operator's order."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta

from jqueue.domain.draft import Draft
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import SegmentDamagedError
from jqueue.domain.job import Claim, JobRecord, JobStatus
from jqueue.domain.limits import Limits
from jqueue.domain.operations.base import Operation, Preparation
from jqueue.domain.operations.ends import give_range_back, kept_errors, send_back
from jqueue.domain.transitions import Verb

STALE_ERROR = "stale: no heartbeat within the claim's timeout"


def revoke_range(draft: Draft, range_id: str, now: datetime) -> int:
    """Revoke the claim on a range. Return the number of its jobs.

    Raises:
        RowsMissingError: jobs of it must be looked at one by one, and not all that this needs is loaded.
        SegmentDamagedError: this cannot be read.
    """
    held = draft.header.ranges[range_id]
    spare = draft.header.segments[held.segment].spare
    if spare is None or held.failures < spare:
        give_range_back(draft, range_id, now, charge=True)
    else:
        jobs = draft.jobs.rows.jobs_of(range_id)
        draft.set_range(range_id, None)
        for job in jobs:
            draft.admit(job)
        revoke(draft, jobs, now)
    return held.rows


def revoke(draft: Draft, stale: Iterable[JobRecord], now: datetime, *, in_place: bool = False) -> int:
    """Revoke the claims on jobs, in the order of their sequence numbers. Return the number of jobs."""
    jobs = sorted(stale, key=lambda job: job.sequence)
    for job in jobs:
        place = {"sequence": job.sequence} if in_place else {}
        errors = job.errors
        if not job.cancel_requested:
            errors = kept_errors(draft, job, STALE_ERROR, now, Limits().blob_bytes)
        last = {"error": STALE_ERROR, "error_dropped": 0, "traceback": None, "errors": errors}
        send_back(draft, job, Verb.REVOKE, now, **last, **place)
    return len(jobs)


class RequeueStale(Operation, frozen=True):
    """Revoke every claim without a heartbeat for `timeout`, by order of an operator. Its result is their number."""

    surveys = True

    timeout: Duration

    def prepared(self, preparation: Preparation) -> RequeueStale:
        """Return the operation with the timeout in seconds."""
        return RequeueStale(to_seconds("timeout", self.timeout))

    def change(self, draft: Draft, now: datetime) -> int:
        """Queue the jobs again, or make them dead. It ignores the timeouts of the claims: fencing keeps that safe."""
        cutoff = now - timedelta(seconds=to_seconds("timeout", self.timeout))
        jobs = [draft.jobs[job_id] for job_id in draft.jobs.claimed]
        stale = [job for job in jobs if job.heartbeat_at is None or min(job.heartbeat_at, now) <= cutoff]
        old = [name for name, each in draft.header.ranges.items() if min(each.heartbeat_at, now) <= cutoff]
        revoked = revoke(draft, stale, now)
        for name in old:
            with suppress(SegmentDamagedError):  # the range stays claimed until its segment is restored
                revoked += revoke_range(draft, name, now)
        return revoked


class Sweep(Operation, frozen=True):
    """Revoke stale claims, unless their heartbeat has moved meanwhile. Its result is the number of revoked claims."""

    suspects: tuple[tuple[Claim, datetime | None], ...]
    """Each stale claim, with its last known heartbeat."""

    in_place: bool = False
    """True if the jobs keep their places among the others."""

    def change(self, draft: Draft, now: datetime) -> int:
        """Queue the jobs again, or make them dead."""
        stale, in_ranges = [], 0
        for claim, heartbeat_at in self.suspects:
            held = draft.header.ranges.get(claim.job_id)
            if held is not None and (held.claims, held.heartbeat_at) == (claim.attempt, heartbeat_at):
                with suppress(SegmentDamagedError):  # the range stays claimed until its segment is restored
                    in_ranges += revoke_range(draft, claim.job_id, now)
            job = draft.jobs.get(claim.job_id)
            if (
                job is not None
                and job.status is JobStatus.IN_PROGRESS
                and (job.attempt, job.heartbeat_at) == (claim.attempt, heartbeat_at)
            ):
                stale.append(job)
        return revoke(draft, stale, now, in_place=self.in_place) + in_ranges
