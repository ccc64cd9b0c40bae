"""The operations that add a job, and that move a job between queues.

A job that moves arrives in one queue with its id and its history, and then departs from the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from jqueue.domain.draft import Draft, check_holds, take_space
from jqueue.domain.durations import check_time, to_seconds
from jqueue.domain.errors import ClaimLostError, DuplicateJobError, InvalidJobError, JobStateError
from jqueue.domain.fields import LARGEST, Duration, JobId, Moment, Name, Positive, Priority, Weight
from jqueue.domain.groups import check_member
from jqueue.domain.job import (
    COMPLETED,
    ENCODINGS,
    NO_CLAIM,
    OBJECT_BYTES,
    OBJECTS,
    PAYLOADS,
    QUEUED,
    STEPS,
    Encoding,
    JobRecord,
    JobStatus,
    StoredObject,
)
from jqueue.domain.job_options import (
    OPTIONS,
    STORED,
    GivenParents,
    OnConflict,
    OnDead,
    check_options,
    options_bytes,
    options_needed,
)
from jqueue.domain.large_values import LargeValue, check_named_in_time, split_payload
from jqueue.domain.limits import (
    TRACEBACK_BYTES,
    check_integer,
    check_name,
    check_priority,
    cut_error,
    hold_bytes,
    written_bytes,
)
from jqueue.domain.models import AnyJob, record_of
from jqueue.domain.operations.base import GivenJob, GivenPayload, JobReference, Operation, Preparation
from jqueue.domain.operations.ends import ERRORS_KEPT, kept_of, moved_steps
from jqueue.domain.operations.parents import missing_parents
from jqueue.domain.parents import PARENTS
from jqueue.domain.rules import LIMITS
from jqueue.domain.transitions import ENQUEUE, Verb
from jqueue.domain.turns import next_sequence

LINE_BYTES = 240
"""About how many bytes a job takes in the blob besides its texts and its payload, with `END_BYTES`."""

_options = attrgetter(*OPTIONS)
_DEFAULTS = tuple([option.default for option in OPTIONS.values()])

FLOOR_AT_END = "the queue's attempt_floor has its largest value: enqueue without a job_id"
"""The error about a job with an id of its caller's, in a queue whose attempts can grow no further."""


def unreadable(job_id: str) -> str:
    """Return the error about a job that cannot be added because a line set aside has its id."""
    return f"job id {job_id!r} belongs to a line of the blob that cannot be read: mend or remove that line first"


def drop_outlived(draft: Draft, now: datetime) -> None:
    """Remove the jobs whose time is over: expired queued jobs, and completed and dead jobs kept for long enough."""
    order = draft.jobs.order
    while order.leaving.entries and (job := order.outlived(now)) is not None:
        draft.move(job, Verb.EXPIRE, None, None)


def stored_bytes(job: JobRecord) -> int:
    """Return about how many bytes a job takes in the blob."""
    size = LINE_BYTES + len(job.payload) * 4 // 3 + written_bytes(job.entrypoint + job.id) + 10 + options_bytes(job)
    if job.payload_object is not None:
        size += OBJECT_BYTES
    if job.error is not None:  # of a job that comes from another queue
        size += written_bytes(job.error)
    if job.traceback is not None:
        size += written_bytes(job.traceback)
    if job.extra is not None:
        size += len(msgspec.json.encode(job.extra))
    if job.steps:
        size += len(msgspec.json.encode(job.steps))
    return size


def add(draft: Draft, job: JobRecord, verb: Verb) -> JobRecord:
    """Add a new job to the queue, and return it.

    Raises:
        GroupEndedError: its group is over, or not known.
        QueueFullError: there is no room for it.
    """
    size = stored_bytes(job)
    if job.group is not None:
        check_member(draft, job.group)
    if job.unique_for:
        check_holds(draft, hold_bytes(job))
    take_space(draft, size, f"a job of {size} bytes")
    draft.move(None, verb, job, job.status)
    if job.concurrency_key is not None:
        draft.require(LIMITS)
    if job.payload_object is not None:
        draft.require(OBJECTS)
    if job.after:
        draft.require(PARENTS)
    if job.steps:
        draft.require(STEPS)
    if job.encoding is not None:
        draft.require(ENCODINGS)
    return job


class AddsJobs(Operation, frozen=True, kw_only=True):
    """Base of the operations that add jobs: the options for a single job and for those of a cron entry.

    `jqueue.domain.job_options` describes them.
    """

    unique_key: str | None = None
    headers: Mapping[str, str] | None = None
    max_attempts: Positive | None = None
    concurrency_key: str | None = None
    concurrency_limit: Positive | None = None
    fair_key: str | None = None
    fair_weight: Weight | None = None
    keep_result: Duration | None = None
    encoding: Encoding | None = None


class AddsOneJob(AddsJobs, frozen=True, kw_only=True):
    """Base of an enqueue: the options for a single job, and what its preparation adds.

    Attributes:
        new_id: id of the new job if the caller gives none.
        stored_separately: True while the payload must be stored in an object of its own before the commit.
        payload_object: that object, once it exists.
        name_before: time until which a commit may name it.
    """

    job_id: JobId | None = None
    delay: Duration | None = None
    run_at: Moment | None = None
    expires_at: Moment | None = None
    unique_for: Duration | None = None
    timeout: Duration | None = None
    on_conflict: OnConflict = "return"
    group: Name | None = None
    after: GivenParents = ()
    on_dead: OnDead | None = None
    new_id: str = ""
    stored_separately: bool = False
    payload_object: StoredObject | None = None
    name_before: Moment | None = None


class Enqueue(AddsOneJob, frozen=True):
    """Add a job. Its result is the new job, or the job with this id or unique key that is there already.

    Its other arguments are the options of `enqueue`.

    Attributes:
        entrypoint: the name by which a worker finds the job's handler.
        payload: bytes-like, a `pathlib.Path`, or an async iterable of bytes; empty by default.
        priority: lower is served first; a signed 32-bit number.
    """

    entrypoint: Name
    payload: GivenPayload = b""
    priority: Priority = 0

    @staticmethod
    def of(job: JobRecord, caller_id: bool, on_conflict: OnConflict) -> Enqueue:
        """Return the prepared enqueue of a job.

        Args:
            job: the job, as it is to be added; its place and its times are those of the commit.
            caller_id: True if the caller has chosen its id.
            on_conflict: the answer if it cannot be added.
        """
        values = {name: getattr(job, name) for name in STORED if name != "id"}
        values |= {"job_id": job.id} if caller_id else {"new_id": job.id}
        values |= {"payload": job.payload, "payload_object": job.payload_object}
        return Enqueue(job.entrypoint, **values, on_conflict=on_conflict)

    @property
    def id(self) -> str:
        """The id of the new job; empty if it is not known yet."""
        return self.job_id or self.new_id

    @property
    def large(self) -> LargeValue | None:
        """The payload, while it must be stored in an object of its own."""
        return LargeValue(PAYLOADS, self.payload) if self.stored_separately else None

    @staticmethod
    def new(
        preparation: Preparation, entrypoint: str, payload: GivenPayload, priority: int, options: Mapping[str, Any]
    ) -> Enqueue:
        """Return a prepared enqueue: checked, with an id and with durations in seconds.

        Args:
            preparation: of the queue object.
            entrypoint: as above.
            payload: as above.
            priority: as above.
            options: those of `enqueue`, by name.

        Raises:
            InvalidJobError: a value is wrong, an option needs another one, or two exclude each other.
            TypeError: there is no such option.
        """
        limits = preparation.limits
        content, large = split_payload(payload, limits, preparation.object_bytes)
        checked = check_options(options, limits) if options else options
        return Enqueue(
            check_name("entrypoint", entrypoint, limits),
            content if large is None else large.content,
            check_priority(priority),
            new_id="" if "job_id" in checked else preparation.new_id(),
            stored_separately=large is not None,
            **checked,
        )

    def prepared(self, preparation: Preparation) -> Enqueue:
        """Return the operation, checked, with an id and with durations in seconds."""
        options, values = {}, _options(self)
        if values != _DEFAULTS:
            triples = zip(OPTIONS, values, _DEFAULTS, strict=True)
            options = {name: value for name, value, default in triples if value is not default}
        new = Enqueue.new(preparation, self.entrypoint, self.payload, self.priority, options)
        if not self.new_id and self.payload_object is None:
            return new
        new_id = check_name("id", self.new_id, preparation.limits) if self.new_id else ""
        payload = new.payload if self.payload_object is None else b""
        object_fields: dict[str, Any] = {"payload_object": self.payload_object, "name_before": self.name_before}
        return replace(new, new_id=new_id, payload=payload, **object_fields)

    def storing(self, stored: StoredObject, name_before: datetime) -> Enqueue:
        """Return the enqueue of a job whose payload is in this object."""
        changes = {"payload": b"", "stored_separately": False, "payload_object": stored, "name_before": name_before}
        return replace(self, **changes)

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield one capability for each option that is used."""
        yield from options_needed(self)
        if self.delay is not None:
            yield "delay"
        if self.job_id is not None:
            yield "job_ids"

    def job(self, sequence: int, created_at: datetime, attempt: int = 0) -> JobRecord:
        """Return the job that the prepared operation adds.

        Args:
            sequence: its place.
            created_at: the time of the enqueue, from which a delay counts.
            attempt: its attempt, and the number of attempts that are not tries of it.
        """
        prepared: Any = self  # with bytes, a dictionary and numbers of seconds
        run_at = self.run_at
        if self.delay is not None:
            run_at = created_at + timedelta(seconds=to_seconds("delay", self.delay))
        return JobRecord(
            self.job_id or self.new_id,
            self.entrypoint,
            prepared.payload,
            QUEUED,
            sequence,
            created_at,
            self.priority,
            attempt,
            attempt,
            max_attempts=self.max_attempts,
            run_at=run_at,
            expires_at=self.expires_at,
            headers=prepared.headers,
            unique_key=self.unique_key,
            unique_for=prepared.unique_for,
            timeout=prepared.timeout,
            concurrency_key=self.concurrency_key,
            concurrency_limit=self.concurrency_limit,
            fair_key=self.fair_key,
            fair_weight=self.fair_weight,
            keep_result=prepared.keep_result,
            payload_object=self.payload_object,
            group=self.group,
            after=prepared.after,
            on_dead=self.on_dead,
            encoding=self.encoding,
        )

    def change(
        self, draft: Draft, now: datetime, created_at: datetime | None = None, place: int | None = None
    ) -> JobRecord:
        """Add the job, unless a job with its id or its unique key is there already.

        Args:
            draft: the queue.
            now: the time of the commit.
            created_at: the time of the enqueue, from which a delay counts; None: `now`.
            place: its sequence number; None: the next one.
        """
        drop_outlived(draft, now)  # first: an expired job with its id or key must not stand in for the new one
        is_given, unique_key, job_id = self.job_id is not None, self.unique_key, self.job_id or self.new_id
        if not job_id:
            raise InvalidJobError("an enqueue that is not prepared by a queue needs a job_id")
        there = draft.jobs.find(job_id) if is_given else draft.jobs.get(job_id)
        is_refused = is_given and self.on_conflict == "raise"
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
        if is_given and draft.header.attempt_floor >= LARGEST:
            raise InvalidJobError(FLOOR_AT_END)
        if unique_key is not None:
            holder = draft.key_holder(unique_key, now)
            if holder is not None and self.on_conflict != "replace":
                return self._taken(unique_key, holder, draft, now)
            if holder is not None:
                self._replace(unique_key, holder, draft)
        if self.name_before is not None:
            check_named_in_time(self.name_before, now)
        floor = draft.header.attempt_floor if is_given else 0
        if place is None:
            place = next_sequence(draft, self, now)
        job = self.job(place, now if created_at is None else created_at, floor)
        if job.after:
            job = job.evolve(waits_for=missing_parents(draft, job))
        return add(draft, job, ENQUEUE)

    def recovered(self, draft: Draft, at: datetime) -> JobRecord:
        """Return the added job, or the job that was there before."""
        there = draft.jobs.find(self.id)
        if there is not None:
            return self.job(there.sequence, there.created_at) if self.job_id is None else there
        if self.unique_key is not None and self.on_conflict == "return" and self.id not in draft.header.finished:
            holder = draft.key_holder(self.unique_key, at)
            if holder is not None:
                return draft.jobs.find(holder) or self._finished(holder, draft, at)
        return self.job(0, at) if self.job_id is None else self._finished(self.id, draft, at)

    def job_ids(self) -> Sequence[str]:
        """Return the id of the job that it adds, if it is known."""
        return (self.id,) if self.id else ()

    def _finished(self, job_id: str, draft: Draft, now: datetime) -> JobRecord:
        """Return a completed job for an id that was acked and is gone. Its other fields are the caller's."""
        attempt = draft.header.finished.get(job_id, 0)
        own: Any = {"headers": self.headers, "unique_key": self.unique_key}
        finished = Enqueue(self.entrypoint, self.payload, self.priority, **own)
        return finished.job(0, now).evolve(id=job_id, status=COMPLETED, attempt=attempt)

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


class Arrive(Operation, frozen=True):
    """Add a job that was in another queue, unchanged except for its place. Its result is the job in this queue.

    A job that is there already is not added again.

    Attributes:
        job: the job, queued or dead, without a claim.
        payload: its payload, if `job` does not have it: an async iterable of pieces. Prepared, it has the payload while
            this must be stored in an object of its own.
        name_before: time until which a commit may name it.
    """

    job: GivenJob
    payload: GivenPayload | None = None
    name_before: Moment | None = None

    @property
    def large(self) -> LargeValue | None:
        """The payload, while it must be stored in an object of its own."""
        return None if self.payload is None else LargeValue(PAYLOADS, self.payload)

    def prepared(self, preparation: Preparation) -> Arrive:
        """Check the job like a new one, cut its errors, and decide where its payload is kept in this queue."""
        job, limits = _record(self.job), preparation.limits
        if job.status not in (JobStatus.QUEUED, JobStatus.DEAD):
            raise InvalidJobError(f"a job that is {job.status} cannot arrive")
        check_integer("attempt", job.attempt, 0, LARGEST // 2)  # as its queue keeps it for all ids that are used again
        stored = None if self.name_before is None else job.payload_object
        if self.payload is None and job.payload_apart and stored is None:
            raise InvalidJobError(f"the payload of job {job.id!r} is in an object of another queue: load it first")
        whole_payload = job.payload if self.payload is None else self.payload
        payload, large = split_payload(whole_payload, limits, preparation.object_bytes)
        options = ((name, option, getattr(job, name)) for name, option in STORED.items() if name != "priority")
        changes = {name: option.check(name, value, limits) for name, option, value in options if value != option.unset}
        times = {name: getattr(job, name) for name in job.__struct_fields__ if name.endswith("_at")}
        changes |= {name: check_time(name, time) for name, time in times.items() if time is not None}
        job = job.evolve(
            **changes,
            entrypoint=check_name("entrypoint", job.entrypoint, limits),
            payload=payload if stored is None else b"",
            payload_object=stored,
            error=None if job.error is None else cut_error(job.error),
            traceback=None if job.traceback is None else cut_error(job.traceback, TRACEBACK_BYTES),
            errors=tuple(map(kept_of, job.errors[-ERRORS_KEPT:])),
            **dict.fromkeys(("result", "result_object", "finished_at")),
            result_dropped=0,
            cancel_requested=False,
            steps=moved_steps(job, limits),
        )
        return Arrive(job, None if large is None else large.content, self.name_before)

    def storing(self, stored: StoredObject, name_before: datetime) -> Arrive:
        """Return the arrival of a job whose payload is in this object."""
        job = _record(self.job).evolve(payload_object=stored)
        return Arrive(job, name_before=name_before)

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield the capabilities without which the job would lose something."""
        yield from options_needed(_record(self.job))
        if self.job.status is JobStatus.DEAD:
            yield "dead_letters"
        if self.job.steps:
            yield "steps"

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
            draft.check_key(job.unique_key, now)
        check_named_in_time(self.name_before, now)
        raised = max(0, draft.header.attempt_floor - job.attempt)
        attempts = {"attempt": job.attempt + raised, "attempts_before": job.attempts_before + raised}
        waits_for = missing_parents(draft, job) if job.after else ()
        place = next_sequence(draft, job, now)
        job = job.evolve(sequence=place, waits_for=waits_for, **attempts, **NO_CLAIM)
        return add(draft, job, Verb.ARRIVE)

    def _is_same(self, there: JobRecord) -> bool:
        """Return True if a job in this queue is the arriving job."""
        if there.entrypoint != self.job.entrypoint:
            return False
        stored, new_object = there.payload_object, self.job.payload_object
        if stored is not None and new_object is not None:
            return stored.sha256 == new_object.sha256
        return not there.payload or there.payload == self.job.payload  # some formats read it only at the claim

    def job_ids(self) -> Sequence[str]:
        """Return the id of the job."""
        return (self.job.id,)


class Depart(Operation, frozen=True):
    """Remove a job that has arrived in another queue. It does not count as finished here, so it may come back.

    Attributes:
        job: the job as it was claimed, or as it was seen if it cannot be claimed.
    """

    needs_space = False
    ends_claims = True

    job: GivenJob

    def prepared(self, preparation: Preparation) -> Depart:
        """Return the operation without the payload."""
        return Depart(_record(self.job).evolve(payload=b""))

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


TRAVELLING = (Enqueue, Arrive, Depart)
