"""The values that make up a queue: jobs, claims, and the state that holds them. All are immutable.

`Job` and `QueueState` are frozen pydantic models. A change makes a new value. The rules of change are in
`jqueue.domain.operations`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, Self

from msgspec.structs import asdict
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from jqueue.domain.counters import Counters
from jqueue.domain.errors import JobNotFoundError
from jqueue.domain.fields import (
    COUNT_MAX,
    LARGEST,
    NO_HEADERS,
    PRIORITY_MAX,
    PRIORITY_MIN,
    Count,
    Finite,
    FrozenHeaders,
    Headers,
    JobId,
    Payload,
    Seconds,
    Timestamp,
)
from jqueue.domain.history import HistoryHeader
from jqueue.domain.job import NO_CLAIM, AttemptError, Claim, JobRecord, JobStatus
from jqueue.domain.ranges import Range
from jqueue.domain.rules import EntrypointRules, QueueSettings, Schedule, Usage
from jqueue.domain.segments import Segment, SegmentId
from jqueue.domain.stored_object import StoredObject, is_apart
from jqueue.domain.workers import WorkerRecord

__all__ = [
    "COUNT_MAX",
    "DEFAULT_CLAIM_TIMEOUT",
    "LARGEST",
    "NO_CLAIM",
    "NO_HEADERS",
    "PRIORITY_MAX",
    "PRIORITY_MIN",
    "AnyJob",
    "AttemptError",
    "Claim",
    "CommitRecord",
    "EntrypointRules",
    "FrozenHeaders",
    "Job",
    "JobRecord",
    "JobStatus",
    "KeyHold",
    "QueueSettings",
    "QueueState",
    "Schedule",
    "SetAside",
    "StoredObject",
    "TransactionRecord",
    "Usage",
    "for_callers",
    "job_of",
    "record_of",
]

DEFAULT_CLAIM_TIMEOUT = timedelta(minutes=5)
"""Default time that a claim lasts without a heartbeat."""


def _to_commit_record(value: object) -> object:
    return (*value[:4], tuple(value[4:])) if isinstance(value, list) else value


def _new_id() -> str:
    return str(uuid.uuid4())  # noqa: TID251 - `Job(...)` makes its own id, as in 1.0.0; the queues hand theirs in


def _utc_now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - `Job(...)` dates itself, as in 1.0.0; the queues hand the time in


class NotLoaded(bytes):
    """The payload of a job from `peek` or `find`: it is empty, as the payload was not loaded."""

    __slots__ = ()


class Job(BaseModel):
    """One piece of work, as one version of the queue has it. Frozen; times are aware and in UTC.

    Attributes:
        id: unique in its queue.
        entrypoint: the name by which a worker finds its handler.
        payload: the bytes to handle. Not shown by `repr`. See `payload_apart`.
        payload_object: the object that keeps a large payload; None if the queue itself keeps the payload.
        status: see `JobStatus`.
        priority: lower is served first.
        created_at: time of the enqueue.
        sequence: its place among jobs of the same priority.
        attempt: the fencing token: grows by one at each claim, and never shrinks. See `tries`.
        attempts_before: attempts that are not tries of this job: earlier jobs with its id may have had them, or moves
            between queues.
        failures: number of its claims, the current one included, that were not handed back unharmed. Compared with
            `max_attempts`.
        max_attempts: number of failures after which it is dead; None means never.
        run_at: time before which it is not claimed; None means at once.
        expires_at: time from which it is removed if it is queued; None means never.
        headers: names and texts that travel with it.
        unique_key: no two live jobs have the same.
        unique_for: seconds for which the key stays taken after the ack.
        heartbeat_at: time of the claim's last heartbeat, or of the claim itself; None unless in progress.
        claim_timeout: seconds without a heartbeat after which the claim is stale; None unless in progress.
        dead_at: time of its death; None unless dead.
        error: the last error that a nack or a sweep recorded, cut at 2 KiB.
        error_dropped: bytes of that error that the queue had no room for; 0 if it was kept.
        errors: the errors of its last five attempts that failed, the oldest first, each cut at 256 bytes.
        traceback: the last frames of the last error's traceback, a line for each, such as `shop/mail.py:17 in send`; at
            most 1 KiB, without code and values. None if its worker recorded none.
        concurrency_key: limits jobs across entrypoints: see `concurrency_limit`.
        concurrency_limit: the job is claimed only while fewer jobs with the same key are in progress. None means 1.
        keep_result: seconds for which the result is kept after the ack; None means that it is not kept.
        result: the value given with the ack; any JSON value. Do not change it: all readers share one object.
        result_object: the object that keeps a large result; then `result` is None, and the verb `result` loads it.
        result_dropped: bytes of a result that the queue had no room for; 0 if it was kept.
        finished_at: time of the ack; None unless completed and kept.
        cancel_requested: True if it was cancelled while in progress: its holder's next heartbeat says so.
        holder: name of the claim's holder, such as `name@host:pid` of a worker; None unless in progress.
        claimed_at: time of the claim; None unless in progress.
        queued_at: time of its last return to the queue, after a failure or uncharged; None while it is claimed, and
            before its first claim.
    """

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    id: JobId = Field(default_factory=_new_id)
    entrypoint: str
    payload: Payload
    status: JobStatus = JobStatus.QUEUED
    priority: Annotated[int, Field(ge=-COUNT_MAX, le=COUNT_MAX)] = 0
    created_at: Timestamp = Field(default_factory=_utc_now)
    sequence: Count = 0
    attempt: Count = 0
    attempts_before: Count = 0
    failures: Count = 0
    max_attempts: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = None
    run_at: Timestamp | None = None
    expires_at: Timestamp | None = None
    headers: Headers = NO_HEADERS
    unique_key: str | None = None
    unique_for: Seconds | None = None
    heartbeat_at: Timestamp | None = None
    claim_timeout: Seconds | None = None
    dead_at: Timestamp | None = None
    error: str | None = None
    error_dropped: Count = 0
    errors: tuple[AttemptError, ...] = ()
    concurrency_key: str | None = None
    concurrency_limit: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = None
    keep_result: Seconds | None = None
    result: Any = Field(default=None, repr=False)
    result_dropped: Count = 0
    finished_at: Timestamp | None = None
    cancel_requested: bool = False
    holder: str | None = None
    claimed_at: Timestamp | None = None
    queued_at: Timestamp | None = None
    payload_object: StoredObject | None = None
    result_object: StoredObject | None = None
    traceback: str | None = None

    @classmethod
    def new(cls, entrypoint: str, payload: bytes = b"", priority: int = 0) -> Self:
        """Return a queued job with a new id, created now."""
        return cls(entrypoint=entrypoint, payload=payload, priority=priority)

    @property
    def claim(self) -> Claim:
        """The claim that this value of the job stands for."""
        return Claim(self.id, self.attempt)

    @property
    def payload_apart(self) -> bool:
        """True if the payload is not in `payload`, but only in its object: `queue.open_payload(job)` reads it.

        A dequeue loads payloads of up to `Limits(payload_bytes=...)`. Other verbs load none.
        """
        return is_apart(self.payload, self.payload_object)

    @property
    def tries(self) -> int:
        """Number of times that this job was claimed to be worked on, the current claim included."""
        return max(0, self.attempt - self.attempts_before)

    @property
    def failed_tries(self) -> int:
        """Number of tries that failed. `failures` also counts the current claim, and the try that completed the job."""
        return max(0, self.failures - (self.status in (JobStatus.IN_PROGRESS, JobStatus.COMPLETED)))

    def with_status(self, status: JobStatus) -> Job:
        """Return the same job with another status."""
        return self.evolve(status=status)

    def with_heartbeat(self, ts: datetime | None) -> Job:
        """Return the same job with another heartbeat."""
        return self.evolve(heartbeat_at=ts)

    def evolve(self, **changes: Any) -> Job:
        """Return the same job with some fields replaced. The values are not checked: they come from the domain."""
        return self.model_copy(update=changes)

    def __hash__(self) -> int:
        return hash((self.id, self.status, self.attempt))  # a result may be a list

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            if name == "payload":
                loaded = not self.payload_apart and not isinstance(self.payload, NotLoaded)
                value = f"<{len(self.payload)} bytes>" if loaded else "<not loaded>"
            yield name, value


_new: Callable[[type[Job]], Job] = object.__new__
_SLOTS = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
_set_values, _set_names, _set_extra, _set_private = (vars(BaseModel)[slot].__set__ for slot in _SLOTS)
_FIELDS = set(Job.model_fields)


def job_of(record: JobRecord) -> Job:
    """Return a job of the queue as callers get it, without a check of its values."""
    values = asdict(record)
    extra = values.pop("extra")
    values["headers"] = NO_HEADERS if record.headers is None else FrozenHeaders(record.headers)
    job = _new(Job)
    _set_values(job, values)
    _set_names(job, _FIELDS)  # shared: a frozen model never adds to it
    _set_extra(job, extra or {})
    _set_private(job, None)
    return job


def record_of(job: Job) -> JobRecord:
    """Return a job of a caller as the queue has it."""
    values = {**job.__dict__, "headers": dict(job.headers) or None}
    return JobRecord(**values, extra=job.__pydantic_extra__ or None)


AnyJob = Job | JobRecord
"""A job in either shape, for code that only reads it."""


def for_callers(result: Any) -> Any:
    """Return the result of an operation as callers get it: jobs as models, alone or in a list."""
    if result.__class__ is JobRecord:
        return job_of(result)
    if result.__class__ is list:
        return [job_of(each) if each.__class__ is JobRecord else each for each in result]
    return result


class CommitRecord(NamedTuple):
    """The last commit of one writer, as the blob keeps it. A writer recognises its own commit by it."""

    sequence: Count
    """The number of the write that landed, counted by the writer."""
    version: Count
    """The version that the commit made."""
    at: Finite
    """Time of the commit, in seconds since 1970 by the writer's clock."""
    cycle: Finite
    """Seconds that the writer takes to read and write the blob once, with rows that it reads between the two."""
    more: tuple[Any, ...] = ()
    """Values that a later version of jqueue has added, kept as they are."""


class KeyHold(NamedTuple):
    """A unique key kept after its job was acked."""

    job_id: JobId
    until: Finite
    """Seconds since 1970."""


class TransactionRecord(NamedTuple):
    """The version of an application's last write to the queue. A repeated write is recognised by it."""

    version: Count
    until: Finite
    """Time from which the record may be forgotten, in seconds since 1970."""


class SetAside(NamedTuple):
    """A line of the blob that could not be read as a job. It is kept as it is, and never claimed."""

    key: str
    line: bytes
    reason: str

    def __repr__(self) -> str:
        return f"SetAside(key={self.key!r}, line=<{len(self.line)} bytes>, reason={self.reason!r})"


class QueueState(BaseModel):
    """One version of a whole queue: a value that can be read, compared, encoded and shared.

    Attributes:
        jobs: every job, in the order of the blob.
        version: grows by one with every commit.
        queue: the queue's random id; empty before its first commit.
        critical: names of features without which the blob must not be touched.
        commits: the last commit of each recent writer.
        evicted_through: the highest version whose record `commits` has dropped.
        finished: the ids of recently acked jobs, and the attempt that acked each.
        holds: unique keys kept after their job's ack.
        attempt_floor: the highest attempt of any job that is no longer known; a reused id starts above it.
        last_sequence: the highest sequence number ever given to a job, so that none is given twice.
        settings: the settings of the queue as a whole.
        entrypoints: the limits and pauses of entrypoints, by name.
        recent: the claims that still count against a rate limit, by entrypoint.
        schedules: the cron entries, by name.
        transactions: the last version of each application that enqueues in transactions, by its id.
        counters: what has happened to the jobs of each entrypoint since the first commit.
        workers: the workers that have committed lately, by the id of their run.
        history: the latest events of jobs, and where the earlier ones are; None if no history was ever kept.
        segments: the manifest: the segments that hold further jobs, by id.
        ranges: the claims of ranges of their rows, by id.
        retired: the times at which segments left the manifest, in seconds since 1970, by id.
        set_aside: lines that could not be read as jobs.
        extra: fields that this version does not know, kept for the versions that do.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    jobs: tuple[Job, ...] = ()
    version: Count = 0
    queue: str = ""
    critical: tuple[str, ...] = ()
    commits: Mapping[str, Annotated[CommitRecord, BeforeValidator(_to_commit_record)]] = Field(default_factory=dict)
    evicted_through: Count = 0
    finished: Mapping[str, Count] = Field(default_factory=dict)
    holds: Mapping[str, KeyHold] = Field(default_factory=dict)
    attempt_floor: Count = 0
    last_sequence: Count = 0
    settings: QueueSettings = QueueSettings()
    entrypoints: Mapping[str, EntrypointRules] = Field(default_factory=dict)
    recent: Mapping[str, tuple[Usage, ...]] = Field(default_factory=dict)
    schedules: Mapping[str, Schedule] = Field(default_factory=dict, repr=False)
    transactions: Mapping[str, TransactionRecord] = Field(default_factory=dict)
    counters: Mapping[str, Counters] = Field(default_factory=dict, repr=False)
    workers: Mapping[str, WorkerRecord] = Field(default_factory=dict, repr=False)
    history: HistoryHeader | None = Field(default=None, repr=False)
    segments: Mapping[SegmentId, Segment] = Field(default_factory=dict, repr=False)
    ranges: Mapping[JobId, Range] = Field(default_factory=dict, repr=False)
    retired: Mapping[SegmentId, Finite] = Field(default_factory=dict, repr=False)
    set_aside: tuple[SetAside, ...] = Field(default=(), repr=False)
    extra: Mapping[str, Any] = Field(default_factory=dict, repr=False)

    @classmethod
    def trusted(cls, **values: Any) -> Self:
        """Make a state from checked values: like `model_construct`, much faster. Unnamed fields have their defaults."""
        state = cls.__new__(cls)
        _set_values(state, {**_STATE, **values})
        _set_names(state, _STATE_FIELDS)
        _set_extra(state, None)
        _set_private(state, None)
        return state

    def queued_jobs(self, entrypoint: str | None = None) -> tuple[Job, ...]:
        """Return the queued jobs, scheduled ones included, in the order in which they are served."""
        queued = (
            job
            for job in self.jobs
            if job.status is JobStatus.QUEUED and (entrypoint is None or job.entrypoint == entrypoint)
        )
        return tuple(sorted(queued, key=lambda job: (job.priority, job.sequence, job.created_at)))

    def in_progress_jobs(self) -> tuple[Job, ...]:
        """Return the claimed jobs."""
        return tuple(job for job in self.jobs if job.status is JobStatus.IN_PROGRESS)

    def dead_jobs(self) -> tuple[Job, ...]:
        """Return the jobs that used up their attempts and are kept until redriven or purged."""
        return tuple(job for job in self.jobs if job.status is JobStatus.DEAD)

    def find(self, job_id: str) -> Job | None:
        """Return the job with this id, or None."""
        return next((job for job in self.jobs if job.id == job_id), None)

    def with_job_added(self, job: Job) -> QueueState:
        """Return the next version, with one more job."""
        return self._next(jobs=(*self.jobs, job))

    def with_job_replaced(self, updated: Job) -> QueueState:
        """Return the next version, with the job of that id replaced.

        Raises:
            JobNotFoundError: no job has that id.
        """
        self._require(updated.id)
        return self._next(jobs=tuple(updated if job.id == updated.id else job for job in self.jobs))

    def with_job_removed(self, job_id: str) -> QueueState:
        """Return the next version, without the job of that id.

        Raises:
            JobNotFoundError: no job has that id.
        """
        self._require(job_id)
        return self._next(jobs=tuple(job for job in self.jobs if job.id != job_id))

    def requeue_stale(self, cutoff: datetime) -> QueueState:
        """Return the next version: claims with no heartbeat since `cutoff` are revoked. Itself if there are none."""

        def requeued(job: Job) -> Job:
            stale = job.status is JobStatus.IN_PROGRESS and (job.heartbeat_at is None or job.heartbeat_at < cutoff)
            return job.evolve(status=JobStatus.QUEUED, **NO_CLAIM) if stale else job

        jobs = tuple(requeued(job) for job in self.jobs)
        return self if all(new is old for new, old in zip(jobs, self.jobs, strict=True)) else self._next(jobs=jobs)

    def _require(self, job_id: str) -> None:
        if self.find(job_id) is None:
            raise JobNotFoundError(job_id)

    def _next(self, **changes: Any) -> QueueState:
        return self.model_copy(update={"version": self.version + 1, **changes})


_STATE: Mapping[str, Any] = MappingProxyType(QueueState().__dict__)
_STATE_FIELDS = set(QueueState.model_fields)
