"""The life of every job and of every claim, read off the history: who claimed what, when, and how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, pairwise
from typing import TypeGuard

from tests.worker_processes.history import Fields, Version

QUEUED, IN_PROGRESS, DEAD, COMPLETED = "queued", "in_progress", "dead", "completed"


class End(StrEnum):
    """How a claim ended."""

    ACKED = "acked"
    RETURNED = "handed back, uncharged"
    CHARGED = "charged with a failure"


@dataclass(slots=True)
class Claim:
    """One claim.

    Attributes:
        job_id, attempt: which.
        entrypoint: of the job.
        by: the process that made it.
        at: when, as the job says.
        end: how it ended; None if it is still held.
        ended_by: the process that ended it.
        ended_at: when that was sent, by the clock of the machine.
        error: kept with the job when it ended.
    """

    job_id: str
    attempt: int
    entrypoint: str
    by: str
    at: str
    end: End | None = None
    ended_by: str = ""
    ended_at: float = 0.0
    error: str | None = None

    def __str__(self) -> str:
        how = f"{self.end} by {self.ended_by}" if self.end else "still held"
        return f"{self.job_id}/{self.attempt} ({self.entrypoint}), claimed by {self.by}, {how}"


class Lives:
    """What the history tells about jobs and claims.

    Attributes:
        claims: all of them, by job and attempt.
        enqueued: how often each job came into the queue.
        acked: how often each job was acked.
        faults: what no queue may do, in words.
        versions: how many were read.
    """

    def __init__(self) -> None:
        self.claims: dict[tuple[str, int], Claim] = {}
        self.enqueued: Counter[str] = Counter()
        self.acked: Counter[str] = Counter()
        self.faults: list[str] = []
        self.versions = 0

    def see(self, before: Version, after: Version) -> None:
        """Take note of what a version changed."""
        self.versions += 1
        for job_id, old, new in changes(before, after):
            if old is None:
                self.enqueued[job_id] += 1
            if is_held(old) and not (is_held(new) and attempt_of(old) == attempt_of(new)):
                self._end(job_id, old, new, after)
            elif old is not None and new is None and status_of(old) != COMPLETED:
                self._fault(after, job_id, f"vanished while it was {status_of(old)}")
            if is_held(new) and attempt_of(new) != attempt_of(old):
                self._begin(job_id, old, new, after)

    def _begin(self, job_id: str, old: Fields | None, new: Fields, after: Version) -> None:
        attempt = attempt_of(new)
        # What is not remembered goes on from the floor, so that no claim of an id used again is taken for an old one.
        if attempt != attempt_of(old) + 1 and (attempt_of(old) or attempt != after.header["attempt_floor"] + 1):
            self._fault(after, job_id, f"attempt {attempt} came after {attempt_of(old)}")
        if status_of(old) in (COMPLETED, DEAD):
            self._fault(after, job_id, f"was claimed although it is {status_of(old)}")
        self.claims[job_id, attempt] = Claim(job_id, attempt, new["entrypoint"], after.by, new["heartbeat_at"])

    def _end(self, job_id: str, old: Fields, new: Fields | None, after: Version) -> None:
        claim = self.claims[job_id, attempt_of(old)]
        claim.ended_by, claim.ended_at = after.by, after.sent_at
        if new is None or status_of(new) == COMPLETED:
            claim.end = End.ACKED
            self.acked[job_id] += 1
            return
        claim.error = new.get("error")
        charged = failures_of(new) - is_held(new) - (failures_of(old) - 1)
        claim.end = End.CHARGED if charged else End.RETURNED
        if charged not in (0, 1):
            self._fault(after, job_id, f"was charged {charged} failures at once")

    def _fault(self, after: Version, job_id: str, what: str) -> None:
        self.faults.append(f"version {after.number}, by {after.by}: job {job_id} {what}")


def steps(history: Iterable[Version]) -> Iterator[tuple[Version, Version]]:
    """Each version with the one before; before the first is an empty queue."""
    return pairwise(chain([Version()], history))


def changes(before: Version, after: Version) -> Iterator[tuple[str, Fields | None, Fields | None]]:
    """The jobs that are not as they were: what was there, and what is there."""
    for job_id, new in after.jobs.items():
        old = before.jobs.get(job_id)
        if old is not new:
            yield job_id, old, new
    for job_id in before.jobs.keys() - after.jobs.keys():
        yield job_id, before.jobs[job_id], None


def status_of(job: Fields | None) -> str:
    """Where a job stands; empty if it is nowhere."""
    return "" if job is None else str(job.get("status", QUEUED))


def is_held(job: Fields | None) -> TypeGuard[Fields]:
    """Whether somebody has a claim on it."""
    return status_of(job) == IN_PROGRESS


def attempt_of(job: Fields | None) -> int:
    """How often it was claimed."""
    return 0 if job is None else int(job.get("attempt", 0))


def failures_of(job: Fields | None) -> int:
    """What it is charged with; a claim is a failure until it ends well."""
    return 0 if job is None else int(job.get("failures", 0))
