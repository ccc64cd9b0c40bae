"""Which parents of a job are not done: at its enqueue, and when a parent may have left without a trace."""

from __future__ import annotations

from collections.abc import Iterable

from jqueue.domain.draft import Draft
from jqueue.domain.errors import InvalidJobError, SegmentDamagedError
from jqueue.domain.job import COMPLETED, DEAD, JobRecord
from jqueue.domain.parents import is_awaited
from jqueue.domain.printable import printable


def missing_parents(draft: Draft, job: JobRecord) -> tuple[str, ...]:
    """Return the parents of a new job that are not done, in order.

    Raises:
        InvalidJobError: the queue does not know one of them, or one is dead and the job is to be cancelled then.
        RowsMissingError: a segment may hold one, and its row is not loaded.
    """
    missing = []
    for parent in job.after:
        there = draft.jobs.find(parent)
        if there is None and parent not in draft.header.finished:
            raise InvalidJobError(
                f"after names job {printable(parent)!r}, which the queue does not know: it neither waits nor runs, is "
                "not dead, and not among the ids of recently finished jobs"
            )
        if there is None or there.status is COMPLETED or (there.status is DEAD and job.on_dead == "run"):
            continue
        if there.status is DEAD and job.on_dead == "cancel":
            raise InvalidJobError(f"after names job {printable(parent)!r}, which is dead, and on_dead is 'cancel'")
        missing.append(parent)
    return tuple(missing)


def children_first(jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """Return jobs that are to leave, each before those that it waits for: so few of them end by another's end.

    Fair keys may give a child a place before that of its parent.
    """
    return sorted(jobs, key=lambda job: (not job.waits_for, -job.sequence))


def end_gone_parents(draft: Draft) -> None:
    """Let the children of parents go on that are not there, such as those in a blob that was edited by hand.

    Raises:
        RowsMissingError: a segment may hold a parent, and its row is not loaded.
    """
    unseen = draft.jobs.order.unseen
    for parent in list(unseen):
        try:
            there = draft.jobs.find(parent) if is_awaited(draft.jobs.order, parent) else None
        except SegmentDamagedError:
            continue  # it may be there
        if parent in draft.aside_keys:
            continue  # it is there once its line is mended
        del unseen[parent]
        is_done = parent in draft.header.finished if there is None else there.status is COMPLETED
        if there is None or is_done:
            draft.end_parent(None, parent, COMPLETED if is_done else None)
