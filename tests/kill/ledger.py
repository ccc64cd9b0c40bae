"""The auditor: it compares the answers that workers got with the state in the file. It does no input or output.

The order in which lines are heard makes its judgement exact. Lines are collected, the file is read, and lines are
collected again. All intents are heard, but only the answers collected before the file was read; then the state is
checked. So every answer heard is older than the state, and every effect in an answer or in the state has an intent
that was heard. The other answers are heard with the next state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from jqueue import Job, JobStatus, QueueState
from jqueue.domain.commits import FINISHED_SLACK
from jqueue.domain.limits import FINISHED_KEPT, WRITERS_KEPT
from tests.kill.journal import JobAt, Kind, Line, Verb, payload_of

if TYPE_CHECKING:
    from tests.kill.whole_queue import PlacedJob, WholeQueue


class ViolationError(Exception):
    """A promise that was not kept.

    Attributes:
        lost: number of lost jobs.
    """

    def __init__(self, message: str, lost: int = 0) -> None:
        super().__init__(message)
        self.lost = lost


CANCELLED = 1 << 60
"""Stands for the attempt that finished a cancelled job."""


@dataclass(slots=True)
class _JobRecord:
    """Record of one job.

    Attributes:
        called: True if a worker began to enqueue it.
        promised: True if its enqueue was acknowledged or it was seen in the file: it must stay.
        refused: True if its enqueue ended with an error that says "not done", and was not repeated.
        attempt: the highest attempt seen; it must not shrink.
        heartbeat: the newest heartbeat seen, with its attempt.
        holders: the worker that got each claim.
        acks: kind of the last line about the ack by each attempt.
        nacked: attempts whose nack was acknowledged.
        followers: the job that an apply enqueues together with the ack by an attempt.
        source: the claim whose apply enqueues this job.
        ranges: the range, with its attempt, whose end finishes the job by an attempt.
        cancelled: kind of the last line about a cancellation, if there was any that is not refused.
        finished: the attempt that acked it, `CANCELLED`, or None if it has not left.
    """

    called: bool = False
    promised: bool = False
    refused: bool = False
    attempt: int = 0
    heartbeat: tuple[int, datetime] | None = None
    holders: dict[int, str] = field(default_factory=dict)
    acks: dict[int, Kind] = field(default_factory=dict)
    nacked: set[int] = field(default_factory=set)
    followers: dict[int, str] = field(default_factory=dict)
    source: JobAt | None = None
    ranges: dict[int, JobAt] = field(default_factory=dict)
    cancelled: Kind | None = None
    finished: int | None = None


class Ledger:
    """Everything that must be true of the next state.

    Attributes:
        acknowledged: number of acknowledged calls of each verb.
        errors: number of calls that ended with each error.
        states: number of states checked.
        version: version of the last of them.
    """

    def __init__(self) -> None:
        self.acknowledged: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.states = 0
        self.version = 0
        self._queue = ""
        self._records: dict[str, _JobRecord] = {}
        self._open: set[str] = set()
        self._unheard: dict[tuple[str, int], Line] = {}

    @property
    def jobs(self) -> int:
        """Number of jobs that were certainly enqueued."""
        return sum(record.promised for record in self._records.values())

    def hear(self, worker: str, line: Line) -> None:
        """Take in a line of a worker."""
        if line.kind is Kind.INTENT:
            self._hear_intent(worker, line)
        else:
            self._hear_answer(worker, line)

    def forget_worker(self, worker: str) -> list[str]:
        """Forget a dead worker whose lines were all heard; return the jobs whose enqueue it got no answer to."""
        calls = [key for key in self._unheard if key[0] == worker]
        lines = [self._unheard.pop(key) for key in calls]
        return [job.id for line in lines if line.verb is Verb.ENQUEUE for job in line.jobs]

    def _hear_intent(self, worker: str, line: Line) -> None:
        self._unheard[worker, line.call] = line
        if line.verb in (Verb.ENQUEUE, Verb.APPLY):
            new = line.jobs[-1:] if line.verb is Verb.APPLY else line.jobs
            for job in new:
                record = self._record(job.id)
                record.called, record.refused = True, False
                if record.finished is None:
                    self._open.add(job.id)
        if line.verb is Verb.CANCEL:
            self._record(line.jobs[0].id).cancelled = Kind.INTENT
        for job in line.jobs[1:] if line.verb is Verb.END_RANGE else ():
            record = self._record(job.id)
            record.acks.setdefault(job.attempt, Kind.INTENT)
            record.ranges[job.attempt] = line.jobs[0]
        if line.verb in (Verb.ACK, Verb.APPLY):
            claim = line.jobs[0]
            record = self._record(claim.id)
            record.acks.setdefault(claim.attempt, Kind.INTENT)
            if line.verb is Verb.APPLY:
                record.followers[claim.attempt] = line.jobs[1].id
                self._record(line.jobs[1].id).source = claim

    def _hear_answer(self, worker: str, line: Line) -> None:
        self._unheard.pop((worker, line.call), None)
        if line.kind is Kind.BROKEN:
            raise ViolationError(f"{worker}: {line.verb} of {_names(line.jobs)}: {line.note}")
        if line.kind is not Kind.DONE:
            self.errors[f"{line.verb}: {line.note}"] += 1
        else:
            self.acknowledged[line.verb] += 1
        if line.verb in (Verb.DEQUEUE, Verb.CLAIM_RANGE):
            for job in line.jobs:
                self._hear_claim(worker, job)
        elif line.verb is Verb.ENQUEUE:
            for job in line.jobs:
                self._hear_enqueued(job, line.kind)
        elif line.verb is Verb.APPLY:
            self._hear_enqueued(line.jobs[1], line.kind)
        if line.verb in (Verb.ACK, Verb.APPLY):
            self._hear_acked(line.jobs[0], line.kind)
        elif line.verb is Verb.END_RANGE:
            for job in line.jobs[1:]:
                self._hear_acked(job, line.kind)
        elif line.verb is Verb.CANCEL and line.kind is not Kind.UNKNOWN:
            self._hear_cancelled(line.jobs[0].id, line.kind)
        elif line.verb is Verb.NACK and line.kind is Kind.DONE:
            self._record(line.jobs[0].id).nacked.add(line.jobs[0].attempt)

    def _hear_claim(self, worker: str, job: JobAt) -> None:
        record = self._record(job.id)
        holder = record.holders.setdefault(job.attempt, worker)
        if holder != worker:
            raise ViolationError(f"the claim ({job.id}, attempt {job.attempt}) was given to {holder} and to {worker}")
        if record.finished is not None and job.attempt > record.finished:
            raise ViolationError(
                f"{job.id} was claimed by attempt {job.attempt} after attempt {record.finished} acked it"
            )
        record.attempt = max(record.attempt, job.attempt)

    def _hear_enqueued(self, job: JobAt, kind: Kind) -> None:
        record = self._record(job.id)
        if kind is Kind.DONE:
            record.promised = True
        elif kind is Kind.REFUSED and not record.promised:
            record.refused = True

    def _hear_acked(self, job: JobAt, kind: Kind) -> None:
        record = self._record(job.id)
        if kind is Kind.UNKNOWN:
            return
        record.acks[job.attempt] = kind
        if kind is Kind.REFUSED and record.finished == job.attempt:
            raise ViolationError(f"the ack of {job.id} by attempt {job.attempt} was refused, and took effect")
        done = [attempt for attempt, known in record.acks.items() if known is Kind.DONE]
        if len(done) > 1:
            raise ViolationError(f"{job.id} was acked twice, by attempts {done}")
        if kind is Kind.DONE and record.finished not in (None, job.attempt):
            raise ViolationError(
                f"the ack of {job.id} by attempt {job.attempt} was acknowledged, but attempt {record.finished} acked it"
            )

    def _hear_cancelled(self, job_id: str, kind: Kind) -> None:
        record = self._record(job_id)
        record.cancelled = kind if kind is Kind.DONE else None
        if kind is Kind.REFUSED and record.finished == CANCELLED:
            raise ViolationError(f"the cancellation of {job_id} was refused, and took effect")
        if kind is Kind.DONE and record.finished not in (None, CANCELLED):
            raise ViolationError(f"{job_id} was cancelled after attempt {record.finished} acked it")

    def check(self, state: QueueState | WholeQueue) -> None:
        """Compare a state with all lines heard so far.

        Raises:
            ViolationError: a promise was not kept; the message says which.
        """
        self._check_header(state)
        for job in state.jobs:
            self._check_present(job, state)
        present = {job.id for job in state.jobs}
        absent = [job_id for job_id in self._open if job_id not in present]
        gone = {job_id for job_id in absent if self._finished(job_id, state) is not None}
        lost = [job_id for job_id in absent if self._records[job_id].promised and job_id not in gone]
        if lost:
            raise ViolationError(
                f"{len(lost)} jobs are gone and nobody acked them: {', '.join(sorted(lost)[:20])}", len(lost)
            )
        for job_id in absent:
            if job_id in gone:
                self._check_gone(job_id, state)
        for job_id in absent:
            self._check_apply_of(job_id, state, present)
        self.states += 1

    def check_drained(self, state: QueueState | WholeQueue) -> None:
        """Check the last state: no job is left, and every promised job was acked by exactly one claim."""
        self.check(state)
        if state.jobs:
            raise ViolationError(f"{len(state.jobs)} jobs are left in a queue that was drained")
        lost = [job_id for job_id, record in self._records.items() if record.promised and record.finished is None]
        if lost:
            raise ViolationError(f"{len(lost)} jobs are not accounted for: {', '.join(sorted(lost)[:20])}", len(lost))
        for job_id, record in self._records.items():
            for attempt, kind in record.acks.items():
                if kind is Kind.DONE and record.finished != attempt:
                    raise ViolationError(
                        f"the ack of {job_id} by attempt {attempt} was acknowledged, and had no effect"
                    )

    def _check_header(self, state: QueueState | WholeQueue) -> None:
        if state.set_aside:
            raise ViolationError(
                f"{len(state.set_aside)} lines of the file cannot be read: {state.set_aside[0].reason}"
            )
        if state.version < self.version:
            raise ViolationError(f"the file went back from version {self.version} to {state.version}")
        if self._queue not in ("", state.queue):
            raise ViolationError("the file holds another queue than before")
        if len(state.commits) > WRITERS_KEPT or len(state.finished) > FINISHED_KEPT + FINISHED_SLACK:
            raise ViolationError(f"tables grow: {len(state.commits)} writers, {len(state.finished)} finished jobs")
        self.version, self._queue = state.version, state.queue

    def _check_present(self, job: Job | PlacedJob, state: QueueState | WholeQueue) -> None:
        record = self._records.get(job.id)
        if record is None or not record.called:
            raise ViolationError(f"{job.id} is in the file, but nobody enqueued it")
        if record.refused:
            raise ViolationError(f"{job.id} is in the file, but its enqueue was refused")
        if record.finished is not None:
            raise ViolationError(f"{job.id} came back after attempt {record.finished} acked it")
        if Kind.DONE in record.acks.values():
            raise ViolationError(f"{job.id} is still there, though an ack of it was acknowledged")
        if record.cancelled is Kind.DONE:
            raise ViolationError(f"{job.id} is still there, though its cancellation was acknowledged")
        for done in record.ranges.values():
            if state.finished.get(done.id) == done.attempt:
                raise ViolationError(f"{job.id} is still there, though it was done in a range that has ended")
        if job.payload != payload_of(job.id):
            raise ViolationError(f"{job.id} has another payload than it was enqueued with")
        if job.attempt < record.attempt:
            raise ViolationError(f"the attempt of {job.id} shrank from {record.attempt} to {job.attempt}")
        if job.status is JobStatus.IN_PROGRESS:
            if job.attempt in record.nacked:
                raise ViolationError(f"{job.id} is claimed by attempt {job.attempt}, whose nack was acknowledged")
            assert job.heartbeat_at is not None
            beat = (job.attempt, job.heartbeat_at)
            if record.heartbeat is not None and beat < record.heartbeat:
                raise ViolationError(f"the heartbeat of {job.id} went back, or this machine's clock did")
            record.heartbeat = beat
        if record.source is not None and not record.promised and not self._was_acked(record.source, state):
            raise ViolationError(f"{job.id} is there, but the ack in the same apply had no effect")
        record.attempt, record.promised = job.attempt, True
        self._open.add(job.id)

    def _check_gone(self, job_id: str, state: QueueState | WholeQueue) -> None:
        record, finished = self._records[job_id], self._finished(job_id, state)
        assert finished is not None
        if finished == CANCELLED:
            record.finished, record.promised = CANCELLED, True
            return
        if record.acks.get(finished) not in (Kind.INTENT, Kind.DONE):
            raise ViolationError(f"{job_id} was finished by attempt {finished}, which never tried, or was refused")
        if finished < record.attempt:
            raise ViolationError(f"{job_id} was acked by attempt {finished} after attempt {record.attempt} claimed it")
        if any(kind is Kind.DONE and attempt != finished for attempt, kind in record.acks.items()):
            raise ViolationError(f"{job_id} was finished by attempt {finished}, but another one's ack was acknowledged")
        record.finished, record.promised = finished, True

    def _check_apply_of(self, job_id: str, state: QueueState | WholeQueue, present: set[str]) -> None:
        """Check that an apply took effect in both halves or in none, and close a job that has left."""
        record = self._records[job_id]
        if record.finished is not None:
            follower = record.followers.get(record.finished)
            if follower is not None and follower not in present and self._records[follower].finished is None:
                raise ViolationError(f"{job_id} was acked, but {follower}, enqueued in the same apply, is not there", 1)
            if record.source is not None and not self._was_acked(record.source, state):
                raise ViolationError(f"{job_id} was there, but the ack in the same apply had no effect")
            self._open.discard(job_id)

    def _was_acked(self, claim: JobAt, state: QueueState | WholeQueue) -> bool:
        record = self._records[claim.id]
        return claim.attempt == (self._finished(claim.id, state) if record.finished is None else record.finished)

    def _finished(self, job_id: str, state: QueueState | WholeQueue) -> int | None:
        """Return the attempt that has finished a job which is absent, or `CANCELLED`; None if nothing explains it."""
        record = self._record(job_id)
        if job_id in state.finished:
            return state.finished[job_id]
        for attempt, done in record.ranges.items():
            if state.finished.get(done.id) == done.attempt:
                return attempt
        if record.cancelled is None or not record.promised:  # it may not have been enqueued yet when the file was read
            return None
        return CANCELLED

    def _record(self, job_id: str) -> _JobRecord:
        """Return the record of a job. Its claim may be heard before the enqueue, which another worker reports."""
        return self._records.setdefault(job_id, _JobRecord())


def _names(jobs: Iterable[JobAt]) -> str:
    return ", ".join(f"({job.id}, attempt {job.attempt})" for job in jobs) or "no job"
