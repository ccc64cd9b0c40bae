"""Operations on jobs that the caller does not hold, for operators, and the upkeep of the queue: sweep and fence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar, Self

from jqueue.domain.draft import Draft, claimed_by
from jqueue.domain.durations import Duration, check_time, to_seconds
from jqueue.domain.errors import DuplicateJobError, InvalidJobError, JobStateError, SegmentDamagedError, shown
from jqueue.domain.job import Claim, JobRecord, JobStatus
from jqueue.domain.limits import Limits, check_name
from jqueue.domain.operations.base import JobReference, Operation, Preparation
from jqueue.domain.operations.claims import kept_errors, send_back
from jqueue.domain.operations.jobs import drop_outlived
from jqueue.domain.operations.returned_ranges import give_range_back
from jqueue.domain.transitions import Verb

CLOCKS_DIFFER = 60.0
"""Seconds by which the clocks of two writers may differ: a job may be that much younger than its segment."""

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


@dataclass(frozen=True, slots=True)
class Cancel(Operation):
    """Remove a queued job. Its result is the job.

    Attributes:
        job_id: the id of the job.
        running: True if a job in progress is to be stopped too. Its holder is told at its next heartbeat, and the job
            leaves when that claim ends. An ack still finishes it. The result is then the job in progress.
    """

    job_id: str
    running: bool = False

    def prepared(self, preparation: Preparation) -> Cancel:
        """Check the arguments."""
        check_name("job_id", self.job_id, preparation.limits)
        return self

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield `cancel_running` if a job in progress is to be stopped too."""
        if self.running:
            yield "cancel_running"

    def change(self, draft: Draft, now: datetime) -> JobRecord:
        """Remove the job, or mark it so that its holder is told.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is in progress and `running` is False, or it is dead or completed.
        """
        job = draft.get(self.job_id)
        if job.status is JobStatus.IN_PROGRESS and self.running:
            told = job.evolve(cancel_requested=True)
            if job.id not in draft.jobs and not job.cancel_requested:
                draft.cancel_in_range(job)
            elif not job.cancel_requested:
                draft.move(job, Verb.CANCEL, told, JobStatus.IN_PROGRESS)
            return told
        if job.status is JobStatus.IN_PROGRESS:
            worker = f"its worker{claimed_by(job)}"
            raise JobStateError(job.id, job.status, f"cancel(running=True) tells {worker} to stop")
        if job.status is not JobStatus.QUEUED:
            raise JobStateError(job.id, job.status, "only a queued job can be cancelled")
        draft.move(job, Verb.CANCEL, None, None)
        return job

    def references(self) -> Sequence[JobReference]:
        """Return the id of the job."""
        return (self.job_id,)


def _ended(draft: Draft, status: JobStatus, entrypoint: str | None) -> list[JobRecord]:
    """Return the dead or completed jobs, of one entrypoint or of all, without a look at the queued ones."""
    return [job for job in draft.jobs.order.ended.with_status(status) if entrypoint in (None, job.entrypoint)]


def _drop_segments(draft: Draft, entrypoint: str | None, cutoff: datetime | None) -> int:
    """Purge all waiting rows of segments at once. Return their number.

    With a cutoff, only the rows of segments that a commit named before it are purged, and all rows of the other
    segments are loaded: some of their jobs may be as old.

    Raises:
        RowsMissingError: not all rows of the other segments are loaded.
    """
    rows = draft.jobs.rows
    names = rows.names_of(entrypoint)
    whole = {
        name for name in names if cutoff is None or 0 < rows.segments[name].at < cutoff.timestamp() - CLOCKS_DIFFER
    }
    rows.require(name for name in names if name not in whole)
    return draft.drop_waiting(whole, Verb.PURGE)


class Redriven(int):
    """The number of jobs that were redriven.

    Attributes:
        left: the jobs that stay dead, as their unique key is taken: the id of each, and of the job that has the key.
    """

    left: Mapping[str, str]

    def __new__(cls, jobs: int, left: Mapping[str, str] | None = None) -> Self:
        """Return the number, with the jobs that are left."""
        redriven = super().__new__(cls, jobs)
        redriven.left = left or {}
        return redriven


@dataclass(frozen=True, slots=True)
class Redrive(Operation):
    """Queue dead jobs again. Failures and expiry are forgotten, attempts are kept. Its result is a `Redriven`.

    A dead job whose unique key is taken stays dead.

    Attributes:
        job_id: redrive this job only; DuplicateJobError if its unique key is taken.
        entrypoint: redrive the jobs of this entrypoint only.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("dead_letters",)
    surveys: ClassVar[bool] = True

    job_id: str | None = None
    entrypoint: str | None = None

    def prepared(self, preparation: Preparation) -> Redrive:
        """Check the arguments."""
        if self.job_id is not None and self.entrypoint is not None:
            raise InvalidJobError("give either job_id or entrypoint, not both")
        if self.job_id is not None:
            check_name("job_id", self.job_id, preparation.limits)
        if self.entrypoint is not None:
            check_name("entrypoint", self.entrypoint, preparation.limits)
        return self

    def change(self, draft: Draft, now: datetime) -> Redriven:
        """Queue the jobs, in the order of their sequence numbers.

        Raises:
            JobNotFoundError: the job with `job_id` is not in the queue.
            JobStateError: the job with `job_id` is not dead.
            DuplicateJobError: another job holds the unique key of the job with `job_id`.
        """
        drop_outlived(draft, now)
        if self.job_id is not None:
            job = draft.get(self.job_id)
            if job.status is not JobStatus.DEAD:
                raise JobStateError(job.id, job.status, "only a dead job can be redriven")
            holder = None if job.unique_key is None else draft.key_holder(job.unique_key, now)
            if holder is not None and job.unique_key is not None:
                raise DuplicateJobError(job.unique_key, holder)
            self._queue(draft, job, now)
            return Redriven(1)
        dead = _ended(draft, JobStatus.DEAD, self.entrypoint)
        left: dict[str, str] = {}
        for job in sorted(dead, key=lambda job: job.sequence):
            holder = None if job.unique_key is None else draft.key_holder(job.unique_key, now)
            if holder is None:
                self._queue(draft, job, now)
            else:
                left[job.id] = holder
        return Redriven(len(dead) - len(left), left)

    def references(self) -> Sequence[JobReference]:
        """Return the id of the job, if one is named."""
        return () if self.job_id is None else (self.job_id,)

    def _queue(self, draft: Draft, job: JobRecord, now: datetime) -> None:
        """Queue a job behind the others."""
        after = job.evolve(
            status=JobStatus.QUEUED,
            failures=0,
            dead_at=None,
            queued_at=now,
            run_at=None,
            expires_at=None,
            sequence=draft.next_sequence(),
        )
        draft.move(job, Verb.REDRIVE, after, JobStatus.QUEUED)


@dataclass(frozen=True, slots=True)
class Purge(Operation):
    """Remove the jobs of a status for good. Its result is their number.

    Attributes:
        status: dead, queued or completed; jobs in progress are not purged.
        entrypoint: remove the jobs of this entrypoint only.
        older_than: remove only jobs that died or finished longer ago (if queued, that were created longer ago).
        job_id: remove this job only, whatever its entrypoint and its age.
        before: the same as `older_than`, as a moment of the queue's clock. A commit that comes later removes no more.
    """

    surveys: ClassVar[bool] = True

    status: JobStatus = JobStatus.DEAD
    entrypoint: str | None = None
    older_than: Duration | None = None
    job_id: str | None = None
    before: datetime | None = None

    def prepared(self, preparation: Preparation) -> Purge:
        """Return the operation, checked, with the age in seconds."""
        if self.status not in (JobStatus.DEAD, JobStatus.QUEUED, JobStatus.COMPLETED):
            raise InvalidJobError(f"the status of a purge must be dead, queued or completed, got {shown(self.status)}")
        if self.job_id is not None and (self.entrypoint, self.older_than, self.before) != (None, None, None):
            raise InvalidJobError("give job_id alone, without entrypoint, older_than and before")
        if self.before is not None and self.older_than is not None:
            raise InvalidJobError("give either older_than or before, not both")
        if self.job_id is not None:
            check_name("job_id", self.job_id, preparation.limits)
        if self.entrypoint is not None:
            check_name("entrypoint", self.entrypoint, preparation.limits)
        older_than = None if self.older_than is None else to_seconds("older_than", self.older_than)
        before = None if self.before is None else check_time("before", self.before)
        return replace(self, status=JobStatus(self.status), older_than=older_than, before=before)

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield the capability that a queue needs to have jobs of that status."""
        if self.status is JobStatus.DEAD:
            yield "dead_letters"
        elif self.status is JobStatus.COMPLETED:
            yield "results"

    def change(self, draft: Draft, now: datetime) -> int:
        """Remove the jobs.

        Raises:
            JobNotFoundError: the job with `job_id` is not in the queue.
            JobStateError: the job with `job_id` has another status.
        """
        if self.job_id is not None:
            job = draft.get(self.job_id)
            if job.status is not self.status:
                raise JobStateError(job.id, job.status, f"only a job that is {self.status} is purged")
            draft.move(job, Verb.PURGE, None, None)
            return 1
        cutoff = self.before
        if self.older_than is not None:
            cutoff = now - timedelta(seconds=to_seconds("older_than", self.older_than))
        in_segments = 0
        if self.status is JobStatus.QUEUED:
            in_segments = _drop_segments(draft, self.entrypoint, cutoff)
            found = [
                job
                for job in draft.jobs.values()
                if job.status is JobStatus.QUEUED and self.entrypoint in (None, job.entrypoint)
            ]
        else:
            found = _ended(draft, self.status, self.entrypoint)
        doomed = [job for job in found if cutoff is None or (job.dead_at or job.finished_at or job.created_at) < cutoff]
        for job in doomed:
            draft.move(job, Verb.PURGE, None, None)
        return in_segments + len(doomed)

    def references(self) -> Sequence[JobReference]:
        """Return the id of the job, if one is named."""
        return () if self.job_id is None else (self.job_id,)


@dataclass(frozen=True, slots=True)
class RequeueStale(Operation):
    """Revoke every claim without a heartbeat for `timeout`, by order of an operator. Its result is their number."""

    surveys: ClassVar[bool] = True

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


@dataclass(frozen=True, slots=True)
class Sweep(Operation):
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


@dataclass(frozen=True, slots=True)
class CreateQueue(Operation):
    """Create the empty queue, if there is none."""

    always_needs: ClassVar[tuple[str, ...]] = ("size_limit",)

    def change(self, draft: Draft, now: datetime) -> None:
        """Ask for the first commit.

        Raises:
            InvalidJobError: there is a queue.
        """
        if draft.header.version or draft.header.queue or draft.jobs:
            raise InvalidJobError("there is a queue already: it was left as it is")
        draft.touch()


@dataclass(frozen=True, slots=True)
class Fence(Operation):
    """Force a commit without a change. A write that was sent before, and has not landed by then, never will."""

    def change(self, draft: Draft, now: datetime) -> None:
        """Ask for a commit."""
        draft.touch()
