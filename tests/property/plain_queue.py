"""A queue as the documentation tells it, in the plainest words there are: a list of dicts, searched from end to end.

It is what `tests/property/queue_machine.py` compares the real queues with. It was written from README.md, docs/ and
the docstrings of the verbs, and shares nothing with `jqueue.domain` but the public names of operations and errors.
`jqueue` is fast because it has heaps, drafts and journals; this one is right because it has none.
"""

import json
from datetime import datetime, timedelta
from typing import Any

from jqueue import (
    Ack,
    Cancel,
    ClaimLostError,
    Dequeue,
    DuplicateJobError,
    Enqueue,
    Heartbeat,
    JobNotFoundError,
    JobStateError,
    Nack,
    Purge,
    Redrive,
    RequeueStale,
)
from jqueue.testing.virtual_time import EPOCH

STALE = "stale"
"""Stands for the error that is kept with a job whose claim was revoked; its wording is not a promise."""


class Refused(Exception):
    """What a call must be refused with: the class of the error, and what it says besides its text."""

    def __init__(self, kind, **said):
        super().__init__(kind.__name__, said)
        self.kind = kind
        self.said = said


class PlainQueue:
    """The whole queue, and what each operation does to it.

    Attributes:
        jobs: every job, as a dict of the fields of `jqueue.Job`, with `place` for `sequence`.
        changes: counts every change; a call that adds none must write nothing.
        now: the time, set by whoever drives it.
    """

    def __init__(self):
        self.jobs: list[dict[str, Any]] = []
        self.finished: dict[str, int] = {}
        self.holds: dict[str, tuple[str, datetime]] = {}
        self.attempt_floor = 0
        self.places = 0
        self.changes = 0
        self.version = 0
        self.now = EPOCH

    def copy(self):
        """Everything there is, to be put back by `restore`."""
        return {**vars(self), "jobs": [dict(job) for job in self.jobs]} | {
            name: dict(getattr(self, name)) for name in ("finished", "holds")
        }

    def restore(self, copy):
        """Put everything back."""
        vars(self).update(copy)

    def committed(self):
        """A commit: the version grows by one, and keys kept for long enough are let go."""
        self.version += 1
        self.holds = {key: hold for key, hold in self.holds.items() if hold[1] > self.now}

    def find(self, job_id):
        """The job with this id, or None."""
        return next((job for job in self.jobs if job["id"] == job_id), None)

    def perform(self, operation, claims, new_id, default_timeout):
        """Do one operation; returns its result or, with nothing changed, raises Refused."""
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
            case Ack():
                return self.ack(claims[0])
            case Nack():
                return self.nack(claims[0], operation)
            case Heartbeat():
                return self.heartbeat(claims, operation.tolerant)
            case Cancel(job_id):
                return self.cancel(job_id)
            case Redrive(job_id, entrypoint):
                return self.redrive(job_id, entrypoint)
            case Purge(status, entrypoint, older_than):
                return self.purge(status, entrypoint, older_than)
            case RequeueStale(timeout):
                return self.requeue_stale(timeout)
        raise AssertionError(operation)

    # Jobs in and out

    def enqueue(self, asked, new_id):
        self.drop_expired()
        there = self.find(asked.job_id)
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
        given = asked.job_id is not None
        job_id = asked.job_id if given else new_id
        assert self.find(job_id) is None, "the id that was drawn is in use"
        job = {
            "id": job_id,
            "entrypoint": asked.entrypoint,
            "payload": bytes(asked.payload),
            "status": "queued",
            "priority": asked.priority,
            "created_at": self.now,
            "heartbeat_at": None,
            "place": self.behind_all(),
            "attempt": self.attempt_floor if given else 0,
            "failures": 0,
            "max_attempts": asked.max_attempts,
            "run_at": asked.run_at if asked.delay is None else self.later(asked.delay),
            "expires_at": asked.expires_at,
            "headers": dict(asked.headers or {}),
            "unique_key": asked.unique_key,
            "unique_for": asked.unique_for,
            "claim_timeout": None,
            "dead_at": None,
            "error": None,
        }
        self.jobs.append(job)
        self.changes += 1
        return dict(job)

    def _completed(self, job_id):
        """Of a job that was acked only this is told."""
        return {"id": job_id, "status": "completed", "attempt": self.finished[job_id]}

    def _make_way(self, key, holder):
        live = self.find(holder)
        if live is None:
            del self.holds[key]
            self.changes += 1
        elif live["status"] == "queued":
            self.remove(live)
        else:
            raise Refused(DuplicateJobError, unique_key=key, job_id=holder)

    def dequeue(self, entrypoints, batch_size, claim_timeout):
        self.drop_expired()
        ready = [
            job
            for job in self.jobs
            if job["status"] == "queued"
            and (job["run_at"] is None or job["run_at"] <= self.now)
            and (entrypoints is None or job["entrypoint"] in entrypoints)
        ]
        claimed = sorted(ready, key=lambda job: (job["priority"], job["place"]))[:batch_size]
        for job in claimed:
            job["status"] = "in_progress"
            job["attempt"] += 1
            job["failures"] += 1
            job["heartbeat_at"] = self.now
            job["claim_timeout"] = claim_timeout
            self.changes += 1
        return [dict(job) for job in claimed]

    # Claims

    def held(self, claim):
        """The job, if the claim is current."""
        job_id, attempt = claim
        job = self.find(job_id)
        if attempt is None and job is None:
            raise Refused(JobNotFoundError, job_id=job_id)
        if attempt is None or job is None or (job["status"], job["attempt"]) != ("in_progress", attempt):
            raise Refused(ClaimLostError, job_id=job_id, attempt=attempt)
        return job

    def ack(self, claim):
        job_id, attempt = claim
        if self.find(job_id) is None and attempt is not None and self.finished.get(job_id) == attempt:
            return  # the same ack again
        job = self.held(claim)
        self.jobs.remove(job)
        self.finished[job_id] = attempt
        if job["unique_key"] is not None and job["unique_for"]:
            self.holds[job["unique_key"]] = (job_id, self.later(job["unique_for"]))
        self.changes += 1

    def nack(self, claim, asked):
        job = self.held(claim)
        if asked.error is not None:
            job["error"] = kept_text(asked.error)
        job["run_at"] = self.later(asked.delay) if asked.delay else None
        if asked.charge:
            self.send_back(job, asked.dead)
        else:
            job.update(status="queued", failures=job["failures"] - 1, heartbeat_at=None, claim_timeout=None)
            self.changes += 1

    def send_back(self, job, dead):
        """A claim ends with a failure."""
        job.update(heartbeat_at=None, claim_timeout=None)
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
            stood_still = job["heartbeat_at"] == self.now  # it moves even if the clock stands still
            job["heartbeat_at"] = self.now + timedelta(microseconds=1) if stood_still else self.now
            self.changes += 1
        return lost

    # Operators

    def cancel(self, job_id):
        job = self.find(job_id)
        if job is None:
            raise Refused(JobNotFoundError, job_id=job_id)
        if job["status"] != "queued":
            raise Refused(JobStateError, job_id=job_id, status=job["status"])
        self.remove(job)
        return dict(job)

    def redrive(self, job_id, entrypoint):
        self.drop_expired()
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
        job.update(status="queued", failures=0, dead_at=None, run_at=None, expires_at=None, place=self.behind_all())
        self.changes += 1

    def purge(self, status, entrypoint, older_than):
        doomed = [
            job
            for job in self.jobs
            if job["status"] == status
            and entrypoint in (None, job["entrypoint"])
            and (older_than is None or self.now - (job["dead_at"] or job["created_at"]) > timedelta(seconds=older_than))
        ]
        for job in doomed:
            self.remove(job)
        return len(doomed)

    def requeue_stale(self, timeout):
        limit = timedelta(seconds=timeout)
        return self.revoke([job for job in self.claimed() if self.now - min(job["heartbeat_at"], self.now) >= limit])

    def revoke(self, stale):
        """Take jobs from their holders, in the order in which they stood."""
        for job in sorted(stale, key=lambda job: job["place"]):
            job["error"] = STALE
            self.send_back(job, dead=False)
        return len(stale)

    # What the above is made of

    def claimed(self):
        """The jobs in progress."""
        return [job for job in self.jobs if job["status"] == "in_progress"]

    def key_holder(self, key):
        """The id of the job that holds a key, or None."""
        for job in self.jobs:
            if key is not None and job["unique_key"] == key and job["status"] != "dead":
                return job["id"]
        job_id, until = self.holds.get(key, (None, self.now))
        return job_id if until > self.now else None

    def drop_expired(self):
        """Remove the jobs that nobody has claimed in time."""
        for job in list(self.jobs):
            if job["status"] == "queued" and job["expires_at"] is not None and job["expires_at"] <= self.now:
                self.remove(job)

    def remove(self, job):
        """A job leaves the queue, and not by an ack: the highest attempt of such jobs is remembered."""
        self.jobs.remove(job)
        self.attempt_floor = max(self.attempt_floor, job["attempt"])
        self.changes += 1

    def behind_all(self):
        """A place behind every other."""
        self.places += 1
        return self.places

    def later(self, seconds):
        """So many seconds from now."""
        return self.now + timedelta(seconds=seconds)

    def figures(self, entrypoint=None):
        """What `stats` must say of an entrypoint, or of all: depth, scheduled, in progress, dead, oldest ready age."""
        jobs = [job for job in self.jobs if entrypoint in (None, job["entrypoint"])]
        queued = [job for job in jobs if job["status"] == "queued"]
        scheduled = [job for job in queued if job["run_at"] is not None and job["run_at"] > self.now]
        ready = [
            job
            for job in queued
            if job not in scheduled and (job["expires_at"] is None or job["expires_at"] > self.now)
        ]
        ages = [self.now - (job["run_at"] or job["created_at"]) for job in ready]
        dead = [job for job in jobs if job["status"] == "dead"]
        claimed = [job for job in jobs if job["status"] == "in_progress"]
        return len(ready), len(scheduled), len(claimed), len(dead), max(ages, default=None)


def kept_text(error):
    """An error as it is kept: as text, at most 2 KiB of it as JSON writes it, and no half letters."""
    text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
    while len(json.dumps(text, ensure_ascii=False).encode()) > len('""') + 2048:
        text = text[:-1]
    return text
