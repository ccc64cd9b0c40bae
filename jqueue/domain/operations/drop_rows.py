"""The operation that gives up rows of a segment that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from jqueue.domain.draft import Draft
from jqueue.domain.operations.base import Operation
from jqueue.domain.segments import Span
from jqueue.domain.transitions import Verb


@dataclass(frozen=True, slots=True)
class DropRows(Operation):
    """Remove waiting rows of a segment for good, without reading them. Its result is their number.

    Rows that are in progress in a range stay. If the segment has left the manifest, the result is 0.

    Attributes:
        segment: name of the segment.
        rows: the rows, as spans.
    """

    segment: str
    rows: Sequence[Span]

    def change(self, draft: Draft, now: datetime) -> int:
        """Take the rows."""
        return draft.drop_waiting((self.segment,), Verb.PURGE, self.rows)
