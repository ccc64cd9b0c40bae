"""The return of a range: its rows wait again, whole, and the segment's entry remembers their claims and failures."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from jqueue.domain.draft import Draft
from jqueue.domain.models import JobStatus
from jqueue.domain.ranges import Range
from jqueue.domain.segments import Span, size_of
from jqueue.domain.transitions import BulkMove, Verb


def give_range_back(draft: Draft, range_id: str, now: datetime, *, charge: bool) -> None:
    """End the claim on a range whose jobs were not done: they are queued again, in their places. Cancelled ones leave.

    Args:
        draft: the queue.
        range_id: id of the range.
        now: the time.
        charge: True if the claim counts as a failure of each job.

    Raises:
        RowsMissingError: the places of the cancelled jobs are not loaded.
        SegmentDamagedError: they cannot be read.
    """
    name, cancelled = draft.header.ranges[range_id].segment, draft.jobs.rows.cancelled_in(range_id)
    return_range(draft, range_id, now, charge=charge, cancelled=size_of(cancelled))
    if cancelled:
        draft.drop_waiting((name,), Verb.CANCEL, cancelled)


def return_range(draft: Draft, range_id: str, now: datetime, *, charge: bool, cancelled: int = 0) -> None:
    """End the claim on a range: all its jobs are queued again, also the cancelled ones. No row is needed for that.

    The arguments are as in `give_range_back`; `cancelled` is the number of jobs that the caller removes afterwards.
    """
    held = draft.header.ranges[range_id]
    draft.set_range(range_id, None)
    return_rows(draft, range_id, held, held.spans, now, charge=charge, cancelled=cancelled)


def return_rows(
    draft: Draft,
    range_id: str,
    held: Range,
    spans: Sequence[Span],
    now: datetime,
    *,
    charge: bool,
    cancelled: int = 0,
) -> None:
    """Queue rows of a range again; the arguments are as in `give_range_back`."""
    verb, failures = (Verb.REVOKE, held.failures) if charge else (Verb.HAND_BACK, held.failures - 1)
    draft.move_rows(bulk_move(verb, held, JobStatus.QUEUED, spans, now)._replace(cancelled=cancelled))
    segment = draft.header.segments[held.segment]
    back = segment.giving_back(spans, held.claims, failures)
    changes = {"head": min(back.head, held.head), "oldest": min(back.oldest, held.oldest)}
    back = back.model_copy(update=changes)
    draft.name_segment(held.segment, back)
    draft.give_back(range_id, back, held, spans)


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
