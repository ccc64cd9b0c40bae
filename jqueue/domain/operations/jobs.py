"""Jobs in, jobs out: enqueue and dequeue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from typing import ClassVar, Literal, get_args

from jqueue.domain.draft import Draft
from jqueue.domain.durations import Duration, check_time, to_seconds
from jqueue.domain.errors import DuplicateJobError, InvalidJobError, QueueFullError, shown
from jqueue.domain.limits import (
    Limits,
    check_headers,
    check_integer,
    check_name,
    check_payload,
    check_priority,
    written_bytes,
)
from jqueue.domain.models import COUNT_MAX, LARGEST, Claim, Job, JobStatus
from jqueue.domain.operations.base import Operation, Preparation
from jqueue.domain.transitions import Verb

OnConflict = Literal["return", "raise", "replace"]
"""What an enqueue does when its unique key is taken."""

LINE_BYTES = 260
"""About what a job takes in the blob besides its texts and its payload."""


def drop_expired(draft: Draft, now: datetime) -> None:
    """Remove the queued jobs whose time is over."""
    for job in draft.expired(now):
        draft.move(job, Verb.EXPIRE, None, None)


@dataclass(frozen=True, slots=True)
class Enqueue(Operation):
    """Add a job. Its result is the job as it stands: the new one, or the one that was there already.

    Attributes:
        entrypoint: the name of what handles it.
        payload: bytes-like.
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
    """

    entrypoint: str
    payload: bytes = field(repr=False)
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
    limits: Limits = field(default=Limits(), repr=False)
    id_given: bool = field(default=True, repr=False)

    def prepared(self, preparation: Preparation) -> Enqueue:
        """Checked, with an id, and durations in seconds."""
        limits = preparation.limits
        if self.delay is not None and self.run_at is not None:
            raise InvalidJobError("give either delay or run_at, not both")
        if self.on_conflict not in get_args(OnConflict):
            raise InvalidJobError(f"on_conflict must be one of {get_args(OnConflict)}, got {shown(self.on_conflict)}")
        if self.unique_for is not None and self.unique_key is None:
            raise InvalidJobError("unique_for needs a unique_key")
        return Enqueue(
            entrypoint=check_name("entrypoint", self.entrypoint, limits),
            payload=check_payload(self.payload, limits),
            priority=check_priority(self.priority),
            job_id=preparation.new_id() if self.job_id is None else check_name("job_id", self.job_id, limits),
            delay=None if self.delay is None else to_seconds("delay", self.delay),
            run_at=None if self.run_at is None else check_time("run_at", self.run_at),
            expires_at=None if self.expires_at is None else check_time("expires_at", self.expires_at),
            max_attempts=None
            if self.max_attempts is None
            else check_integer("max_attempts", self.max_attempts, 1, COUNT_MAX),
            headers=check_headers(self.headers, limits),
            unique_key=None if self.unique_key is None else check_name("unique_key", self.unique_key, limits),
            unique_for=None if self.unique_for is None else to_seconds("unique_for", self.unique_for),
            on_conflict=self.on_conflict,
            limits=limits,
            id_given=self.job_id is not None,
        )

    def change(self, draft: Draft, now: datetime) -> Job:
        """Add the job, unless its id or its key says that it is there already."""
        assert self.job_id is not None
        drop_expired(draft, now)  # or the new job would be taken for one that nobody will ever get
        if self.job_id in draft.jobs:
            return draft.jobs[self.job_id]
        if self.job_id in draft.finished:
            return self._finished(self.job_id, draft, now)
        if self.job_id in draft.aside_keys:
            raise InvalidJobError(f"job id {self.job_id!r} belongs to a line of the blob that cannot be read")
        if self.id_given and draft.attempt_floor >= LARGEST:
            raise InvalidJobError("the queue's attempt_floor is the largest there is: enqueue without a job_id")
        if self.unique_key is not None:
            holder = draft.key_holder(self.unique_key, now)
            if holder is not None and self.on_conflict != "replace":
                return self._taken(self.unique_key, holder, draft, now)
            if holder is not None:
                self._replace(self.unique_key, holder, draft)
        size = self.stored_bytes()
        limit = self.limits.enqueue_bytes
        if draft.base_bytes + draft.added_bytes + size > limit:
            raise QueueFullError(
                f"no room for a job of {size} bytes: the jobs take {draft.base_bytes + draft.added_bytes} of the "
                f"{limit} bytes that enqueue may use. Let workers catch up, purge dead jobs, or raise "
                "Limits(blob_bytes=...)"
            )
        job = self._job(draft, now)
        draft.move(None, Verb.ENQUEUE, job, JobStatus.QUEUED)
        draft.note_added(size)
        return job

    def job_ids(self) -> Sequence[str]:
        """The id of the job to be."""
        return () if self.job_id is None else (self.job_id,)

    def stored_bytes(self) -> int:
        """About how many bytes the job takes in the blob."""
        names = (self.entrypoint, self.job_id, self.unique_key, *(self.headers or {}), *(self.headers or {}).values())
        return LINE_BYTES + len(self.payload) * 4 // 3 + sum(written_bytes(name) + 4 for name in names if name)

    def _job(self, draft: Draft, now: datetime) -> Job:
        assert self.job_id is not None
        return Job(
            id=self.job_id,
            entrypoint=self.entrypoint,
            payload=self.payload,
            priority=self.priority,
            created_at=now,
            sequence=draft.next_sequence(),
            attempt=draft.attempt_floor if self.id_given else 0,
            max_attempts=self.max_attempts,
            run_at=self.run_at if self.delay is None else now + timedelta(seconds=to_seconds("delay", self.delay)),
            expires_at=self.expires_at,
            headers=self.headers or {},
            unique_key=self.unique_key,
            unique_for=None if self.unique_for is None else to_seconds("unique_for", self.unique_for),
        )

    def _finished(self, job_id: str, draft: Draft, now: datetime) -> Job:
        """What there is to say of a job that was acked and is gone: its id, and that it is completed."""
        return Job(
            id=job_id,
            entrypoint=self.entrypoint,
            payload=self.payload,
            priority=self.priority,
            created_at=now,
            attempt=draft.finished.get(job_id, 0),
            headers=self.headers or {},
            unique_key=self.unique_key,
            status=JobStatus.COMPLETED,
        )

    def _taken(self, key: str, holder: str, draft: Draft, now: datetime) -> Job:
        live = draft.jobs.get(holder)
        if self.on_conflict == "raise":
            reason = f"it is {live.status}" if live is not None else "it was acked, and keeps the key for a while"
            raise DuplicateJobError(key, holder, reason)
        return live if live is not None else self._finished(holder, draft, now)

    def _replace(self, key: str, holder: str, draft: Draft) -> None:
        live = draft.jobs.get(holder)
        if live is None:
            draft.forget(draft.holds, key)
        elif live.status is JobStatus.QUEUED:
            draft.move(live, Verb.CANCEL, None, None)
        else:
            raise DuplicateJobError(key, holder, f"it is {live.status}, and only a queued job can be replaced")


def sought_names(names: object) -> tuple[str, ...]:
    """One entrypoint, or several. Any str will do: jobs of 1.0.0 may have names that enqueue refuses.

    Raises:
        InvalidJobError: it is neither.
    """
    several = (names,) if isinstance(names, str) else names
    if not isinstance(several, Sequence | Set) or not several or not all(isinstance(name, str) for name in several):
        raise InvalidJobError("entrypoint must be a str, several of them, or None for all")
    return tuple(several)


@dataclass(frozen=True, slots=True)
class Dequeue(Operation):
    """Claim ready jobs, by priority and then by commit order. Its result is the list of claimed jobs.

    Attributes:
        entrypoints: whose jobs; one name, several, or None for all.
        batch_size: how many at the most.
        claim_timeout: how long a claim lasts without a heartbeat; None means the queue's own.
    """

    claims_jobs: ClassVar[bool] = True

    entrypoints: str | Sequence[str] | None = None
    _: KW_ONLY
    batch_size: int = 1
    claim_timeout: Duration | None = None

    def prepared(self, preparation: Preparation) -> Dequeue:
        """Checked, with the entrypoints as a tuple and the timeout in seconds."""
        limits, names = preparation.limits, self.entrypoints
        if names is not None:
            names = sought_names(names)
        timeout = preparation.claim_timeout if self.claim_timeout is None else self.claim_timeout
        return replace(
            self,
            entrypoints=names,
            batch_size=check_integer("batch_size", self.batch_size, 0, limits.batch_size),
            claim_timeout=to_seconds("claim_timeout", timeout),
        )

    def change(self, draft: Draft, now: datetime) -> list[Job]:
        """Remove what has expired, then claim."""
        assert self.entrypoints is None or isinstance(self.entrypoints, tuple)
        drop_expired(draft, now)
        claimed: list[Job] = []
        while len(claimed) < self.batch_size:
            ready = draft.next_ready(self.entrypoints, now)
            if ready is None:
                break
            job = ready.evolve(
                status=JobStatus.IN_PROGRESS,
                attempt=ready.attempt + 1,
                failures=ready.failures + 1,
                heartbeat_at=now,
                claim_timeout=self.claim_timeout,
            )
            draft.move(ready, Verb.CLAIM, job, JobStatus.IN_PROGRESS)
            claimed.append(job)
        return claimed

    def claims(self, result: list[Job]) -> Sequence[Claim]:
        """One for each job."""
        return [job.claim for job in result]
