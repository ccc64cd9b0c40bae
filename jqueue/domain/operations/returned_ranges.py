"""The return of a range: its rows wait again as a run, and the segment's entry remembers their claims and failures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from jqueue.domain.draft import Draft
from jqueue.domain.job import JobStatus
from jqueue.domain.ranges import Range
from jqueue.domain.segments import Span, size_of
from jqueue.domain.transitions import BulkMove, Verb


def give_range_back(
    draft: Draft, range_id: str, now: datetime, *, first: int = 0, charge: bool, unreadable: bool = False
) -> None:
    """End the claim on a range whose jobs were not done: they are queued again, in their places. Cancelled ones leave.

    Args:
        draft: the queue.
        range_id: id of the range.
        now: the time.
        first: the first row to queue again; all others are left to the caller.
        charge: True if the claim counts as a failure of each job.
        unreadable: True if the caller removes the rows then, so that no row is needed to find the cancelled jobs.

    Raises:
        RowsMissingError: the places of the cancelled jobs are not loaded.
        SegmentDamagedError: they cannot be read.
    """
    held = draft.header.ranges[range_id]
    first = max(first, held.first)
    cancelled = [] if unreadable else draft.jobs.rows.cancelled_in(range_id, first)
    draft.set_range(range_id, None)
    verb, failures = (Verb.REVOKE, held.failures) if charge else (Verb.HAND_BACK, held.failures - 1)
    move = bulk_move(verb, held, JobStatus.QUEUED, [(first, held.last)], now)
    draft.move_rows(move._replace(cancelled=size_of(cancelled)))
    back = draft.header.segments[held.segment].giving_back(first, held.last, held.claims, failures)
    head = min(back.head, held.head)
    back = back.model_copy(update={"head": head, "oldest": min(back.oldest, held.oldest)})
    draft.name_segment(held.segment, back)
    draft.give_back(range_id, held.segment, range(first, held.last))
    if cancelled:
        draft.drop_waiting((held.segment,), Verb.CANCEL, cancelled)


def bulk_move(verb: Verb, held: Range, after: JobStatus, spans: Sequence[Span], now: datetime) -> BulkMove:
    """Return the transition of rows of a range whose claim ends."""
    jobs = size_of(spans)
    return BulkMove(
        verb,
        held.entrypoint,
        JobStatus.IN_PROGRESS,
        after,
        jobs,
        held.claims,
        held.holder,
        (((now - held.claimed_at).total_seconds(), jobs),) if jobs else (),
        rows=((held.segment, spans),),
    )
