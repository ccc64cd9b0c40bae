"""Jobs on their way to new segments, and the segments that the tasks of a bulk enqueue stage for a later commit.

Rows are numbered from 1 on in each task. The commit adds to these numbers, in the manifest, so nothing is written
again, and the process that commits never sees a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from jqueue.domain.job import JobRecord
from jqueue.domain.operations.bulk import NewSegment

STAGED_ROWS = 131_072
"""Largest number of rows of a staged segment: large ones keep the manifest short."""

STAGED_BYTES = 48 << 20
"""Bytes of rows above which a staged segment is complete. They are held in memory until it is written."""


class Group(NamedTuple):
    """The jobs of one new segment, or of several: what they have in common."""

    entrypoint: str
    scheduled: bool
    caller_ids: bool
    """True if callers have chosen their ids."""
    members_of: str | None = None
    """Id of the group that they belong to."""
    created_at: datetime | None = None
    """The time of their enqueue; None: that of the call."""
    turn: tuple[int, str] | None = None
    """Their priority and their fair key; None: they have no key."""


class CollectsRows(Protocol):
    """The rows of a segment that is not complete: jobs, or their lines."""

    bytes: int
    features: set[str]

    def __len__(self) -> int: ...

    def add(self, rows: Any, /) -> None:
        """Add rows."""


Rows = TypeVar("Rows", bound=CollectsRows)


class JobGroups(Generic[Rows]):
    """Jobs that wait to become segments, by group.

    Args:
        make: makes what collects the rows of a segment.
        rows, size: numbers of jobs and of bytes at which a group is full.
        together: number of bytes of all groups above which the largest must be written.

    Attributes:
        features: critical features that the jobs need.
    """

    def __init__(self, make: Callable[[], Rows], rows: int, size: int, together: int) -> None:
        self._make, self._rows, self._size, self._together = make, rows, size, together
        self.features: set[str] = set()
        self._segments: dict[Group, Rows] = {}
        self._full: dict[Group, None] = {}  # in order, and not a set: the same calls make the same segments
        self._total = 0

    def add(self, jobs: Sequence[JobRecord], caller_ids: Sequence[bool], created_at: datetime | None = None) -> None:
        """Add jobs to their groups.

        Args:
            jobs: the jobs.
            caller_ids: for each, True if the caller has chosen its id.
            created_at: as in `Group`.
        """
        scheduled = [job.run_at is not None and job.run_at > job.created_at for job in jobs]
        names, members = [job.entrypoint for job in jobs], [job.group for job in jobs]
        turns = [None if job.fair_key is None else (job.priority, job.fair_key) for job in jobs]
        kinds = list(zip(names, scheduled, caller_ids, members, turns, strict=True))
        groups: dict[Any, list[JobRecord]] = {kind: [] for kind in dict.fromkeys(kinds)}
        for kind, job in zip(kinds, jobs, strict=True) if len(groups) > 1 else ():
            groups[kind].append(job)
        for (name, is_scheduled, has_ids, group, turn), some in groups.items():
            self.extend(Group(name, is_scheduled, has_ids, group, created_at, turn), some or jobs)

    def extend(self, group: Group, rows: Any) -> None:
        """Add jobs of one group, as `CollectsRows.add` takes them."""
        segment = self._segments.setdefault(group, self._make())
        self._total -= segment.bytes
        segment.add(rows)
        self._total += segment.bytes
        self.features |= segment.features
        if len(segment) >= self._rows or segment.bytes >= self._size:
            self._full[group] = None

    def full(self) -> Iterator[tuple[Group, Rows]]:
        """Yield the jobs of groups that must be written, and forget them."""
        while self._full:
            yield self.pop(next(iter(self._full)))
        while self._total > self._together:
            yield self.pop(max(self._segments, key=lambda group: self._segments[group].bytes))

    def rest(self) -> Iterator[tuple[Group, Rows]]:
        """Yield the jobs of all groups, and forget them. Those with most jobs come first."""
        while self._segments:
            yield self.pop(max(self._segments, key=lambda group: len(self._segments[group])))

    def pop(self, group: Group) -> tuple[Group, Rows]:
        """Return the jobs of a group, and forget them."""
        segment = self._segments.pop(group)
        self._total -= segment.bytes
        self._full.pop(group, None)
        return group, segment


class StagedTask(msgspec.Struct, frozen=True):
    """The segments that one task has staged. It is small, and may be pickled.

    Attributes:
        jobs: number of jobs in them.
        segments: the segments, with rows numbered from 1 on.
        features: critical features that the jobs need.
    """

    jobs: int
    segments: Sequence[NewSegment]
    features: frozenset[str] = frozenset()
