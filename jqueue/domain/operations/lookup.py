"""Operations that look at jobs without a claim: the next jobs, one job, numbers of queued jobs, the result of a job.

A caller that chooses among several queues needs them: it must know the jobs of each before it claims from one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar, NamedTuple

from jqueue.domain.draft import Draft
from jqueue.domain.errors import JobFailedError, ResultNotKeptError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.limits import check_name
from jqueue.domain.models import NotLoaded
from jqueue.domain.operations.base import JobReference, Operation, Preparation
from jqueue.domain.operations.dequeue import Dequeue


@dataclass(frozen=True, slots=True)
class Peek(Operation):
    """Look up the jobs that a dequeue would return. Its result is the list of them, unclaimed and without payloads.

    It does everything that a dequeue does except the claims: it removes expired jobs, and enqueues the jobs of cron
    entries that are due. So a caller can wait with it, as with a dequeue.

    Attributes:
        dequeue: the dequeue whose jobs are looked up.
    """

    claims_jobs: ClassVar[bool] = True
    surveys: ClassVar[bool] = True

    dequeue: Dequeue

    def prepared(self, preparation: Preparation) -> Peek:
        """Return the operation with its dequeue checked."""
        return replace(self, dequeue=self.dequeue.prepared(preparation))

    def change(self, draft: Draft, now: datetime) -> list[JobRecord]:
        """Claim the jobs, note their ids, and undo the claims. So every limit holds as in a dequeue."""
        self.dequeue.tidy(draft, now)
        savepoint = draft.savepoint()
        ids = [job.id for job in self.dequeue.claim(draft, now)]
        draft.rollback(savepoint)
        return [draft.jobs[job_id].evolve(payload=NotLoaded()) for job_id in ids]

    def search_key(self) -> Hashable | None:
        """Return the key of the dequeue: if one of the two finds nothing, the other finds nothing either."""
        return self.dequeue.search_key()


@dataclass(frozen=True, slots=True)
class CountQueued(Operation):
    """Count the queued jobs. Its result is the number of queued jobs, ready or not, by entrypoint."""

    def change(self, draft: Draft, now: datetime) -> dict[str, int]:
        """Return the numbers, and change nothing."""
        return draft.jobs.order.queued()


class Backlog(NamedTuple):
    """The jobs that wait in a queue."""

    jobs: int
    """Number of queued jobs, ready or not."""
    oldest: datetime | None
    """Earliest time since when one of the ready jobs waits, or an earlier time; None if none is ready."""


@dataclass(frozen=True, slots=True)
class LookAtBacklog(Operation):
    """Look at the jobs that wait. Its result is a `Backlog`.

    Attributes:
        entrypoints: of the jobs; None for all.
    """

    entrypoints: tuple[str, ...] | None = None

    def change(self, draft: Draft, now: datetime) -> Backlog:
        """Return the backlog, and change nothing."""
        names = None if self.entrypoints is None else frozenset(self.entrypoints)
        jobs = sum(number for name, number in draft.jobs.order.queued().items() if names is None or name in names)
        since = [
            job.run_at or job.created_at
            for job in draft.jobs.values()
            if job.status is JobStatus.QUEUED and (names is None or job.entrypoint in names)
        ]
        for segment in map(draft.jobs.rows.current, draft.header.segments):
            if segment is not None and segment.waiting and (names is None or segment.entrypoint in names):
                since.append(datetime.fromtimestamp(segment.oldest, UTC))
        return Backlog(jobs, min((at for at in since if at <= now), default=None))


@dataclass(frozen=True, slots=True)
class Find(Operation):
    """Look at a job. Its result is a list: the job without its payload, or nothing if it is not there.

    For a job that finished a short while ago and is gone, the result has the id, the attempt and the status completed.

    Attributes:
        job_id: the id of the job.
    """

    surveys: ClassVar[bool] = True

    job_id: str

    def prepared(self, preparation: Preparation) -> Find:
        """Check the id."""
        check_name("job_id", self.job_id, preparation.limits)
        return self

    def change(self, draft: Draft, now: datetime) -> list[JobRecord]:
        """Return the job in a list, and change nothing."""
        job = draft.jobs.find(self.job_id)
        if job is not None:
            return [job.evolve(payload=NotLoaded())]
        attempt = draft.header.finished.get(self.job_id)
        if attempt is None:
            return []
        return [JobRecord(self.job_id, "", b"", JobStatus.COMPLETED, 0, now, attempt=attempt)]

    def references(self) -> Sequence[JobReference]:
        """Return the id of the job."""
        return (self.job_id,)


@dataclass(frozen=True, slots=True)
class AwaitResult(Operation):
    """Look for the result of a job. Its result is a list: the finished job, or nothing while it has not finished.

    It is applied after the other operations of a commit, like a dequeue: a job that they finish is seen at once.
    """

    claims_jobs: ClassVar[bool] = True
    needs_space: ClassVar[bool] = False
    always_needs: ClassVar[tuple[str, ...]] = ("results",)

    job_id: str

    def prepared(self, preparation: Preparation) -> AwaitResult:
        """Check the arguments."""
        check_name("job_id", self.job_id, preparation.limits)
        return self

    def change(self, draft: Draft, now: datetime) -> list[JobRecord]:
        """Return the finished job in a list; an empty list while it has not finished.

        Raises:
            JobFailedError: it is dead.
            ResultNotKeptError: it has finished, and its result was not kept or is no longer kept.
            JobNotFoundError: it is not in the queue, and not among the finished ids.
        """
        if self.job_id not in draft.jobs and self.job_id in draft.header.finished:
            raise ResultNotKeptError(self.job_id)
        job = draft.get(self.job_id)
        if job.status is JobStatus.DEAD:
            raise JobFailedError(job.id, job.error, job.error_dropped)
        if job.status is not JobStatus.COMPLETED:
            return []
        kept_until = draft.jobs.order.ended.kept_until(job)
        if kept_until is not None and kept_until <= now:  # its time is over: the next change of the queue removes it
            raise ResultNotKeptError(job.id)
        if job.result_dropped:
            raise ResultNotKeptError(job.id, job.result_dropped)
        return [job]

    def references(self) -> Sequence[JobReference]:
        """Return the id of the job."""
        return (self.job_id,)
