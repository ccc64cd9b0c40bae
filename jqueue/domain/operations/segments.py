"""The operations by which a writer moves waiting jobs between the blob and segments, or gives up rows of a segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from jqueue.domain.draft import Draft
from jqueue.domain.fields import Moment
from jqueue.domain.job import JobRecord
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.ends import give_back
from jqueue.domain.segments import Segment, SegmentId, Span, common
from jqueue.domain.transitions import Verb


def _named(draft: Draft, name: str, segment: Segment, taken: Sequence[int], now: datetime) -> bool:
    """Add a segment to the manifest, with some rows taken. Return False if no row is left."""
    spans = segment.taking((row, row + 1) for row in taken)
    named = segment.evolve(taken=spans, at=round(now.timestamp(), 3))
    if named.waiting:
        draft.name_segment(name, named)
    return named.waiting > 0


class Spill(Operation, frozen=True):
    """Move queued jobs from the blob to a segment that holds them. Its result is the number of jobs that were moved.

    Rows whose job has changed since the segment was written, or is no longer in the blob, are taken from the beginning.

    Attributes:
        name: of the segment, which exists.
        segment: its entry in the manifest.
        rows: the jobs by id, in the order of the rows.
        before: time until which a commit may name the segment.
    """

    name: SegmentId
    segment: Segment
    rows: Mapping[str, JobRecord]
    before: Moment

    def change(self, draft: Draft, now: datetime) -> int:
        """Name the segment, and remove its jobs from the blob."""
        if now > self.before or self.name in draft.header.segments:
            return 0
        hot, rows = draft.jobs, draft.jobs.rows.of
        moved, taken = [], []
        for row, (job_id, job) in enumerate(self.rows.items()):
            here = hot.get(job_id)
            if (here is job or here == job) and job_id not in rows:
                moved.append(job_id)
            else:
                taken.append(row)
        if not moved or not _named(draft, self.name, self.segment, taken, now):
            return 0
        for job_id in moved:
            draft.spill(job_id)
        return len(moved)


@dataclass(frozen=True, slots=True)
class MergedSegment:
    """Rows of a segment that were merged into another.

    Attributes:
        name: of their entry.
        rows: for each of its rows, the number of that row in the other segment; -1 if it was taken before.
    """

    name: str
    rows: Sequence[int] = field(repr=False)


class Merge(Operation, frozen=True):
    """Replace segments by one with the same rows. Its result is the number of segments that were replaced.

    Attributes:
        name: of the new segment, which exists.
        segment: its entry in the manifest.
        sources: the segments that it replaces.
        before: time until which a commit may name the segment.
    """

    name: SegmentId
    segment: Segment
    sources: Sequence[MergedSegment]
    before: Moment

    def change(self, draft: Draft, now: datetime) -> int:
        """Name the new segment with every row taken that is taken by now, and drop the others."""
        if now > self.before:
            return 0
        taken: list[int] = []
        there = []
        for source in self.sources:
            current = draft.jobs.rows.manifest.current(source.name)
            if source.name in draft.header.segments:
                there.append(source.name)
            spans = [(0, len(source.rows))] if current is None else current.taken
            taken += [row for first, last in spans for row in source.rows[first:last] if row >= 0]
        if not there:  # a lease has another name than the entry that it was
            return 0
        for name in there:
            draft.drop_segment(name)
        _named(draft, self.name, self.segment, taken, now)
        return len(there)


class DropRows(Operation, frozen=True):
    """Remove rows of a segment for good, without reading them. Its result is their number.

    Leased rows stay, unless the claim is stale. Such a claim ends here: if a job in the lease has no attempt left, it
    could end nowhere else, as that needs the rows. If the segment has left the manifest, the result is 0.

    Attributes:
        segment: name of the segment.
        rows: the rows, as spans.
    """

    segment: str
    rows: Sequence[Span]

    def change(self, draft: Draft, now: datetime) -> int:
        """End stale claims on the rows, and take the rows."""
        entries = draft.jobs.rows.manifest.entries_of(self.segment)
        for name, entry in entries.items():
            if is_given_up(entry, self.rows, now):
                give_back(draft, name, now, charge=True)
        return draft.drop_waiting(entries, Verb.PURGE, self.rows)


def is_given_up(held: Segment, rows: Sequence[Span], now: datetime) -> bool:
    """Return True if a lease is stale, and some of its rows are among rows that cannot be read."""
    if held.heartbeat_at is None or now - held.heartbeat_at < timedelta(seconds=held.claim_timeout or 0.0):
        return False
    return bool(common(held.spans, rows))


TRAVELLING = (DropRows,)
