"""A queue as the documentation describes it, as plain as possible: a dict of jobs, searched from end to end.

The simulation compares every version of a queue with it. It was written from README.md, docs/ and the docstrings of the
verbs, and shares nothing with `jqueue.domain` but the public names of operations and errors. `jqueue` is fast because
it has heaps, drafts and journals; this one is right because it has none.
"""

import json
from collections import Counter
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

from jqueue import ClaimLostError, DuplicateJobError, InvalidJobError, JobFailedError, JobNotFoundError, JobStateError
from jqueue.domain.errors import ChangedMeanwhileError, JobCancelledError, ResultNotKeptError
from jqueue.domain.header import QUIET
from jqueue.domain.job import JobRecord
from jqueue.domain.limits import Limits
from jqueue.domain.models import job_of
from jqueue.domain.operations.codec import Guarded
from jqueue.domain.operations.ends import HandBack, HandBackCalls, RecordStep, Sweep
from jqueue.domain.operations.groups import OnGroup
from jqueue.domain.operations.lookups import AwaitResult, LastTransaction
from jqueue.domain.operations.operator import Attend, CreateQueue, EmptyCommit, LeaveSeat, TakeSeat
from jqueue.errors import WorkerNotFoundError
from jqueue.operations import (
    Ack,
    Cancel,
    Enqueue,
    Heartbeat,
    Nack,
    Purge,
    Redrive,
    Reprioritise,
    RequeueStale,
    Reschedule,
    StopWorker,
)
from tests.simulation.plain_groups import PlainGroups
from tests.simulation.plain_rules import PlainRules
from tests.simulation.plain_values import (
    ABSENT,
    AS_ASKED,
    BLOB_BYTES,
    DIED,
    ENTRY,
    GONE,
    NO_CLAIM,
    ORDERED,
    SPARED,
    STALE,
    JobFields,
    Refused,
    ended,
    is_suspect,
    kept_text,
    process_of,
    step_of,
)

TABLES = (
    *("table", "finished", "finished_in", "holds", "rules", "claims_made", "settings", "schedules", "counters"),
    *("transactions", "leases", "clients", "workers", "groups", "turns", "fair", "key_claims"),
)
ERRORS_KEPT, ERROR_BYTES = 5, 256
"""Number of the errors that are kept of a job's attempts, and the size of each."""

FINISHED_LEFT, FINISHED_MINUTES, FINISHED_BYTES, FINISHED_SHARE = 1000, 60, 262_144, 32
"""Number of ids of finished jobs that are kept whatever their age; minutes for which all others are; bytes of all above
which the oldest quarter is forgotten; the same as a part of the size limit."""

ENQUEUED, CLAIMED, DONE, FAILED, RETRIED, DEAD, CANCELLED, EXPIRED, RECOVERED, REMOVED = range(10)
"""The counters of an entrypoint, in their order."""


SINGLE = ("keep_result", "concurrency_key", "fair_key", "expires_at", "unique_for", "group", "progress")
"""Fields of a job that is never leased."""


class PlainQueue(PlainGroups, PlainRules):
    """The whole queue, and the effect of each operation on it.

    Attributes:
        table: every job by its id, as a dict of the fields of `jqueue.Job`, with `place` for `sequence`. A job is
            replaced when it changes.
        changes: counts every change; a call that adds none must write nothing.
        now: the time, set by the test.
        holder: name kept with claims whose dequeue gives none.
        blob_bytes: size limit of the queue object that commits.
        counters: what happened to the jobs of each entrypoint.
        finished: the attempt of each job that ended a short while ago, by its id.
        finished_in: the minute of its end, since 1970.
        cancelled: the ids of all jobs that left as they were cancelled.
        transactions: the last version of each application that adds jobs in transactions.
        leases: the leases by id: the attempt, the last heartbeat, the row of each job by its id, and True if it can be
            given back whole when it is stale: none of its jobs can be out of attempts.
        stuck: ids of leases that stay claimed, as not all that their end needs can be read.
        clients: the last batch of each client of a broker: its number and token, its version, the number of its
            refusals, and the names of the first ones by place.
        clients_evicted: the last version whose batch is forgotten.
        workers: the name, host and pid of each worker by the id of its run, with `stopping` if it is told to stop.
        broker: the writer, the URL and the term of the broker's seat, and the time at which it was doubted.
        writers: the time of each writer's last commit, in seconds since 1970.
        groups: see `PlainGroups`.
        turns: by priority and entrypoint, the place of the last claimed job, while jobs with fair keys wait.
        fair: then, the place of the last job of each key.
        hidden: jobs that have expired, and may still wait as nothing has read them.
    """

    stuck: frozenset[str] = frozenset()
    blob_bytes = Limits().blob_bytes

    def __init__(self):
        super().__init__()
        self.table: dict[str, JobFields] = {}
        self.finished: dict[str, int] = {}
        self.cancelled: set[str] = set()
        self.finished_in: dict[str, int] = {}
        self.holds: dict[str, tuple[str, datetime]] = {}
        self.counters: dict[str, tuple[int, ...]] = {}
        self.transactions: dict[str, int] = {}
        self.leases: dict[str, dict[str, Any]] = {}
        self.clients: dict[str, tuple[tuple[int, str], int, int, dict[str, str]]] = {}
        self.clients_evicted = 0
        self.workers: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.broker = ("", "", 0, 0.0)
        self.writers: dict[str, float] = {}
        self.turns: dict[str, int] = {}
        self.fair: dict[str, dict[str, int]] = {}
        self.hidden: dict[str, JobFields] = {}
        self.holder: Any = None
        self.attempt_floor = 0
        self.places = 0
        self.changes = 0
        self.version = 0

    @property
    def jobs(self):
        """Every job."""
        return list(self.table.values())

    def copy(self):
        """Return a copy of everything, for `restore`."""
        return {**vars(self), **{name: dict(getattr(self, name)) for name in TABLES}}

    def restore(self, copy):
        """Restore everything from a copy."""
        vars(self).update(copy)

    def committed(self):
        """Commit: increment the version, release keys whose time is over, and forget ids that finished long ago.

        If an id comes again, its attempts continue above those of all that are forgotten.
        """
        self.version += 1
        for name in [*self.turns]:
            if not self.has_waiting(name.split(":", 1)[1]):
                self.stop_turns(name)
        self.holds = {key: hold for key, hold in self.holds.items() if hold[1] > self.now}
        minute = int(round(self.now.timestamp(), 3) // 60)
        latest = max([minute, *self.finished_in.values()])
        self.finished_in = {job_id: self.finished_in.get(job_id, latest) for job_id in self.finished}
        old = sum(ended < minute - FINISHED_MINUTES for ended in self.finished_in.values())
        oldest = min(self.finished_in.values(), default=minute)
        self.finished_in |= dict.fromkeys(list(self.finished)[:old], oldest)  # their minutes no longer matter
        gone = max(0, min(old, len(self.finished) - FINISHED_LEFT))
        most = min(FINISHED_BYTES, (self.settings["blob_bytes"] or self.blob_bytes) / FINISHED_SHARE)
        if len(json.dumps(self.finished, separators=(",", ":"), ensure_ascii=False).encode()) > most:
            gone = max(gone, -(-len(self.finished) // 4))
        for job_id in list(self.finished)[:gone]:
            del self.finished_in[job_id]
            self.attempt_floor = max(self.attempt_floor, self.finished.pop(job_id))

    def find(self, job_id):
        """Return the job with this id, or None."""
        return self.table.get(job_id)

    def perform(self, operation, claims):
        """Perform one operation. Returns its result; raises Refused, with nothing changed."""
        before = self.copy()
        try:
            return self._do(operation, claims)
        except Refused:
            self.restore(before)
            raise

    def _do(self, operation, claims):
        match operation:
            case Guarded(guarded):
                self.check(operation)
                return self._do(guarded, claims)
            case Ack():
                return self.ack(claims[0], operation)
            case Nack():
                return self.nack(claims[0], operation)
            case Heartbeat():
                return self.heartbeat(claims, operation.tolerant, operation.progress)
            case RecordStep():
                return self.record_step(claims[0], operation)
            case HandBack():
                return sum(self.hand_back(*claim) for claim in operation.claims_made)
            case HandBackCalls(calls):
                return self.hand_back_calls(calls)
            case Redrive():
                return self.redrive(operation)
            case Purge():
                return self.purge(operation)
            case RequeueStale(timeout):
                return self.requeue_stale(timeout)
            case Sweep(suspects, orphans):
                return self.sweep(suspects, orphans)
        return self._look_or_order(operation)

    def _look_or_order(self, operation):
        match operation:
            case Cancel(job_id, running):
                return self.cancel(job_id, running)
            case Reschedule(job_id, delay=delay, run_at=run_at):
                return self.alter(job_id, run_at=self.later(delay) if delay else run_at)
            case Reprioritise(job_id, priority):
                return self.alter(job_id, priority=priority)
            case AwaitResult(job_id):
                return self.look_for_result(job_id)
            case LastTransaction(app):
                return self.transactions.get(app)
            case CreateQueue():
                if self.version or self.table:
                    raise Refused(InvalidJobError)
                self.changes += 1
                return None
            case EmptyCommit():
                self.changes += 1
                return None
            case Attend(workers):
                return self.attend(workers)
            case StopWorker(worker):
                return self.stop_worker(worker)
            case TakeSeat(url, writer, seen_term):
                if self.broker[2] != seen_term:
                    raise Refused(ChangedMeanwhileError)
                self.broker = (writer, url, seen_term + 1, 0.0)
                self.changes += 1
                return self.broker
            case LeaveSeat(writer, term, doubted):
                last, at = self.writers.get(writer), round(self.now.timestamp(), 3)
                if self.broker[0] == writer and self.broker[2] == term:
                    if not doubted:
                        self.broker = ("", "", term, 0.0)
                        self.changes += 1
                    elif last is None or abs(self.now.timestamp() - last) > QUIET:
                        self.broker = (*self.broker[:3], at)
                        self.changes += 1
                return None
        if isinstance(operation, OnGroup):
            return self.on_group(operation)
        return self.decide(operation)

    # Jobs in and out

    def enqueue(self, asked, new_id, created_at=None, place=None):
        """Add a job, unless a job with its id or its unique key is there."""
        self.drop_outlived()
        there = self.find(new_id if asked.job_id is None else asked.job_id)
        is_taken = there is not None or asked.job_id in self.finished
        if is_taken and asked.job_id is not None and asked.on_conflict == "raise":
            raise Refused(DuplicateJobError, unique_key=None, job_id=asked.job_id)
        if there is not None:
            return there
        if asked.job_id in self.finished:
            return self._completed(asked.job_id)
        if asked.unique_key is not None:
            holder = self.key_holder(asked.unique_key)
            if holder is not None and asked.on_conflict == "replace":
                self._make_way(asked.unique_key, holder)
            elif holder is not None and asked.on_conflict == "raise":
                raise Refused(DuplicateJobError, unique_key=asked.unique_key, job_id=holder)
            elif holder is not None:
                live = self.find(holder)
                return self._completed(holder) if live is None else live
        waits_for = self.missing_parents(asked.after, asked.on_dead)
        created_at = self.now if created_at is None else created_at
        floor = 0 if asked.job_id is None else max(self.attempt_floor, self.begun.get(asked.job_id, 0))
        return self.add(
            id=new_id if asked.job_id is None else asked.job_id,
            attempt=floor,
            attempts_before=floor,
            payload=bytes(asked.payload),
            headers=dict(asked.headers or {}),
            created_at=created_at,
            run_at=asked.run_at if asked.delay is None else created_at + timedelta(seconds=asked.delay),
            place=place,
            after=tuple(asked.after),
            waits_for=waits_for,
            **{name: getattr(asked, name) for name in AS_ASKED},
        )

    def add(self, place=None, **fields):
        """Add a job, in its turn or at a given place."""
        self.check_member(fields.get("group"))
        job = {**ABSENT, "status": "queued", **fields}
        job["place"] = self.next_turn(job) if place is None else place
        self.table[job["id"]] = job
        self.count_member(job, added=1)
        self.count(job["entrypoint"], ENQUEUED)
        self.changes += 1
        return job

    def add_of_entry(self, entry, moment, job_id, on_conflict):
        """Enqueue a job of a cron entry."""
        headers = {**entry["headers"], "jqueue-scheduled-for": moment.isoformat()}
        values = {name: entry[name] for name in ENTRY if name in AS_ASKED or name == "payload"}
        drawn = on_conflict == "raise"
        values = {name: value for name, value in values.items() if value is not None}
        asked = Enqueue(**values, headers=headers, job_id=None if drawn else job_id, on_conflict=on_conflict)
        return self.enqueue(asked, job_id)

    def _completed(self, job_id):
        """Return the answer for an acked job, which has these fields only."""
        return {"id": job_id, "status": "completed", "attempt": self.finished.get(job_id, 0)}

    def _make_way(self, key, holder):
        live = self.find(holder)
        if live is None or live["status"] == "completed":
            del self.holds[key]
            self.changes += 1
        elif live["status"] == "queued":
            self.remove(live, CANCELLED)
        else:
            raise Refused(DuplicateJobError, unique_key=key, job_id=holder)

    def dequeue(self, asked, entrypoints, claim_timeout, wanted=(), unsure=frozenset()):
        """Claim jobs, the first one first.

        Args:
            asked: the operation.
            entrypoints: of the jobs; None: of any.
            claim_timeout: seconds that the claims last.
            wanted: ids of jobs, in order, that may be claimed although jobs in `unsure` come before them.
            unsure: ids of jobs that need not be found.
        """
        self.drop_outlived()
        self.end_missing_parents()
        self.fire()
        claimed: list[JobFields] = []
        hints = [*wanted, *[None] * asked.batch_size]
        while len(claimed) < asked.batch_size:
            holder = self.holder if asked.holder is None else asked.holder
            job = self.next_to_claim(entrypoints, asked.through, hints[len(claimed)], unsure, holder=holder)
            if job is None:
                break
            claimed.append(self.claim(job, claim_timeout, holder, queued_at=None, claim_call=asked.call))
            self.count_claims(job)
            self.take_turn(job)
        return claimed

    def claim(self, job, claim_timeout, holder, **more):
        """Begin a claim on a job."""
        self.count(job["entrypoint"], CLAIMED)
        return self.change(
            job,
            status="in_progress",
            attempt=job["attempt"] + 1,
            failures=job["failures"] + 1,
            heartbeat_at=self.now,
            claim_timeout=claim_timeout,
            holder=holder,
            claimed_at=None if holder is None else self.now,
            progress=None,
            **more,
        )

    # Claims

    def held(self, claim):
        """Return the job if the claim is current."""
        job_id, attempt = claim
        job = self.find(job_id)
        if not attempt and job is None:
            raise Refused(JobNotFoundError, job_id=job_id)
        is_current = job is not None and (job["status"], job["attempt"]) == ("in_progress", attempt)
        if not attempt or not is_current or "lease" in job:
            raise Refused(ClaimLostError, job_id=job_id, attempt=attempt or None)
        return job

    def ack(self, claim, asked):
        """Finish a job. Returns the size of a result for which there was no room."""
        job_id, attempt = claim
        there = self.find(job_id)
        is_gone = there is None or (there["status"], there["attempt"]) == ("completed", attempt)
        if attempt and self.finished.get(job_id) == attempt and is_gone:  # the same ack repeated
            return None if there is None else there["result_dropped"] or None
        job = self.held(claim)
        kept = asked.keep_result if job["keep_result"] is None else job["keep_result"]
        dropped = 0
        if kept is None and self.is_needed(job_id):
            kept = 0.0
        if kept is None or asked.keep_result == 0:
            del self.table[job_id]
        else:
            dropped = asked.result_bytes if asked.result_bytes >= BLOB_BYTES else 0
            result = None if dropped else json.loads(json.dumps(asked.result))
            more: JobFields = {"finished_at": self.now, "result": result, "result_dropped": dropped, "traceback": None}
            more |= {"keep_result": kept, "payload": b"", "cancel_requested": False, "steps": ()}
            self.change(job, status="completed", **NO_CLAIM, **more)
        self.count(job["entrypoint"], DONE)
        self.count_member(job, done=1)
        self.finished[job_id] = attempt
        self.end_parent(job_id, "done")
        if job["unique_key"] is not None and job["unique_for"]:
            self.holds[job["unique_key"]] = (job_id, self.later(job["unique_for"]))
        self.changes += 1
        return dropped or None

    def nack(self, claim, asked):
        """Give a job back."""
        job = self.held(claim)
        changes: JobFields = {}
        if asked.delay or asked.charge:
            changes["run_at"] = self.later(asked.delay) if asked.delay else None
        if asked.error is not None and not job["cancel_requested"]:
            text = kept_text(asked.error)
            changes |= {"error": text, "traceback": asked.traceback, "errors": self._errors_of(job, text)}
        if asked.charge:
            self.send_back(job, asked.dead, **changes)
        else:
            self.give_back(job, **changes, **self._returned(job))

    def give_back(self, job, **changes):
        """End a claim that does not count. The job keeps its place."""
        if job["cancel_requested"]:
            self.remove(job, CANCELLED)
            return
        self.change(job, status="queued", failures=max(0, job["failures"] - 1), **{**NO_CLAIM, **changes})

    def hand_back(self, job_id, attempt):
        """End a claim of which nobody was told. Returns 1 if it was current."""
        if self.is_lease(job_id, attempt):
            self.return_lease(job_id, charge=False)
            return 1
        try:
            job = self.held((job_id, attempt))
        except Refused:
            return 0
        self.give_back(job, **self._returned(job))
        return 1

    def hand_back_calls(self, calls):
        """End the claims that a broker made for calls whose answers were lost."""
        for job in self.jobs:
            if job["status"] == "in_progress" and job["claim_call"] in calls:
                self.hand_back(job["id"], job["attempt"])

    def recovered(self, operation, claims):
        """Return what can still be told of an operation that an earlier commit has done."""
        match operation:
            case Enqueue():
                there, key = self.find(operation.id), operation.unique_key
                if there is not None and operation.job_id is not None:
                    return there
                if there is None and operation.on_conflict == "return" and operation.id not in self.finished:
                    hold = self.holds.get(key or "", (operation.id, self.now))  # its time may be over by now
                    return {"id": self.key_holder(key) or hold[0]}
                return {"id": operation.id}
            case Heartbeat():
                before = self.copy()
                lost = self.heartbeat(claims, tolerant=True)
                self.restore(before)
                return lost
            case Attend(workers):
                return [run for run in workers if self.is_told(run)]
            case StopWorker(worker):
                return [self.workers[run] for run in self.named(worker) if self.is_told(run)]
            case OnGroup(group):
                return self.status_of(group)
        return None

    def send_back(self, job, dead, revoked=False, spared=False, **changes):
        """End a claim with a failure. A job that is spared is not charged with it, and keeps its place."""
        self.count(job["entrypoint"], FAILED, *[RECOVERED] * revoked)
        if job["cancel_requested"]:
            self.remove(job, CANCELLED)
            return
        if dead or (job["max_attempts"] is not None and job["failures"] >= job["max_attempts"]):
            self.change(job, status="dead", dead_at=self.now, **NO_CLAIM, **changes)
            self.count(job["entrypoint"], DEAD)
            self.count_member(job, dead=1)
            self.end_parent(job["id"], "dead")
        else:
            self.count(job["entrypoint"], RETRIED)
            changes |= {"failures": max(0, job["failures"] - 1)} if spared else {"place": self.next_turn(job)}
            self.change(job, status="queued", **NO_CLAIM, **self._returned(job), **changes)

    def _returned(self, job):
        """Return the time since when a job waits again. Jobs of old programs do not say when they were claimed."""
        return {"queued_at": job["queued_at"] if job["claimed_at"] is None else self.now}

    def _errors_of(self, job, text):
        if job["claimed_at"] is None:
            return job["errors"]
        kept = text if text == STALE else kept_text(text, ERROR_BYTES)
        error = (job["attempt"], self.now, kept, job["holder"], job["claimed_at"])
        return (*job["errors"], error)[-ERRORS_KEPT:]

    def heartbeat(self, claims, tolerant, progress=()):
        """Keep claims alive, and note how far their jobs are.

        Returns a refusal for each claim that is lost, and for each job that is to stop.
        """
        lost = []
        for (job_id, attempt), news in zip_longest(claims, progress):
            if self.is_lease(job_id, attempt):
                self.beat_lease(job_id)
                stops = []
            else:
                try:
                    job = self.held((job_id, attempt))
                except Refused as refusal:
                    if not tolerant:
                        raise
                    lost.append(refusal)
                    continue
                stops = [Refused(JobCancelledError, job_id=job_id, attempt=attempt)] * job["cancel_requested"]
                more = {} if news is None else {"progress": (*news[:3], self.now)}
                self.change(job, heartbeat_at=self.beaten(job["heartbeat_at"]), **more)
            if stops and not tolerant:
                raise stops[0]
            lost += stops
        return lost

    def record_step(self, claim, asked):
        """Keep the result of a step with its job. Returns the step if it is there already."""
        job = self.held(claim)
        for step in job["steps"]:
            if step[:2] == (asked.name, asked.occurrence):
                return step
        step = (asked.name, asked.occurrence, self.now, json.loads(json.dumps(asked.result)))
        self.change(job, heartbeat_at=self.beaten(job["heartbeat_at"]), steps=(*job["steps"], step))
        return None

    def beaten(self, last):
        """Return the time of a heartbeat, which moves even if the clock stands still."""
        return self.now + timedelta(microseconds=1) if last == self.now else self.now

    # Operators

    def look_for_result(self, job_id):
        """Return the finished job; nothing before it is finished."""
        job = self.find(job_id)
        if job is None:
            raise Refused(ResultNotKeptError if job_id in self.finished else JobNotFoundError, job_id=job_id)
        if job["status"] == "dead":
            raise Refused(JobFailedError, job_id=job_id, error=job["error"])
        if job["status"] != "completed":
            return []
        if self.is_outlived(job) or job["result_dropped"]:  # kept only because no commit removed it yet
            raise Refused(ResultNotKeptError, job_id=job_id)
        return [job]

    def get(self, job_id, *statuses):
        """Return a job that has one of some statuses, or raise the refusal."""
        job = self.find(job_id)
        if job is None:
            raise Refused(JobNotFoundError, job_id=job_id)
        if job["status"] not in statuses:
            raise Refused(JobStateError, job_id=job_id, status=job["status"])
        return job

    def alter(self, job_id, **fields):
        """Change the time or the priority of a queued job."""
        self.drop_outlived()
        job = self.get(job_id, "queued")
        if fields.get("run_at", self.now) is None and job["run_at"] is not None and job["run_at"] > self.now:
            fields["queued_at"] = self.now
        return job if {**job, **fields} == job else self.change(job, **fields)

    def cancel(self, job_id, running):
        """Remove a queued job, or tell the holder of a job in progress to stop."""
        job = self.get(job_id, "queued", *["in_progress"] * running)
        if job["status"] == "queued":
            self.remove(job, CANCELLED)
            return job
        if "lease" in job:
            self.remove(self.leave_lease(job_id), CANCELLED)
            return {**job, "cancel_requested": True}
        return job if job["cancel_requested"] else self.change(job, cancel_requested=True)

    def redrive(self, asked):
        """Queue dead jobs again, unless their unique keys are taken."""
        self.drop_outlived()
        if asked.job_id is not None:
            job = self.get(asked.job_id, "dead")
            holder = self.key_holder(job["unique_key"])
            if holder is not None:
                raise Refused(DuplicateJobError, unique_key=job["unique_key"], job_id=holder)
            self._queue_again(job, asked.delay, asked.fresh, asked.payload)
            return 1
        dead = [job for job in self.jobs if job["status"] == "dead" and asked.entrypoint in (None, job["entrypoint"])]
        dead = [job for job in dead if asked.group in (None, job["group"])]
        redriven = 0
        for job in sorted(dead, key=lambda job: (int(job["place"]), job["id"])):
            if self.key_holder(job["unique_key"]) is None:
                self._queue_again(job, asked.delay, asked.fresh)
                redriven += 1
        return redriven

    def _queue_again(self, job, delay, fresh, payload=None):
        run_at = self.later(delay) if delay else None
        more: JobFields = {"run_at": run_at, "queued_at": self.now, "expires_at": None, "place": self.next_turn(job)}
        more["steps"] = () if fresh else job["steps"]
        if payload is not None:
            more["payload"] = payload
        self.change(job, status="queued", failures=0, dead_at=None, **more)
        self.count_member(job, dead=-1)

    def attend(self, workers):
        """Show workers, or remove those that have left. Returns the runs that are told to stop."""
        for run, record in workers.items():
            if record is not None:
                seen = {name: getattr(record, name) for name in ("name", "host", "pid")}
                self.workers[run] = seen | {"stopping": self.is_told(run)}
            self.changes += record is not None or self.workers.pop(run, None) is not None
        return [run for run in workers if self.is_told(run)]

    def is_told(self, run):
        """Return True if a worker is told to stop."""
        return self.workers.get(run, {}).get("stopping", False)

    def named(self, worker):
        """Return the runs of the workers of a name."""
        return [
            run
            for run, seen in self.workers.items()
            if worker in (run, seen["name"], f"{seen['name']}@{seen.get('host', '')}:{seen.get('pid', 0)}")
        ]

    def stop_worker(self, worker):
        """Tell the workers of a name to stop."""
        runs = self.named(worker)
        if not runs:
            raise Refused(WorkerNotFoundError, worker=worker)
        for run in runs:
            self.changes += not self.is_told(run)
            self.workers[run] = {**self.workers[run], "stopping": True}
        return [self.workers[run] for run in runs]

    def purge(self, asked, aged=frozenset(), spared=frozenset()):
        """Remove jobs of a status.

        Args:
            asked: the operation.
            aged: ids of jobs that count as old, whatever the clock said that dated them.
            spared: ids of jobs that cannot be read, and stay.
        """
        if asked.job_id is not None:
            job = self.get(asked.job_id, asked.status)
            if job["status"] == "completed" and self.is_needed(asked.job_id):
                raise Refused(JobStateError, job_id=asked.job_id, status="completed")
            self.remove(job, REMOVED)
            return 1
        cutoff = asked.before if asked.older_than is None else self.later(-asked.older_than)
        doomed = [
            job
            for job in self.jobs
            if job["status"] == asked.status
            and asked.entrypoint in (None, job["entrypoint"])
            and (cutoff is None or ended(job) < cutoff or job["id"] in aged)
            and job["id"] not in spared
            and not (job["status"] == "completed" and self.is_needed(job["id"]))
        ]
        for job in sorted(doomed, key=lambda job: (not job["waits_for"], -int(job["place"]))):
            if job["id"] in self.table:  # each before those that it waits for, but for places by fair keys
                self.remove(self.table[job["id"]], REMOVED)
        return len(doomed)

    def requeue_stale(self, timeout):
        """Revoke the claims without a heartbeat for some time. Returns the number of jobs."""
        limit = timedelta(seconds=timeout)

        def is_old(beat):
            return beat is None or self.now - min(beat, self.now) >= limit

        old = [name for name, held in self.leases.items() if is_old(held["heartbeat_at"])]
        stale = [job for job in self.claimed() if "lease" not in job and is_old(job["heartbeat_at"])]
        return self.revoke(stale, ORDERED) + sum(self.revoke_lease(name, ORDERED) for name in old)

    def sweep(self, suspects, orphans):
        """Revoke stale claims, and those of dead processes, each given with its last heartbeat.

        Returns the number of jobs.
        """
        lost = [job for claim in orphans for job in self.seen_as(*claim)]
        beside = Counter(map(process_of, lost))
        revoked = sum(
            self.revoke([job], DIED, spared=beside[process_of(job)] > 1 and not is_suspect(job))
            for job in sorted(lost, key=self._by_place)
        )
        stale = []
        for (job_id, attempt), beat in suspects:
            held = self.leases.get(job_id, {})
            if held and (held["attempt"], held["heartbeat_at"]) == (attempt, beat):
                revoked += self.revoke_lease(job_id)
            stale += self.seen_as((job_id, attempt), beat)
        return revoked + self.revoke(stale)

    def seen_as(self, claim, beat):
        """Return the job of a claim in a list, if its claim and its heartbeat are still as they were seen."""
        job = self.find(claim[0])
        is_held = job is not None and job["status"] == "in_progress" and "range" not in job
        return [job] if is_held and (job["attempt"], job["heartbeat_at"]) == (claim[1], beat) else []

    def _by_place(self, job):
        return int(job["place"]), job["id"]

    def revoke(self, stale, error=STALE, *, spared=False):
        """Revoke the claims of jobs, in the order of their places."""
        for job in sorted(stale, key=self._by_place):
            text = SPARED if spared else error
            errors = job["errors"] if job["cancel_requested"] else self._errors_of(job, text)
            more: JobFields = {"error": text, "error_dropped": 0, "traceback": None, "errors": errors}
            spared = spared and job["claimed_at"] is not None  # otherwise the job could kill its workers for ever
            self.send_back(job, dead=False, revoked=True, spared=spared, **more)
        return len(stale)

    # Leases: their jobs are in progress like others, with the id of the lease in `lease`

    def is_lease(self, lease_id, attempt):
        """True if a claim is that of a current lease."""
        return lease_id in self.leases and self.leases[lease_id]["attempt"] == attempt

    def claim_lease(self, claim, rows, claim_timeout, holder, is_whole):
        """Claim jobs as one.

        Args:
            claim: the claim: id of the lease, and attempt.
            rows: the row of each job, by its id.
            claim_timeout: seconds that it lasts.
            holder: its name.
            is_whole: see `leases`.
        """
        lease_id, attempt = claim
        for job_id in rows:
            job = self.claim(self.table[job_id], claim_timeout, holder)
            self.change(job, lease=lease_id)
        held = {"attempt": attempt, "heartbeat_at": self.now, "rows": dict(rows), "is_whole": is_whole}
        self.leases[lease_id] = held

    def ids_in(self, lease_id):
        """Return the ids of the jobs that are in a lease, in order."""
        rows = self.leases[lease_id]["rows"]
        return [job_id for job_id in rows if self.table.get(job_id, {}).get("lease") == lease_id]

    def beat_lease(self, lease_id):
        """Keep a lease alive."""
        held = self.leases[lease_id]
        beaten = self.beaten(held["heartbeat_at"])
        self.leases[lease_id] = {**held, "heartbeat_at": beaten}
        for job_id in self.ids_in(lease_id):
            self.change(self.table[job_id], heartbeat_at=beaten)
        self.changes += 1

    def return_lease(self, lease_id, *, charge):
        """End a lease: its jobs wait again in their places. Returns their number."""
        ids = self.ids_in(lease_id)
        del self.leases[lease_id]
        self.put_back(ids, charge=charge)
        self.changes += 1
        return len(ids)

    def put_back(self, ids, *, charge):
        """Queue jobs of a lease again, in their places."""
        for job_id in ids:
            job = self.leave_lease(job_id)
            if charge:
                self.count(job["entrypoint"], 3, 8, *[4] * (not job["cancel_requested"]))  # see `plain_queue.ENQUEUED`
                self.give_back({**job, "failures": job["failures"] + 1})
            else:
                self.give_back(job)

    def leave_lease(self, job_id):
        """Let the claim of a job be its own."""
        job = self.table[job_id] = {name: value for name, value in self.table[job_id].items() if name != "lease"}
        return job

    def revoke_lease(self, lease_id, error=STALE):
        """Revoke a lease. Returns the number of its jobs."""
        if lease_id in self.stuck:
            return 0
        if self.leases[lease_id]["is_whole"]:
            return self.return_lease(lease_id, charge=True)
        ids = self.ids_in(lease_id)
        del self.leases[lease_id]
        self.changes += 1
        return self.revoke([self.leave_lease(job_id) for job_id in ids], error)

    def end_lease(self, asked, *, remembered):
        """End a lease: see `jqueue.operations.EndLease`. Its done jobs may be remembered by their ids."""
        lease_id, attempt = asked.lease
        held = self.leases.get(lease_id)
        if held is None or held["attempt"] != attempt:
            if self.finished.get(lease_id) == attempt:
                return
            raise Refused(ClaimLostError, job_id=lease_id, attempt=attempt)
        ids, rows = self.ids_in(lease_id), held["rows"]
        worked_on = [job_id for job_id in ids if asked.last is None or rows[job_id] < asked.last]
        back = ids[len(worked_on) :]
        for job_id in asked.singles:
            if job_id in back:
                raise Refused(JobNotFoundError, job_id=job_id)
        del self.leases[lease_id]
        self.put_back(back, charge=False)
        singles = dict(asked.singles)
        for job_id in worked_on if asked.withheld else ():
            if any(job_id in job["waits_for"] for job in self.jobs):
                singles.setdefault(job_id, Nack(asked.lease, charge=False))
        for job_id in worked_on:
            if (end := singles.get(job_id)) is not None:
                job = self.leave_lease(job_id)
                (self.nack if isinstance(end, Nack) else self.ack)((job_id, job["attempt"]), end)
        for job_id in worked_on:
            if job_id not in singles:
                job = self.table.pop(job_id)
                self.count(job["entrypoint"], 2)
                if remembered:
                    self.finished[job_id] = job["attempt"]
                self.end_parent(job_id, "done")
        self.finished[lease_id] = attempt
        self.changes += 1

    # Transactions

    def is_repeated(self, transaction):
        """True if a write, or a later one of its application, was done before. Otherwise it is remembered."""
        if transaction is None:
            return False
        app, version = transaction[:2]
        if self.transactions.get(app, -1) >= version:
            return True
        self.transactions[app] = version
        self.changes += 1
        return False

    def enqueue_numbered(self, jobs, number_of_all, in_turn):
        """Add jobs, each with its number in the call. Returns the jobs, new or there before, by their numbers.

        Args:
            jobs: number, operation, new id and time of creation of each.
            number_of_all: of the jobs in the call.
            in_turn: each entrypoint, priority and fair key whose jobs take turns.
        """
        offset, found, late = self.places, {}, set()
        behind = {turn: self.last_turn(*turn) for turn in in_turn}
        for number, asked, new_id, created_at in sorted(jobs, key=lambda each: each[0]):
            turn = asked.entrypoint, asked.priority, asked.fair_key
            if turn in behind:
                behind[turn] += step_of(asked.fair_weight)
            found[number] = self.enqueue(asked, new_id, created_at, behind.get(turn, offset + number))
            late |= set() if turn in behind else {asked.entrypoint}
        self.places = max([offset + number_of_all, *behind.values()])
        for (entrypoint, priority, key), place in behind.items():
            self.note_turn(entrypoint, priority, key, place)
        for name, places in [*self.fair.items()]:
            if name.split(":", 1)[1] in late:
                self.fair[name] = {**places, "": offset + number_of_all}
        return found

    # Turns among fair keys

    def next_turn(self, job):
        """Return the place behind the other jobs of a job's fair key; if no keys take turns, behind all jobs."""
        line = job["entrypoint"], job["priority"], job["fair_key"]
        place = self.last_turn(*line) + step_of(job["fair_weight"])
        self.note_turn(*line, place)
        self.places = max(self.places, place)
        return place

    def last_turn(self, entrypoint, priority, key):
        """Return the place behind which the next job of a fair key stands. The first key begins the turns."""
        name = f"{priority}:{entrypoint}"
        if not self.has_waiting(entrypoint):
            self.stop_turns(name)
        if name not in self.turns:
            if key is None:
                return self.places
            first = self.next_to_claim((entrypoint,), ruled=False)
            waits = first is not None and first["priority"] == priority
            self.turns[name] = int(first["place"]) - 1 if waits else self.places
            self.fair[name] = {"": self.places} if waits else {}
        return max(self.turns[name], self.fair[name].get(key or "", 0))

    def note_turn(self, entrypoint, priority, key, place):
        """Note the last place of a fair key, if keys take turns."""
        name = f"{priority}:{entrypoint}"
        if name in self.turns:
            self.fair[name] = {**self.fair[name], key or "": place}

    def take_turn(self, job):
        """Note that a job was claimed."""
        name, key = f"{job['priority']}:{job['entrypoint']}", job["fair_key"] or ""
        if name in self.turns:
            self.turns[name] = max(self.turns[name], int(job["place"]))
            key = key if key in self.fair[name] else ""
            if self.fair[name].get(key) == int(job["place"]):
                self.fair[name] = {other: place for other, place in self.fair[name].items() if other != key}
            if not self.fair[name]:
                self.stop_turns(name)

    def stop_turns(self, name):
        """Forget the turns of an entrypoint and a priority."""
        self.turns.pop(name, None)
        self.fair.pop(name, None)

    def has_waiting(self, entrypoint):
        """True if jobs of an entrypoint wait, scheduled ones included."""
        both = *self.table.values(), *self.hidden.values()
        return any(job["entrypoint"] == entrypoint and job["status"] == "queued" for job in both)

    # Parents: the jobs that others wait for

    def missing_parents(self, parents, on_dead):
        """Return the parents of a new job that are not done."""
        missing = []
        for parent in parents:
            there = self.find(parent)
            if there is None and parent not in self.finished:
                raise Refused(InvalidJobError)
            status = "completed" if there is None else there["status"]
            if status == "dead" and on_dead == "cancel":
                raise Refused(InvalidJobError)
            if status != "completed" and not (status == "dead" and on_dead == "run"):
                missing.append(parent)
        return tuple(missing)

    def is_needed(self, job_id):
        """True if a job that has not ended has this one among its parents."""
        return any(job_id in job["after"] and job["status"] != "completed" for job in self.table.values())

    def end_parent(self, parent, how):
        """Let the jobs that wait for one go on: it is done, dead, or gone."""
        for child_id in [job["id"] for job in self.jobs if parent in job["waits_for"]]:
            child = self.table.get(child_id, ABSENT)
            if parent not in child["waits_for"]:
                continue  # the end of a parent of its own was another end of this job
            left = tuple(each for each in child["waits_for"] if each != parent)
            if how == "done" or child["on_dead"] == "run":
                self.change(child, waits_for=left, queued_at=child["queued_at"] if left else self.now)
            elif child["on_dead"] == "cancel":
                self.remove(child, CANCELLED)
            elif how == "gone":
                self.change(child, status="dead", dead_at=self.now, waits_for=(), error=GONE)
                self.count(child["entrypoint"], DEAD)
                self.count_member(child, dead=1)
                self.end_parent(child["id"], "dead")

    def end_missing_parents(self):
        """Let the jobs go on that wait for one which is not there, as a person has removed it."""
        for parent in {each for job in self.jobs for each in job["waits_for"]} - self.table.keys():
            self.end_parent(parent, "done" if parent in self.finished else "gone")

    # Guards: conditions under which an order of an operator is done

    def check(self, guarded):
        """Raise the refusal if something is not as the caller of a guarded operation has seen it."""
        if (seen := guarded.schedule) is not None:
            entry = self.schedules.get(seen.name)
            if entry is None or any(entry[name] != getattr(seen, name) for name in (*ENTRY, "paused")):
                raise Refused(ChangedMeanwhileError)
        if (seen := guarded.job) is not None:
            job = self._there(seen.id)
            shown = job_of(seen) if isinstance(seen, JobRecord) else seen
            if any(job[name] != getattr(shown, name) for name in self._compared(job, shown)):
                raise Refused(ChangedMeanwhileError)
        if (chosen := guarded.selection) is not None:
            job = self._there(guarded.job_id)
            statuses = {status.value for status in chosen.statuses}
            is_fit = (not statuses or job["status"] in statuses) and (
                not chosen.entrypoints or job["entrypoint"] in chosen.entrypoints
            )
            text = job["error"]
            if (
                chosen.error is not None
                and text != chosen.error
                and (text is None or chosen.error.casefold() not in text.casefold())
            ):
                is_fit = False
            if not is_fit:
                raise Refused(ChangedMeanwhileError)

    def _there(self, job_id):
        if job_id not in self.table:
            raise Refused(JobNotFoundError, job_id=job_id)
        return self.table[job_id]

    def _compared(self, job, seen):
        """Return the fields that must be as they were seen: all but heartbeat, steps, place, and what is elsewhere."""
        apart = {"payload"} if seen.payload_object is not None else set()
        apart |= {"result"} if seen.result_object is not None else set()
        return job.keys() - {"heartbeat_at", "place", "lease", "steps", "progress"} - apart

    # Helpers of the above

    def key_holder(self, key):
        """Return the id of the job that holds a key, or None."""
        for job in self.table.values() if key is not None else ():
            if job["unique_key"] == key and job["status"] in ("queued", "in_progress"):
                return job["id"]
        job_id, until = self.holds.get(key, (None, self.now))
        return job_id if until > self.now else None

    def drop_outlived(self):
        """Remove the jobs that expired before a claim, and the finished jobs whose time is over, the first one first.

        The removal of one may end the time of another: of its child, or of a parent that only it has needed.
        """
        while outlived := [job for job in self.table.values() if self.is_outlived(job)]:
            job = min(outlived, key=lambda job: (self.leaves_at(job), job["id"]))
            self.remove(job, EXPIRED if job["status"] == "queued" else REMOVED)

    def change(self, job, **changes):
        """Change fields of a job, and return it as it is then."""
        after = self.table[job["id"]] = {**job, **changes}
        self.changes += 1
        return after

    def remove(self, job, kind):
        """Remove a job that was not acked, and remember the highest attempt of such jobs."""
        del self.table[job["id"]]
        self.attempt_floor = max(self.attempt_floor, job["attempt"])
        if job["status"] != "completed":
            self.count(job["entrypoint"], kind)
            self.count_member(job, gone=1, dead=-(job["status"] == "dead"))
            self.end_parent(job["id"], "gone")
        if kind == CANCELLED:
            self.cancelled.add(job["id"])
        self.changes += 1

    def count(self, entrypoint, *kinds):
        """Count something that happened to a job."""
        before = self.counters.get(entrypoint, (0,) * 10)
        self.counters[entrypoint] = tuple(number + kinds.count(kind) for kind, number in enumerate(before))

    def later(self, seconds):
        """Return the time in `seconds` seconds."""
        return self.now + timedelta(seconds=seconds)


def may_be_leased(job: JobFields) -> bool:
    """True if a job can be leased."""
    return all(job[name] is None for name in SINGLE) and not is_suspect(job)
