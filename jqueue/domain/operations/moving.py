"""Operations that move jobs between queues: a job is claimed in its queue, added to the other, and then removed.

In that order, so that a job that is moved is always in at least one of the two queues. Until it is removed from the
first, the mover holds a claim on it there (a dead job needs none). An interrupted move can be resumed, because jobs
that have arrived are recognised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, NamedTuple

from jqueue.domain.draft import Draft
from jqueue.domain.errors import ClaimLostError, DuplicateJobError, InvalidJobError, JobStateError
from jqueue.domain.in_transit import MOVE_CLAIM_TIMEOUT, MOVER, is_moving
from jqueue.domain.job_options import STORED
from jqueue.domain.large_values import LargeValue, PayloadSource, check_named_in_time, split_payload
from jqueue.domain.limits import Limits, check_headers, check_name, schedule_bytes
from jqueue.domain.models import LARGEST, NO_CLAIM, Claim, Job, JobStatus, trusted_job
from jqueue.domain.operations.base import JobReference, Operation, Preparation
from jqueue.domain.operations.jobs import PLAIN, NewJob, drop_outlived, unreadable
from jqueue.domain.rules import LIMITS, EntrypointRules, QueueSettings, Schedule
from jqueue.domain.size_limit import check_rules_fit, take_space
from jqueue.domain.stored_object import OBJECTS, StoredObject
from jqueue.domain.transitions import Verb

SETTINGS_IN_WORDS = {
    "dead_retention": "retention of dead jobs",
    "blob_bytes": "size limit",
    "history": "history",
    "history_bytes": "size of the history",
    "history_payloads": "payloads in the history",
}
"""The words for each setting of a queue in the report of a move."""

_UNSET = (None, False)


@dataclass(frozen=True, slots=True)
class Take(Operation):
    """Claim a queued job in order to move it. Its result is a list: the job, or nothing if the job has changed.

    No failure is counted. The job's time, limits and pauses do not hold it back.

    Attributes:
        job: the job as the mover saw it.
        holder: the name of the mover.
    """

    claims_jobs: ClassVar[bool] = True

    job: Job
    holder: str = MOVER

    def change(self, draft: Draft, now: datetime) -> list[Job]:
        """Claim the job, if it is still as the mover saw it."""
        job, seen = draft.jobs.find(self.job.id), self.job
        if job is None or job.status is not JobStatus.QUEUED or job.attempt >= LARGEST:
            return []
        if (job.sequence, job.run_at) != (seen.sequence, seen.run_at):  # it was tried meanwhile, and sent back
            return []
        taken = job.evolve(
            status=JobStatus.IN_PROGRESS,
            attempt=job.attempt + 1,
            attempts_before=job.attempts_before + 1,
            heartbeat_at=now,
            claim_timeout=MOVE_CLAIM_TIMEOUT,
            holder=self.holder,
            claimed_at=now,
        )
        draft.move(job, Verb.CLAIM, taken, JobStatus.IN_PROGRESS)
        return [taken]

    def claims(self, result: list[Job]) -> Sequence[Claim]:
        """Return the claim on the job, or none."""
        return [job.claim for job in result]

    def references(self) -> Sequence[JobReference]:
        """Return the id of the job."""
        return (self.job.id,)


@dataclass(frozen=True, slots=True)
class Arrive(Operation):
    """Add a job that comes from another queue, unchanged except for its place. Its result is the job in this queue.

    A job that has arrived before is not added again. If it was finished here since, it is `COMPLETED` in the result.

    Attributes:
        job: the job, queued or dead, without a claim.
        resumed: True if it may have arrived before. If not, a job with its id in this queue is a different job.
        held: True if the mover claims it here too; if not, workers can claim it at once.
        holder: the name of the mover.
        enqueue_bytes: number of bytes up to which its writer fills a blob that has no limit of its own.
        payload: its payload, if `job` does not have it: an async iterable of pieces.
        large: the payload, if it gets an object of its own; set when the operation is prepared.
        name_before: time until which a commit may name it.
    """

    arrives: ClassVar[bool] = True

    job: Job
    resumed: bool = False
    held: bool = False
    holder: str = MOVER
    enqueue_bytes: int = Limits().enqueue_bytes
    payload: PayloadSource | None = field(default=None, repr=False)
    large: LargeValue | None = field(default=None, repr=False)  # type: ignore[misc] # of this operation
    name_before: datetime | None = None

    def prepared(self, preparation: Preparation) -> Arrive:
        """Check the job like a new one, and decide where its payload is kept in this queue."""
        job, limits = self.job, preparation.limits
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

    def change(self, draft: Draft, now: datetime) -> Job:
        """Add the job.

        Raises:
            JobStateError: another job with its id is here, or was finished here.
            DuplicateJobError: its unique key is taken.
            QueueFullError: there is no room.
        """
        drop_outlived(draft, now)
        job = self.job
        there = draft.jobs.find(job.id)
        if there is not None:
            return self._recognised(draft, there)
        if job.id in draft.header.finished:
            if not self.resumed:
                raise JobStateError(job.id, JobStatus.COMPLETED, "a job with this id has finished in this queue")
            status = {"status": JobStatus.COMPLETED, "attempt": draft.header.finished[job.id]}
            return trusted_job({**PLAIN, "id": job.id, "entrypoint": "", "payload": b"", "created_at": now, **status})
        if job.id in draft.aside_keys:
            raise InvalidJobError(unreadable(job.id))
        if job.unique_key is not None and job.status is JobStatus.QUEUED:
            holder = draft.key_holder(job.unique_key, now)
            if holder is not None:
                raise DuplicateJobError(job.unique_key, holder)
        check_named_in_time(self.name_before, now)
        size = NewJob(job.__dict__, True, None, "return", self.enqueue_bytes).stored_bytes()
        take_space(draft, size, self.enqueue_bytes, f"a job of {size} bytes")
        return self._add(draft, now)

    def _recognised(self, draft: Draft, there: Job) -> Job:
        """Return the job with this id in this queue, if it is the same job, which arrived before.

        Raises:
            JobStateError: it is another job.
        """
        if not (self.resumed or is_moving(there) or self._is_same_dead(there)):
            raise JobStateError(there.id, there.status, "another job with this id is in this queue")
        if there.status is JobStatus.DEAD and self.job.status is JobStatus.QUEUED:  # redriven at its source
            changes = {"failures": self.job.failures, "run_at": self.job.run_at, "dead_at": None}
            after = there.evolve(status=JobStatus.QUEUED, sequence=draft.next_sequence(), **changes)
            draft.move(there, Verb.REDRIVE, after, JobStatus.QUEUED)
            return after
        return there

    def _is_same_dead(self, there: Job) -> bool:
        """Return True if both are the same dead job. They are compared by fields: dead jobs move without a claim."""
        return there.status is JobStatus.DEAD and self._is_alike(there) and there.attempt <= self.job.attempt

    def _is_alike(self, there: Job) -> bool:
        stored, known = there.payload_object, self.job.payload_object
        if stored is not None and known is not None and stored.sha256 != known.sha256:
            return False
        if there.payload and there.payload != self.job.payload:  # some formats read the payload only at the claim
            return False
        return (there.entrypoint, there.error) == (self.job.entrypoint, self.job.error)

    def _add(self, draft: Draft, now: datetime) -> Job:
        raised = max(0, draft.header.attempt_floor - self.job.attempt)
        job = self.job.evolve(
            sequence=draft.next_sequence(),
            attempt=self.job.attempt + raised,
            attempts_before=self.job.attempts_before + raised,
            **NO_CLAIM,
        )
        if job.concurrency_key is not None:
            draft.require(LIMITS)
        if job.payload_object is not None:
            draft.require(OBJECTS)
        if self.held and job.status is JobStatus.QUEUED:
            claim = {"heartbeat_at": now, "claim_timeout": MOVE_CLAIM_TIMEOUT, "holder": self.holder, "claimed_at": now}
            counts = {"attempt": job.attempt + 1, "attempts_before": job.attempts_before + 1}
            job = job.evolve(status=JobStatus.IN_PROGRESS, **counts, **claim)
        draft.move(None, Verb.ARRIVE, job, job.status)
        return job

    def job_ids(self) -> Sequence[str]:
        """Return the id of the job."""
        return (self.job.id,)


@dataclass(frozen=True, slots=True)
class Depart(Operation):
    """Remove a job that has arrived elsewhere. It does not count as finished here, so it may come back.

    Attributes:
        claim: the mover's claim on the job; for a dead job, its id and its attempt.
    """

    needs_space: ClassVar[bool] = False

    claim: Claim

    def change(self, draft: Draft, now: datetime) -> None:
        """Remove the job.

        Raises:
            ClaimLostError: the mover no longer holds it, or it is no longer the same dead job.
        """
        job = draft.jobs.get(self.claim.job_id)
        if job is None or job.attempt != self.claim.attempt or not (is_moving(job) or job.status is JobStatus.DEAD):
            raise ClaimLostError(*self.claim, "the job was changed while it was being moved")
        draft.move(job, Verb.DEPART, None, None)

    def references(self) -> Sequence[JobReference]:
        """Return the claim on the job."""
        return (self.claim,)


class RulesReceipt(NamedTuple):
    """The outcome of taking over the rules of another queue, in words.

    Attributes:
        taken: rules that were taken over.
        kept: rules that this queue has already, with other values, and keeps.
        schedules: names of the other queue's cron entries that this queue now has.
    """

    taken: tuple[str, ...]
    kept: tuple[str, ...]
    schedules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ArriveRules(Operation):
    """Take over the limits, pauses, settings and cron entries of another queue, unless this queue has its own.

    Its result is a `RulesReceipt`.

    Attributes:
        entrypoints, settings, schedules: the rules of the other queue, as in a `QueueState`.
        only_look: True if the receipt only says what would be taken over, and nothing changes.
    """

    entrypoints: Mapping[str, EntrypointRules]
    settings: QueueSettings
    schedules: Mapping[str, Schedule] = field(repr=False)
    only_look: bool = False
    enqueue_bytes: int = Limits().enqueue_bytes

    def prepared(self, preparation: Preparation) -> ArriveRules:
        """Return the operation with the limit of its writer, for a blob that has none of its own."""
        return replace(self, enqueue_bytes=preparation.limits.enqueue_bytes)

    def change(self, draft: Draft, now: datetime) -> RulesReceipt:
        """Take the rules over.

        Raises:
            QueueFullError: there is no room for all of them.
        """
        taken: list[str] = []
        kept: list[str] = []
        for name, rules in sorted(self.entrypoints.items()):
            there = draft.header.entrypoints.get(name, EntrypointRules())
            if there == EntrypointRules() and rules != there:
                taken.append(f"limits of {name}")
                if not self.only_look:
                    check_rules_fit(draft, name)
                    draft.set_rules(name, rules)
            elif there != rules:
                kept.append(f"limits of {name}")
        self._take_settings(draft, taken, kept)
        schedules = []
        for name, schedule in sorted(self.schedules.items()):
            known = draft.header.schedules.get(name)
            if known is None or _apart_from_time(known) == _apart_from_time(schedule):
                schedules.append(name)
                if known is None:
                    taken.append(f"cron entry {name}")
                if known is None and not self.only_look:
                    take_space(draft, schedule_bytes(schedule), self.enqueue_bytes, f"the cron entry {name!r}")
                    draft.note(draft.header.schedules, name, schedule)
            else:
                kept.append(f"cron entry {name}")
        return RulesReceipt(tuple(taken), tuple(kept), tuple(schedules))

    def _take_settings(self, draft: Draft, taken: list[str], kept: list[str]) -> None:
        ours, changes = draft.header.settings, dict[str, Any]()
        for name, words in SETTINGS_IN_WORDS.items():
            wanted, there = getattr(self.settings, name), getattr(ours, name)
            if wanted not in _UNSET and there in _UNSET:
                changes[name] = wanted
                taken.append(words)
            elif wanted not in _UNSET and there != wanted:
                kept.append(words)
        if changes and not self.only_look:
            draft.set_settings(ours.model_copy(update=changes))


def _apart_from_time(schedule: Schedule) -> Schedule:
    return schedule.model_copy(update={"next_at": datetime.min, "fired": ()})
