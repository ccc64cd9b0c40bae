"""What operators do to jobs that they do not hold, and what the queue does to keep itself in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar

from jqueue.domain.draft import Draft
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import DuplicateJobError, InvalidJobError, JobStateError, shown
from jqueue.domain.limits import check_name
from jqueue.domain.models import Claim, Job, JobStatus
from jqueue.domain.operations.base import JobReference, Operation, Preparation
from jqueue.domain.operations.claims import send_back
from jqueue.domain.operations.jobs import drop_outlived
from jqueue.domain.option_names import names_its_options
from jqueue.domain.transitions import Verb

STALE_ERROR = "stale: no heartbeat within the claim's timeout"


def revoke(draft: Draft, stale: Iterable[Job], now: datetime, *, in_place: bool = False) -> int:
    """Take jobs from their holders, in the order in which they stood; returns how many."""
    jobs = sorted(stale, key=lambda job: job.sequence)
    for job in jobs:
        place = {"sequence": job.sequence} if in_place else {}
        send_back(draft, job, Verb.REVOKE, now, error=STALE_ERROR, error_dropped=0, **place)
    return len(jobs)


@names_its_options
@dataclass(frozen=True, slots=True)
class Cancel(Operation):
    """Remove a job that nobody has claimed. Its result is the job.

    Attributes:
        job_id: which.
        running: whether one in progress shall be stopped: its holder is told at its next heartbeat, and the job leaves
            when that claim ends. An ack still finishes it. The result is the job as it is then, in progress.
    """

    job_id: str
    running: bool = False

    def prepared(self, preparation: Preparation) -> Cancel:
        """Checked."""
        check_name("job_id", self.job_id, preparation.limits)
        return self

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """`cancel_running`, if jobs in progress are meant too."""
        if self.running:
            yield "cancel_running"

    def change(self, draft: Draft, now: datetime) -> Job:
        """Remove it, or have its holder told.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is in progress, and that was not meant; or it is dead, or completed.
        """
        job = draft.get(self.job_id)
        if job.status is JobStatus.IN_PROGRESS and self.running:
            told = job.evolve(cancel_requested=True)
            if not job.cancel_requested:
                draft.move(job, Verb.CANCEL, told, JobStatus.IN_PROGRESS)
            return told
        if job.status is JobStatus.IN_PROGRESS:
            raise JobStateError(job.id, job.status, "cancel(running=True) has its holder told to stop")
        if job.status is not JobStatus.QUEUED:
            raise JobStateError(job.id, job.status, "only a queued job can be cancelled")
        draft.move(job, Verb.CANCEL, None, None)
        return job

    def references(self) -> Sequence[JobReference]:
        """The job cancelled."""
        return (self.job_id,)


def _having(draft: Draft, status: JobStatus, entrypoint: str | None, before: datetime | None = None) -> list[Job]:
    """The jobs of a status, of one entrypoint or of all; queued ones created before a moment.

    Jobs that wait are not looked at to find those that ended.
    """
    if status is JobStatus.QUEUED:
        return draft.jobs.queued(entrypoint, before)
    return [job for job in draft.jobs.order.ended.having(status) if entrypoint in (None, job.entrypoint)]


@names_its_options
@dataclass(frozen=True, slots=True)
class Redrive(Operation):
    """Queue dead jobs again: failures and expiry forgotten, attempts kept. Its result is how many.

    Attributes:
        job_id: only this one; if its unique key is taken, that is DuplicateJobError.
        entrypoint: only those of this entrypoint. Jobs whose unique key is taken stay dead.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("dead_letters",)
    surveys: ClassVar[bool] = True

    job_id: str | None = None
    entrypoint: str | None = None

    def prepared(self, preparation: Preparation) -> Redrive:
        """Checked."""
        if self.job_id is not None and self.entrypoint is not None:
            raise InvalidJobError("give either job_id or entrypoint, not both")
        if self.job_id is not None:
            check_name("job_id", self.job_id, preparation.limits)
        if self.entrypoint is not None:
            check_name("entrypoint", self.entrypoint, preparation.limits)
        return self

    def change(self, draft: Draft, now: datetime) -> int:
        """Queue them, in the order in which they stood.

        Raises:
            JobNotFoundError: the one named is not in the queue.
            JobStateError: the one named is not dead.
            DuplicateJobError: another job holds the key of the one named.
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
            return 1
        dead = _having(draft, JobStatus.DEAD, self.entrypoint)
        redriven = 0
        for job in sorted(dead, key=lambda job: job.sequence):
            if job.unique_key is None or draft.key_holder(job.unique_key, now) is None:
                self._queue(draft, job, now)
                redriven += 1
        return redriven

    def references(self) -> Sequence[JobReference]:
        """The job redriven, if it is one."""
        return () if self.job_id is None else (self.job_id,)

    def _queue(self, draft: Draft, job: Job, now: datetime) -> None:
        """Behind the others: where jobs age, it is as old as this moment."""
        after = job.evolve(
            status=JobStatus.QUEUED,
            failures=0,
            dead_at=None,
            run_at=None if draft.header.settings.aging is None else now,
            expires_at=None,
            sequence=draft.next_sequence(),
        )
        draft.move(job, Verb.REDRIVE, after, JobStatus.QUEUED)


@names_its_options
@dataclass(frozen=True, slots=True)
class Purge(Operation):
    """Remove jobs for good: dead ones, or queued or completed ones if asked. Its result is how many.

    Attributes:
        status: which; jobs in progress are not purged.
        entrypoint: only those of this entrypoint.
        older_than: only those dead or finished (or, if queued, created) for longer.
    """

    surveys: ClassVar[bool] = True

    status: JobStatus = JobStatus.DEAD
    entrypoint: str | None = None
    older_than: Duration | None = None

    def prepared(self, preparation: Preparation) -> Purge:
        """Checked, with the age in seconds."""
        if self.status not in (JobStatus.DEAD, JobStatus.QUEUED, JobStatus.COMPLETED):
            raise InvalidJobError(f"purge takes jobs that are dead, queued or completed, not {shown(self.status)}")
        if self.entrypoint is not None:
            check_name("entrypoint", self.entrypoint, preparation.limits)
        older_than = None if self.older_than is None else to_seconds("older_than", self.older_than)
        return replace(self, status=JobStatus(self.status), older_than=older_than)

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """The capability without which there are no jobs of that status."""
        if self.status is JobStatus.DEAD:
            yield "dead_letters"
        elif self.status is JobStatus.COMPLETED:
            yield "results"

    def change(self, draft: Draft, now: datetime) -> int:
        """Remove them."""
        cutoff = None if self.older_than is None else now - timedelta(seconds=to_seconds("older_than", self.older_than))
        doomed = [
            job
            for job in _having(draft, self.status, self.entrypoint, cutoff)
            if cutoff is None or (job.dead_at or job.finished_at or job.created_at) < cutoff
        ]
        for job in doomed:
            draft.move(job, Verb.PURGE, None, None)
        return len(doomed)


@names_its_options
@dataclass(frozen=True, slots=True)
class RequeueStale(Operation):
    """An operator's order: revoke every claim that was not confirmed for so long. Its result is how many."""

    surveys: ClassVar[bool] = True

    timeout: Duration

    def prepared(self, preparation: Preparation) -> RequeueStale:
        """With the timeout in seconds."""
        return RequeueStale(to_seconds("timeout", self.timeout))

    def change(self, draft: Draft, now: datetime) -> int:
        """Queued again, or dead. It uses its own timeout, not the claim's: fencing keeps that safe."""
        cutoff = now - timedelta(seconds=to_seconds("timeout", self.timeout))
        jobs = [draft.jobs[job_id] for job_id in draft.jobs.claimed]
        stale = [job for job in jobs if job.heartbeat_at is None or min(job.heartbeat_at, now) <= cutoff]
        return revoke(draft, stale, now)


@dataclass(frozen=True, slots=True)
class Sweep(Operation):
    """Revoke claims that were found stale, unless their heartbeat has moved meanwhile. Its result is how many."""

    suspects: tuple[tuple[Claim, datetime | None], ...]
    """Each claim with the heartbeat that stood still."""

    in_place: bool = False
    """Whether the jobs keep their places among the others."""

    def change(self, draft: Draft, now: datetime) -> int:
        """Queued again, or dead."""
        stale = []
        for claim, heartbeat_at in self.suspects:
            job = draft.jobs.get(claim.job_id)
            if (
                job is not None
                and job.status is JobStatus.IN_PROGRESS
                and (job.attempt, job.heartbeat_at) == (claim.attempt, heartbeat_at)
            ):
                stale.append(job)
        return revoke(draft, stale, now, in_place=self.in_place)


@dataclass(frozen=True, slots=True)
class Fence(Operation):
    """Change nothing, and be committed: what was sent before and has not landed by then never will."""

    def change(self, draft: Draft, now: datetime) -> None:
        """Ask for a commit."""
        draft.touch()
