"""Operations that are done only if the queue is still as the caller has seen it.

A person looks at a queue, decides, and acts seconds later. Between the look and the commit a worker may have claimed
the job, or another person may have changed it. A guard is checked in the transition itself, so a change between the
look and the commit is always noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from jqueue.domain.draft import Draft
from jqueue.domain.errors import ChangedMeanwhileError
from jqueue.domain.job import JobRecord
from jqueue.domain.models import Job, record_of
from jqueue.domain.operations.base import JobReference, Operation, Preparation
from jqueue.domain.rules import EntrypointRules, QueueSettings, Schedule
from jqueue.domain.selection import Selection


class Guard(Protocol):
    """A condition on the queue, as a value."""

    def check(self, draft: Draft, now: datetime) -> None:
        """Return if the condition holds.

        Raises:
            JQueueError: it does not hold.
        """


@dataclass(frozen=True, slots=True)
class JobMatches(Guard):
    """The job is in the queue and belongs to a selection.

    Attributes:
        job_id: the id of the job.
        selection: the filters by which it was chosen.
    """

    job_id: str
    selection: Selection

    def check(self, draft: Draft, now: datetime) -> None:
        """Check the job as it is now.

        Raises:
            JobNotFoundError: it is not in the queue.
            ChangedMeanwhileError: it does not belong to the selection.
        """
        if not self.selection.matches(draft.get(self.job_id), now):
            raise ChangedMeanwhileError(f"job {self.job_id!r} has changed meanwhile, and no longer matches")


@dataclass(frozen=True, slots=True)
class JobAsSeen(Guard):
    """The job is in the queue, and nothing of it but its heartbeat has changed."""

    job: Job = field(repr=False)

    def check(self, draft: Draft, now: datetime) -> None:
        """Compare the job as it is now.

        Raises:
            JobNotFoundError: it is not in the queue.
            ChangedMeanwhileError: it has changed.
        """
        if _without_place(draft.get(self.job.id)) != _without_place(record_of(self.job)):
            raise ChangedMeanwhileError(f"job {self.job.id!r} has changed meanwhile")


def _without_place(job: JobRecord) -> JobRecord:
    """Return a job without its heartbeat and without its place, which a reader may have numbered."""
    return job.evolve(heartbeat_at=None, sequence=0)


@dataclass(frozen=True, slots=True)
class SettingsAsSeen(Guard):
    """The settings of the queue have not changed."""

    settings: QueueSettings

    def check(self, draft: Draft, now: datetime) -> None:
        """Compare the settings.

        Raises:
            ChangedMeanwhileError: they have changed.
        """
        if draft.header.settings != self.settings:
            raise ChangedMeanwhileError("the settings of the queue have changed meanwhile")


@dataclass(frozen=True, slots=True)
class LimitsAsSeen(Guard):
    """The limits and the pause of an entrypoint have not changed."""

    entrypoint: str
    rules: EntrypointRules

    def check(self, draft: Draft, now: datetime) -> None:
        """Compare the limits.

        Raises:
            ChangedMeanwhileError: they have changed.
        """
        if draft.header.entrypoints.get(self.entrypoint, EntrypointRules()) != self.rules:
            raise ChangedMeanwhileError(f"the limits of entrypoint {self.entrypoint!r} have changed meanwhile")


@dataclass(frozen=True, slots=True)
class ScheduleAsSeen(Guard):
    """A cron entry is there, and nothing but its times has changed."""

    schedule: Schedule = field(repr=False)

    def check(self, draft: Draft, now: datetime) -> None:
        """Compare the entry.

        Raises:
            ChangedMeanwhileError: it has changed, or is gone.
        """
        known = draft.header.schedules.get(self.schedule.name)
        if known is None or _without_times(known) != _without_times(self.schedule):
            raise ChangedMeanwhileError(f"cron entry {self.schedule.name!r} has changed meanwhile, or was removed")


def _without_times(schedule: Schedule) -> Schedule:
    return schedule.evolve(next_at=datetime.min, fired=())


@dataclass(frozen=True, slots=True)
class Guarded(Operation):
    """An operation that is done only if a guard allows it. Its result is that of the operation.

    Attributes:
        guard: the condition, checked at the commit.
        operation: any that hands out no claims and has no large value.
    """

    guard: Guard
    operation: Operation

    def prepared(self, preparation: Preparation) -> Guarded:
        """Return the operation with the guarded one checked."""
        return replace(self, operation=self.operation.prepared(preparation))

    def needs(self, claim_timeout: float) -> Iterable[str]:
        """Return the needs of the guarded operation."""
        return self.operation.needs(claim_timeout)

    def change(self, draft: Draft, now: datetime) -> Any:
        """Check the guard, and do the operation.

        Raises:
            JQueueError: the guard does not hold, or the operation is refused.
        """
        self.guard.check(draft, now)
        return self.operation.change(draft, now)

    def references(self) -> Sequence[JobReference]:
        """Return the jobs that the guarded operation names."""
        return self.operation.references()

    def job_ids(self) -> Sequence[str]:
        """Return the ids of the jobs of the guarded operation."""
        return self.operation.job_ids()

    def may_miss(self, result: Any) -> bool:
        """Return True if the guarded operation might answer otherwise."""
        return self.operation.may_miss(result)
