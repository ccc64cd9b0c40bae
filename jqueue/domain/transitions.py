"""The table of legal changes of status. The operations consult it, and the docs draw it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
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
    EDIT = "edit"
    ARRIVE = "arrive"
    DEPART = "depart"

    __hash__ = str.__hash__  # see JobStatus


ENQUEUE, CLAIM, HEARTBEAT = Verb.ENQUEUE, Verb.CLAIM, Verb.HEARTBEAT  # see the statuses
ACK, NACK = Verb.ACK, Verb.NACK


RowsOf = tuple[str, Sequence[Span]]
"""The name of a segment, and rows of it."""

Move = tuple[Verb, JobRecord | None, JobRecord | None]
"""A transition of one job: the verb, and the job before and after; None if it is not in the queue."""


def claims_of(moves: Iterable[Move]) -> Counter[str]:
    """Return the number of claims of each entrypoint among transitions."""
    return Counter(job.entrypoint for verb, job, _ in moves if verb is Verb.CLAIM and job is not None)


class BulkMove(NamedTuple):
    """A transition of many jobs at once, which are not known one by one."""

    verb: Verb
    entrypoint: str
    before: JobStatus | None
    after: JobStatus | None
    jobs: int
    attempt: int
    """Number of claims of these jobs as parts of ranges, with this one. The draft adds `floor` of the segment."""
    holder: str | None
    """Holder of the claim that begins or ends."""
    seconds: tuple[tuple[float, int], ...]
    """Of a claim, the times for which jobs were ready, in seconds, each with a number of jobs; else of the claim."""
    created_at: datetime | None = None
    """Of an enqueue, the time at which the jobs were enqueued."""
    rows: Sequence[RowsOf] = ()
    """The rows of the jobs."""
    cancelled: int = 0
    """Of a revoked range, the number of jobs that leave at once, as they were cancelled."""


TRANSITIONS: dict[tuple[JobStatus | None, Verb], tuple[JobStatus | None, ...]] = {
    (None, Verb.ENQUEUE): (QUEUED,),
    (None, Verb.ARRIVE): (QUEUED, DEAD),
    (QUEUED, Verb.CLAIM): (IN_PROGRESS,),
    (QUEUED, Verb.CANCEL): (None,),
    (QUEUED, Verb.EXPIRE): (None,),
    (QUEUED, Verb.PURGE): (None,),
    (QUEUED, Verb.RESCHEDULE): (QUEUED,),
    (QUEUED, Verb.REPRIORITISE): (QUEUED,),
    (QUEUED, Verb.EDIT): (QUEUED,),
    (QUEUED, Verb.DEPART): (None,),
    (IN_PROGRESS, Verb.HEARTBEAT): (IN_PROGRESS,),
    (IN_PROGRESS, Verb.ACK): (COMPLETED,),
    (IN_PROGRESS, Verb.CANCEL): (IN_PROGRESS,),
    (IN_PROGRESS, Verb.NACK): (QUEUED, DEAD, None),
    (IN_PROGRESS, Verb.HAND_BACK): (QUEUED, None),
    (IN_PROGRESS, Verb.REVOKE): (QUEUED, DEAD, None),
    (IN_PROGRESS, Verb.DEPART): (None,),
    (DEAD, Verb.DEPART): (None,),
    (DEAD, Verb.REDRIVE): (QUEUED,),
    (DEAD, Verb.PURGE): (None,),
    (DEAD, Verb.EDIT): (DEAD,),
    (DEAD, Verb.EXPIRE): (None,),
    (COMPLETED, Verb.PURGE): (None,),
    (COMPLETED, Verb.EXPIRE): (None,),
}
"""(from, verb) -> the statuses that it may lead to. None is "not in the queue".

A completed job stays in the queue only while its result is kept. A job that was cancelled in progress leaves the queue
at the point at which another job would be queued again, or dead.
"""


def diagram() -> str:
    """Return the table as a Mermaid state diagram."""
    name: dict[JobStatus | None, str] = {None: "[*]"}
    name.update({status: str(status) for status in JobStatus})
    lines = ["stateDiagram-v2"]
    for (before, verb), targets in TRANSITIONS.items():
        lines += [f"    {name[before]} --> {name[after]}: {verb}" for after in targets]
    return "\n".join([*lines, "    completed --> [*]: no result is kept"]) + "\n"


ABSENT: Any = object()
"""Old value of an entry that did not exist."""


class Restores(Protocol):
    """An object that can restore one of its values."""

    def restore(self, key: str, old: Any) -> None:
        """Restore an old value, or remove the value if the old one is ABSENT."""


class Journal:
    """The changes of a draft, in order.

    Attributes:
        changed: True if there is anything to commit.
        entries: for each change, the changed object, the key or name in it, and the old value.
        moves: the transitions of jobs among these changes, in order.
        bulk: the transitions of many jobs at once.
    """

    __slots__ = ("bulk", "changed", "entries", "moves")

    def __init__(self) -> None:
        self.changed = False
        self.entries: list[tuple[MutableMapping[str, Any] | Restores, str, Any]] = []
        self.moves: list[Move] = []
        self.bulk: list[BulkMove] = []

    def set(self, table: MutableMapping[str, Any], key: str, value: Any) -> None:
        """Set an entry of a table."""
        self.changed = True
        self.entries.append((table, key, table.get(key, ABSENT)))
        table[key] = value

    def drop(self, table: MutableMapping[str, Any], key: str) -> None:
        """Drop an entry of a table, if it is there."""
        if key in table:
            self.changed = True
            self.entries.append((table, key, table.pop(key)))

    def assign(self, owner: Restores, name: str, value: Any) -> None:
        """Set an attribute."""
        self.changed = True
        self.entries.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def undo(self, mark: int, moves: int, bulk: int) -> Iterator[tuple[object, str]]:
        """Undo the changes after a mark, the last one first. Yield the object and the key of each.

        Args:
            mark: number of entries to keep.
            moves: number of moves to keep.
            bulk: number of bulk moves to keep.
        """
        entries = self.entries
        del self.moves[moves:]
        del self.bulk[bulk:]
        while len(entries) > mark:
            place, key, old = entries.pop()
            if place.__class__ is not dict:
                place.restore(key, old)  # type: ignore[union-attr]
            elif old is ABSENT:
                del place[key]
            else:
                place[key] = old
            yield place, key

    def settle(self) -> None:
        """Forget the changes, which makes them permanent: they were committed."""
        self.entries.clear()
        self.moves.clear()
        self.bulk.clear()
        self.changed = False
