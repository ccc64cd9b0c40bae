"""The auditor of a soak: it compares the answers that workers got with the states of the object. It does no I/O.

The object is read now and then without faults (`see`), and once more after it was drained. The lines of all
workers are judged at the end, when each call has its answer or its caller was killed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from jqueue import Job, QueueState
from tests.soak.journal import JobAt, Kind, Line, Verb

LINES_SHOWN = 12
CONFIRMED = {Kind.DONE, Kind.LANDED}
NOTHING = {Kind.REFUSED, Kind.NOT_DONE}
ENDS = {Verb.ACK, Verb.APPLY, Verb.NACK}
HANDS_OUT = {Verb.DEQUEUE, Verb.CLAIM_RANGE}


class Violation(NamedTuple):
    """A promise that was not kept, and the lines about it."""

    what: str
    lines: tuple[str, ...] = ()


class Call(NamedTuple):
    """One call, with the last line about it."""

    worker: str
    line: Line

    @property
    def verdict(self) -> bool | None:
        """True if the call was done, False if not, None if that is unknown."""
        return True if self.line.kind in CONFIRMED else False if self.line.kind in NOTHING else None


@dataclass
class _JobRecord:
    """Record of one job.

    Attributes:
        enqueues: the calls that enqueue it, including an apply.
        claims: the calls to which each attempt was handed out.
        acks: the calls that ack it, by attempt.
        ends: the calls that are known to have ended each claim.
        followers: the job that the apply by an attempt enqueues.
        cancels: the calls that cancel it.
    """

    enqueues: list[Call] = field(default_factory=list)
    claims: dict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))
    acks: dict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))
    followers: dict[int, str] = field(default_factory=dict)
    cancels: list[Call] = field(default_factory=list)

    @property
    def is_cancelled(self) -> bool | None:
        """True if a cancellation of it was done, None if that is unknown, False if not."""
        verdicts = {call.verdict for call in self.cancels}
        return True if True in verdicts else None if None in verdicts else False

    def acked_by(self, verdict: bool | None) -> list[int]:
        """Return the attempts that have an ack with this verdict."""
        return sorted(a for a, calls in self.acks.items() if any(call.verdict is verdict for call in calls))


class Ledger:
    """Record of all lines and states.

    Attributes:
        lines: lines of all workers, in the order of arrival.
        kinds: number of lines of each kind and verb.
        errors: number of calls that ended with each error.
        finished: the attempt that acked each job, as far as states showed it.
        version: version of the last state.
        latest: largest number of seconds by which a call missed its deadline.
        recognised: number of commits without a successful answer that queue objects recognised before they were left.
        violations: the violations found.
    """

    def __init__(self) -> None:
        self.lines: list[tuple[str, Line]] = []
        self.kinds: Counter[tuple[Kind, Verb]] = Counter()
        self.errors: Counter[str] = Counter()
        self.finished: dict[str, int] = {}
        self.version = 0
        self.latest = 0.0
        self.recognised = 0
        self.violations: list[Violation] = []
        self._queue = ""
        self._records: dict[str, _JobRecord] = defaultdict(_JobRecord)
        self._ranges: dict[JobAt, JobAt] = {}

    def hear(self, worker: str, line: Line) -> None:
        """Take in a line of a worker."""
        self.lines.append((worker, line))
        self.kinds[line.kind, line.verb] += 1
        if line.verb is Verb.LEAVE and line.kind is Kind.DONE:
            self.recognised += int(line.note)
        elif line.note and line.kind is not Kind.INTENT:
            self.errors[f"{line.verb}: {line.kind}, {line.note}"] += 1
        if line.kind is Kind.BROKEN:
            self._add(f"{worker}: {line}")
        if line.allowed:
            self.latest = max(self.latest, line.seconds - line.allowed)

    def see(self, state: QueueState) -> None:
        """Take in a state of the object, newer than the last."""
        if state.set_aside:
            self._add(f"version {state.version}: {len(state.set_aside)} lines cannot be read")
        if state.version < self.version:
            self._add(f"the object went back from version {self.version} to {state.version}")
        if self._queue not in ("", state.queue):
            self._add("the object is another queue than before")
        for job in state.jobs:
            if job.id in self.finished:
                self._add(f"{job.id} is in version {state.version}, though it was finished before", job.id)
        for job_id, attempt in state.finished.items():
            if self.finished.setdefault(job_id, attempt) != attempt:
                self._add(f"{job_id} was finished by attempts {self.finished[job_id]} and {attempt}", job_id)
        self.version, self._queue = state.version, state.queue

    def unanswered(self, worker: str) -> list[str]:
        """Return the jobs whose enqueue a worker got no answer to."""
        last = {line.call: line for name, line in self.lines if name == worker and line.verb is Verb.ENQUEUE}
        return [job.id for line in last.values() if line.kind is Kind.INTENT for job in line.jobs]

    def audit(self, state: QueueState | None, present: Iterable[Job] = ()) -> list[Violation]:
        """Judge all lines by the end, and return every violation.

        Args:
            state: the object at the end. None: only claims are judged.
            present: all jobs that are left, wherever they are.
        """
        for call in self._calls():
            self._sort(call)
        if state is None:
            for job_id, record in self._records.items():
                for what in _claimed(job_id, record):
                    self._add(what, job_id)
            return self.violations
        self.see(state)
        left = {job.id for job in present}
        for job_id in left - set(self._records):
            self._add(f"{job_id} is in the object, and nobody enqueued it")
        for job_id, record in list(self._records.items()):
            for what in (*_claimed(job_id, record), *self._ended(job_id, record, job_id in left)):
                self._add(what, job_id)
            for what in self._applied(job_id, record, left):
                self._add(what, job_id)
        return self.violations

    def blame(self, what: str) -> None:
        """Add a violation that the caller has found."""
        self._add(what)

    def _calls(self) -> Iterator[Call]:
        """Return each call with the last line about it."""
        last: dict[tuple[str, int], Line] = {}
        for worker, line in self.lines:
            last[worker, line.call] = line
        return (Call(worker, line) for (worker, _), line in last.items())

    def _sort(self, call: Call) -> None:
        line = call.line
        if line.verb in HANDS_OUT:
            if line.kind is Kind.DONE:
                for job in line.jobs:
                    self._records[job.id].claims[job.attempt].append(call)
            return
        if line.verb in (Verb.ENQUEUE, Verb.APPLY):
            for job in line.jobs[line.verb is Verb.APPLY :]:
                self._records[job.id].enqueues.append(call)
        if line.verb is Verb.CANCEL:
            self._records[line.jobs[0].id].cancels.append(call)
        for job in line.jobs[1:] if line.verb is Verb.END_RANGE else ():
            self._records[job.id].acks[job.attempt].append(call)
            self._ranges[job] = line.jobs[0]
        if line.verb in (Verb.ACK, Verb.APPLY):
            self._records[line.jobs[0].id].acks[line.jobs[0].attempt].append(call)
        if line.verb is Verb.APPLY:
            self._records[line.jobs[0].id].followers[line.jobs[0].attempt] = line.jobs[1].id
        if line.verb in ENDS and call.verdict:
            self._records[line.jobs[0].id].ends[line.jobs[0].attempt].append(call)

    def _ended(self, job_id: str, record: _JobRecord, is_present: bool) -> Iterator[str]:
        """Check that a job ended by one ack of one claim, and not without one."""
        done, perhaps = record.acked_by(True), record.acked_by(None)
        finished = self.finished.get(job_id)
        for attempt in () if is_present else [*done, *perhaps]:
            ended = self._ranges.get(JobAt(job_id, attempt))
            if ended is not None and self.finished.get(ended.id) == ended.attempt:
                finished = attempt
        if is_present and record.is_cancelled:
            yield f"{job_id} is still there, though it was cancelled"
        if record.is_cancelled and done:
            yield f"{job_id} was cancelled, and also acked"
        if is_present and (done or finished is not None):
            yield f"{job_id} is still there, though attempt {done or finished} acked it"
        if finished is not None and finished not in (*done, *perhaps):
            yield f"{job_id} was finished by attempt {finished}, which was refused or never tried"
        if finished is not None and done and finished not in done:
            yield f"{job_id} was finished by attempt {finished}, but the ack of attempt {done} was acknowledged"
        enqueued = {call.verdict for call in record.enqueues}
        is_ended = bool(done or perhaps) or record.is_cancelled is not False
        if True in enqueued and not is_present and not is_ended:
            yield f"{job_id} is gone, and nobody acked it"
        exists = is_present or finished is not None or bool(record.claims)
        if exists and not record.enqueues:
            yield f"{job_id} was there, and nobody enqueued it"
        elif exists and enqueued == {False}:
            yield f"{job_id} was there, though its enqueue was refused"
        for attempt in done or ([] if finished is None else [finished]):
            if later := [claim for claim in record.claims if claim > attempt]:
                yield f"{job_id} was handed out as attempt {later} although attempt {attempt} acked it"

    def _applied(self, job_id: str, record: _JobRecord, present: set[str]) -> Iterator[str]:
        """Check that an apply took effect in both halves or in none."""
        finished = self.finished.get(job_id)
        for attempt, follower in record.followers.items():
            there = follower in present or follower in self.finished or bool(self._records[follower].claims)
            if finished == attempt and not there and len(record.acks[attempt]) == 1:
                yield f"{job_id} was acked, but {follower}, enqueued in the same apply, was never seen"
            if there and finished is not None and finished != attempt:
                yield f"{follower} was there, but the ack of {job_id} by attempt {attempt} in the same apply was not"

    def _add(self, what: str, job_id: str | None = None) -> None:
        lines: Iterable[str] = ()
        if job_id is not None:
            about = (f"{w}: {line}" for w, line in self.lines if any(job.id == job_id for job in line.jobs))
            lines = list(about)[-LINES_SHOWN:]
        self.violations.append(Violation(what, tuple(lines)))


def _claimed(job_id: str, record: _JobRecord) -> Iterator[str]:
    """Check that each claim has one holder and one end, and that one of the claims of a job acked it."""
    if len(done := record.acked_by(True)) > 1:
        yield f"{job_id} was acked by {len(done)} claims, attempts {done}"
    for attempt, calls in record.claims.items():
        if len(calls) > 1:
            holders = " and ".join(f"{call.worker} (call {call.line.call})" for call in calls)
            yield f"{job_id}, attempt {attempt}, was handed to {holders}"
    for attempt, calls in record.ends.items():
        if len({call.line.verb for call in calls}) > 1:  # the same ack may be repeated: it is done already
            how = " and ".join(f"{call.line.verb} of {call.worker}" for call in calls)
            yield f"{job_id}, attempt {attempt}, was ended twice, by {how}"
