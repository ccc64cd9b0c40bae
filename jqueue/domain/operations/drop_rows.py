"""The operation that gives up rows of a segment that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from jqueue.domain.draft import Draft
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.returned_ranges import return_range
from jqueue.domain.ranges import Range
from jqueue.domain.segments import Span, without
from jqueue.domain.transitions import Verb


@dataclass(frozen=True, slots=True)
class DropRows(Operation):
    """Remove rows of a segment for good, without reading them. Its result is their number.

    Rows that are in progress in a range stay, unless the claim is stale and none of its rows can be read. Such a claim
    ends here: if a job in the range has no attempt left, it could end nowhere else, as that needs the rows. If the
    segment has left the manifest, the result is 0.

    Attributes:
        segment: name of the segment.
        rows: the rows, as spans.
    """

    segment: str
    rows: Sequence[Span]

    def change(self, draft: Draft, now: datetime) -> int:
        """End stale claims on the rows, and take the rows."""
        for range_id, held in list(draft.header.ranges.items()):
            if held.segment == self.segment and is_given_up(held, self.rows, now):
                return_range(draft, range_id, now, charge=True)
        return draft.drop_waiting((self.segment,), Verb.PURGE, self.rows)


def is_given_up(held: Range, rows: Sequence[Span], now: datetime) -> bool:
    """Return True if the claim on a range is stale, and all of its rows are among some rows that cannot be read."""
    return now - held.heartbeat_at >= timedelta(seconds=held.claim_timeout) and not without(held.spans, rows)
