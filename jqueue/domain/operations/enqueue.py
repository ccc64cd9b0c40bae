"""The operation that adds a job, and those that move a job between queues.

A job that moves arrives in one queue with its id and its history, and then departs from the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Unpack

from jqueue.domain.draft import Draft
from jqueue.domain.errors import ClaimLostError, DuplicateJobError, InvalidJobError, JobStateError
from jqueue.domain.fields import LARGEST
from jqueue.domain.job import COMPLETED, DEFAULT_CLAIM_TIMEOUT, NO_CLAIM, QUEUED, JobRecord, JobStatus
from jqueue.domain.job_options import (
    OPTIONS,
    STORED,
    EnqueueOptions,
    OnConflict,
    check_names,
    check_options,
    options_bytes,
    options_needed,
    takes_options,
    with_options,
)
from jqueue.domain.large_values import LargeValue, PayloadSource, check_named_in_time, split_payload
from jqueue.domain.limits import Limits, check_headers, check_name, check_priority, written_bytes
from jqueue.domain.models import AnyJob, record_of
from jqueue.domain.operations.base import ClaimLog, JobReference, Operation, Preparation
from jqueue.domain.rules import LIMITS
from jqueue.domain.size_limit import take_space
from jqueue.domain.stored_object import OBJECT_BYTES, OBJECTS, StoredObject
from jqueue.domain.transitions import ENQUEUE, Verb

LINE_BYTES = 240
"""About how many bytes a job takes in the blob besides its texts and its payload."""

FLOOR_AT_END = "the queue's attempt_floor has its largest value: enqueue without a job_id"
"""The error about a job with an id of its caller's, in a queue whose attempts can grow no further."""

UNPLACED = datetime.min.replace(tzinfo=UTC)
"""`created_at` of a job that no commit has added yet."""

_NO_OPTIONS = ("entrypoint", "payload", "priority")
"""The attributes of an `Enqueue` without options."""


def unreadable(job_id: str) -> str:
    """Return the error about a job that cannot be added because a line set aside has its id."""
    return f"job id {job_id!r} belongs to a line of the blob that cannot be read: mend or remove that line first"


def _no_id() -> NoReturn:
    raise InvalidJobError("an enqueue that is applied to a state needs a job_id")


def _no_claim(job: object) -> NoReturn:
    raise InvalidJobError("an enqueue has no claim")


UNPREPARED = Preparation(Limits(), DEFAULT_CLAIM_TIMEOUT.total_seconds(), _no_id, _no_claim)
"""The preparation of an `Enqueue` that is applied to a state directly, without a queue."""


def drop_outlived(draft: Draft, now: datetime) -> None:
    """Remove the jobs whose time is over: expired queued jobs, and completed and dead jobs kept for long enough."""
    while (job := draft.outlived(now)) is not None:
        draft.move(job, Verb.EXPIRE, None, None)


@dataclass(frozen=True, init=False)
@with_options(EnqueueOptions)
class Enqueue(Operation):
    """Add a job. Its result is the new job, or the job with this id or unique key that is there already.

    Attributes:
        entrypoint: the name by which a worker finds the job's handler.
        payload: bytes-like, a `pathlib.Path`, or an async iterable of bytes; empty by default.
        priority: lower is served first.
    """

    entrypoint: str
    payload: PayloadSource = field(default=b"", repr=False)
    priority: int = 0

    if TYPE_CHECKING:  # an option that is not given is an attribute of the class

        def __getattr__(self, name: str) -> Any: ...

    @takes_options(EnqueueOptions)
    def __init__(
        self, entrypoint: str, payload: PayloadSource = b"", priority: int = 0, **options: Unpack[EnqueueOptions]
    ) -> None:
        values: dict[str, Any] = self.__dict__  # a `dataclass` sets each option, which takes ten times as long
        values["entrypoint"], values["payload"], values["priority"] = entrypoint, payload, priority
        if options:
            check_names("Enqueue", options, OPTIONS)
            values.update((name, value) for name, value in options.items() if value is not OPTIONS[name].default)

    @property
    def has_options(self) -> bool:
        """True if an option differs from its default."""
        return len(self.__dict__) > len(_NO_OPTIONS)

    def prepared(self, preparation: Preparation) -> NewJob:
        """Return the operation, checked, with an id and with durations in seconds."""
        if not self.has_options:
            return new_job(preparation, self.entrypoint, self.payload, self.priority)
        options: Any = {name: value for name, value in self.__dict__.items() if name in OPTIONS}
        return new_job(preparation, self.entrypoint, self.payload, self.priority, **options)

    def change(self, draft: Draft, now: datetime) -> JobRecord:
        """Add the job, unless a job with its id or its unique key is there already."""
        return self.prepared(UNPREPARED).change(draft, now)

    def job_ids(self) -> Sequence[str]:
        """Return the id of the job that it adds, if it is known."""
        return () if self.job_id is None else (self.job_id,)


def new_job(
    preparation: Preparation,
    entrypoint: str,
    payload: PayloadSource = b"",
    priority: int = 0,
    **options: Unpack[EnqueueOptions],
) -> NewJob:
    """Return an enqueue, checked and completed: see `Enqueue`.

    Raises:
        InvalidJobError: an argument is wrong.
        TypeError: there is no such option.
    """
    limits = preparation.limits
    given: dict[str, Any] = {}
    job_id, delay = None, None
    on_conflict: OnConflict = "return"
    if options:
        given = check_options(options, limits)
        job_id = given.pop("job_id", None)
        delay = given.pop("delay", None)
        on_conflict = given.pop("on_conflict", "return")
    kept, large = split_payload(payload, limits, preparation.object_bytes)
    job = JobRecord(
        preparation.new_id() if job_id is None else job_id,
        check_name("entrypoint", entrypoint, limits),
        kept,
        QUEUED,
        0,
        UNPLACED,
        check_priority(priority),
        **given,
    )
    return NewJob(job, job_id is not None, delay, on_conflict, preparation.enqueue_bytes, large)


class NewJob(Operation):
    """A prepared `Enqueue`: the new job, except its time and its place.

    Args:
        job: the job. It is not placed yet.
        id_given: True if the caller has chosen the id.
        delay: seconds from its commit until it may be claimed; None if the job has the time.
        on_conflict: see `Enqueue`.
        enqueue_bytes: number of bytes up to which its writer fills a blob that has no limit of its own.
        large: the payload, if it gets an object of its own.

    Attributes:
        job, id_given, delay: as in the arguments.
    """

    __slots__ = ("_enqueue_bytes", "_name_before", "delay", "id_given", "job", "large", "on_conflict")

    def __init__(
        self,
        job: JobRecord,
        id_given: bool,
        delay: float | None,
        on_conflict: OnConflict,
        enqueue_bytes: int,
        large: LargeValue | None = None,
    ) -> None:
        self.job = job
        self.id_given = id_given
        self.delay = delay
        self.on_conflict = on_conflict
        self._enqueue_bytes = enqueue_bytes
        self._name_before: datetime | None = None
        self.large = large  # type: ignore[misc] # of this operation

    def placed(self, number: int, created_at: datetime) -> JobRecord:
        """Return the job with its sequence number and the time of its enqueue."""
        if self.delay is None:
            return self.job.evolve(sequence=number, created_at=created_at)
        run_at = created_at + timedelta(seconds=self.delay)
        return self.job.evolve(sequence=number, created_at=created_at, run_at=run_at)

    def storing(self, stored: StoredObject, name_before: datetime) -> NewJob:
        """Return the enqueue of a job whose payload is in this object."""
        job = self.job.evolve(payload_object=stored)
        named = NewJob(job, self.id_given, self.delay, self.on_conflict, self._enqueue_bytes)
        named._name_before = name_before
        return named

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield one capability for each option that is used."""
        yield from options_needed(self.job)
        if self.delay is not None:
            yield "delay"
        if self.id_given:
            yield "job_ids"

    def change(self, draft: Draft, now: datetime, created_at: datetime | None = None) -> JobRecord:
        """Add the job, unless a job with its id or its unique key is there already.

        Args:
            draft: the queue.
            now: the time of the commit.
            created_at: the time of the enqueue, from which a delay counts; None: `now`.
        """
        drop_outlived(draft, now)  # first: an expired job with its id or key must not stand in for the new one
        job_id, unique_key = self.job.id, self.job.unique_key
        there = draft.jobs.find(job_id) if self.id_given else draft.jobs.get(job_id)
        is_refused = self.id_given and self.on_conflict == "raise"
        if there is not None:
            if is_refused:
                raise DuplicateJobError(None, job_id, f"that job is {there.status}")
            return there
        if job_id in draft.header.finished:
            if is_refused:
                raise DuplicateJobError(None, job_id, "that job has finished")
            return self._finished(job_id, draft, now)
        if job_id in draft.aside_keys:
            raise InvalidJobError(unreadable(job_id))
        if self.id_given and draft.header.attempt_floor >= LARGEST:
            raise InvalidJobError(FLOOR_AT_END)
        if unique_key is not None:
            holder = draft.key_holder(unique_key, now)
            if holder is not None and self.on_conflict != "replace":
                return self._taken(unique_key, holder, draft, now)
            if holder is not None:
                self._replace(unique_key, holder, draft)
        check_named_in_time(self._name_before, now)
        size = self.stored_bytes()
        take_space(draft, size, self._enqueue_bytes, f"a job of {size} bytes")
        job = self._job(draft, now if created_at is None else created_at)
        draft.move(None, ENQUEUE, job, QUEUED)
        if job.concurrency_key is not None:
            draft.require(LIMITS)
        if job.payload_object is not None:
            draft.require(OBJECTS)
        return job

    def job_ids(self) -> Sequence[str]:
        """Return the id of the job that it adds, if it is known."""
        return (self.job.id,)

    def stored_bytes(self) -> int:
        """Return about how many bytes the job takes in the blob."""
        job = self.job
        size = LINE_BYTES + len(job.payload) * 4 // 3
        size += written_bytes(job.entrypoint) + written_bytes(job.id) + 8
        size += options_bytes(job)
        if job.payload_object is not None:
            size += OBJECT_BYTES
        if job.error is not None:  # of a job that comes from another queue
            size += written_bytes(job.error)
        if job.traceback is not None:
            size += written_bytes(job.traceback)
        return size

    def _job(self, draft: Draft, created_at: datetime) -> JobRecord:
        job = self.placed(draft.next_sequence(), created_at)
        floor = draft.header.attempt_floor if self.id_given else 0
        return job.evolve(attempt=floor, attempts_before=floor) if floor else job

    def _finished(self, job_id: str, draft: Draft, now: datetime) -> JobRecord:
        """Return a completed job for an id that was acked and is gone. Its other fields are the caller's."""
        attempt = draft.header.finished.get(job_id, 0)
        job = self.job
        return JobRecord(
            job_id,
            job.entrypoint,
            job.payload,
            COMPLETED,
            0,
            now,
            job.priority,
            attempt,
            headers=job.headers,
            unique_key=job.unique_key,
        )

    def _taken(self, key: str, holder: str, draft: Draft, now: datetime) -> JobRecord:
        live = draft.jobs.loaded(holder)
        if self.on_conflict == "raise":
            status = "acked, and its unique_for has not passed" if live is None else live.status
            raise DuplicateJobError(key, holder, f"that job is {status}")
        return live if live is not None else self._finished(holder, draft, now)

    def _replace(self, key: str, holder: str, draft: Draft) -> None:
        live = draft.jobs.loaded(holder)
        if live is None or live.status is COMPLETED:
            draft.forget(draft.header.holds, key)
        elif live.status is QUEUED:
            draft.move(live, Verb.CANCEL, None, None)
        else:
            raise DuplicateJobError(key, holder, f"that job is {live.status}, and only a queued job can be replaced")


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
