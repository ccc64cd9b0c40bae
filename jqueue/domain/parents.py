"""Jobs after jobs: what the end of a parent means for the jobs that wait for it, in the commit that ends it.

A job names the parents that are not done in its own line, so it is ready exactly when none is left there. The order
finds the children of a job. A parent may be the row of a segment: if rows end together, the rows that other jobs wait
for are looked up in the segment's index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from jqueue.domain.job import COMPLETED, DEAD, QUEUED, JobRecord, JobStatus
from jqueue.domain.order import Order
from jqueue.domain.segment_rows import RowsMissingError, SegmentRows, Wanted
from jqueue.domain.segments import Span
from jqueue.domain.transitions import Verb

PARENTS = "parents"
"""The critical feature of a queue with such jobs: an older reader would claim them before their parents are done."""

_GONE = {
    Verb.CANCEL: "was cancelled",
    Verb.EXPIRE: "was removed when its time was over",
    Verb.PURGE: "was purged",
    Verb.DEPART: "was moved to another queue",
    None: "is not in the queue",
}

Consequence = tuple[Verb, JobRecord | None, JobStatus | None]
"""The transition of a child: the verb, the child after it, and its status then; None if it leaves."""


def consequence(
    child: JobRecord, parent: str, verb: Verb | None, status: JobStatus | None, now: datetime | None
) -> Consequence | None:
    """Return what the end of a parent means for a child; None: nothing.

    Args:
        child: a job that has it among its parents.
        parent: the id of the parent.
        verb: the action that has ended it; None: it is not there.
        status: COMPLETED if it is done, DEAD, or None if it is gone.
        now: the time.
    """
    if parent not in child.waits_for or (status is DEAD and child.on_dead is None):
        return None
    if status is COMPLETED or child.on_dead == "run":
        left = tuple(each for each in child.waits_for if each != parent)
        return Verb.RELEASE, child.evolve(waits_for=left, queued_at=child.queued_at if left else now), QUEUED
    if child.on_dead == "cancel":
        return Verb.CANCEL, None, None
    error = f"its parent {parent} {_GONE.get(verb, 'was cancelled')}: redrive runs it all the same"
    return Verb.RELEASE, child.evolve(status=DEAD, waits_for=(), dead_at=now, error=error), DEAD


def is_awaited(order: Order, parent: str) -> bool:
    """Return True if a job waits for a parent."""
    return any(parent in order.jobs[child].waits_for for child in order.children.get(parent, ()))


def awaited_rows(order: Order, rows: SegmentRows, parts: Iterable[tuple[str, Sequence[Span]]]) -> list[str]:
    """Return the ids of the jobs that others wait for, among rows of segments, given the name of each with its rows.

    Raises:
        RowsMissingError: some may be among them, and the index of their segment is not loaded.
    """
    wanted, awaited_ids = [each for each in order.children if each not in order.jobs and is_awaited(order, each)], []
    for name, spans in parts if wanted else ():
        index = rows.manifest.indexes.get(name)
        if index is not None:
            places = ((each, row) for each in wanted for row in index.rows_of(each))
            awaited_ids += [each for each, row in places if any(first <= row < last for first, last in spans)]
        elif rows.damage_of(name) is None:
            raise RowsMissingError([Wanted(name, None)])
        else:
            order.unseen.update(dict.fromkeys(wanted))  # once the segment has left, they are found to be gone
    return awaited_ids
