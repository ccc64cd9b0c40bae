"""Jobs in: enqueue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NoReturn, get_args

from jqueue.domain.draft import Draft
from jqueue.domain.durations import Duration, check_time, to_seconds
from jqueue.domain.errors import DuplicateJobError, InvalidJobError, shown
from jqueue.domain.limits import (
    Limits,
    check_headers,
    check_integer,
    check_name,
    check_payload,
    check_priority,
    written_bytes,
)
from jqueue.domain.models import COUNT_MAX, DEFAULT_CLAIM_TIMEOUT, LARGEST, Job, JobStatus, trusted_job
from jqueue.domain.operations.base import Operation, Preparation
from jqueue.domain.option_names import names_its_options
from jqueue.domain.room import make_room
from jqueue.domain.rules import LIMITS
from jqueue.domain.transitions import Verb

OnConflict = Literal["return", "raise", "replace"]
"""What an enqueue does when its unique key is taken."""

CONFLICTS = get_args(OnConflict)

LINE_BYTES = 240
"""About what a job takes in the blob besides its texts and its payload."""


_NEEDS = tuple(
    {
        "priority": "priority",
        "run_at": "delay",
        "expires_at": "expiry",
        "headers": "headers",
        "unique_key": "unique_keys",
        "max_attempts": "dead_letters",
        "concurrency_key": "limits",
        "keep_result": "results",
    }.items()
)
"""Fields of a new job, each with the capability that it needs of a queue."""

PLAIN = {name: field.get_default() for name, field in Job.model_fields.items()}
"""Every field of a job, most of them as they are when nobody says otherwise."""


def _no_id() -> NoReturn:
    raise InvalidJobError("an enqueue that is applied to a state needs a job_id")


def _no_claim(job: object) -> NoReturn:
    raise InvalidJobError("an enqueue has no claim")


UNPREPARED = Preparation(Limits(), DEFAULT_CLAIM_TIMEOUT.total_seconds(), _no_id, _no_claim)
"""For an `Enqueue` that is applied to a state as it is, by nobody's queue."""


def drop_outlived(draft: Draft, now: datetime) -> None:
    """Remove the jobs whose time is over: queued ones that expire, results and dead jobs kept for long enough."""
    while (job := draft.outlived(now)) is not None:
        draft.move(job, Verb.EXPIRE, None, None)


@names_its_options
@dataclass(frozen=True, slots=True)
class Enqueue(Operation):
    """Add a job. Its result is the job as it stands: the new one, or the one that was there already.

    Attributes:
        entrypoint: the name of what handles it.
        payload: bytes-like; empty by default.
        priority: lower is served first.
        job_id: makes the call idempotent: a job with this id, live or recently finished, is returned as it is.
        delay: not to be claimed before so long from now; not together with `run_at`.
        run_at: not to be claimed before this time.
        expires_at: from this time on, it is removed when it is queued: not to be started later.
        max_attempts: after so many failures it is dead; None means never.
        headers: names and texts that travel with it.
        unique_key: no second live job may have the same.
        unique_for: how long the key stays taken after the ack.
        on_conflict: "return" the job that holds the key, "raise" DuplicateJobError, or "replace" it if it is queued.
        concurrency_key: jobs that share it, of whatever entrypoint, are not claimed beyond a ceiling.
        concurrency_limit: that ceiling: it is claimed while fewer jobs with the key are in progress. 1 if not given.
        keep_result: how long the result is kept after the ack; None means not at all.
    """

    entrypoint: str
    payload: bytes = field(default=b"", repr=False)
    priority: int = 0
    _: KW_ONLY
    job_id: str | None = None
    delay: Duration | None = None
    run_at: datetime | None = None
    expires_at: datetime | None = None
    max_attempts: int | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    unique_key: str | None = None
    unique_for: Duration | None = None
    on_conflict: OnConflict = "return"
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    keep_result: Duration | None = None

    def prepared(self, preparation: Preparation) -> NewJob:
        """Checked, with an id, and durations in seconds."""
        return new_job(preparation, **{name: getattr(self, name) for name in _GIVEN})

    def change(self, draft: Draft, now: datetime) -> Job:
        """Add the job, unless its id or its key says that it is there already."""
        return self.prepared(UNPREPARED).change(draft, now)

    def job_ids(self) -> Sequence[str]:
        """The id of the job to be."""
        return () if self.job_id is None else (self.job_id,)


_GIVEN = tuple(field.name for field in fields(Enqueue))


def new_job(
    preparation: Preparation,
    entrypoint: str,
    payload: bytes = b"",
    priority: int = 0,
    job_id: str | None = None,
    delay: Duration | None = None,
    run_at: datetime | None = None,
    expires_at: datetime | None = None,
    max_attempts: int | None = None,
    headers: Mapping[str, str] | None = None,
    unique_key: str | None = None,
    unique_for: Duration | None = None,
    on_conflict: OnConflict = "return",
    concurrency_key: str | None = None,
    concurrency_limit: int | None = None,
    keep_result: Duration | None = None,
) -> NewJob:
    """An enqueue, checked and completed: see `Enqueue`.

    Raises:
        InvalidJobError: an argument is wrong.
    """
    limits = preparation.limits
    if delay is not None and run_at is not None:
        raise InvalidJobError("give either delay or run_at, not both")
    if on_conflict not in CONFLICTS:
        raise InvalidJobError(f"on_conflict must be one of {CONFLICTS}, got {shown(on_conflict)}")
    if unique_for is not None and unique_key is None:
        raise InvalidJobError("unique_for needs a unique_key")
    if concurrency_limit is not None and concurrency_key is None:
        raise InvalidJobError("concurrency_limit needs a concurrency_key")
    values: dict[str, Any] = {
        **PLAIN,
        "id": preparation.new_id() if job_id is None else check_name("job_id", job_id, limits),
        "entrypoint": check_name("entrypoint", entrypoint, limits),
        "payload": check_payload(payload, limits),
    }
    if priority.__class__ is not int or priority:
        values["priority"] = check_priority(priority)
    if run_at is not None:
        values["run_at"] = check_time("run_at", run_at).astimezone(UTC)
    if expires_at is not None:
        values["expires_at"] = check_time("expires_at", expires_at).astimezone(UTC)
    if max_attempts is not None:
        values["max_attempts"] = check_integer("max_attempts", max_attempts, 1, COUNT_MAX)
    if headers is not None:
        values["headers"] = check_headers(headers, limits)
    if unique_key is not None:
        values["unique_key"] = check_name("unique_key", unique_key, limits)
    if unique_for is not None:
        values["unique_for"] = to_seconds("unique_for", unique_for)
    if concurrency_key is not None:
        values["concurrency_key"] = check_name("concurrency_key", concurrency_key, limits)
    if concurrency_limit is not None:
        values["concurrency_limit"] = check_integer("concurrency_limit", concurrency_limit, 1, COUNT_MAX)
    if keep_result is not None:
        values["keep_result"] = to_seconds("keep_result", keep_result)
    seconds = None if delay is None else to_seconds("delay", delay)
    return NewJob(values, job_id is not None, seconds, on_conflict, limits.enqueue_bytes)


class NewJob(Operation):
    """An `Enqueue` that is ready to be tried: the fields of the job that it will add, but for its time and its place.

    Args:
        values: one for each field of `Job`.
        id_given: whether the caller has chosen the id.
        delay: seconds from its commit until it may be claimed; None if `values` say when.
        on_conflict: see `Enqueue`.
        enqueue_bytes: the size up to which its writer fills a blob that has no limit of its own.

    Attributes:
        values, id_given, delay: as given; not to be changed.
    """

    __slots__ = ("_enqueue_bytes", "_on_conflict", "delay", "id_given", "values")

    def __init__(
        self, values: dict[str, Any], id_given: bool, delay: float | None, on_conflict: OnConflict, enqueue_bytes: int
    ) -> None:
        self.values = values
        self.id_given = id_given
        self.delay = delay
        self._on_conflict = on_conflict
        self._enqueue_bytes = enqueue_bytes

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """One capability for each field that is used."""
        values = self.values
        yield from [need for name, need in _NEEDS if values[name]]
        if values["keep_result"] is not None:
            yield "results"
        if self.delay is not None:
            yield "delay"
        if self.id_given:
            yield "job_ids"

    def change(self, draft: Draft, now: datetime) -> Job:
        """Add the job, unless its id or its key says that it is there already."""
        drop_outlived(draft, now)  # or the new job would be taken for one that nobody will ever get
        job_id, unique_key = self.values["id"], self.values["unique_key"]
        if job_id in draft.jobs.entries:
            return draft.jobs[job_id]
        if job_id in draft.finished:
            return self._finished(job_id, draft, now)
        if job_id in draft.aside_keys:
            raise InvalidJobError(f"job id {job_id!r} belongs to a line of the blob that cannot be read")
        if self.id_given and draft.attempt_floor >= LARGEST:
            raise InvalidJobError("the queue's attempt_floor is the largest there is: enqueue without a job_id")
        if unique_key is not None:
            holder = draft.key_holder(unique_key, now)
            if holder is not None and self._on_conflict != "replace":
                return self._taken(unique_key, holder, draft, now)
            if holder is not None:
                self._replace(unique_key, holder, draft)
        size = self.stored_bytes()
        make_room(draft, size, self._enqueue_bytes, f"a job of {size} bytes")
        job = self._job(draft, now)
        draft.move(None, Verb.ENQUEUE, job, JobStatus.QUEUED)
        if job.concurrency_key is not None:
            draft.require(LIMITS)
        return job

    def job_ids(self) -> Sequence[str]:
        """The id of the job to be."""
        return (self.values["id"],)

    def stored_bytes(self) -> int:
        """About how many bytes the job takes in the blob."""
        values = self.values
        size = LINE_BYTES + len(values["payload"]) * 4 // 3
        size += written_bytes(values["entrypoint"]) + written_bytes(values["id"]) + 8
        if values["unique_key"] is not None:
            size += written_bytes(values["unique_key"]) + 4
        if values["concurrency_key"] is not None:
            size += written_bytes(values["concurrency_key"]) + 24
        if values["error"] is not None:  # of a job that comes from another queue
            size += written_bytes(values["error"])
        for name, text in values["headers"].items():
            size += written_bytes(name) + written_bytes(text) + 8
        return size

    def _job(self, draft: Draft, now: datetime) -> Job:
        values = {**self.values, "created_at": now, "sequence": draft.next_sequence()}
        if self.delay is not None:
            values["run_at"] = now + timedelta(seconds=self.delay)
        if self.id_given:
            values["attempt"] = draft.attempt_floor
            values["attempts_before"] = draft.attempt_floor
        return trusted_job(values)

    def _finished(self, job_id: str, draft: Draft, now: datetime) -> Job:
        """What there is to say of a job that was acked and is gone: its id, and that it is completed."""
        attempt = draft.finished.get(job_id, 0)
        status = JobStatus.COMPLETED
        given = {name: self.values[name] for name in ("entrypoint", "payload", "priority", "headers", "unique_key")}
        return trusted_job({**PLAIN, **given, "id": job_id, "created_at": now, "attempt": attempt, "status": status})

    def _taken(self, key: str, holder: str, draft: Draft, now: datetime) -> Job:
        live = draft.jobs.get(holder)
        if self._on_conflict == "raise":
            reason = f"it is {live.status}" if live is not None else "it was acked, and keeps the key for a while"
            raise DuplicateJobError(key, holder, reason)
        return live if live is not None else self._finished(holder, draft, now)

    def _replace(self, key: str, holder: str, draft: Draft) -> None:
        live = draft.jobs.get(holder)
        if live is None or live.status is JobStatus.COMPLETED:
            draft.forget(draft.holds, key)
        elif live.status is JobStatus.QUEUED:
            draft.move(live, Verb.CANCEL, None, None)
        else:
            raise DuplicateJobError(key, holder, f"it is {live.status}, and only a queued job can be replaced")
