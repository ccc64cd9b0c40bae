"""A choice of jobs: by phase, entrypoint, age, holder, key, error and id, or the first of many."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec

from jqueue.domain.job import JobStatus, ready_since
from jqueue.domain.models import AnyJob


class Phase(StrEnum):
    """The phase of a job at a time: its status, where queued jobs are told apart by their times and their parents."""

    READY = "ready"
    SCHEDULED = "scheduled"
    WAITING = "waiting"
    EXPIRED = "expired"
    IN_PROGRESS = "in_progress"
    DEAD = "dead"
    COMPLETED = "completed"


QUEUED = frozenset({Phase.READY, Phase.SCHEDULED, Phase.WAITING, Phase.EXPIRED})
"""The phases of queued jobs."""

PHASES = (
    *(Phase.IN_PROGRESS, Phase.READY, Phase.SCHEDULED, Phase.WAITING),
    *(Phase.EXPIRED, Phase.DEAD, Phase.COMPLETED),
)
"""The phases in the order in which their jobs are listed."""

_CLAIMED_OR_ENDED = {
    JobStatus.IN_PROGRESS: Phase.IN_PROGRESS,
    JobStatus.DEAD: Phase.DEAD,
    JobStatus.COMPLETED: Phase.COMPLETED,
}


def phase_of(job: AnyJob, now: datetime) -> Phase:
    """Return the phase of a job at a time."""
    phase = _CLAIMED_OR_ENDED.get(job.status)
    if phase is not None:
        return phase
    if job.waits_for and (job.expires_at is None or job.expires_at > now):
        return Phase.WAITING
    if job.run_at is not None and job.run_at > now:
        return Phase.SCHEDULED
    return Phase.READY if job.expires_at is None or job.expires_at > now else Phase.EXPIRED


def since(job: AnyJob) -> datetime:
    """Return the time since which a job is in its phase. For a scheduled job, that time lies ahead: it is its `run_at`.

    A job in progress counts from its claim, a dead one from its death, a completed one from its ack.
    """
    if job.status is JobStatus.QUEUED:
        return ready_since(job)
    begun = {JobStatus.IN_PROGRESS: job.claimed_at, JobStatus.DEAD: job.dead_at}.get(job.status, job.finished_at)
    return job.created_at if begun is None else begun


def place_of(job: AnyJob, now: datetime) -> tuple[float, ...]:
    """Return the place of a job in a list of all: by its phase, and then as it is served, is due, or has come to it."""
    phase = phase_of(job, now)
    turn = (job.priority, job.sequence)
    if phase in (Phase.READY, Phase.EXPIRED):
        return (PHASES.index(phase), *turn)
    return (PHASES.index(phase), since(job).timestamp(), *turn)


def _status_of(phase: Phase) -> JobStatus:
    return JobStatus.QUEUED if phase in QUEUED else JobStatus(phase)


def phases_of(statuses: Collection[JobStatus]) -> frozenset[Phase]:
    """Return the phases that jobs of some statuses have."""
    return frozenset(phase for phase in Phase if _status_of(phase) in statuses)


class Selection(msgspec.Struct, frozen=True):
    """A choice of jobs. A job is chosen if it fits all fields that are set; an empty selection chooses every job.

    Attributes:
        phases: phases of the jobs.
        entrypoints: entrypoints of the jobs.
        older_than: seconds; jobs that are in their phase for longer. No scheduled job is.
        newer_than: seconds; jobs that are in their phase for at most this time, and scheduled jobs.
        holder: a part of the holder's name, in any case of letters.
        key: the unique key, the concurrency key or the fair key.
        error: a part of the last error, in any case of letters.
        id_prefix: the beginning of the ids.
        text: a part of the id, the entrypoint, the holder, a key or the last error, in any case of letters.
        group: the group that they belong to.
        payload: a part of the payload, in UTF-8, as it is or as a string of JSON has it. A payload in an object of its
            own is not read, and does not fit.
    """

    phases: frozenset[Phase] = frozenset()
    entrypoints: frozenset[str] = frozenset()
    older_than: float | None = None
    newer_than: float | None = None
    holder: str | None = None
    key: str | None = None
    error: str | None = None
    id_prefix: str | None = None
    text: str | None = None
    payload: str | None = None
    group: str | None = None

    def __bool__(self) -> bool:
        """True if any field is set."""
        return self != EVERY_JOB

    @property
    def statuses(self) -> tuple[JobStatus, ...]:
        """The statuses that the chosen jobs have; none if they may have any."""
        return tuple(set(map(_status_of, self.phases)))

    def matches(self, job: AnyJob, now: datetime) -> bool:
        """Return True if a job is chosen.

        Args:
            job: the job.
            now: the time at which phases and ages are looked at.
        """
        return (
            (not self.entrypoints or job.entrypoint in self.entrypoints)
            and (not self.phases or phase_of(job, now) in self.phases)
            and (self.group is None or job.group == self.group)
            and (self.id_prefix is None or job.id.startswith(self.id_prefix))
            and (self.key is None or self.key in (job.unique_key, job.concurrency_key, job.fair_key))
            and _contains(job.holder, self.holder)
            and _contains(job.error, self.error)
            and (self.text is None or self._has_the_text(job, self.text))
            and (self.payload is None or any(each in job.payload for each in _encoded(self.payload)))
            and self._has_the_age(job, now)
        )

    def _has_the_text(self, job: AnyJob, text: str) -> bool:
        texts = (job.id, job.entrypoint, job.holder, job.unique_key, job.concurrency_key, job.fair_key, job.error)
        return any(_contains(each, text) for each in texts)

    def _has_the_age(self, job: AnyJob, now: datetime) -> bool:
        if self.older_than is None and self.newer_than is None:
            return True
        age = (now - since(job)).total_seconds()
        return (self.older_than is None or age > self.older_than) and (
            self.newer_than is None or age <= self.newer_than
        )


EVERY_JOB = Selection()


@lru_cache(maxsize=1)
def _encoded(text: str) -> tuple[bytes, ...]:
    """Return the ways in which a payload may have a text: as it is, and in a string of JSON, with escapes or few."""
    in_json = (json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    return tuple(dict.fromkeys(each.encode() for each in (text, *in_json)))


def _contains(text: str | None, part: str | None) -> bool:
    return part is None or (text is not None and part.casefold() in text.casefold())


Item = TypeVar("Item")

SPARE = 1024
"""Number of items held beyond the limit before the last ones are dropped."""


class FirstItems(Generic[Item]):
    """Finds what sorting the whole row and cutting it would find, equal items in the order in which they came.

    Args:
        limit: maximum number of items to find; None for all.
        key: returns the place of an item.
        reverse: True to sort in the other direction.

    Attributes:
        number: number of items in the row so far.
    """

    def __init__(self, limit: int | None, key: Callable[[Item], Any], *, reverse: bool = False) -> None:
        self.number: int = 0
        self._limit = limit
        self._key = key
        self._reverse = reverse
        self._items: list[Item] = []

    def add(self, item: Item) -> None:
        """Add the next item of the row."""
        self.number += 1
        self._items.append(item)
        if self._limit is not None and len(self._items) >= self._limit + SPARE:
            self._items = self.found()

    def found(self) -> list[Item]:
        """Return the first items of the row so far, in order."""
        return sorted(self._items, key=self._key, reverse=self._reverse)[: self._limit]
