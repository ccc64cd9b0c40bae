"""Ranges: runs of rows of one segment that are claimed and ended as one, with one attempt, holder and heartbeat.

The header has an entry for each current claim of a range, whatever the number of its rows. The segment's entry marks
the rows as taken meanwhile. If the claim is handed back or becomes stale, the rows wait again, and the segment's entry
keeps the numbers of their claims and failures.
"""

from __future__ import annotations

from datetime import datetime

from msgspec.structs import force_setattr

from jqueue.domain.fields import Count, Entry, JobId, Positive, Seconds, to_utc
from jqueue.domain.segments import RowKey, SegmentId, Span

RANGES_KEPT = 256
"""Maximum number of ranges that are claimed at once. At this number, jobs are claimed one by one."""


class Range(Entry, frozen=True, omit_defaults=True, gc=False):
    """The current claim of a range, as the header keeps it.

    Attributes:
        segment: name of the segment.
        entrypoint: of the jobs.
        first: number of the first row.
        last: number of the row behind the last.
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

    segment: SegmentId
    entrypoint: str
    first: Count
    last: Count
    claims: Positive
    failures: Count
    head: RowKey
    heartbeat_at: datetime
    claim_timeout: Seconds
    claimed_at: datetime
    oldest: float = 0.0
    holder: str | None = None
    cancelled: tuple[JobId, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "heartbeat_at", to_utc(self.heartbeat_at))
        force_setattr(self, "claimed_at", to_utc(self.claimed_at))

    @property
    def span(self) -> Span:
        """Its rows, as a span."""
        return self.first, self.last

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.last - self.first

    def has(self, row: int) -> bool:
        """Return True if a row is in the range."""
        return self.first <= row < self.last
