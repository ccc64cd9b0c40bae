"""Groups: any number of jobs with one counter in the header, and a job that is enqueued when all of them have ended.

After each operation, `count_members` reads the transitions that it has made, and brings the counters up to date. So a
commit that ends the last member of a group also enqueues the job that waits for it, and no member is listed anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from jqueue.domain.errors import GroupEndedError
from jqueue.domain.header import GroupRecord, PendingJob
from jqueue.domain.job import COMPLETED, DEAD, IN_PROGRESS, QUEUED, JobStatus
from jqueue.domain.transitions import ACK, ENQUEUE
from jqueue.domain.turns import next_sequence

if TYPE_CHECKING:
    from jqueue.domain.draft import Draft

GROUPS = "groups"
"""The critical feature of a queue with groups: an older writer would not count their members."""

GROUPS_KEPT = 1000
"""Largest number of groups that have not ended."""

ENDED_KEPT, ENDED_AGE = 256, 86_400.0
"""Largest number of ended groups that are remembered when another group is opened, and seconds for which they are."""

_LIVE = frozenset((QUEUED, IN_PROGRESS))


def check_member(draft: Draft, group: str) -> None:
    """Check that a group takes more jobs: it is open, or some member of it waits or runs.

    Raises:
        GroupEndedError: it has ended, or the queue does not know it.
    """
    record = draft.header.groups.get(group)
    if record is None:
        raise GroupEndedError(group, "is not known to the queue: open it with `async with queue.group(...)` first")
    if record.at_rest:
        raise GroupEndedError(group, "is closed and has ended: open another group, or add jobs before the block ends")


def count_members(draft: Draft, now: datetime) -> None:
    """Bring the counters of groups up to date with the draft, and enqueue the jobs of those that have ended."""
    changed = count_moves(draft)
    draft.uncounted()
    for group in sorted(changed):
        if group in draft.header.groups:
            _end(draft, group, draft.header.groups[group], now)


def count_moves(draft: Draft) -> Iterable[str]:
    """Bring the counters of groups up to date with the draft. Return the ids of the groups that have changed."""
    groups = draft.header.groups
    moves, bulk_moves, changed = draft.uncounted()
    counts: dict[str, Counter[str]] = {}
    for verb, before, after, _ in moves:
        job = after or before
        if job is not None and job.group in groups:
            was = None if before is None else before.status
            status = COMPLETED if verb is ACK else None if after is None else after.status
            counts.setdefault(job.group, Counter()).update(dict(_changes(was, status, 1)))
    for move in bulk_moves:
        if move.group in groups:
            counts.setdefault(move.group, Counter()).update(dict(_changes(move.before, move.after, move.jobs)))
    for group, count in counts.items():
        record = groups[group]
        changes = {name: max(0, getattr(record, name) + number) for name, number in count.items() if number}
        if changes:
            draft.note(groups, group, record.evolve(**changes))
    return dict.fromkeys([*changed, *counts])


def _changes(before: JobStatus | None, after: JobStatus | None, jobs: int) -> Iterator[tuple[str, int]]:
    """Yield the counts that a transition of jobs changes, each with a number to add."""
    if before is None:
        yield "added", jobs
    if (before is DEAD) != (after is DEAD):
        yield "dead", jobs if after is DEAD else -jobs
    if before in _LIVE and after is COMPLETED:
        yield "done", jobs
    if before is not COMPLETED and after is None:
        yield "gone", jobs


def _end(draft: Draft, group: str, record: GroupRecord, now: datetime) -> None:
    """Enqueue the jobs of a group that wait for its end, if it has come."""
    before, pending = record, list[PendingJob]()
    if record.at_rest and record.on_end is not None:
        pending.append(record.on_end)
        record = record.evolve(on_end=None)
    if record.at_rest and record.then is not None and not record.dead:
        pending.append(record.then)
        record = record.evolve(then=None)
    ended = record.at_rest and record.then is None
    if ended != bool(record.ended_at):
        record = record.evolve(ended_at=round(now.timestamp(), 3) if ended else 0.0)
    if record is not before:
        draft.note(draft.header.groups, group, record)
    for job, delay in pending:  # their bytes were counted when the group was opened
        run_at = now + timedelta(seconds=delay) if delay else job.run_at
        place = next_sequence(draft, job, now)
        job = job.evolve(sequence=place, created_at=now, run_at=run_at)
        draft.move(None, ENQUEUE, job, QUEUED)
