"""The job as the queue itself has it: a record, in one shape from the blob to the caller.

A `JobRecord` is what the draft holds, what an operation changes, and what is encoded into a line of the blob and a row
of a segment. `jqueue.domain.models.Job`, a pydantic model with the same fields, is made from it for callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from jqueue.domain.fields import Count, Entry, Moment, Name, Positive, Priority, Seconds, Tries, Weight


class JobStatus(StrEnum):
    """Status of a job. A queued job whose `run_at` lies ahead is called scheduled; that is not a status of its own.

    A completed job stays in the queue only while its result is kept. `COMPLETED` also marks the answer to an
    idempotent enqueue whose job has already finished.
    """

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    DEAD = "dead"
    COMPLETED = "completed"

    __hash__ = str.__hash__  # Enum's own is in Python, and slow: every change looks up the transition table


QUEUED, IN_PROGRESS, DEAD, COMPLETED = JobStatus  # Python 3.11 takes 0.2 µs to find a member in its class


OBJECTS = "objects"
"""The critical feature of a queue with such objects: an older reader would hand an empty payload to a handler."""

MOST_PARENTS = 100
"""Largest number of parents of a job."""

PAYLOADS, RESULTS = ".payloads/", ".results/"
"""The beginnings of the suffixes of these objects."""

OBJECT_BYTES = 240
"""About how many bytes the name of an object takes in the blob, with its size and its digest."""

STEPS = "steps"
"""The critical feature of a queue in which a job has had a step: an older worker would do it again, and an older
collector would remove its result."""

ENCODINGS = "encodings"
"""The critical feature of a queue whose jobs say so: an older worker would take an object of arguments for a value."""

Encoding = Literal["named", "chained"]
"""The way in which a payload is encoded: arguments by name, in a JSON object. None stands for one value."""

DEFAULT_CLAIM_TIMEOUT = timedelta(minutes=5)
"""Default time that a claim lasts without a heartbeat."""


class Claim(NamedTuple):
    """The right to work on a job. The attempt is the fencing token: it grows at every claim and never shrinks."""

    job_id: str
    attempt: int


class AttemptError(NamedTuple):
    """The error that ended one attempt of a job."""

    attempt: Count
    """The attempt, as in the claim."""
    at: Moment
    """Time of the nack, or of the sweep that found the claim stale."""
    text: str
    """The error, cut at 256 bytes. It begins with the class of the exception if it was given as an exception."""
    holder: str | None = None
    """Name of the claim's holder; None if it had none."""
    claimed_at: Moment | None = None
    """Time of the claim; None in errors that an earlier version wrote."""


STALE_ERROR = "stale: no heartbeat within the claim's timeout"
DIED_ERROR = "the process of its worker died"
SPARED_ERROR = "the process of its worker died while it had several jobs"
"""The error of a job to which the death of its worker's process is not charged."""

_LOST = frozenset((STALE_ERROR, DIED_ERROR, SPARED_ERROR))


def lost_in_a_row(errors: Sequence[AttemptError]) -> int:
    """Return the number of last attempts whose workers were lost: they died, or no longer confirmed their claims."""
    return sum(1 for _ in takewhile(lambda error: error.text in _LOST, reversed(errors)))


class StoredObject(NamedTuple):
    """The object of a payload or a result."""

    suffix: Annotated[str, Meta(pattern=r"^\.(payloads|results)/[A-Za-z0-9_-]{1,200}\Z")]
    """The end of its name, after the name of the queue's object."""
    size: Count
    """Number of its bytes."""
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    """The SHA-256 digest of its bytes, in hexadecimal."""


class Step(NamedTuple):
    """A step of a job: a named piece of its work that is done, with its result. A retry does not do it again."""

    name: Name
    """The name that the handler gave it."""
    occurrence: Positive
    """1 for the first step of this name, 2 for the second, and so on."""
    at: Moment
    """Time of the commit that recorded it."""
    result: Any = None
    """Its result, a JSON value; None if that is in an object."""
    result_object: StoredObject | None = None
    """The object that keeps a large result: the verb `step_result` loads it."""


class Progress(NamedTuple):
    """How far the work on a job is, as its handler last reported."""

    done: Count
    """Number of parts that are done."""
    total: Count | None = None
    """Number of all parts; None if it is not known."""
    text: str = ""
    """What the handler says about it, cut at 120 bytes."""
    at: Moment | None = None
    """Time of the commit that brought it."""


class JobFacts:
    """What follows from the fields of a job, in either shape."""

    __slots__ = ()

    if TYPE_CHECKING:
        id: str
        payload: bytes
        status: JobStatus
        attempt: int
        attempts_before: int
        failures: int
        created_at: datetime
        queued_at: datetime | None
        run_at: datetime | None
        payload_object: StoredObject | None
        errors: tuple[AttemptError, ...]

    @property
    def claim(self) -> Claim:
        """The claim that this value of the job stands for."""
        return Claim(self.id, self.attempt)

    @property
    def payload_apart(self) -> bool:
        """True if the payload is not in `payload`, but only in its object: `queue.open_payload(job)` reads it.

        A dequeue loads payloads of up to `Limits(payload_bytes=...)`. Other verbs load none.
        """
        return self.payload_object is not None and len(self.payload) != self.payload_object.size

    @property
    def tries(self) -> int:
        """Number of times that this job was claimed to be worked on, the current claim included."""
        return max(0, self.attempt - self.attempts_before)

    @property
    def failed_tries(self) -> int:
        """Number of tries that failed. `failures` also counts the current claim, and the try that completed the job."""
        return max(0, self.failures - (self.status in (IN_PROGRESS, COMPLETED)))


class JobRecord(JobFacts, Entry, frozen=True):
    """One job, as one version of the queue has it. The fields are those of `jqueue.domain.models.Job`."""

    id: str
    entrypoint: str
    payload: bytes
    status: JobStatus
    sequence: Count
    created_at: Moment
    priority: Priority = 0
    attempt: Tries = 0
    attempts_before: Count = 0
    failures: Tries = 0
    max_attempts: Positive | None = None
    run_at: Moment | None = None
    expires_at: Moment | None = None
    headers: dict[str, str] | None = None
    unique_key: str | None = None
    unique_for: Seconds | None = None
    heartbeat_at: Moment | None = None
    claim_timeout: Seconds | None = None
    dead_at: Moment | None = None
    error: str | None = None
    error_dropped: Count = 0
    errors: tuple[AttemptError, ...] = ()
    concurrency_key: str | None = None
    concurrency_limit: Positive | None = None
    fair_key: str | None = None
    fair_weight: Weight | None = None
    keep_result: Seconds | None = None
    result: Any = None
    result_dropped: Count = 0
    finished_at: Moment | None = None
    cancel_requested: bool = False
    holder: str | None = None
    claimed_at: Moment | None = None
    queued_at: Moment | None = None
    payload_object: StoredObject | None = None
    result_object: StoredObject | None = None
    traceback: str | None = None
    claim_call: str | None = None
    group: str | None = None
    after: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    on_dead: Literal["cancel", "run"] | None = None
    steps: tuple[Step, ...] = ()
    encoding: Encoding | None = None
    timeout: Seconds | None = None
    progress: Progress | None = None

    def __repr__(self) -> str:
        return f"<JobRecord {self.id!r}, {self.status}, attempt {self.attempt}>"  # no payload appears in a log


def may_kill(job: JobFacts) -> bool:
    """Return True if the last two workers of a job were lost: it may be the cause. A process has one such job only."""
    return len(job.errors) > 1 and lost_in_a_row(job.errors[-2:]) == 2


def process_of(holder: str | None) -> str:
    """Return the process in the name of a claim's holder: what follows the name of its worker."""
    return (holder or "").rpartition("@")[2]


def ready_since(job: JobFacts) -> datetime:
    """Return the time since which a queued job could be claimed."""
    since = job.created_at if job.queued_at is None else job.queued_at
    return since if job.run_at is None or job.run_at < since else job.run_at


NO_CLAIM: Mapping[str, Any] = dict.fromkeys(("heartbeat_at", "claim_timeout", "claim_call", "holder", "claimed_at"))
"""The claim's fields in a job that is not in progress."""


def objects_of(job: JobRecord) -> Iterable[StoredObject]:
    """Return the objects that a job names."""
    named = (job.payload_object, job.result_object, *(step.result_object for step in job.steps))
    return [each for each in named if each is not None]
