"""Which changes of status are legal, as a table. The operations consult it, and the docs draw it."""

from __future__ import annotations

from enum import StrEnum

from jqueue.domain.models import JobStatus

QUEUED, IN_PROGRESS, DEAD, COMPLETED = (
    JobStatus.QUEUED,
    JobStatus.IN_PROGRESS,
    JobStatus.DEAD,
    JobStatus.COMPLETED,
)


class Verb(StrEnum):
    """What moves a job from one status to another."""

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
    ARRIVE = "arrive"
    DEPART = "depart"

    __hash__ = str.__hash__  # see JobStatus


TRANSITIONS: dict[tuple[JobStatus | None, Verb], tuple[JobStatus | None, ...]] = {
    (None, Verb.ENQUEUE): (QUEUED,),
    (None, Verb.ARRIVE): (QUEUED, IN_PROGRESS, DEAD),
    (QUEUED, Verb.CLAIM): (IN_PROGRESS,),
    (QUEUED, Verb.CANCEL): (None,),
    (QUEUED, Verb.EXPIRE): (None,),
    (QUEUED, Verb.PURGE): (None,),
    (QUEUED, Verb.RESCHEDULE): (QUEUED,),
    (QUEUED, Verb.REPRIORITISE): (QUEUED,),
    (QUEUED, Verb.ARRIVE): (DEAD,),
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
    (DEAD, Verb.EXPIRE): (None,),
    (COMPLETED, Verb.PURGE): (None,),
    (COMPLETED, Verb.EXPIRE): (None,),
}
"""(from, verb) -> the statuses it may lead to. None is "not in the queue".

A completed job is in it only as long as its result is kept. A job in progress that was cancelled leaves where another
would be queued again, or dead.
"""


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    name: dict[JobStatus | None, str] = {None: "[*]"}
    name.update({status: str(status) for status in JobStatus})
    lines = ["stateDiagram-v2"]
    for (before, verb), targets in TRANSITIONS.items():
        lines += [f"    {name[before]} --> {name[after]}: {verb}" for after in targets]
    return "\n".join([*lines, "    completed --> [*]: no result is kept"]) + "\n"
