"""The life of every job and every claim, from the history: its process, its time and its end."""

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
    """The end of a claim."""

    ACKED = "acked"
    RETURNED = "handed back, uncharged"
    CHARGED = "charged with a failure"


@dataclass(slots=True)
class Claim:
    """One claim.

    Attributes:
        job_id, attempt: the pair that identifies the claim.
        entrypoint: the entrypoint of the job.
        by: the process that made the claim.
        at: time of the claim, as stored with the job.
        end: the end of the claim; None while it is held.
        ended_by: the process that ended the claim.
        ended_at: time at which the end was sent, by the clock of the machine.
        error: the error stored with the job at the end.
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
    """The jobs and claims of a history.

    Attributes:
        claims: all claims, by job and attempt.
        enqueued: number of times that each job came into the queue.
        acked: number of times that each job was acked.
        faults: a description of each broken rule of queues.
        versions: number of versions read.
    """

    def __init__(self) -> None:
        self.claims: dict[tuple[str, int], Claim] = {}
        self.enqueued: Counter[str] = Counter()
        self.acked: Counter[str] = Counter()
        self.faults: list[str] = []
        self.versions = 0

    def see(self, before: Version, after: Version) -> None:
        """Record the changes of a version."""
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
        # A job without earlier attempts starts above the floor, so that a claim of a reused id never equals an old one.
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
    """Each version with its predecessor, which is an empty queue for the first."""
    return pairwise(chain([Version()], history))


def changes(before: Version, after: Version) -> Iterator[tuple[str, Fields | None, Fields | None]]:
    """The id of each changed job, with its fields before and after the change."""
    for job_id, new in after.jobs.items():
        old = before.jobs.get(job_id)
        if old is not new:
            yield job_id, old, new
    for job_id in before.jobs.keys() - after.jobs.keys():
        yield job_id, before.jobs[job_id], None


def status_of(job: Fields | None) -> str:
    """The status of a job, or an empty string for a job that does not exist."""
    return "" if job is None else str(job.get("status", QUEUED))


def is_held(job: Fields | None) -> TypeGuard[Fields]:
    """True if the job is claimed."""
    return status_of(job) == IN_PROGRESS


def attempt_of(job: Fields | None) -> int:
    """Number of times that the job was claimed."""
    return 0 if job is None else int(job.get("attempt", 0))


def failures_of(job: Fields | None) -> int:
    """Number of failures of the job; a claim counts as one until it ends without a charge."""
    return 0 if job is None else int(job.get("failures", 0))
