"""What keeps jobs one by one, each by itself: a folder of files, a text file. The queues are made of it elsewhere.

An object store keeps a queue as one object, and changes it as a whole. Here each job is changed by one step that
succeeds or not by itself, so that two programs may work on the same folder. Nothing here knows the rules of a queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from jqueue.domain.models import Job, JobStatus
from jqueue.domain.moving import is_moving
from jqueue.ports.queue import Capabilities


class Step(StrEnum):
    """What is done to one job."""

    ADD = "add"
    CLAIM = "claim"
    PROLONG = "prolong"
    RELEASE = "release"
    BURY = "bury"
    REVIVE = "revive"
    REMOVE = "remove"
    CHANGE = "change"


_BETWEEN = {
    (None, JobStatus.QUEUED): Step.ADD,
    (None, JobStatus.DEAD): Step.ADD,
    (JobStatus.QUEUED, JobStatus.IN_PROGRESS): Step.CLAIM,
    (JobStatus.IN_PROGRESS, JobStatus.IN_PROGRESS): Step.PROLONG,
    (JobStatus.IN_PROGRESS, JobStatus.QUEUED): Step.RELEASE,
    (JobStatus.IN_PROGRESS, JobStatus.DEAD): Step.BURY,
    (JobStatus.QUEUED, JobStatus.DEAD): Step.BURY,
    (JobStatus.DEAD, JobStatus.QUEUED): Step.REVIVE,
}


class Kept(NamedTuple):
    """A job as it was seen, and where.

    Attributes:
        job: the job.
        place: where exactly, in the words of the store: as soon as anybody changes the job, it is elsewhere.
    """

    job: Job
    place: str


@dataclass(frozen=True, slots=True)
class Change:
    """One job, before and after.

    Attributes:
        before: as it was seen; None if it is new.
        after: as it shall be; None if it leaves.
        place: where it was seen; empty if it is new.
        arrives: whether it is new here, and comes from another queue: it keeps its id, and what has become of it.
    """

    before: Job | None
    after: Job | None
    place: str
    arrives: bool = False

    @property
    def step(self) -> Step:
        """What is to be done."""
        if self.after is None:
            return Step.REMOVE
        return _BETWEEN.get((None if self.before is None else self.before.status, self.after.status), Step.CHANGE)

    @property
    def acked(self) -> bool:
        """Whether whoever had claimed the job has finished it; one that moves to another queue is not finished."""
        before = self.before
        if self.after is not None or before is None or is_moving(before):
            return False
        return before.status is JobStatus.IN_PROGRESS

    @property
    def old(self) -> Job:
        """The job before, where there was one."""
        assert self.before is not None
        return self.before

    @property
    def new(self) -> Job:
        """The job after, where it stays."""
        assert self.after is not None
        return self.after

    @property
    def job_id(self) -> str:
        """The job's id."""
        return (self.before or self.new).id


class Lost(Exception):
    """The job is not any more as it was seen: look again."""


class Full(Exception):
    """There is no room for the job: whoever enqueues it waits until there is, or the deadline has passed."""


Outcome = Kept | None | Exception
"""What one change came to: the job as it stands now (nowhere, if it has left), or why not.

`Lost`, `Full`, OSError; or an error of jqueue's own for the caller: QueueFullError, InvalidJobError for a job that the
format cannot hold.
"""


@runtime_checkable
class JobStorePort(Protocol):
    """A place that keeps jobs one by one. Its methods block, and are called by one thread at a time.

    An object belongs to one queue, as it knows what that has seen: another queue takes another object on that place.

    Where it `knows_expiry`, a claim that is over is given back in its place, by whoever comes first.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What a queue on it can do."""
        ...

    @property
    def knows_expiry(self) -> bool:
        """Whether a claim ends when its time is over by the clock, for every program that works on the place."""
        ...

    @property
    def name(self) -> str:
        """Where it is, as people know it."""
        ...

    def exists(self) -> bool:
        """Whether there is anything yet; the first job makes it."""
        ...

    def has_moved(self) -> bool:
        """Whether it may be another than at the last `scan`. Quick, and never wrong when it says no."""
        ...

    def scan(self, now: datetime) -> Sequence[Kept]:
        """Every job that there is. Payloads need not be read, nor what others have counted: a claim brings its own.

        Raises:
            StorageError: it cannot be read.
        """
        ...

    def payloads(self, jobs: Sequence[Kept]) -> Sequence[Job]:
        """The same jobs with their payloads, as they are now; those that have left are left out."""
        ...

    def finished(self) -> Mapping[str, int]:
        """The ids of jobs that were acked a short while ago, with the attempts that did it."""
        ...

    def carry_out(self, changes: Sequence[Change], now: datetime) -> Sequence[Outcome]:
        """Do each change for itself, in order.

        A new job that comes back has the id that it is found by from now on, whatever it was called before. One that
        comes to an error is not there. If the whole of it raises, what was done is not known before the next `scan`,
        which shows nothing that is not as safe as `carry_out` makes it.
        """
        ...


@runtime_checkable
class ServesInOrder(Protocol):
    """A place whose jobs are served in its own order, whoever put them there: it is read before each claim."""

    serves_in_order: bool
    """Whether it is so."""


@runtime_checkable
class SupportsWatching(Protocol):
    """A place in the file system: whoever waits for jobs is told when it changes."""

    def watched(self) -> Sequence[Path]:
        """The folders, absolute, in which a file comes, leaves or gets another name when jobs change.

        They need not exist yet. Asked again whenever one of them has come or gone.
        """
        ...


@runtime_checkable
class KeepsFilesOpen(Protocol):
    """A place that keeps files open while it is used."""

    def let_go(self) -> None:
        """Close them. The next call opens them again."""
        ...
