"""Ranges: rows of one segment that are claimed and ended as one, with one attempt, one holder and one heartbeat.

The header has an entry for each current claim of a range, whatever the number of its rows. The segment's entry marks
the rows as taken meanwhile. If the claim is handed back or becomes stale, the rows wait again, and the segment's entry
keeps the numbers of their claims and failures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from jqueue.domain.fields import COUNT_MAX, Count, Finite, JobId, Seconds, Timestamp
from jqueue.domain.segments import RowKey, SegmentId, Span, size_of, without

RANGES_KEPT = 256
"""Maximum number of ranges that are claimed at once. At this number, jobs are claimed one by one."""

HOLES = 32
"""Maximum number of gaps in a range."""

MOST_SPANS = 1024
"""Number of spans of taken rows above which a segment has no new ranges. It is written anew when its ranges have ended:
jobs that came back one by one would stay in every commit otherwise, 40 bytes each."""


class Range(BaseModel):
    """The current claim of a range, as the header keeps it.

    Attributes:
        segment: name of the segment.
        entrypoint: of the jobs.
        first: number of the first row.
        last: number of the row behind the last.
        without: rows between them that are not in the range.
        claims: number of claims of these rows as parts of ranges, this one included.
        failures: number of claims that count as failures, this one included.
        head: key of the first row, or of an earlier row.
        oldest: earliest `since` of the rows, or an earlier time.
        heartbeat_at: time of the last heartbeat.
        claim_timeout: seconds without a heartbeat after which the claim is stale.
        holder: name of the claim's holder.
        claimed_at: time of the claim.
        cancelled: ids of jobs in the range that were cancelled while they are in progress.
    """

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    segment: SegmentId
    entrypoint: str
    first: Count
    last: Count
    without: tuple[Span, ...] = ()
    claims: Annotated[int, Field(ge=1, le=COUNT_MAX)]
    failures: Count
    head: RowKey
    oldest: Finite = 0.0
    heartbeat_at: Timestamp
    claim_timeout: Seconds
    holder: str | None = None
    claimed_at: Timestamp
    cancelled: tuple[JobId, ...] = ()

    @property
    def spans(self) -> list[Span]:
        """The rows of the range."""
        return without([(self.first, self.last)], self.without)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return size_of(self.spans)

    def among(self, first: int, last: int) -> Range | None:
        """Return the claim on its rows from a first row up to a last; None if there are none."""
        spans = [(max(first, start), min(last, end)) for start, end in self.spans if start < last and end > first]
        if not spans:
            return None
        whole = (spans[0][0], spans[-1][1])
        changes = {"first": whole[0], "last": whole[1], "without": tuple(without([whole], spans))}
        return self.model_copy(update=changes)

    def row_behind(self, jobs: int, unread: Sequence[Span] = ()) -> int:
        """Return the number of the row after the first `jobs` jobs of the range, without counting the unread rows."""
        for first, last in without(self.spans, unread):
            if jobs <= last - first:
                return first + jobs
            jobs -= last - first
        return self.last

    def has(self, row: int) -> bool:
        """Return True if a row is in the range."""
        return self.first <= row < self.last and not any(first <= row < last for first, last in self.without)
