"""The jobs of a queue at an earlier time, found from its present jobs by undoing the events of its history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from jqueue.domain.errors import ReplayError, shown
from jqueue.domain.events import HistoryEvent
from jqueue.domain.history import START
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.transitions import Verb


class ReplayedJob(NamedTuple):
    """A job as it was at a time."""

    entrypoint: str
    status: JobStatus
    attempt: int


class Row(NamedTuple):
    """The job of a row of a segment, as the segment has it."""

    job_id: str
    entrypoint: str
    attempt: int
    created_at: datetime


class Touched:
    """The jobs that some events may have changed. All other present jobs were there before, as they are now."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._groups: set[tuple[str, datetime]] = set()

    def add(self, event: HistoryEvent, rows: Sequence[Row] | None = None) -> None:
        """Add the jobs of an event.

        Args:
            event: the event.
            rows: the jobs of `event.rows`; None if they are not known.
        """
        if event.job_id is not None:
            self._ids.add(event.job_id)
        elif event.verb != Verb.ENQUEUE:
            self._ids.update(row.job_id for row in rows or ())
        else:  # very many jobs may have been added together: they are known by their time
            self._groups.add((event.entrypoint or "", event.created_at or event.at))
            self._groups.update((row.entrypoint, row.created_at) for row in rows or ())

    def has(self, job: Job) -> bool:
        """Return True if an event may have changed this job."""
        return job.id in self._ids or (job.entrypoint, job.created_at) in self._groups


class Replay:
    """The jobs of a queue at a moment that moves back, event by event.

    Args:
        last: number of the last event.

    Attributes:
        jobs: the jobs as they were before the last undone event, by id.
    """

    def __init__(self, last: int) -> None:
        self.jobs: dict[str, ReplayedJob] = {}
        self._created: dict[str, datetime | None] = {}
        self._next = last

    def add(self, job: Job) -> None:
        """Add a present job. All of them are added before the first event is undone."""
        self.jobs[job.id] = ReplayedJob(job.entrypoint, job.status, job.attempt)
        self._created[job.id] = job.created_at

    def undo(self, event: HistoryEvent, rows: Sequence[Row] | None = None) -> None:
        """Undo the event before all that were undone.

        Args:
            event: the event.
            rows: the jobs of `event.rows`; None if they are not known.

        Raises:
            ReplayError: the event does not fit what came after it, an event is missing, or the history begins here.
        """
        if event.number != self._next:
            raise ReplayError(f"events {event.number + 1} to {self._next} of the history are missing")
        check_begun(event)
        if event.job_id is not None:
            self._undo_transition(event, event.job_id, event.entrypoint or "", event.attempt, event.created_at)
        elif rows is not None:
            for row in rows:
                self._undo_transition(event, row.job_id, row.entrypoint, row.attempt + event.attempt, row.created_at)
        elif event.verb == Verb.ENQUEUE:
            self._undo_lines(event)
        else:
            raise ReplayError(
                f"event {event.number} ({event.verb}) is of {event.jobs} jobs of a segment at once, and the segment "
                f"with their ids is gone: choose a time after {event.at.isoformat()}"
            )
        self._next -= 1

    def _undo_transition(
        self, event: HistoryEvent, job_id: str, entrypoint: str, attempt: int, created_at: datetime | None
    ) -> None:
        """Undo the transition of one job, of which some facts are only needed if it is not there any longer."""
        there = self.jobs.get(job_id)
        found = (None, attempt) if there is None else (there.status, there.attempt)
        if found != (event.after, attempt):
            raise ReplayError(
                f"event {event.number} ({event.verb}) does not fit: after it, job {shown(job_id)} was "
                f"{_shown(event.after, attempt)}, and by the later events it was {_shown(*found)}. Was "
                "the queue edited by hand, or restored from a backup?"
            )
        if event.before is None:
            del self.jobs[job_id]
            return
        if there is None:
            self._created[job_id] = created_at
        else:
            entrypoint = there.entrypoint
        self.jobs[job_id] = ReplayedJob(entrypoint, event.before, attempt - (event.verb == Verb.CLAIM))

    def _undo_lines(self, event: HistoryEvent) -> None:
        """Undo a bulk enqueue. Its event names no jobs: they are known by their entrypoint and time of creation."""
        created_at = event.at if event.created_at is None else event.created_at
        added = [
            job_id
            for job_id, job in self.jobs.items()
            if job.entrypoint == event.entrypoint and self._created.get(job_id) == created_at
        ]
        fresh = [job_id for job_id in added if self.jobs[job_id].status is JobStatus.QUEUED]
        if len(fresh) < event.jobs:
            raise ReplayError(
                f"event {event.number} ({event.verb}) does not fit: it added {event.jobs} jobs to "
                f"{shown(event.entrypoint)}, and {len(fresh)} are known"
            )
        for job_id in fresh[-event.jobs :]:
            del self.jobs[job_id]


def check_begun(event: HistoryEvent) -> None:
    """Check that an event is not the one with which the history begins.

    Raises:
        ReplayError: it is.
    """
    if event.verb == START:
        raise ReplayError(f"the history of the queue begins at {event.at.isoformat()}: choose a later time")


def _shown(status: JobStatus | None, attempt: int) -> str:
    return "not in the queue" if status is None else f"{status} with attempt {attempt}"
