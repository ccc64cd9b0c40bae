"""Port for stores that keep each job by itself, such as a folder of files or a text file.

An object store keeps a queue as one object, and changes it as a whole. Here each job is changed by a step of its own,
which succeeds or fails alone. So two programs may work on the same folder. Nothing here knows the rules of a queue:
`jqueue.formats.queue` builds a queue on a store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jqueue.domain.job import JobRecord, JobStatus
from jqueue.ports.queue import Capabilities

OF_ALL = Capabilities(
    **dict.fromkeys(Capabilities.__struct_fields__, False)
    | dict.fromkeys(("headers", "dead_letters", "errors", "uncharged", "fencing"), True)
    | dict.fromkeys(("heartbeat", "claim_timeout", "wait"), True)
)
"""Features of every format. Each format adds its own to these."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(moment: datetime) -> int:
    """Return a moment as microseconds since 1970, as the formats write it; 0 for an earlier one."""
    return max(0, (moment - _EPOCH) // _MICROSECOND)


def moment(number: int) -> datetime:
    """Return the moment `number` microseconds after 1970, or the latest datetime if that is too late."""
    try:
        return _EPOCH + number * _MICROSECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


class Step(StrEnum):
    """Kind of change to one job."""

    ADD = "add"
    CLAIM = "claim"
    PROLONG = "prolong"
    RELEASE = "release"
    REMOVE = "remove"


class StoredJob(NamedTuple):
    """A job as the store last showed it, and its place.

    Attributes:
        job: the job.
        place: the store's own name for where the job is. It may include the state of the job, and change with that. It
            is false if the job was removed.
    """

    job: JobRecord
    place: Any


@dataclass(frozen=True, slots=True)
class Change:
    """One job, before and after.

    Attributes:
        before: the job as it was last seen; None if it is new.
        after: the job as it must become; None if it is removed.
        place: the place where it was last seen; "" if it is new.
        is_transfer: True if the job comes from another queue, and keeps its id and its history (attempts, failures,
            error); or goes to one, and is not finished.
    """

    before: JobRecord | None
    after: JobRecord | None
    place: Any
    is_transfer: bool = False

    @property
    def step(self) -> Step:
        """The step that leads from before to after. A release makes a job ready or dead."""
        if self.after is None:
            return Step.REMOVE
        if self.before is None:
            return Step.ADD
        if self.after.status is not JobStatus.IN_PROGRESS:
            return Step.RELEASE
        return Step.CLAIM if self.before.status is JobStatus.QUEUED else Step.PROLONG

    @property
    def acked(self) -> bool:
        """True if the holder of the claim has finished the job."""
        return self.step is Step.REMOVE and not self.is_transfer and self.old.status is JobStatus.IN_PROGRESS

    @property
    def old(self) -> JobRecord:
        """The job before the change. Only for changes of a job that was there."""
        assert self.before is not None
        return self.before

    @property
    def new(self) -> JobRecord:
        """The job after the change. Only for changes that keep the job."""
        assert self.after is not None
        return self.after

    @property
    def job_id(self) -> str:
        """The job's id."""
        return (self.before or self.new).id


class JobChangedError(Exception):
    """The job is no longer as it was last seen: read the store again."""


Outcome = StoredJob | Exception
"""Result of one change: the job as it now is (with a false place if it was removed), or the error that prevented it.

The error is `JobChangedError`, an OSError, or an error of jqueue's own for the caller, such as InvalidJobError for a
job that the format cannot hold.
"""


@runtime_checkable
class JobStorePort(Protocol):
    """A store that keeps each job by itself. Its methods block, and are called by one thread at a time.

    A store object remembers what its queue has read, so it belongs to one queue. A second queue on the same files needs
    a store object of its own.

    If the store `claims_expire_by_clock`, the first program that sees an expired claim gives the job back, and the job
    keeps its place in the order.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Features of a queue on this store."""

    @property
    def claims_expire_by_clock(self) -> bool:
        """True if the store itself says when a claim expires, by the wall clock, for every program that uses it."""

    @property
    def name(self) -> str:
        """Path or address of the store, for messages to people."""

    def exists(self) -> bool:
        """Return True if the store exists. The first job creates it."""

    def watched(self) -> Sequence[Path]:
        """Return the folders in which every change of the queue can be seen."""

    def may_have_changed(self) -> bool:
        """Return True if the store may have changed since the last `scan`. Quick; a False is always right."""

    def scan(self, now: datetime) -> Sequence[StoredJob]:
        """Return every job of the store.

        Payloads may be left empty, and attempts counted by other programs may be missing: a claim reads both.

        Raises:
            StorageError: the store cannot be read.
        """

    def payloads(self, jobs: Sequence[StoredJob]) -> Sequence[JobRecord]:
        """Return these jobs as they are now, with their payloads, without the jobs that no longer exist."""

    def finished(self) -> Mapping[str, int]:
        """Return the ids of recently acked jobs, each with the attempt that acked it."""

    def carry_out(self, changes: Sequence[Change], now: datetime) -> Sequence[Outcome]:
        """Make each change by itself, in order.

        A new job may come back with another id: the store finds it by that one from now on. If a new job comes back as
        an OSError or StorageError, or if this method raises, the next `scan` shows which changes were made. That
        `scan` shows only changes that are as durable as a successful `carry_out` makes them.
        """
