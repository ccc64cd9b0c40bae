"""Operations of a claim's holder: ack, nack, heartbeat, hand back. An outdated claim is always ClaimLostError."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, ClassVar, Self

import msgspec
from msgspec.structs import replace

from jqueue.domain.draft import Draft, take_reserve
from jqueue.domain.durations import check_time, to_seconds
from jqueue.domain.errors import (
    InvalidJobError,
    JobCancelledError,
    JobNotFoundError,
    QueueFullError,
    ResultWantedError,
    SegmentDamagedError,
    shown,
)
from jqueue.domain.fields import Count, Duration, Moment, Positive
from jqueue.domain.header import KeyHold
from jqueue.domain.job import (
    COMPLETED,
    DEAD,
    DIED_ERROR,
    IN_PROGRESS,
    NO_CLAIM,
    OBJECT_BYTES,
    OBJECTS,
    QUEUED,
    RESULTS,
    SPARED_ERROR,
    STALE_ERROR,
    STEPS,
    AttemptError,
    Claim,
    JobRecord,
    JobStatus,
    Progress,
    Step,
    StoredObject,
    lost_in_a_row,
    may_kill,
    process_of,
)
from jqueue.domain.large_values import LargeValue, check_named_in_time
from jqueue.domain.limits import (
    SHORT_ERROR_BYTES,
    STEP_BYTES,
    STEPS_BYTES,
    STEPS_KEPT,
    TRACEBACK_BYTES,
    Limits,
    check_integer,
    check_name,
    check_progress,
    check_result,
    cut_error,
    written_bytes,
)
from jqueue.domain.models import Job
from jqueue.domain.operations.base import GivenClaim, GivenError, JobReference, Operation, Preparation
from jqueue.domain.segments import NO_LEASE, Segment, Span, object_of, size_of
from jqueue.domain.transitions import ACK, BulkMove, Verb
from jqueue.domain.turns import next_sequence


def bulk_move(verb: Verb, name: str, held: Segment, after: JobStatus, spans: Sequence[Span], now: datetime) -> BulkMove:
    """Return the transition of rows whose lease ends, given the name of its entry."""
    jobs = size_of(spans)
    assert held.claimed_at is not None
    seconds = (((now - held.claimed_at).total_seconds(), jobs),) if jobs else ()
    before, rows = JobStatus.IN_PROGRESS, ((name, spans),)
    return BulkMove(verb, held.entrypoint, before, after, jobs, held.claims, held.holder, seconds, rows=rows)


def give_back(draft: Draft, name: str, now: datetime, *, first: int = 0, charge: bool) -> None:
    """End a lease whose jobs were not done: they are queued again, in their places.

    Args:
        draft: the queue.
        name: of its entry.
        now: the time.
        first: the first row to queue again; all others are left to the caller.
        charge: True if the claim counts as a failure of each job.
    """
    held = draft.header.segments[name]
    back = held.evolve(failures=held.failures if charge else held.failures - 1, **NO_LEASE)
    if first:
        back = draft.jobs.rows.manifest.advanced(name, back, [(0, first)])
    draft.move_rows(bulk_move(Verb.REVOKE if charge else Verb.HAND_BACK, name, held, JobStatus.QUEUED, back.spans, now))
    if back.left:
        draft.give_back(name, back)
    else:
        draft.drop_segment(name)


ERRORS_KEPT = 5
"""Number of attempts whose errors are kept with a job."""

ATTEMPT_ERROR_BYTES = 256
"""Largest size of each of these errors in the blob."""

ATTEMPT_BYTES = len(', [123456, "2026-01-01T00:00:00.000000+00:00", , , "2026-01-01T00:00:00.000000+00:00"]')
"""About how many bytes such an error takes in the blob besides its texts."""

SAME_MOMENT = timedelta(microseconds=1)

PROGRESS_BYTES = 200
"""Largest number of bytes, about, that the progress of a job takes in the blob."""


def kept_of(error: AttemptError) -> AttemptError:
    """Return the error of an attempt as a job keeps it: cut, with its times in UTC."""
    claimed_at = None if error.claimed_at is None else check_time("claimed_at", error.claimed_at)
    holder = None if error.holder is None else cut_error(error.holder, ATTEMPT_ERROR_BYTES)
    text = cut_error(error.text, ATTEMPT_ERROR_BYTES)
    return AttemptError(error.attempt, check_time("at", error.at), text, holder, claimed_at)


def kept_error(draft: Draft, job: JobRecord, error: str, traceback: str | None) -> dict[str, Any]:
    """Return the fields that keep an error with a job, as far as the blob has room.

    The traceback is dropped first. Then the error is cut, and in the end only its size is kept.
    """
    before = sum(written_bytes(text) for text in (job.error, job.traceback) if text is not None)
    whole = written_bytes(error)
    if traceback is not None and take_reserve(draft, whole + written_bytes(traceback) - before):
        return {"error": error, "error_dropped": 0, "traceback": traceback}
    for text in (error, cut_error(error, SHORT_ERROR_BYTES)):
        size = written_bytes(text)
        if take_reserve(draft, size - before):
            return {"error": text, "error_dropped": whole - size, "traceback": None}
    return {"error": None, "error_dropped": whole, "traceback": None}


def kept_errors(draft: Draft, job: JobRecord, error: str, now: datetime) -> tuple[AttemptError, ...]:
    """Return the errors of a job's last attempts, with one more. The oldest are dropped if the blob has no room.

    A format that keeps no time of a claim keeps only the last error.
    """
    earlier_errors = job.errors
    if job.claimed_at is None:
        return earlier_errors
    text = cut_error(error, ATTEMPT_ERROR_BYTES)
    errors = (*earlier_errors, AttemptError(job.attempt, now, text, job.holder, job.claimed_at))[-ERRORS_KEPT:]
    taken = sum(map(_size_of, earlier_errors))
    while not take_reserve(draft, sum(map(_size_of, errors)) - taken):
        errors = errors[1:]
    return errors


def _size_of(error: AttemptError) -> int:
    return ATTEMPT_BYTES + written_bytes(error.text) + (0 if error.holder is None else written_bytes(error.holder))


def send_back(
    draft: Draft, job: JobRecord, verb: Verb, now: datetime, *, dead: bool = False, charge: bool = True, **changes: Any
) -> None:
    """End a claim: the job goes behind its equals, or is dead if it has no attempts left. A cancelled job leaves.

    `HAND_BACK` is no failure: the failure count goes back and the place is kept. The attempt stays used. The same holds
    for another verb without `charge`, but a job that has no attempts left is dead all the same.
    """
    if job.cancel_requested:
        draft.move(job, verb, None, None)
        return
    is_last = job.max_attempts is not None and job.failures >= job.max_attempts
    if verb is not Verb.HAND_BACK and (dead or is_last):
        after = job.evolve(status=DEAD, dead_at=now, **NO_CLAIM, **changes)
    else:
        if verb is Verb.HAND_BACK or not charge:
            changes["failures"] = max(0, job.failures - 1)
        elif "sequence" not in changes:
            changes["sequence"] = next_sequence(draft, job, now)
        # a format that keeps no time of claims keeps no time of returns
        queued_at = job.queued_at if job.claimed_at is None else now
        after = job.evolve(status=QUEUED, **NO_CLAIM, queued_at=queued_at, **changes)
    draft.move(job, verb, after, after.status)


class _OnClaim(Operation, frozen=True):
    """Base of the operations on one claimed job."""

    needs_space = False

    job: GivenClaim

    def references(self) -> Sequence[JobReference]:
        """Return the claim."""
        return (self.job,)


class _CarriesResult(_OnClaim, frozen=True, kw_only=True):
    """Base of the operations that keep a result with a job.

    Attributes:
        result_to_store: the result as JSON, while it must be stored in an object of its own; set by `prepared`.
        result_object: that object, once it exists.
        name_before: time until which a commit may name it.
    """

    result_to_store: bytes = b""
    result_object: StoredObject | None = None
    name_before: Moment | None = None

    @property
    def large(self) -> LargeValue | None:
        """The result, while it must be stored in an object of its own."""
        return LargeValue(RESULTS, self.result_to_store) if self.result_to_store else None

    def storing(self, stored: StoredObject, name_before: datetime) -> Self:
        """Return the operation with a result that is in this object."""
        return replace(self, result_to_store=b"", result_object=stored, name_before=name_before)


class Ack(_CarriesResult, frozen=True):
    """Finish a job: it leaves the queue, or stays while its result is kept.

    Repeating the ack soon after, with the same claim, changes nothing. The operation's result is the number of bytes of
    the job's result that the queue had no room for; None if the job's result was kept, or was not to be kept.

    Attributes:
        job: the claimed job.
        result: a JSON value, kept if the job was enqueued with `keep_result` and there is room for it.
        keep_result: time to keep the result of a job that was enqueued without `keep_result`; None: not at all. With 0,
            the result of no job is kept: the worker could not keep it.
        result_bytes: size of the result as JSON; set when the operation is prepared.
        withheld: True if the job has a result that is not sent, as nobody had asked for it. If a job needs it by now,
            the ack is refused.
        result_to_store, result_object, name_before: the stored result.
    """

    ends_claims = True

    result: Any = None
    keep_result: Duration | None = None
    result_bytes: Count = 0
    withheld: bool = False

    def prepared(self, preparation: Preparation) -> Ack:
        """Return the operation with the claim found, and with the result as it will be read back."""
        keep_result = None if self.keep_result is None else to_seconds("keep_result", self.keep_result)
        most = preparation.object_bytes
        result, text = check_result(self.result, preparation.limits, most)
        result_to_store = b""
        is_dropped = keep_result == 0 or (
            keep_result is None and isinstance(self.job, Job) and self.job.keep_result is None
        )
        if most is not None and len(text) > most and not is_dropped:
            result, result_to_store = None, text
        size, stored = len(text), self.result_object
        if stored is not None:
            result, size, result_to_store = None, stored.size, b""
        claim = preparation.find_claim(self.job)
        return replace(
            self, job=claim, result=result, keep_result=keep_result, result_bytes=size, result_to_store=result_to_store
        )

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield `results` if a result is given, or is to be kept."""
        if self.result is not None or self.keep_result is not None:
            yield "results"

    def change(self, draft: Draft, now: datetime) -> int | None:
        """Remove the job, or keep it without its payload, and remember that this attempt finished it.

        A job with children that have not ended is kept until then.

        Raises:
            ClaimLostError: the claim is not current.
            ResultWantedError: its result is withheld, and needed.
        """
        claim = self.job
        assert isinstance(claim, Claim)
        if draft.header.finished.get(claim.job_id) == claim.attempt:
            done = draft.jobs.get(claim.job_id)
            if done is None or (done.status is COMPLETED and done.attempt == claim.attempt):
                return self._dropped(done)
        job = draft.held(claim)
        completed_job = None
        keep_result = self.keep_result if job.keep_result is None else job.keep_result
        if keep_result is None and job.id in draft.jobs.order.children:
            if self.withheld:
                raise ResultWantedError(job.id)
            keep_result = 0.0  # until the last of them has ended
        if keep_result is not None and self.keep_result != 0:
            check_named_in_time(self.name_before, now)
            before = len(job.payload) * 4 // 3 if job.payload_object is None else OBJECT_BYTES
            grows = (self.result_bytes if self.result_object is None else OBJECT_BYTES) - before
            any_result = self.result is not None or self.result_object is not None
            fits = not any_result or take_reserve(draft, grows)
            completed_job = job.evolve(
                status=COMPLETED,
                payload=b"",
                payload_object=None,
                keep_result=keep_result,
                **NO_CLAIM,
                cancel_requested=False,
                traceback=None,
                steps=(),
                result=self.result if fits else None,
                result_object=self.result_object if fits else None,
                result_dropped=0 if fits else self.result_bytes,
                finished_at=now,
            )
            if completed_job.result_object is not None:
                draft.require(OBJECTS)
        draft.move(job, ACK, completed_job, COMPLETED)
        draft.note(draft.header.finished, job.id, job.attempt)
        if job.unique_key is not None and job.unique_for:
            draft.note(draft.header.holds, job.unique_key, KeyHold(job.id, now.timestamp() + job.unique_for))
        return self._dropped(completed_job)

    @staticmethod
    def _dropped(job: JobRecord | None) -> int | None:
        return job.result_dropped or None if job is not None else None


class Nack(_OnClaim, frozen=True):
    """Give a job back. Its result is the number of bytes of the error that the queue had no room for; None if it had.

    Attributes:
        job: the claimed job.
        delay: time from now before which the job is not claimed again.
        error: an exception or a text to keep with the job, cut at 2 KiB.
        dead: True if the job must not be tried again: it goes to the dead jobs.
        charge: True if the claim counts as a failure; if not, the job also keeps its place.
        traceback: frames of the error's traceback to keep beside it, the innermost last: see `Job.traceback`.
    """

    ends_claims = True

    delay: Duration | None = None
    error: GivenError | None = None
    dead: bool = False
    charge: bool = True
    traceback: str | None = None

    def prepared(self, preparation: Preparation) -> Nack:
        """Return the operation with the claim found, the delay in seconds, and the error as a text, cut."""
        if self.dead and not self.charge:
            raise InvalidJobError("dead=True and charge=False contradict each other: give one of them")
        return replace(
            self,
            job=preparation.find_claim(self.job),
            delay=None if self.delay is None else to_seconds("delay", self.delay),
            error=None if self.error is None else cut_error(self.error),
            traceback=None if self.traceback is None else cut_error(self.traceback, TRACEBACK_BYTES),
        )

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield one capability for each given argument."""
        if self.delay:
            yield "delay"
        if self.error is not None:
            yield "errors"
        if self.dead:
            yield "dead_letters"
        if not self.charge:
            yield "uncharged"

    def change(self, draft: Draft, now: datetime) -> int | None:
        """Queue the job again, or make it dead. A cancelled job leaves the queue."""
        assert isinstance(self.job, Claim)
        job = draft.held(self.job)
        changes: dict[str, Any] = {}
        if self.delay:
            changes["run_at"] = now + timedelta(seconds=to_seconds("delay", self.delay))
        elif self.charge:
            changes["run_at"] = None
        if self.error is not None and not job.cancel_requested:
            assert isinstance(self.error, str)
            changes |= kept_error(draft, job, self.error, self.traceback)
            changes["errors"] = kept_errors(draft, job, self.error, now)
        send_back(draft, job, Verb.NACK if self.charge else Verb.HAND_BACK, now, dead=self.dead, **changes)
        return changes.get("error_dropped") or None


class Heartbeat(Operation, frozen=True):
    """Keep claims alive, many in one operation.

    Its result is a list of errors: one for each lost claim, and for each cancelled job.

    Attributes:
        jobs: the claimed jobs.
        tolerant: True if an error of one claim leaves the others their heartbeat; if not, the first error is raised.
        progress: how far the work on each of these jobs is, in their order; None for one without news. It is kept if
            the queue has room for it.
    """

    needs_space = False
    always_needs: ClassVar[tuple[str, ...]] = ("heartbeat",)

    jobs: tuple[GivenClaim, ...]
    tolerant: bool = False
    progress: tuple[Progress | None, ...] = ()

    def prepared(self, preparation: Preparation) -> Heartbeat:
        """Return the operation with the claims found, and the progress checked."""
        if not isinstance(self.jobs, tuple | list):
            raise InvalidJobError(f"Heartbeat takes a tuple of jobs, got {type(self.jobs).__name__}")
        if self.progress and len(self.progress) != len(self.jobs):
            raise InvalidJobError(f"a heartbeat of {len(self.jobs)} jobs has the progress of {len(self.progress)}")
        progress = tuple(each and check_progress(*each[:3]) for each in self.progress)
        return replace(self, jobs=tuple(preparation.find_claim(job) for job in self.jobs), progress=progress)

    def needs(self, claim_timeout: float) -> Iterator[str]:
        """Yield `heartbeat`, and `steps` if it reports progress."""
        yield from self.always_needs
        if self.progress:
            yield "steps"

    def change(self, draft: Draft, now: datetime) -> list[JobNotFoundError]:
        """Set the heartbeat of each current claim to `now`. It always changes, even if the clock stands still."""
        lost: list[JobNotFoundError] = []
        for place, claim in enumerate(self.jobs):
            assert isinstance(claim, Claim)
            if (held := draft.lease_of(claim)) is not None:
                later = now if held.heartbeat_at != now else now + SAME_MOMENT
                draft.name_segment(claim.job_id, held.evolve(heartbeat_at=later))
                continue
            try:
                job = draft.held(claim)
            except JobNotFoundError as error:
                lost.append(error)
                continue
            if job.cancel_requested:
                lost.append(JobCancelledError(*claim))
            at, progress = now if job.heartbeat_at != now else now + SAME_MOMENT, job.progress
            new = self.progress[place] if self.progress else None
            if new is not None and (progress is not None or take_reserve(draft, PROGRESS_BYTES)):
                progress = new._replace(at=now)
            draft.move(job, Verb.HEARTBEAT, job.evolve(heartbeat_at=at, progress=progress), IN_PROGRESS)
        if lost and not self.tolerant:
            raise lost[0]
        return lost

    def recovered(self, draft: Draft, at: datetime) -> list[JobNotFoundError]:
        """Return the errors of the claims that are lost or cancelled by now."""
        before = draft.savepoint()
        try:
            return replace(self, tolerant=True).change(draft, at)
        finally:
            draft.rollback(before)

    def references(self) -> Sequence[JobReference]:
        """Return the claims to keep alive."""
        return self.jobs


class RecordStep(_CarriesResult, frozen=True):
    """Keep the result of a step with its claimed job: a later claim finds it in `Job.steps`. It is a heartbeat, too.

    A step that is there already is not recorded again: the operation's result is then that step, or else None.

    Attributes:
        job: the claimed job.
        name: name of the step.
        occurrence: 1 for the first step of this name in the job, 2 for the second, and so on.
        result: its result, a JSON value.
        result_to_store, result_object, name_before: the stored result.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("steps",)
    checked_names: ClassVar[tuple[str, ...]] = ("name",)

    name: str
    occurrence: Positive = 1
    result: Any = None

    def prepared(self, preparation: Preparation) -> RecordStep:
        """Return the operation with the claim found, and with the result as it will be read back."""
        named, most = super().prepared(preparation), preparation.object_bytes
        occurrence = check_integer("occurrence", self.occurrence, 1, STEPS_KEPT)
        result, text = check_result(self.result, preparation.limits, most, f"result of step {named.name!r}", depth=2)
        is_large = most is not None and len(text) > min(most, STEP_BYTES)
        if is_large or self.result_object is not None:
            result = None
        result_to_store = text if is_large and self.result_object is None else b""
        claim = preparation.find_claim(self.job)
        return replace(named, job=claim, occurrence=occurrence, result=result, result_to_store=result_to_store)

    def change(self, draft: Draft, now: datetime) -> Step | None:
        """Add the step to its job.

        Raises:
            ClaimLostError: the claim is not current.
            InvalidJobError: the job has too many steps, or their results are too large together.
            QueueFullError: the queue has no room for the result.
        """
        assert isinstance(self.job, Claim)
        job = draft.held(self.job)
        for step in job.steps:
            if (step.name, step.occurrence) == (self.name, self.occurrence):
                return step
        check_named_in_time(self.name_before, now)
        steps = (*job.steps, Step(self.name, self.occurrence, now, self.result, self.result_object))
        check_steps(job.id, steps)
        size = len(msgspec.json.encode(steps[-1]))
        if not take_reserve(draft, size):
            raise QueueFullError(
                f"no room for the {size} bytes of step {self.name!r} of job {shown(job.id)}: the queue is full. Let "
                "workers catch up, purge dead jobs, or raise its limit with configure(blob_bytes=...)"
            )
        draft.require(STEPS)
        if self.result_object is not None:
            draft.require(OBJECTS)
        at = now if job.heartbeat_at != now else now + SAME_MOMENT
        draft.move(job, Verb.HEARTBEAT, job.evolve(heartbeat_at=at, steps=steps), IN_PROGRESS)
        return None


def moved_steps(job: JobRecord, limits: Limits) -> tuple[Step, ...]:
    """Return the steps of a job that comes from another queue, checked.

    Raises:
        InvalidJobError: a value is wrong, or the result of a step is in an object of the other queue.
    """
    steps = []
    for name, number, at, result, stored in job.steps:
        if stored is not None:
            raise InvalidJobError(
                f"the result of step {name!r} of job {shown(job.id)} is in an object of another queue, so the job must "
                "stay there until it is done; a redrive with fresh=True drops the steps of a dead job"
            )
        name, number = check_name("name", name, limits), check_integer("occurrence", number, 1, STEPS_KEPT)
        result, _ = check_result(result, limits, STEP_BYTES, f"result of step {name!r}", depth=2)
        steps.append(Step(name, number, check_time("at", at), result))
    check_steps(job.id, tuple(steps))
    return tuple(steps)


def check_steps(job_id: str, steps: tuple[Step, ...]) -> None:
    """Check that a job may have these steps.

    Raises:
        InvalidJobError: they are too many, or too large.
    """
    if len(steps) > STEPS_KEPT:
        raise InvalidJobError(
            f"job {shown(job_id)} has {len(steps)} steps; the limit is {STEPS_KEPT}. Do more in each of them, or "
            "enqueue a job for each part of the work"
        )
    if (size := len(msgspec.json.encode(steps))) > STEPS_BYTES:
        raise InvalidJobError(
            f"the steps of job {shown(job_id)} take {size} bytes; the limit is {STEPS_BYTES}. Return less from them, "
            "such as an id or an address"
        )


class HandBack(Operation, frozen=True):
    """Hand back claims whose caller never received them. Claims that are no longer current are skipped."""

    claims_made: tuple[Claim, ...]

    def change(self, draft: Draft, now: datetime) -> int:
        """Queue the jobs again, uncharged and in their places. Return their number."""
        returned = 0
        for claim in self.claims_made:
            if draft.lease_of(claim) is not None:
                give_back(draft, claim.job_id, now, charge=False)
                returned += 1
                continue
            job = draft.jobs.get(claim.job_id)
            if job is not None and job.status is IN_PROGRESS and job.attempt == claim.attempt:
                send_back(draft, job, Verb.HAND_BACK, now)
                returned += 1
        return returned


class HandBackCalls(Operation, frozen=True):
    """Hand back the claims that a broker made for calls whose answers were lost."""

    needs_space = False

    calls: tuple[str, ...]

    def change(self, draft: Draft, now: datetime) -> None:
        """Queue the jobs again, uncharged and in their places."""
        hand_back_calls(draft, self.calls, now)


def hand_back_calls(draft: Draft, calls: Collection[str], now: datetime) -> None:
    """Hand back the claims that a broker made for these calls."""
    for job_id in [job_id for call in calls for job_id in draft.jobs.called.get(call, ())]:
        send_back(draft, draft.jobs[job_id], Verb.HAND_BACK, now)


ORDERED_ERROR = "stale: the claim was taken back by an operator's order"


def revoke_lease(draft: Draft, name: str, now: datetime, error: str = STALE_ERROR) -> int:
    """Revoke a lease, given the name of its entry, with an error for jobs that are out of attempts.

    Return the number of its jobs.

    Raises:
        RowsMissingError: jobs of it must be looked at one by one, and not all that this needs is loaded.
        SegmentDamagedError: this cannot be read.
    """
    held = draft.header.segments[name]
    if held.spare is None or held.failures < held.spare:
        give_back(draft, name, now, charge=True)
    else:
        jobs = draft.jobs.rows.jobs_of(name, chain.from_iterable(range(*span) for span in held.spans))
        if (damage := draft.jobs.rows.damage_of(object_of(name))) is not None:
            raise damage
        draft.drop_segment(name)
        for job in jobs:
            draft.admit(job)
        revoke(draft, jobs, now, error)
    return held.left


def revoke(
    draft: Draft,
    stale: Iterable[JobRecord],
    now: datetime,
    error: str = STALE_ERROR,
    spared: Collection[str] = (),
) -> int:
    """Revoke the claims on jobs, in the order of their sequence numbers. Return the number of jobs.

    Args:
        draft: the queue.
        stale: the jobs.
        now: the time.
        error: the error to keep with them.
        spared: ids of jobs that are not charged. One without room for its error is charged all the same: otherwise it
            could kill its workers for ever.
    """
    jobs = sorted(stale, key=lambda job: (job.sequence, job.id))
    for job in jobs:
        charge = job.id not in spared
        text, errors = error if charge else SPARED_ERROR, job.errors
        if not job.cancel_requested:
            errors = kept_errors(draft, job, text, now)
            charge = charge or lost_in_a_row(errors) <= lost_in_a_row(job.errors)
        changes: dict[str, Any] = {"error": text, "error_dropped": 0, "traceback": None, "errors": errors}
        send_back(draft, job, Verb.REVOKE, now, charge=charge, **changes)
    return len(jobs)


def spared_of(orphans: Iterable[JobRecord]) -> set[str]:
    """Return the ids of the jobs to which the deaths of their processes are not charged.

    A death is charged to the job that may be the cause of it by `may_kill`, or that was the only job of the process.
    Other jobs are spared. A job that is spared twice in a row may be the cause, and a process has one such job. So a
    job that kills each of its workers is dead after `max_attempts` + 2 deaths at most, and its neighbours are charged
    with none. An error that the job reports in between allows two more deaths, and counts as a failure itself.
    """
    by_process = defaultdict[str, list[JobRecord]](list)
    for job in orphans:
        by_process[process_of(job.holder)].append(job)
    several = [jobs for jobs in by_process.values() if len(jobs) > 1]
    return {job.id for jobs in several for job in jobs if not may_kill(job)}


class RequeueStale(Operation, frozen=True):
    """Revoke every claim without a heartbeat for `timeout`, by order of an operator. Its result is their number.

    Attributes:
        timeout: time since the last heartbeat; see `requeue_stale` for its smallest safe value.
        asked_by: person or program that asks, for the history; cut at 100 bytes.
        worker: only claims of this worker: its name, or `name@host:pid`; None: of all.
    """

    optional_names: ClassVar[tuple[str, ...]] = ("worker",)

    timeout: Duration
    asked_by: str | None = None
    worker: str | None = None

    def holds(self, claim: JobRecord | Job | Segment, now: datetime) -> bool:
        """Return True if a claim is to be revoked."""
        age = math.inf if claim.heartbeat_at is None else (now - claim.heartbeat_at).total_seconds()
        holder = claim.holder or ""
        is_meant = self.worker in (None, holder, holder.rpartition("@")[0])
        return is_meant and max(0.0, age) >= to_seconds("timeout", self.timeout)

    def prepared(self, preparation: Preparation) -> RequeueStale:
        """Return the operation with the timeout in seconds."""
        return replace(super().prepared(preparation), timeout=to_seconds("timeout", self.timeout))

    def change(self, draft: Draft, now: datetime) -> int:
        """Queue the jobs again, or make them dead. It ignores the timeouts of the claims: fencing keeps that safe."""
        jobs = [draft.jobs[job_id] for job_id in draft.jobs.claimed]
        old = [name for name, each in draft.jobs.rows.manifest.leases().items() if self.holds(each, now)]
        revoked = revoke(draft, [job for job in jobs if self.holds(job, now)], now, ORDERED_ERROR)
        for name in old:
            with suppress(SegmentDamagedError):  # the rows stay leased until their segment is restored
                revoked += revoke_lease(draft, name, now, ORDERED_ERROR)
        return revoked


class Sweep(Operation, frozen=True):
    """Revoke stale claims, unless their heartbeat has moved meanwhile. Its result is the number of revoked claims."""

    suspects: tuple[tuple[Claim, datetime | None], ...]
    """Each stale claim, with its last known heartbeat."""
    orphans: tuple[tuple[Claim, datetime | None], ...] = ()
    """The same of the jobs of processes that have died."""

    def change(self, draft: Draft, now: datetime) -> int:
        """Queue the jobs again, or make them dead."""
        orphans = self._held(draft, self.orphans)
        died = revoke(draft, orphans, now, DIED_ERROR, spared_of(orphans))
        leased = 0
        for claim, heartbeat_at in self.suspects:
            held = draft.lease_of(claim)
            if held is not None and held.heartbeat_at == heartbeat_at:
                with suppress(SegmentDamagedError):  # the rows stay leased until their segment is restored
                    leased += revoke_lease(draft, claim.job_id, now)
        return revoke(draft, self._held(draft, self.suspects), now) + leased + died

    def _held(self, draft: Draft, claims: Iterable[tuple[Claim, datetime | None]]) -> list[JobRecord]:
        """Return the jobs whose claims are still as they were seen."""
        seen = ((draft.jobs.get(claim.job_id), claim.attempt, heartbeat_at) for claim, heartbeat_at in claims)
        return [
            job
            for job, attempt, heartbeat_at in seen
            if job is not None
            and job.status is JobStatus.IN_PROGRESS
            and (job.attempt, job.heartbeat_at) == (attempt, heartbeat_at)
        ]


TRAVELLING = (Ack, Nack, Heartbeat, RecordStep, HandBack, HandBackCalls, RequeueStale)
