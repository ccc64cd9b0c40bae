"""A queue as the documentation describes it, as plain as possible: a list of dicts, searched from end to end.

`tests/property/queue_machine.py` compares the real queues with it. It was written from README.md, docs/ and
the docstrings of the verbs, and shares nothing with `jqueue.domain` but the public names of operations and errors.
`jqueue` is fast because it has heaps, drafts and journals; this one is right because it has none.
"""

import json
from datetime import datetime, timedelta
from typing import Any

from jqueue import ClaimLostError, DuplicateJobError, JobCancelledError, JobFailedError, JobNotFoundError, JobStateError
from jqueue.domain.errors import ResultNotKeptError
from jqueue.domain.operations import AwaitResult
from jqueue.operations import (
    Ack,
    Cancel,
    Dequeue,
    Enqueue,
    Heartbeat,
    Nack,
    Purge,
    Redrive,
    Reprioritise,
    RequeueStale,
    Reschedule,
)
from tests.property.plain_rules import PlainRules
from tests.property.plain_values import ABSENT, AS_ASKED, STALE, Refused, ended, kept_text

TABLES = ("finished", "holds", "rules", "claims_made", "settings")


class PlainQueue(PlainRules):
    """The whole queue, and the effect of each operation on it.

    Attributes:
        jobs: every job, as a dict of the fields of `jqueue.Job`, with `place` for `sequence`.
        changes: counts every change; a call that adds none must write nothing.
        now: the time, set by the test.
    """

    def __init__(self):
        super().__init__()
        self.jobs: list[dict[str, Any]] = []
        self.finished: dict[str, int] = {}
        self.holds: dict[str, tuple[str, datetime]] = {}
        self.attempt_floor = 0
        self.places = 0
        self.changes = 0
        self.version = 0

    def copy(self):
        """Return a copy of everything, for `restore`."""
        tables = {name: dict(getattr(self, name)) for name in TABLES}
        tables["schedules"] = {name: dict(entry) for name, entry in self.schedules.items()}
        return {**vars(self), **tables, "jobs": [dict(job) for job in self.jobs]}

    def restore(self, copy):
        """Restore everything from a copy."""
        vars(self).update(copy)

    def committed(self):
        """Commit: increment the version, and release keys whose time is over."""
        self.version += 1
        self.holds = {key: hold for key, hold in self.holds.items() if hold[1] > self.now}

    def find(self, job_id):
        """Return the job with this id, or None."""
        return next((job for job in self.jobs if job["id"] == job_id), None)

    def perform(self, operation, claims, new_id, default_timeout):
        """Perform one operation. Returns its result; raises Refused, with nothing changed."""
        before = self.copy()
        try:
            return self._do(operation, claims, new_id, default_timeout)
        except Refused:
            self.restore(before)
            raise

    def _do(self, operation, claims, new_id, default_timeout):
        match operation:
            case Enqueue():
                return self.enqueue(operation, new_id)
            case Dequeue(entrypoints, batch_size=size, claim_timeout=timeout):
                names = [entrypoints] if isinstance(entrypoints, str) else entrypoints
                return self.dequeue(names, size, default_timeout if timeout is None else timeout)
            case Ack(result=result):
                return self.ack(claims[0], result)
            case Nack():
                return self.nack(claims[0], operation)
            case Heartbeat():
                return self.heartbeat(claims, operation.tolerant)
            case Cancel(job_id, running):
                return self.cancel(job_id, running)
            case Reschedule(job_id, delay=delay, run_at=run_at):
                return self.alter(job_id, run_at=self.later(delay) if delay else run_at)
            case Reprioritise(job_id, priority):
                return self.alter(job_id, priority=priority)
            case AwaitResult(job_id):
                return self.look_for_result(job_id)
            case Redrive(job_id, entrypoint):
                return self.redrive(job_id, entrypoint)
            case Purge(status, entrypoint, older_than):
                return self.purge(status, entrypoint, older_than)
            case RequeueStale(timeout):
                return self.requeue_stale(timeout)
        return self.decide(operation)

    # Jobs in and out

    def enqueue(self, asked, new_id):
        self.drop_outlived()
        there = self.find(asked.job_id)
        is_taken = there is not None or asked.job_id in self.finished
        if is_taken and asked.on_conflict == "raise":
            raise Refused(DuplicateJobError, unique_key=None, job_id=asked.job_id)
        if there is not None:
            return dict(there)
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
                return self._completed(holder) if live is None else dict(live)
        job_id = new_id if asked.job_id is None else asked.job_id
        assert self.find(job_id) is None, "the id that was drawn is in use"
        return self.add(
            id=job_id,
            attempt=self.attempt_floor if job_id == asked.job_id else 0,
            payload=bytes(asked.payload),
            headers=dict(asked.headers or {}),
            run_at=asked.run_at if asked.delay is None else self.later(asked.delay),
            **{name: getattr(asked, name) for name in AS_ASKED},
        )

    def add(self, **fields):
        job = {**ABSENT, "status": "queued", "created_at": self.now, "place": self.behind_all(), **fields}
        self.jobs.append(job)
        self.is_critical = self.is_critical or job["concurrency_key"] is not None
        self.changes += 1
        return dict(job)

    def _completed(self, job_id):
        """Return the answer for an acked job, which has these fields only."""
        return {"id": job_id, "status": "completed", "attempt": self.finished[job_id]}

    def _make_way(self, key, holder):
        live = self.find(holder)
        if live is None or live["status"] == "completed":
            del self.holds[key]
            self.changes += 1
        elif live["status"] == "queued":
            self.remove(live)
        else:
            raise Refused(DuplicateJobError, unique_key=key, job_id=holder)

    def dequeue(self, entrypoints, batch_size, claim_timeout):
        self.drop_outlived()
        self.fire()
        claimed: list[dict[str, Any]] = []
        while len(claimed) < batch_size and (job := self.next_to_claim(entrypoints)) is not None:
            job.update(status="in_progress", heartbeat_at=self.now, claim_timeout=claim_timeout)
            job["attempt"] += 1
            job["failures"] += 1
            self.count_claim(job["entrypoint"])
            self.changes += 1
            claimed.append(dict(job))
        return claimed

    # Claims

    def held(self, claim):
        """Return the job if the claim is current."""
        job_id, attempt = claim
        job = self.find(job_id)
        if attempt is None and job is None:
            raise Refused(JobNotFoundError, job_id=job_id)
        if attempt is None or job is None or (job["status"], job["attempt"]) != ("in_progress", attempt):
            raise Refused(ClaimLostError, job_id=job_id, attempt=attempt)
        return job

    def ack(self, claim, result):
        job_id, attempt = claim
        there = self.find(job_id)
        is_gone = there is None or (there["status"], there["attempt"]) == ("completed", attempt)
        if attempt is not None and self.finished.get(job_id) == attempt and is_gone:
            return  # the same ack repeated
        job = self.held(claim)
        if job["keep_result"] is None:
            self.jobs.remove(job)
        else:
            job.update(status="completed", payload=b"", finished_at=self.now, result=json.loads(json.dumps(result)))
            job.update(heartbeat_at=None, claim_timeout=None, cancel_requested=False)
        self.finished[job_id] = attempt
        if job["unique_key"] is not None and job["unique_for"]:
            self.holds[job["unique_key"]] = (job_id, self.later(job["unique_for"]))
        self.changes += 1

    def nack(self, claim, asked):
        job = self.held(claim)
        if asked.error is not None:
            job["error"] = kept_text(asked.error)
        if asked.delay or asked.charge:
            job["run_at"] = self.later(asked.delay) if asked.delay else None
        if asked.charge:
            self.send_back(job, asked.dead, delayed=bool(asked.delay))
        elif job["cancel_requested"]:
            self.remove(job)
        else:
            job.update(status="queued", failures=job["failures"] - 1, heartbeat_at=None, claim_timeout=None)
            self.changes += 1

    def send_back(self, job, dead, delayed=False):
        """End a claim with a failure. With aging, the job's age starts again now."""
        if job["cancel_requested"]:
            self.remove(job)
            return
        job.update(heartbeat_at=None, claim_timeout=None)
        if self.settings["aging"] is not None and not delayed:
            job["run_at"] = self.now
        if dead or (job["max_attempts"] is not None and job["failures"] >= job["max_attempts"]):
            job.update(status="dead", dead_at=self.now)
        else:
            job.update(status="queued", place=self.behind_all())
        self.changes += 1

    def heartbeat(self, claims, tolerant):
        lost = []
        for claim in claims:
            try:
                job = self.held(claim)
            except Refused as refusal:
                if not tolerant:
                    raise
                lost.append(refusal)
                continue
            if job["cancel_requested"]:
                stop = Refused(JobCancelledError, job_id=job["id"], attempt=job["attempt"])
                if not tolerant:
                    raise stop
                lost.append(stop)
            stood_still = job["heartbeat_at"] == self.now  # the heartbeat moves even if the clock stands still
            job["heartbeat_at"] = self.now + timedelta(microseconds=1) if stood_still else self.now
            self.changes += 1
        return lost

    # Operators

    def look_for_result(self, job_id):
        """Return the finished job; nothing before it is finished."""
        job = self.find(job_id)
        if job is None:
            raise Refused(ResultNotKeptError if job_id in self.finished else JobNotFoundError, job_id=job_id)
        if job["status"] == "dead":
            raise Refused(JobFailedError, job_id=job_id, error=job["error"])
        if job["status"] == "completed" and self.is_outlived(job):  # kept only because no commit removed it yet
            raise Refused(ResultNotKeptError, job_id=job_id)
        return [dict(job)] if job["status"] == "completed" else []

    def alter(self, job_id, **fields):
        """Change the time or the priority of a queued job."""
        self.drop_outlived()
        job = self.find(job_id)
        if job is None:
            raise Refused(JobNotFoundError, job_id=job_id)
        if job["status"] != "queued":
            raise Refused(JobStateError, job_id=job_id, status=job["status"])
        if {**job, **fields} != job:
            job.update(fields)
            self.changes += 1
        return dict(job)

    def cancel(self, job_id, running):
        job = self.find(job_id)
        if job is None:
            raise Refused(JobNotFoundError, job_id=job_id)
        if job["status"] == "in_progress" and running:
            self.changes += not job["cancel_requested"]
            job["cancel_requested"] = True
            return dict(job)
        if job["status"] != "queued":
            raise Refused(JobStateError, job_id=job_id, status=job["status"])
        self.remove(job)
        return dict(job)

    def redrive(self, job_id, entrypoint):
        self.drop_outlived()
        if job_id is not None:
            job = self.find(job_id)
            if job is None:
                raise Refused(JobNotFoundError, job_id=job_id)
            if job["status"] != "dead":
                raise Refused(JobStateError, job_id=job_id, status=job["status"])
            holder = self.key_holder(job["unique_key"])
            if holder is not None:
                raise Refused(DuplicateJobError, unique_key=job["unique_key"], job_id=holder)
            self._queue_again(job)
            return 1
        dead = [job for job in self.jobs if job["status"] == "dead" and entrypoint in (None, job["entrypoint"])]
        redriven = 0
        for job in sorted(dead, key=lambda job: job["place"]):
            if self.key_holder(job["unique_key"]) is None:
                self._queue_again(job)
                redriven += 1
        return redriven

    def _queue_again(self, job):
        run_at = None if self.settings["aging"] is None else self.now
        job.update(status="queued", failures=0, dead_at=None, run_at=run_at, expires_at=None, place=self.behind_all())
        self.changes += 1

    def purge(self, status, entrypoint, older_than):
        doomed = [
            job
            for job in self.jobs
            if job["status"] == status
            and entrypoint in (None, job["entrypoint"])
            and (older_than is None or self.now - ended(job) > timedelta(seconds=older_than))
        ]
        for job in doomed:
            self.remove(job)
        return len(doomed)

    def requeue_stale(self, timeout):
        limit = timedelta(seconds=timeout)
        return self.revoke([job for job in self.claimed() if self.now - min(job["heartbeat_at"], self.now) >= limit])

    def revoke(self, stale):
        """Revoke the claims of stale jobs, in the order of their places."""
        for job in sorted(stale, key=lambda job: job["place"]):
            job["error"] = STALE
            self.send_back(job, dead=False)
        return len(stale)

    # Helpers of the above

    def key_holder(self, key):
        """Return the id of the job that holds a key, or None."""
        for job in self.jobs:
            if key is not None and job["unique_key"] == key and job["status"] in ("queued", "in_progress"):
                return job["id"]
        job_id, until = self.holds.get(key, (None, self.now))
        return job_id if until > self.now else None

    def drop_outlived(self):
        """Remove the jobs that expired before a claim, and the finished jobs whose time is over."""
        for job in [job for job in self.jobs if self.is_outlived(job)]:
            self.remove(job)

    def remove(self, job):
        """Remove a job that was not acked, and remember the highest attempt of such jobs."""
        self.jobs.remove(job)
        self.attempt_floor = max(self.attempt_floor, job["attempt"])
        self.changes += 1

    def behind_all(self):
        """Return a place behind all others."""
        self.places += 1
        return self.places

    def later(self, seconds):
        """Return the time in `seconds` seconds."""
        return self.now + timedelta(seconds=seconds)
