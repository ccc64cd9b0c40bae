"""The table of legal changes of status. The operations consult it, and the docs draw it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, MutableMapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from jqueue.domain.job import COMPLETED, DEAD, IN_PROGRESS, QUEUED, JobRecord, JobStatus
from jqueue.domain.segments import Span


class Verb(StrEnum):
    """An action that moves a job from one status to another."""

    ENQUEUE = "enqueue"
    CLAIM = "dequeue"
    HEARTBEAT = "heartbeat"
    ACK = "ack"
    NACK = "nack"
    HAND_BACK = "nack, uncharged"
    REVOKE = "stale"
    CANCEL = "cancel"
    EXPIRE = "expire"
    REDRIVE = "redrive"
    PURGE = "purge"
    RESCHEDULE = "reschedule"
    REPRIORITISE = "reprioritise"
    RELEASE = "parent ended"
    ARRIVE = "arrive"
    DEPART = "depart"

    __hash__ = str.__hash__  # see JobStatus


ENQUEUE, CLAIM, HEARTBEAT = Verb.ENQUEUE, Verb.CLAIM, Verb.HEARTBEAT  # see the statuses
ACK, NACK = Verb.ACK, Verb.NACK


RowsOf = tuple[str, Sequence[Span]]
"""The name of a segment, and rows of it."""

Move = tuple[Verb, JobRecord | None, JobRecord | None, str | None]
"""A transition of one job: the verb, the job before and after (None: it is not in the queue), and who asked for it."""


def claims_of(moves: Iterable[Move]) -> Counter[str]:
    """Return the number of claims of each entrypoint among transitions."""
    return Counter(job.entrypoint for verb, job, *_ in moves if verb is Verb.CLAIM and job is not None)


class BulkMove(NamedTuple):
    """A transition of many jobs at once, which are not known one by one."""

    verb: Verb
    entrypoint: str
    before: JobStatus | None
    after: JobStatus | None
    jobs: int
    attempt: int
    """Number of leases of these jobs, with this one. The draft adds `floor` of the segment."""
    holder: str | None
    """Holder of the claim that begins or ends."""
    seconds: tuple[tuple[float, int], ...]
    """Of a claim, the times for which jobs were ready, in seconds, each with a number of jobs; else of the claim."""
    created_at: datetime | None = None
    """Of an enqueue, the time at which the jobs were enqueued."""
    rows: Sequence[RowsOf] = ()
    """The rows of the jobs. An operation gives the name of an entry, and the draft keeps that of its segment."""
    asked_by: str | None = None
    """Person or program that asked for it. The draft sets it."""
    group: str | None = None
    """Id of the group that the jobs belong to. The draft sets it."""


TRANSITIONS: dict[tuple[JobStatus | None, Verb], tuple[JobStatus | None, ...]] = {
    (None, Verb.ENQUEUE): (QUEUED,),
    (None, Verb.ARRIVE): (QUEUED, DEAD),
    (QUEUED, Verb.CLAIM): (IN_PROGRESS,),
    (QUEUED, Verb.CANCEL): (None,),
    (QUEUED, Verb.EXPIRE): (None,),
    (QUEUED, Verb.PURGE): (None,),
    (QUEUED, Verb.RESCHEDULE): (QUEUED,),
    (QUEUED, Verb.REPRIORITISE): (QUEUED,),
    (QUEUED, Verb.DEPART): (None,),
    (QUEUED, Verb.RELEASE): (QUEUED, DEAD),
    (IN_PROGRESS, Verb.HEARTBEAT): (IN_PROGRESS,),
    (IN_PROGRESS, Verb.ACK): (COMPLETED,),
    (IN_PROGRESS, Verb.CANCEL): (IN_PROGRESS, None),
    (IN_PROGRESS, Verb.NACK): (QUEUED, DEAD, None),
    (IN_PROGRESS, Verb.HAND_BACK): (QUEUED, None),
    (IN_PROGRESS, Verb.REVOKE): (QUEUED, DEAD, None),
    (IN_PROGRESS, Verb.DEPART): (None,),
    (DEAD, Verb.DEPART): (None,),
    (DEAD, Verb.REDRIVE): (QUEUED,),
    (DEAD, Verb.PURGE): (None,),
    (DEAD, Verb.EXPIRE): (None,),
    (COMPLETED, Verb.PURGE): (None,),
    (COMPLETED, Verb.EXPIRE): (None,),
}
"""(from, verb) -> the statuses that it may lead to. None is "not in the queue".

A completed job stays in the queue only while its result is kept. A job that was cancelled in progress leaves the queue
at the point at which another job would be queued again, or dead. A leased one leaves at once.
"""


ABSENT: Any = object()
"""Old value of an entry that did not exist."""


class Restores(Protocol):
    """An object that can restore one of its values."""

    def restore(self, key: str, old: Any) -> None:
        """Restore an old value, or remove the value if the old one is ABSENT."""


Change = tuple[MutableMapping[str, Any] | Restores, str, Any]
"""A change of a draft: the changed object, the key or name in it, and the old value."""
