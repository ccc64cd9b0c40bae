"""Applies recorded operations to the plain model, and compares the outcome of each with what its caller was to be told.

Some operations name things that only the store has: the rows of a segment, the content of an object. They are looked up
in the objects of the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from itertools import chain, islice
from typing import Any

from msgspec.structs import replace
from pydantic_core import from_json

from jqueue import JQueueError, StorageError
from jqueue.domain.errors import DeadlineExceededError, GroupEndedError, JobCancelledError, JobNotFoundError
from jqueue.domain.header import BrokerSeat, WorkerRecord
from jqueue.domain.job import Step
from jqueue.domain.models import AnyJob, for_callers
from jqueue.domain.operations import lookups
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.bulk import BulkAdded, BulkConflicts, EnqueueSegments, NewSegment, StagedReceipt
from jqueue.domain.operations.codec import (
    REFUSALS_KEPT,
    TRAVELLING,
    AllOrNothing,
    ClientBatch,
    Guarded,
    decode_operation,
    encode_operation,
)
from jqueue.domain.operations.ends import Ack, Heartbeat, RecordStep
from jqueue.domain.operations.groups import GroupStatus
from jqueue.domain.rules import EntrypointRules, QueueSettings, Schedule
from jqueue.operations import ClaimLease, Dequeue, EndLease, Enqueue, Lease, Purge
from jqueue.ports.observer import AppliedCall
from tests.simulation.actors import Mistake
from tests.simulation.chain import Version, object_of, read_segments
from tests.simulation.history import Evidence
from tests.simulation.modelled import Model, is_whole, job_of
from tests.simulation.plain_queue import may_be_leased
from tests.simulation.plain_rules import NO_RULES
from tests.simulation.plain_values import JobFields, Refused

OPTIONS = (
    *("run_at", "expires_at", "max_attempts", "headers", "unique_key", "unique_for", "concurrency_key"),
    *("concurrency_limit", "fair_key", "keep_result", "group", "encoding", "after", "on_dead", "fair_weight"),
)
CLOCKS_DIFFER = 60.0
"""Seconds by which a job may be younger than its segment, as the clocks of two writers may differ."""


class Difference(Exception):
    """The queue has done something else than the model."""


class Replay:
    """The model, and what it needs to know of the store.

    Args:
        model: the model.
        evidence: of the seed. The rows of damaged segments need not be found.

    Attributes:
        compares: False to apply operations, and to compare no outcomes.
    """

    def __init__(self, model: Model, evidence: Evidence) -> None:
        self.model = model
        self._seed = evidence
        self._segments = read_segments(evidence.objects)
        self.compares = True
        self._unsure: frozenset[str] = frozenset()
        self._before = self._after = Version()
        self._may_raise_floor = False

    def begin(self, now: datetime, before: Version, after: Version) -> None:
        """Begin with a commit.

        Args:
            now: the time by which its operations were applied.
            before: the version to which they were applied.
            after: the version that it made.
        """
        self.model.now, self.model.expired, self.model.hidden = now, {}, {}
        self.model.workers, self.model.writers = dict(before.workers), before.writers
        self._before, self._after = before, after
        self._may_raise_floor = bool(before.segments)  # by the attempts of whole segments
        self._unsure = before.unsure | after.unsure
        self.model.staying = frozenset(
            job_id
            for job_id in before.rows.keys() & after.rows.keys()
            if before.jobs[job_id].get("expires_at") and before.jobs[job_id] == after.jobs[job_id]
        )
        self.model.leases = dict(sorted(self.model.leases.items(), key=lambda item: self._last_place(item[1]["rows"])))
        same = before.schedules.items() if self._unsure else ()
        self.model.not_fired = frozenset(
            name
            for name, entry in same
            if name in after.schedules and after.schedules[name].get("fired") == entry.get("fired")
        )
        self.model.begun = {
            job_id: min(job.get("attempts_before", 0), after.attempt_floor)
            for job_id, job in (after.jobs.items() if self._may_raise_floor else ())
            if job_id not in before.jobs and job_id.startswith("cron:")
        }
        self.model.stuck = frozenset(
            lease_id for lease_id in before.leases if object_of(lease_id) in self._seed.damaged
        ) & frozenset(after.leases)

    def _last_place(self, ids: Iterable[str]) -> int:
        """Return the last place that jobs have afterwards: no rule says which of several stale leases goes first."""
        jobs = self._after.jobs
        return max((jobs[job_id].get("sequence", 0) for job_id in ids if job_id in jobs), default=0)

    # Calls

    def call(self, applied: AppliedCall) -> None:
        """Apply the operations of one call.

        Raises:
            Difference: the outcome is another one.
        """
        before, told = self.model.copy(), applied.outcome
        if _is_beyond(told):
            return
        if isinstance(told, JQueueError):
            expected = self._first_refusal(applied)
            self.model.restore(before)
            self._check_same(expected, told, applied.operations[0])
            return
        as_one = any(isinstance(operation, Enqueue) for operation in applied.operations)  # no `apply_each` has any
        for operation, result in zip(applied.operations, told, strict=True):
            self._one(operation, result, as_one=as_one)
        self.model.settle_groups()

    def _first_refusal(self, applied: AppliedCall) -> Refused | None:
        for operation in applied.operations:
            try:
                self._perform(operation, applied.outcome)
            except Refused as refusal:
                return refusal
        return None

    def _one(self, operation: Operation, told: Any, *, as_one: bool = False) -> None:
        if _is_beyond(told):
            return
        if isinstance(operation, ClientBatch):
            self._batch(operation, told)
            return
        before = self.model.copy()
        try:
            expected = self._perform(operation, told)
        except Refused as refusal:
            self.model.restore(before)
            expected = refusal
        self._check_same(expected, told, operation)
        if not as_one:
            self.model.settle_groups()

    def _batch(self, batch: ClientBatch, told: list[Any]) -> None:
        """Do the calls of another process, each by itself; or compare what can still be told of them."""
        model, record = self.model, self.model.clients.get(batch.client)
        answers = list(zip(batch.operations, told, strict=True))
        if record is not None and record[0] == (batch.sequence, batch.token):
            for place, (operation, answer) in enumerate(answers):
                self._known(operation, record[3].get(str(place)), answer)
            return
        if record is not None and record[0][0] >= batch.sequence:
            raise Difference(f"batch {batch.sequence} is done, and a later one was done before")
        if not model.clients_evicted <= batch.base <= model.version:
            raise Difference(f"batch {batch.sequence} is done, and may have been done before")
        changes = model.changes
        for place, (operation, answer) in enumerate(answers):
            is_late = batch.due[place] <= model.now
            if is_late != isinstance(answer, DeadlineExceededError):
                raise Difference(f"{type(operation).__name__} was {'done' if is_late else 'not done'} at its deadline")
            self._one(operation, answer)
        if batch.again or model.changes != changes:
            refused = {str(place): type(each).__name__ for place, each in enumerate(told) if _is_refusal(each)}
            kept = dict(list(refused.items())[:REFUSALS_KEPT])
            model.clients[batch.client] = ((batch.sequence, batch.token), model.version + 1, len(refused), kept)
            model.changes += 1

    def _known(self, operation: Operation, refusal: str | None, told: Any) -> None:
        if refusal is not None and type(told).__name__ != refusal:
            raise Difference(f"{type(operation).__name__} was refused with {refusal}, and ends with {_short(told)}")
        if refusal is not None or _is_beyond(told):
            return
        if isinstance(operation, lookups.TRAVELLING):
            self._one(operation, told)
        else:
            each = operation.operations if isinstance(operation, AllOrNothing) else (operation,)
            expected = [self.model.recovered(one, getattr(one, "jobs", ())) for one in each]
            self._check_same(expected if isinstance(operation, AllOrNothing) else expected[0], told, operation)

    def _check_same(self, expected: Any, told: Any, operation: Operation) -> None:
        if self.compares:
            check_same(expected, told, operation)

    # Operations

    def _perform(self, operation: Operation, told: Any) -> Any:
        """Apply one operation, as another process would get it, and return the outcome."""
        if isinstance(operation, TRAVELLING):
            operation = decode_operation(encode_operation(operation))
        match operation:
            case Mistake():
                raise Refused(JQueueError)
            case Enqueue():
                self._raise_floor([told])
                return self.model.enqueue(self._with_payload(operation), operation.new_id)
            case Dequeue():
                jobs = told if isinstance(told, list) else []
                hints = [job.id for job in jobs]
                self._raise_floor(job for job in jobs if job.id not in self.model.table)  # of a cron entry
                names = operation.entrypoints
                return self.model.dequeue(operation, names, operation.claim_timeout, hints, self._unsure)
            case ClaimLease():
                return self._claim_lease(operation, told)
            case EndLease():
                return self.model.end_lease(operation, remembered=not self._is_own(operation.lease))
            case EnqueueSegments():
                try:
                    return self._enqueue_segments(operation, told)
                except Refused as refusal:
                    if refusal.kind is GroupEndedError:  # of several groups that take no jobs, it may name any
                        raise Refused(GroupEndedError) from None
                    raise
            case lookups.LastSequence():
                return told
            case AllOrNothing(operations):
                several = told if isinstance(told, list) else [told] * len(operations)
                return [self._perform(each, one) for each, one in zip(operations, several, strict=True)]
            case Purge():
                return self._purge(operation, told)
            case lookups.AwaitResult(job_id) if isinstance(told, JobCancelledError):
                known = self.model.find(job_id) is None and job_id in self.model.cancelled  # the last ones are
                raise Refused(JobCancelledError if known else JobNotFoundError, job_id=job_id)
            case Ack() if operation.result_object is not None:
                content = from_json(self._seed.objects[operation.result_object.suffix][1])
                found = Ack(operation.job, content, keep_result=operation.keep_result)
                return self.model.perform(found, [operation.job])
            case RecordStep() if operation.result_object is not None:
                content = from_json(self._seed.objects[operation.result_object.suffix][1])
                operation = replace(operation, result=content)
        claims = operation.jobs if isinstance(operation, Heartbeat) else [getattr(operation, "job", None)]
        return self.model.perform(operation, claims)

    def _raise_floor(self, told: Iterable[Any]) -> None:
        """Raise the floor to where jobs begin: other operations of the commit may have raised it by whole segments."""
        if self._may_raise_floor:
            begun = [job.attempts_before for job in told if isinstance(job, AnyJob)]
            floor = min(max(begun, default=0), self._after.attempt_floor)
            self.model.attempt_floor = max(self.model.attempt_floor, floor)

    def _purge(self, asked: Purge, told: Any) -> int:
        """Purge jobs. An expired job goes with the others if no operation before has loaded its row."""
        cutoff = asked.before if asked.older_than is None else self.model.later(-asked.older_than)
        edge = -math.inf if cutoff is None else cutoff.timestamp() - CLOCKS_DIFFER
        old = {name for name, entry in self._before.segments.items() if 0 < entry.get("at", 0) < edge}
        aged = frozenset(job_id for job_id, (name, _) in self._before.rows.items() if name in old)
        unread = self._unsure & self._after.jobs.keys()
        before = self.model.copy()
        purged: int = self.model.purge(asked, aged, unread)
        unloaded = [
            job_id
            for job_id, job in self.model.expired.items()
            if job_id in self._before.rows and asked.entrypoint in (None, job["entrypoint"])
        ]
        if isinstance(told, int) and 0 < told - purged <= len(unloaded):
            self.model.restore(before)
            for job_id in unloaded[purged - told :]:
                self.model.bring_back(job_id)
            purged = self.model.purge(asked, aged, unread)
        return purged

    def _with_payload(self, new: Enqueue) -> Enqueue:
        """Return an enqueue with the payload that is in an object."""
        stored = new.payload_object
        return new if stored is None else replace(new, payload=self._seed.objects[stored.suffix][1])

    def _asked(self, values: Any, job_id: str | None, on_conflict: Any) -> Enqueue:
        stored = values.get("payload_object")
        payload = values["payload"] if stored is None else self._seed.objects[stored.suffix][1]
        options = {name: values[name] for name in OPTIONS if values.get(name) is not None}
        options |= {} if job_id is None else {"job_id": job_id}
        return Enqueue(values["entrypoint"], payload, values["priority"], on_conflict=on_conflict, **options)

    def _last(self, transaction: Any) -> int | None:
        return None if transaction is None else self.model.transactions.get(transaction[0])

    def _enqueue_segments(self, asked: EnqueueSegments, told: Any) -> Any:
        last = self._last(asked.transaction)
        if isinstance(told, BulkConflicts):  # its caller tries again in another way
            if (
                not self.model.transactions.get((asked.transaction or ("", 0))[0], -1)
                >= (asked.transaction or (0, 0))[1]
            ):
                self.model.drop_outlived()
            return told
        if self.model.is_repeated(asked.transaction):
            return 0, 0, True, last
        if self.compares and isinstance(told, BulkAdded) and told.offset != self.model.places:
            raise Difference(f"jobs are numbered from {told.offset} on, and {self.model.places} was the last number")
        self.model.drop_outlived()
        jobs, rows = [], {}
        singles = dict([*asked.few, *(each for read in asked.read.values() for each in read.values())])
        alone = told.one_by_one if isinstance(told, BulkAdded) else singles
        for number in alone:
            new = singles[number]
            jobs.append((number, self._with_payload(new), new.id, asked.created_at))
        for segment in asked.segments:
            for job in self._rows_of(segment, told):
                number = job["place"] + segment.behind
                if segment.turn is not None:
                    number = asked.numbers[job["entrypoint"], *segment.turn][job["place"] - 1]
                if number in alone:
                    continue
                one = self._asked(job, job["id"] if segment.caller_ids else None, "return")
                jobs.append((number, one, job["id"], job["created_at"]))
                rows[number] = job
        if isinstance(told, BulkAdded):
            own = ((job, number) for number, job in told.one_by_one.items() if singles[number].job_id is not None)
            begun = (job for job, number in own if number not in told.there)
            self._raise_floor(islice(begun, 1))  # the first: a job that is replaced may raise the floor of later ones
        found = self.model.enqueue_numbered(jobs, asked.jobs, asked.numbers)
        if not isinstance(told, BulkAdded):
            return None
        for number, job in rows.items():
            added = found[number]
            if added["id"] == job["id"] and added["created_at"] == job["created_at"]:
                self._take_attempt(added, job)
        for number, there in told.one_by_one.items():
            self._check_same(found[number], there, asked)
        return told

    def _take_attempt(self, added: JobFields, row: JobFields) -> None:
        """Let a job begin with the attempt that its row has, which must not be below the floor."""
        if row["attempt"] < added["attempt"]:
            raise Difference(f"{row['id']} begins with attempt {row['attempt']}, and {added['attempt']} is the floor")
        fields = {name: row[name] for name in ("attempt", "attempts_before")}
        self.model.table[added["id"]] = {**added, **fields}

    def _rows_of(self, new: NewSegment, told: Any) -> Iterable[JobFields]:
        segment, floor = self._segments(new.name), told.attempt if new.caller_ids and isinstance(told, BulkAdded) else 0
        jobs = [] if segment is None else [job_of(row.job_id, row.job) for row in segment.rows]
        return [
            {**job, "attempt": job["attempt"] + floor, "attempts_before": job["attempts_before"] + floor}
            for job in jobs
        ]

    # Leases

    def _ids_in(self, name: str, rows: Iterable[int]) -> list[str]:
        segment = self._segments(name)
        return [] if segment is None else [segment.rows[row].job_id for row in rows]

    def _is_own(self, claim: Any) -> bool:
        """Return True if jqueue made the ids of all jobs of a lease."""
        held = self._before.leases.get(claim.job_id)
        return held is not None and bool(held.get("own_ids"))

    def _claim_lease(self, asked: ClaimLease, told: Any) -> Any:
        model = self.model
        model.drop_outlived()
        model.end_missing_parents()
        model.fire()
        if not isinstance(told, list) or not told:
            return []
        claim: Lease = told[0]
        rows = list(chain.from_iterable(range(*span) for span in claim.entry.spans))
        ids = self._ids_in(claim.segment, rows)
        if f"{model.table[ids[0]]['priority']}:{asked.entrypoint}" in model.turns:
            raise Difference("rows were leased while keys take turns")
        first = model.next_to_claim((asked.entrypoint,), asked.through, ids[0], self._unsure, holder=asked.holder)
        if first is None or first["id"] != ids[0]:
            raise Difference(f"a lease begins with {ids[0]}, and the next job is {first and first['id']}")
        jobs = [model.table[job_id] for job_id in ids if job_id in model.table]
        rules = model.rules.get(asked.entrypoint, NO_RULES)
        if len(jobs) < len(ids) or len(ids) > asked.rows or rules != NO_RULES:
            raise Difference(f"a lease has {len(ids)} jobs, and {len(jobs)} may be claimed, with the rules {rules}")
        for job in jobs:
            is_due = job["run_at"] is None or job["run_at"] <= model.now or not self._seed.tells_time
            is_fit = job["status"] == "queued" and job["entrypoint"] == asked.entrypoint and may_be_leased(job)
            if not (is_due and is_fit):
                raise Difference(f"{job['id']} was leased, and must not be")
        whole = is_whole(claim.entry.failures, claim.entry.spare)
        model.claim_lease(claim.claim, dict(zip(ids, rows, strict=True)), asked.claim_timeout, asked.holder, whole)
        return told


def _is_refusal(told: Any) -> bool:
    return isinstance(told, JQueueError)


def _is_beyond(told: Any) -> bool:
    """True if an outcome is about the store, of which the model knows nothing."""
    return isinstance(told, StorageError)


def check_same(expected: Any, told: Any, operation: Operation) -> None:
    """Compare an outcome with that of the model.

    Raises:
        Difference: it is another one.
    """
    if not _is_same(expected, told):
        name = type(operation.operation if isinstance(operation, Guarded) else operation).__name__
        raise Difference(
            f"{name} ends with {_short(told)}, and the model says {_short(expected)}{_fields(expected, told)}"
        )


def _is_same(expected: Any, told: Any) -> bool:
    told = for_callers(told)
    if isinstance(expected, Refused):
        said = {name: getattr(told, name, None) for name in expected.said}
        return expected.kind is type(told) and expected.said == said
    if expected is told:
        return True
    if isinstance(expected, tuple) and isinstance(told, StagedReceipt):
        return expected == (told.added, told.taken, told.repeated, told.version)
    if isinstance(told, AnyJob):
        apart = {"payload"} if told.payload_object is not None or type(told.payload) is not bytes else set()
        apart |= {"result"} if told.result_object is not None else set()
        names = expected.keys() - apart - {"place", "lease", "steps"}
        is_there = "place" not in expected or expected["place"] == told.sequence
        is_there = is_there and _is_same([*expected.get("steps", ())], told.steps)
        return is_there and all(expected[name] == getattr(told, name, None) for name in names)
    if isinstance(told, Step):
        return told[:3] == expected[:3] and (told.result_object is not None or told.result == expected[3])
    if isinstance(told, BrokerSeat):
        return bool(expected == (told.writer, told.url, told.term, told.doubted_at))
    records = EntrypointRules | QueueSettings | Schedule | WorkerRecord | GroupStatus
    if isinstance(told, records) and isinstance(expected, dict):
        return all(value == getattr(told, name) for name, value in expected.items())
    if isinstance(told, list | tuple) and isinstance(expected, list):
        return len(expected) == len(told) and all(map(_is_same, expected, told))
    if isinstance(told, JQueueError):
        return False
    return bool(expected == told)


def _fields(expected: Any, told: Any) -> str:
    """Return the fields in which the first job that is told of is another than in the model."""
    told = for_callers(told)
    if isinstance(expected, list) and isinstance(told, list) and len(expected) == len(told):
        return next((said for said in map(_fields, expected, told) if said), "")
    if not isinstance(told, AnyJob) or not isinstance(expected, dict) or expected["id"] != told.id:
        return ""
    both = {name: (getattr(told, name, None), value) for name, value in expected.items() if name != "lease"}
    both["place"] = told.sequence, expected.get("place")
    return f": { ({name: pair for name, pair in both.items() if pair[0] != pair[1]}) }"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_short, value))}]"
    if isinstance(value, AnyJob):
        return f"{value.id} ({value.status}, attempt {value.attempt})"
    if isinstance(value, dict) and "id" in value:
        return f"{value['id']} ({value.get('status')}, attempt {value.get('attempt')})"
    return repr(value)
