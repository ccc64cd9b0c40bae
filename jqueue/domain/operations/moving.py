"""A job moves between queues: it arrives in one with its id and its history, and then departs from the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar

from jqueue.domain.draft import Draft
from jqueue.domain.errors import ClaimLostError, DuplicateJobError, InvalidJobError, JobStateError
from jqueue.domain.job import NO_CLAIM, JobRecord, JobStatus
from jqueue.domain.job_options import STORED, options_needed
from jqueue.domain.large_values import LargeValue, PayloadSource, check_named_in_time, split_payload
from jqueue.domain.limits import Limits, check_headers, check_name
from jqueue.domain.models import AnyJob, record_of
from jqueue.domain.operations.base import ClaimLog, JobReference, Operation, Preparation
from jqueue.domain.operations.jobs import NewJob, drop_outlived, unreadable
from jqueue.domain.rules import LIMITS
from jqueue.domain.size_limit import take_space
from jqueue.domain.stored_object import OBJECTS, StoredObject
from jqueue.domain.transitions import Verb


def _record(job: AnyJob) -> JobRecord:
    return job if isinstance(job, JobRecord) else record_of(job)


@dataclass(frozen=True, slots=True)
class Arrive(Operation):
    """Add a job that was in another queue, unchanged except for its place. Its result is the job in this queue.

    A job that is there already is not added again.

    Attributes:
        job: the job, queued or dead, without a claim.
        enqueue_bytes: number of bytes up to which its writer fills a blob that has no limit of its own.
        payload: its payload, if `job` does not have it: an async iterable of pieces.
        large: the payload, if it gets an object of its own; set when the operation is prepared.
        name_before: time until which a commit may name it.
    """

    transfers: ClassVar[bool] = True

    job: AnyJob
    enqueue_bytes: int = Limits().enqueue_bytes
    payload: PayloadSource | None = field(default=None, repr=False)
    large: LargeValue | None = field(default=None, repr=False)  # type: ignore[misc] # of this operation
    name_before: datetime | None = None

    def prepared(self, preparation: Preparation) -> Arrive:
        """Check the job like a new one, and decide where its payload is kept in this queue."""
        job, limits = _record(self.job), preparation.limits
        check_name("entrypoint", job.entrypoint, limits)
        if self.payload is None and job.payload_apart:
            raise InvalidJobError(f"the payload of job {job.id!r} is in an object of another queue: load it first")
        given = job.payload if self.payload is None else self.payload
        payload, large = split_payload(given, limits, preparation.object_bytes)
        job = job.evolve(payload=payload, payload_object=None)
        check_headers(job.headers, limits)
        for name, option in STORED.items():
            if option.check is check_name and getattr(job, name) is not None:
                check_name(name, getattr(job, name), limits)
        return replace(self, job=job, enqueue_bytes=limits.enqueue_bytes, payload=None, large=large)

    def storing(self, stored: StoredObject, name_before: datetime) -> Arrive:
        """Return the arrival of a job whose payload is in this object."""
        return replace(self, job=self.job.evolve(payload_object=stored), large=None, name_before=name_before)

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield the capabilities without which the job would lose something."""
        yield from options_needed(_record(self.job))
        if self.job.status is JobStatus.DEAD:
            yield "dead_letters"

    def change(self, draft: Draft, now: datetime) -> JobRecord:
        """Add the job.

        Raises:
            JobStateError: another job with its id is here, or a job with its id was finished here.
            DuplicateJobError: its unique key is taken.
            QueueFullError: there is no room.
        """
        drop_outlived(draft, now)
        job = _record(self.job)
        there = draft.jobs.find(job.id)
        if there is not None:
            if not self._is_same(there):
                raise JobStateError(job.id, there.status, "another job with this id is in the queue")
            return there
        if job.id in draft.header.finished:
            raise JobStateError(job.id, JobStatus.COMPLETED, "a job with this id has finished in the queue")
        if job.id in draft.aside_keys:
            raise InvalidJobError(unreadable(job.id))
        if job.unique_key is not None and job.status is JobStatus.QUEUED:
            holder = draft.key_holder(job.unique_key, now)
            if holder is not None:
                raise DuplicateJobError(job.unique_key, holder)
        check_named_in_time(self.name_before, now)
        size = NewJob(job, True, None, "return", self.enqueue_bytes).stored_bytes()
        take_space(draft, size, self.enqueue_bytes, f"a job of {size} bytes")
        raised = max(0, draft.header.attempt_floor - job.attempt)
        attempts = {"attempt": job.attempt + raised, "attempts_before": job.attempts_before + raised}
        job = job.evolve(sequence=draft.next_sequence(), **attempts, **NO_CLAIM)
        if job.concurrency_key is not None:
            draft.require(LIMITS)
        if job.payload_object is not None:
            draft.require(OBJECTS)
        draft.move(None, Verb.ARRIVE, job, job.status)
        return job

    def _is_same(self, there: JobRecord) -> bool:
        """Return True if a job in this queue is the one that arrives."""
        if there.entrypoint != self.job.entrypoint:
            return False
        stored, known = there.payload_object, self.job.payload_object
        if stored is not None and known is not None:
            return stored.sha256 == known.sha256
        return not there.payload or there.payload == self.job.payload  # some formats read it only at the claim

    def job_ids(self) -> Sequence[str]:
        """Return the id of the job."""
        return (self.job.id,)


@dataclass(frozen=True, slots=True)
class Depart(Operation):
    """Remove a job that has arrived in another queue. It does not count as finished here, so it may come back.

    Attributes:
        job: the job as it was claimed, or as it was seen if it cannot be claimed.
    """

    transfers: ClassVar[bool] = True
    needs_space: ClassVar[bool] = False
    ends_claims: ClassVar[bool] = True

    job: AnyJob

    def change(self, draft: Draft, now: datetime) -> None:
        """Remove the job.

        Raises:
            ClaimLostError: the claim is not current, or the job is not as it was seen.
        """
        seen, job = self.job, draft.jobs.find(self.job.id)
        rescheduled = job is not None and job.status is JobStatus.QUEUED and job.run_at != seen.run_at
        if job is None or rescheduled or (job.status, job.attempt) != (seen.status, seen.attempt):
            raise ClaimLostError(*seen.claim, "the job was changed while it was being moved")
        draft.move(job, Verb.DEPART, None, None)

    def references(self) -> Sequence[JobReference]:
        """Return the claim on the job."""
        return (self.job.claim,)

    def tell(self, claims: ClaimLog, result: None) -> None:
        """Report that the claim is ended."""
        claims.end(self.job.claim)
