"""Checks the chain against the plain model: each version is what its recorded operations make of the one before.

The model is loaded anew from a version that a person or jqueue 1.0.0 has made.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jqueue import JQueueError, UnknownOutcomeError
from jqueue.domain.job import Claim
from jqueue.domain.limits import Limits
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.bulk import BulkAdded, EnqueueSegments
from jqueue.domain.operations.codec import AllOrNothing, ClientBatch, Guarded
from jqueue.domain.operations.ends import HandBack, HandBackCalls, Nack, RecordStep, Sweep
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.operations.groups import AwaitGroup, LookAtGroup
from jqueue.domain.operations.lookups import AwaitResult
from jqueue.domain.operations.operator import EmptyCommit, Reprioritise
from jqueue.domain.operations.rules import RunSchedule
from jqueue.operations import ClaimLease, Configure, Dequeue
from jqueue.ports.observer import AppliedCall
from tests.simulation.chain import COMPLETED, NOTHING, Version, status_of
from tests.simulation.history import BY_ITSELF, NEVER, Call, Evidence, Record, Violation
from tests.simulation.modelled import Model, Shown, first_difference, load
from tests.simulation.people import OLD_PROGRAM
from tests.simulation.plain_queue import EXPIRED, REMOVED
from tests.simulation.plain_values import is_suspect
from tests.simulation.replay import Difference, Replay

MODEL = 20
"""Number of the rule: each version is what its operations make of the version before."""

LOOKS = (AwaitResult, AwaitGroup, LookAtGroup)
"""Operations that change nothing."""

CHECKED = (*("priority", "max_attempts", "unique_key", "keep_result", "concurrency_key", "fair_key", "fair_weight"),)
"""Options that an enqueue must have as its caller gave them."""

SET_ASIDE = "an object beside the queue could not be"
"""A part of the error of a job whose payload could not be loaded by the call that claimed it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a call in one commit, or in a look at one version.

    Attributes:
        version: the version that was made, or looked at.
        applied: its operations, with their outcomes.
        landed: True if the version carries it.
    """

    version: Version
    applied: AppliedCall
    landed: bool


NOTICED = 2.0
"""Seconds within which a process notices that it stood still."""


class ModelAudit:
    """Checks every version, and every look at one.

    Args:
        evidence: of the seed.

    Attributes:
        answers: the outcomes of each call.
        made: the claims that each call made, with the version.
        moved: the time at which each claim was made or its heartbeat moved.
        looked_for: the time at which claims of a dequeue through a broker were first looked for, by its `call`.
        seen: number of times that something happened, by name.
    """

    def __init__(self, evidence: Evidence) -> None:
        self._versions = evidence.versions
        self._blob_bytes = evidence.blob_bytes
        self._sent = evidence.sent
        self._calls = evidence.calls
        self._standstills = evidence.standstills
        self._deaths = evidence.deaths
        self.answers: dict[Call, list[Answer]] = defaultdict(list)
        self.made: dict[Call, list[tuple[Claim, Version]]] = defaultdict(list)
        self.moved: dict[Claim, float] = {}
        self.seen: Counter[str] = Counter()
        self._maker: dict[Claim, Call] = {}
        self._model, self._shown = Model(), Shown()
        self._replay = Replay(self._model, evidence)
        self._writes: dict[tuple[str, str], Record] = {}
        self._looks: dict[int, list[Record]] = defaultdict(list)
        self._carried: set[int] = set()
        self.looked_for: dict[str, float] = {}
        self._edited = False
        for record in evidence.records:
            commit = record.applied.commit
            if commit is not None:
                self._writes[commit.writer, commit.token] = record
            else:
                self._looks[record.applied.base].append(record)
        self._unlike: dict[Record, Violation | None] = {}  # None: like one of the versions with the number looked at

    def check(self) -> None:
        """Check every version, and every look.

        Raises:
            Violation: a rule is broken.
        """
        before = NOTHING
        self._check_looks(NOTHING)
        for after in self._versions:
            if after.by is None or after.by == OLD_PROGRAM:
                load(self._model, after, self._shown)
                self._edited = self._edited or before is not NOTHING
                self._note_beats(before, after)
            else:
                self._check_commit(before, after)
            self._check_looks(after)
            before = after
        for unlike in self._unlike.values():
            if unlike is not None:
                raise unlike

    # Commits

    def _check_commit(self, before: Version, after: Version) -> None:
        record = None if after.commit is None else self._writes.get(after.commit)
        if record is None or record.process != after.by:
            raise Violation(1, f"{after.by} has recorded no such write", version=after)
        self._check_chain(before, after)
        if record.applied.base != before.number or after.number != before.number + 1:
            raise Violation(1, f"it was made of version {record.applied.base}", version=after)
        if self._edited:
            self._skip_places(record, before, after)
        self._replay.begin(record.applied.now, before, after)
        for applied, call in zip(record.applied.calls, record.calls, strict=True):
            first = applied.operations[0]
            is_new = self._is_new(first, after)
            shares = self._shares(applied, call, after)
            for share, its in shares:
                self._check_origin(share, its, after, is_new=is_new, travelled=share is not applied)
            try:
                self._replay.call(applied)
            except Difference as difference:
                raise Violation(MODEL, str(difference), version=after, call=call) from difference
            landed = not (isinstance(first, ClientBatch) and self._is_idle(first, after))
            for share, its in shares:
                if its is not None:
                    self.answers[its].append(Answer(after, share, landed=landed))
                    self._note_claims(share, its, after)
            if isinstance(first, ClientBatch):
                self.seen["batch of a client landed" if is_new else "batch of a client recognised or idle"] += 1
        self._model.blob_bytes = Limits().blob_bytes if after.by == "drain" else self._blob_bytes
        self._model.committed()
        self._adopt(before, after)
        self._model.settle_groups()
        if unlike := first_difference(self._model, after, self._shown):
            raise Violation(MODEL, unlike, version=after)
        self._note_beats(before, after)
        self._count_step(before, after)

    def _is_new(self, operation: Operation, after: Version) -> bool:
        """Return False for the batch of a client that is known, or of which a version takes no note."""
        if not isinstance(operation, ClientBatch):
            return True
        known, noted = self._model.clients.get(operation.client), after.clients.get(operation.client)
        is_known = known is not None and known[0] == (operation.sequence, operation.token)
        is_noted = noted is not None and (noted["token"], noted["version"]) == (operation.token, after.number)
        return is_noted and not is_known

    def _is_idle(self, batch: ClientBatch, after: Version) -> bool:
        """Return True for a batch that has changed nothing. Sent again, it may be answered by what holds then."""
        noted = after.clients.get(batch.client)
        return noted is None or noted["token"] != batch.token

    def _shares(
        self, applied: AppliedCall, call: Call | None, version: Version
    ) -> list[tuple[AppliedCall, Call | None]]:
        """Return what was applied for each call: several calls of another process may have come as one batch."""
        first = applied.operations[0]
        name = first.token if isinstance(first, ClientBatch) else getattr(first, "call", None)
        if name is None:
            return [(applied, call)]
        if name not in self._sent:
            raise Violation(9, f"{name} landed, and nobody had sent it", version=version)
        if not isinstance(first, ClientBatch):
            return [(applied, self._sent[name][0][1])]
        shares, place, told = list[tuple[AppliedCall, Call | None]](), 0, applied.outcome
        for operations, its in self._sent[name]:
            is_one = len(operations) == 1 or isinstance(first.operations[place], AllOrNothing)
            end = place + (1 if is_one else len(operations))
            outcome: Any = told if isinstance(told, JQueueError) else told[0][place:end]
            if is_one and isinstance(outcome, list) and (len(operations) > 1 or isinstance(outcome[0], JQueueError)):
                outcome = outcome[0]
            shares.append((AppliedCall(operations, outcome, None), its))
            place = end
        return shares

    def _skip_places(self, record: Record, before: Version, after: Version) -> None:
        """Skip the places of jobs that a person has added and removed again: a process may have seen them."""
        copy = self._model.copy()
        self._replay.begin(record.applied.now, before, after)
        self._replay.compares = False
        for applied in record.applied.calls:
            with suppress(Difference):  # the audit of the commit reports it
                self._replay.call(applied)
        self._replay.compares = True
        surplus = after.last_sequence - self._model.places
        self._model.restore(copy)
        self._model.places += max(0, surplus)

    def _check_chain(self, before: Version, after: Version) -> None:
        """Check what no operation changes."""
        if before.broken != after.broken:
            raise Violation(8, "a line that could not be read was not kept as it was", version=after)
        if before.notes != after.notes:
            raise Violation(8, "a field that the queue does not know was not kept as it was", version=after)
        if before.queue and after.queue != before.queue:
            raise Violation(7, "it became another queue", version=after)
        if after.evicted_through < before.evicted_through:
            raise Violation(4, "evicted_through fell", version=after)
        if after.twins - before.twins:
            raise Violation(13, f"{sorted(after.twins - before.twins)} stand there twice", version=after)
        for name, counters in after.counters.items():
            if sum(counters[1][2]) != counters[0][1]:
                raise Violation(15, f"the waits of {name} are not those of its claims", version=after)

    def _adopt(self, before: Version, after: Version) -> None:
        """Take over what the model cannot know.

        These are the places and times of jobs that a person or jqueue 1.0.0 has added, and the attempt at which reused
        ids continue, which counts the attempts of whole segments: it must not fall.
        """
        model, jobs = self._model, self._shown.jobs(after)
        if after.attempt_floor < max(model.attempt_floor, before.attempt_floor) or (
            after.attempt_floor > model.attempt_floor and not (before.segments or after.segments)
        ):
            raise Violation(4, f"attempt_floor is {after.attempt_floor}, and was {before.attempt_floor}", version=after)
        model.attempt_floor = after.attempt_floor
        gone = [model.clients.pop(client)[1] for client in [*model.clients.keys() - after.clients.keys()]]
        model.clients_evicted = max([model.clients_evicted, *gone])
        for job_id in (model.finished.keys() - after.finished.keys()) & before.unsure:  # its row could not be read
            del model.finished[job_id], model.finished_in[job_id]
        for job_id in model.table.keys() & jobs.keys() - before.jobs.keys() if before.segments else ():
            job = model.table[job_id]
            more = jobs[job_id]["attempts_before"] - job["attempts_before"]
            if 0 < more <= after.attempt_floor:
                raised = {name: job[name] + more for name in ("attempt", "attempts_before")}
                model.table[job_id] = {**job, **raised}
        for job_id, job in before.jobs.items():
            if job_id in model.table and job_id in jobs and not (job.get("sequence") and job.get("created_at")):
                unsaid = {name: jobs[job_id][name] for name in ("place", "created_at")}
                model.table[job_id] = {**model.table[job_id], **unsaid}
        for job_id in model.table.keys() - jobs.keys():
            if model.is_outlived(model.table[job_id]):  # any commit may remove it
                model.remove(model.table[job_id], EXPIRED if model.table[job_id]["status"] == "queued" else REMOVED)
        for job_id in after.rows.keys() - model.table.keys():
            expired = jobs[job_id]["expires_at"]
            if expired is not None and expired <= model.now:  # the row is not loaded, and leaves when it is
                model.table[job_id] = jobs[job_id]
        if not before.last_sequence:
            model.places = max(model.places, after.last_sequence)

    def _note_beats(self, before: Version, after: Version) -> None:
        for job_id, job in after.jobs.items():
            old = before.jobs.get(job_id)
            if job is not old and job.get("heartbeat_at") and (old or {}).get("heartbeat_at") != job["heartbeat_at"]:
                self.moved[Claim(job_id, job["attempt"])] = after.at

    def _note_claims(self, applied: AppliedCall, call: Call, after: Version) -> None:
        if not isinstance(applied.outcome, list):
            return
        for operation, result in zip(applied.operations, applied.outcome, strict=True):
            self._count(operation, result)
            if isinstance(operation, Dequeue | ClaimLease) and isinstance(result, list):
                for claimed in result:
                    self.made[call].append((claimed.claim, after))
                    self._maker[claimed.claim] = call

    def _count(self, operation: Operation, result: object) -> None:
        done = not isinstance(result, Exception)
        order = operation.operation if isinstance(operation, Guarded) else operation
        self.seen["job changed by an order"] += done and order is not operation and isinstance(order, Reprioritise)
        self.seen["cron entry run by an order"] += done and isinstance(order, RunSchedule)
        if isinstance(operation, EnqueueSegments) and operation.transaction is not None:
            self.seen["transaction landed"] += isinstance(result, BulkAdded)
        self.seen["step recorded"] += isinstance(operation, RecordStep) and result is None
        if isinstance(operation, Dequeue) and isinstance(result, list):
            self.seen["job with steps claimed"] += sum(bool(job.steps) for job in result)
            self.seen["claimed with a holder"] += sum(job.holder.startswith("holder") for job in result if job.holder)

    def _count_step(self, before: Version, after: Version) -> None:
        new = after.jobs.keys() - before.jobs.keys()
        self.seen["cron entry fired"] += sum(job_id.startswith("cron:") for job_id in new)
        for job_id, job in after.jobs.items():
            if status_of(job) == COMPLETED and job_id in before.jobs and status_of(before.jobs[job_id]) != COMPLETED:
                self.seen["result dropped" if job.get("result_dropped") else "result kept"] += 1
        gone = (job for job_id, job in before.jobs.items() if job_id not in after.jobs)
        self.seen["result gone"] += sum(status_of(job) == COMPLETED for job in gone)

    # Where operations come from

    def _check_origin(
        self, applied: AppliedCall, call: Call | None, after: Version, *, is_new: bool, travelled: bool
    ) -> None:
        """Check that operations belong to a call, and land once.

        Args:
            applied: the operations.
            call: the call to which they belong.
            after: the version that they made.
            is_new: False for a batch that was done before, or changes nothing.
            travelled: True if another process may have committed them.
        """
        for operation in applied.operations:
            if isinstance(operation, Sweep):
                self._check_sweep(operation, after)
            elif isinstance(operation, HandBack):
                self._check_hand_back(operation, after)
            elif isinstance(operation, HandBackCalls):
                self._check_calls_handed_back(operation.calls, after)
            elif isinstance(operation, Nack) and SET_ASIDE in str(operation.error):
                continue
            elif (
                not isinstance(operation, (*BY_ITSELF, Configure))
                and call is None
                and not self._is_late(operation, after)
            ):
                raise Violation(9, f"{type(operation).__name__} landed, and nobody had called", version=after)
        if call is None or isinstance(applied.operations[0], (*LOOKS, Dequeue, HandBack, EmptyCommit)):
            return
        if (call.process != after.by and not travelled) or call.started > after.at:
            raise Violation(9, f"landed with a write of {after.by}", call=call, version=after)
        if not is_new:
            return
        if id(applied.operations) in self._carried:
            raise Violation(2, "landed twice", call=call, version=after)
        self._carried.add(id(applied.operations))
        for operation in applied.operations:
            self._check_given(operation, call, after)

    def _is_late(self, operation: Operation, after: Version) -> bool:
        """Return True for a dequeue whose caller may have left, without an answer, while rows were loaded for it."""
        calls = self._calls.by_verb["dequeue"] if isinstance(operation, Dequeue) else ()
        ends = [
            each.ended for each in calls if each.process == after.by and isinstance(each.error, UnknownOutcomeError)
        ]
        return any(after.at - NOTICED < end < after.at for end in ends)

    def _check_given(self, operation: Operation, call: Call, after: Version) -> None:
        """Check that a job is added with what its caller gave."""
        if isinstance(operation, Enqueue) and call.verb == "enqueue":
            for name in CHECKED:
                if name in call.given and getattr(operation, name) != call.given[name]:
                    raise Violation(2, f"{operation.id} was added with another {name}", call=call, version=after)

    def _check_sweep(self, sweep: Sweep, after: Version) -> None:
        """Check that the claims that are revoked have stood still for their timeouts, or that their processes died."""
        for claim, beat in sweep.orphans:
            for job in self._model.seen_as(claim, beat):
                self.seen["claim of a dead process revoked"] += 1
                self.seen["job that may kill lost again"] += is_suspect(job)
                if self._deaths.get(job["holder"], NEVER) > after.at:
                    raise Violation(6, f"{claim} was revoked, and the process of {job['holder']} lives", version=after)
        for claim, beat in sweep.suspects:
            held, job = self._model.leases.get(claim.job_id), self._model.find(claim.job_id)
            if held is not None and (held["attempt"], held["heartbeat_at"]) == (claim.attempt, beat):
                job = next(map(self._model.find, self._model.ids_in(claim.job_id)), None)
                if job is None:  # all were cancelled
                    continue
            elif job is None or (job["status"], job["attempt"], job["heartbeat_at"]) != (
                "in_progress",
                claim.attempt,
                beat,
            ):
                continue
            if job is None or job["claim_timeout"] is None:
                continue
            moved, timeout = self.moved.get(Claim(job["id"], job["attempt"]), 0.0), job["claim_timeout"]
            stood = after.at - moved
            if stood < timeout:
                raise Violation(6, f"{claim} was revoked after {stood:.3f} of its {timeout:.3f} s", version=after)
            spans = [(max(moved, start), end) for start, end in self._standstills if moved < end < after.at]
            stood -= sum(end - start for start, end in spans)
            if spans and stood < timeout - NOTICED and after.at < spans[-1][1] + min(10, timeout / 3):
                what = f"{claim} was revoked after {stood:.3f} of its {timeout:.3f} s in which a process ran"
                raise Violation(6, what, version=after)

    def _check_calls_handed_back(self, calls: Collection[str], after: Version) -> None:
        self._note_looked(calls, after.at)
        held = [Claim(job["id"], job["attempt"]) for job in self._model.jobs if job["claim_call"] in calls]
        self.seen["claim of a lost answer handed back"] += len(held)
        self._check_hand_back(HandBack(tuple(held)), after)

    def _note_looked(self, calls: Iterable[str], at: float) -> None:
        for call in calls:
            self.looked_for.setdefault(call, at)

    def _check_hand_back(self, operation: HandBack, after: Version) -> None:
        for claim in operation.claims_made:
            call = self._maker.get(claim)
            if call is not None and call.succeeded and claim in claims_told(call):
                raise Violation(6, f"{claim} was handed back, and its holder had been told of it", version=after)

    # Looks

    def _check_looks(self, version: Version) -> None:
        """Check the answers that were given from a version, without a write."""
        for record in self._looks.get(version.number, ()):
            if record.at < version.at:
                continue
            before, changes = self._model.copy(), self._model.changes
            self._replay.begin(record.applied.now, version, version)
            try:
                for applied in record.applied.calls:
                    self._replay.call(applied)
                if self._model.changes != changes and not version.unsure:
                    raise Difference("nothing was written, and something is to change")
            except Difference as difference:
                call = next((each for each in record.calls if each is not None), None)
                self._unlike.setdefault(record, Violation(3, str(difference), version=version, call=call))
            else:
                self._unlike[record] = None
                for applied, call in zip(record.applied.calls, record.calls, strict=True):
                    for share, its in self._shares(applied, call, version):
                        if its is not None:
                            self.answers[its].append(Answer(version, share, landed=False))
                        for operation in share.operations:
                            self._note_looked(getattr(operation, "calls", ()), record.at)
            self._model.restore(before)


def claims_told(call: Call) -> set[Claim]:
    """Return the claims that the caller of a dequeue was told of."""
    told = call.result if isinstance(call.result, list) else []
    return {each.claim for each in told if hasattr(each, "claim")}
