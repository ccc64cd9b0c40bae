"""The values that make up a queue: jobs, claims, and the state that holds them. All are immutable.

`Job` and `QueueState` are frozen pydantic models. A change makes a new value. The rules of change are in
`jqueue.domain.operations`.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from msgspec.structs import asdict
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
)
from pydantic_core import core_schema

from jqueue.domain.counters import Counters
from jqueue.domain.errors import JobNotFoundError
from jqueue.domain.fields import COUNT_MAX, LEAST_WEIGHT, NO_HEADERS, FrozenHeaders, to_utc
from jqueue.domain.header import (
    BrokerSeat,
    ClientRecord,
    CommitRecord,
    GroupRecord,
    Header,
    KeyHold,
    SetAside,
    TransactionRecord,
    WorkerRecord,
)
from jqueue.domain.history import HistoryHeader
from jqueue.domain.job import (
    NO_CLAIM,
    AttemptError,
    Claim,
    Encoding,
    JobFacts,
    JobRecord,
    JobStatus,
    Progress,
    Step,
    StoredObject,
)
from jqueue.domain.rules import EntrypointRules, QueueSettings, Schedule, Usage
from jqueue.domain.segments import Segment, SegmentId

__all__ = [
    "AnyJob",
    "Claim",
    "Job",
    "JobStatus",
    "NotLoaded",
    "QueueState",
    "for_callers",
    "header_of",
    "job_of",
    "record_of",
    "state_of",
]


class _AsRecord:
    """Lets pydantic check and dump a field of records, as msgspec reads and writes their JSON."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        def read(value: Any) -> Any:
            try:
                return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_as_dict), type=source)
            except (TypeError, OverflowError) as error:
                raise ValueError(f"{error}") from None

        def dump(value: Any) -> Any:
            return msgspec.json.decode(msgspec.json.encode(value))

        written = core_schema.plain_serializer_function_ser_schema(dump)
        return core_schema.no_info_plain_validator_function(read, serialization=written)

    @staticmethod
    def __get_pydantic_json_schema__(schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {}


def _as_dict(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be a field of a record")


def _to_payload(value: object) -> object:
    """Return a payload as bytes. Text is base64, as in the blob."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        try:
            return base64.b64decode(value.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise ValueError("payload as text must be base64") from None
    raise ValueError(f"payload must be bytes or a base64-encoded str, got {type(value).__name__}")


def _to_time(value: object) -> object:
    """Return a time in UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:  # not passed on: its message shows the value
            raise ValueError("a time must be an ISO 8601 text") from None
    if isinstance(value, datetime):
        return to_utc(value)
    raise ValueError("a time must be an ISO 8601 text or a datetime")


def _to_headers(value: object) -> FrozenHeaders:
    if isinstance(value, FrozenHeaders):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("headers must be a mapping of names to texts")
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in value.items()):
        raise ValueError("headers must map text to text")
    return FrozenHeaders(value)


def _check_errors(errors: tuple[AttemptError, ...]) -> tuple[AttemptError, ...]:
    dated = [
        (error.attempt, to_utc(error.at), error.text, error.holder, error.claimed_at and to_utc(error.claimed_at))
        for error in errors
    ]
    return msgspec.convert(dated, tuple[AttemptError, ...])


def _in_utc(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(step._replace(at=to_utc(step.at)) for step in steps)


def _with_utc(progress: Progress | None) -> Progress | None:
    return progress if progress is None else progress._replace(at=progress.at and to_utc(progress.at))


_Payload = Annotated[
    bytes,
    BeforeValidator(_to_payload),
    PlainSerializer(lambda payload: base64.b64encode(payload).decode("ascii"), return_type=str),
]
_Time = Annotated[datetime, BeforeValidator(_to_time)]
_Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
_Positive = Annotated[int, Field(ge=1, le=COUNT_MAX)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _new_id() -> str:
    return str(uuid.uuid4())  # noqa: TID251 - `Job(...)` makes its own id, as in 1.0.0; the queues hand theirs in


def _utc_now() -> datetime:
    return to_utc(datetime.now(UTC))  # noqa: TID251 - `Job(...)` dates itself, as in 1.0.0; the queues hand the time in


class NotLoaded(bytes):
    """The payload of a job from `peek` or `find`, or of one that a producer may not see. It is empty."""

    __slots__ = ()


class Job(JobFacts, BaseModel):
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
        max_attempts: number of failures after which it is dead; None means the number of its handler in a `Worker`.
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
        fair_key: jobs of one entrypoint and priority are served in turn among these keys; None is a key, too.
        fair_weight: share of the turns of another key that its key gets with it; None means 1.
        keep_result: seconds for which the result is kept after the ack; None means the time of its handler, if it
            has one.
        result: the value given with the ack; any JSON value. Do not change it: all readers share one object.
        result_object: the object that keeps a large result; then `result` is None, and the verb `result` loads it.
        result_dropped: bytes of a result that the queue had no room for; 0 if it was kept.
        finished_at: time of the ack; None unless completed and kept.
        cancel_requested: True if it was cancelled while in progress: its holder's next heartbeat says so.
        holder: name of the claim's holder, such as `name@host:pid` of a worker; None unless in progress.
        claimed_at: time of the claim; None unless in progress.
        queued_at: time of its last return to the queue, after a failure or uncharged, or of the end of its last parent;
            None while it is claimed, and before its first claim.
        claim_call: the call of another process for which a broker made the claim; None unless in progress.
        group: id of the group that it belongs to; None if it belongs to none.
        after: ids of its parents: the jobs that must be done before it is claimed.
        waits_for: ids of the parents that are not done yet. A queued job that has some is not ready.
        on_dead: what becomes of it if a parent dies or leaves the queue undone: see `enqueue`.
        steps: the steps that are done, in the order in which they were recorded. An ack drops them.
        timeout: seconds that its handler may take for it; None means the handler's own time.
        encoding: "named" if the payload is a JSON object of arguments by name; None if it is one value.
        progress: how far its work was at the last report; None if its last claim brought none.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    id: Annotated[str, Field(min_length=1)] = Field(default_factory=_new_id)
    entrypoint: str
    payload: _Payload
    status: JobStatus = JobStatus.QUEUED
    priority: Annotated[int, Field(ge=-COUNT_MAX, le=COUNT_MAX)] = 0
    created_at: _Time = Field(default_factory=_utc_now)
    sequence: _Count = 0
    attempt: _Count = 0
    attempts_before: _Count = 0
    failures: _Count = 0
    max_attempts: _Positive | None = None
    run_at: _Time | None = None
    expires_at: _Time | None = None
    headers: Annotated[Mapping[str, str], PlainValidator(_to_headers)] = Field(default_factory=FrozenHeaders)
    unique_key: str | None = None
    unique_for: _Seconds | None = None
    heartbeat_at: _Time | None = None
    claim_timeout: _Seconds | None = None
    dead_at: _Time | None = None
    error: str | None = None
    error_dropped: _Count = 0
    errors: Annotated[tuple[AttemptError, ...], AfterValidator(_check_errors)] = ()
    concurrency_key: str | None = None
    concurrency_limit: _Positive | None = None
    fair_key: str | None = None
    fair_weight: Annotated[float, Field(ge=LEAST_WEIGHT, le=1)] | None = None
    keep_result: _Seconds | None = None
    result: Any = Field(default=None, repr=False)
    result_dropped: _Count = 0
    finished_at: _Time | None = None
    cancel_requested: bool = False
    holder: str | None = None
    claimed_at: _Time | None = None
    queued_at: _Time | None = None
    payload_object: Annotated[StoredObject | None, _AsRecord] = None
    result_object: Annotated[StoredObject | None, _AsRecord] = None
    traceback: str | None = None
    claim_call: str | None = None
    group: str | None = None
    after: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    on_dead: Literal["cancel", "run"] | None = None
    steps: Annotated[tuple[Step, ...], _AsRecord, AfterValidator(_in_utc)] = Field(default=(), repr=False)
    encoding: Encoding | None = None
    timeout: _Seconds | None = None
    progress: Annotated[Progress | None, _AsRecord, AfterValidator(_with_utc)] = None

    @classmethod
    def new(cls, entrypoint: str, payload: bytes = b"", priority: int = 0) -> Self:
        """Return a queued job with a new id, created now."""
        return cls(entrypoint=entrypoint, payload=payload, priority=priority)

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
            field = _JOB_FIELDS.get(name or "")
            if field is not None and value == field.get_default(call_default_factory=True):
                continue
            if name == "payload":
                loaded = not self.payload_apart and not isinstance(self.payload, NotLoaded)
                value = f"<{len(self.payload)} bytes>" if loaded else "<not loaded>"
            yield name, value


_new: Callable[[type[Job]], Job] = object.__new__
_SLOTS = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
_set_values, _set_names, _set_extra, _set_private = (vars(BaseModel)[slot].__set__ for slot in _SLOTS)
_JOB_FIELDS = Job.model_fields
_FIELDS = set(_JOB_FIELDS)


def job_of(record: JobRecord) -> Job:
    """Return a job of the queue as callers get it, without a check of its values."""
    values = asdict(record)
    extra = values.pop("extra")
    values["headers"] = NO_HEADERS if record.headers is None else FrozenHeaders(record.headers)
    job = _new(Job)
    _set_values(job, values)
    _set_names(job, _FIELDS)  # shared: a frozen model never adds to it
    _set_extra(job, {**extra} if extra else {})  # callers may change it
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


class QueueState(BaseModel):
    """One version of a whole queue: a value that can be read, compared, encoded and shared.

    Attributes:
        jobs: every job, in the order of the blob.
        set_aside: lines that could not be read as jobs.

    The other fields are those of `jqueue.domain.header.Header`.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, hide_input_in_errors=True)

    jobs: tuple[Job, ...] = ()
    version: _Count = 0
    queue: str = ""
    critical: tuple[str, ...] = ()
    commits: Annotated[Mapping[str, CommitRecord], _AsRecord] = Field(default_factory=dict)
    evicted_through: _Count = 0
    clients: Annotated[Mapping[str, ClientRecord], _AsRecord] = Field(default_factory=dict, repr=False)
    clients_evicted: _Count = 0
    broker: Annotated[BrokerSeat | None, _AsRecord] = Field(default=None, repr=False)
    finished: Mapping[str, _Count] = Field(default_factory=dict)
    cancelled: tuple[str, ...] = Field(default=(), repr=False)
    finished_minutes: tuple[tuple[_Count, _Count], ...] = Field(default=(), repr=False)
    holds: Annotated[Mapping[str, KeyHold], _AsRecord] = Field(default_factory=dict)
    attempt_floor: _Count = 0
    last_sequence: _Count = 0
    settings: Annotated[QueueSettings, _AsRecord] = Field(default_factory=QueueSettings)
    entrypoints: Annotated[Mapping[str, EntrypointRules], _AsRecord] = Field(default_factory=dict)
    recent: Annotated[Mapping[str, tuple[Usage, ...]], _AsRecord] = Field(default_factory=dict)
    recent_keys: Annotated[Mapping[str, Mapping[str, tuple[Usage, ...]]], _AsRecord] = Field(
        default_factory=dict, repr=False
    )
    turns: Mapping[str, _Count] = Field(default_factory=dict, repr=False)
    fair: Mapping[str, Mapping[str, _Count]] = Field(default_factory=dict, repr=False)
    schedules: Annotated[Mapping[str, Schedule], _AsRecord] = Field(default_factory=dict, repr=False)
    transactions: Annotated[Mapping[str, TransactionRecord], _AsRecord] = Field(default_factory=dict)
    groups: Annotated[Mapping[str, GroupRecord], _AsRecord] = Field(default_factory=dict, repr=False)
    counters: Annotated[Mapping[str, Counters], _AsRecord] = Field(default_factory=dict, repr=False)
    workers: Annotated[Mapping[str, WorkerRecord], _AsRecord] = Field(default_factory=dict, repr=False)
    history: Annotated[HistoryHeader | None, _AsRecord] = Field(default=None, repr=False)
    segments: Annotated[Mapping[str, Segment], _AsRecord] = Field(default_factory=dict, repr=False)
    retired: Annotated[Mapping[SegmentId, float], _AsRecord] = Field(default_factory=dict, repr=False)
    set_aside: tuple[SetAside, ...] = Field(default=(), repr=False)
    extra: Mapping[str, Any] = Field(default_factory=dict, repr=False)

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


_STATE_FIELDS = set(QueueState.model_fields)


def state_of(header: Header, jobs: tuple[Job, ...] = (), set_aside: tuple[SetAside, ...] = ()) -> QueueState:
    """Return a version of a queue as callers get it, without a check of its values."""
    values = {name: getattr(header, name) for name in Header.__struct_fields__}
    state = QueueState.__new__(QueueState)
    _set_values(state, {**values, "jobs": jobs, "set_aside": set_aside, "extra": header.extra or {}})
    _set_names(state, _STATE_FIELDS)
    _set_extra(state, None)
    _set_private(state, None)
    return state


def header_of(state: QueueState) -> Header:
    """Return the header of a version of a queue, with tables of its own."""
    values = {name: getattr(state, name) for name in Header.__struct_fields__}
    return Header(**{**values, "extra": state.extra or None}).copy()
