"""Jobs on their way to new segments, and the segments that the tasks of a bulk enqueue stage for a later commit.

Rows are numbered from 1 on in each task. The commit adds to these numbers, in the manifest, so nothing is written
again, and the process that commits never sees a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from jqueue.core.blob.segment_object import EncodedSegment, encoding_segment
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job import OBJECTS, JobRecord
from jqueue.domain.job_options import IN_BULK, check_names, options_bytes
from jqueue.domain.limits import Limits
from jqueue.domain.operations.base import Preparation
from jqueue.domain.operations.bulk import NewSegment, bulk_id, bulk_rest
from jqueue.domain.operations.enqueue import Enqueue
from jqueue.domain.rules import LIMITS
from jqueue.domain.segments import CHUNK_ROWS
from jqueue.domain.slices import exhaust

ROW_BYTES = 120
"""About how many bytes a row takes besides its id, its payload and its headers."""

STAGED_ROWS = 131_072
"""Largest number of rows of a staged segment: large ones keep the manifest short."""

STAGED_BYTES = 48 << 20
"""Bytes of rows above which a staged segment is complete. They are held in memory until it is written."""


class Group(NamedTuple):
    """The jobs of one new segment, or of several: what they have in common."""

    entrypoint: str
    scheduled: bool
    given: bool
    """True if callers have chosen their ids."""
    created_at: datetime | None = None
    """The time of their enqueue; None: that of the call."""


class JobGroups:
    """Jobs that wait to become segments, by group.

    Args:
        rows, size: numbers of jobs and of bytes at which a group is full.
        together: number of bytes of all groups above which the largest must be written.

    Attributes:
        features: critical features that the jobs need.
    """

    def __init__(self, rows: int, size: int, together: int) -> None:
        self._rows, self._size, self._together = rows, size, together
        self.features: set[str] = set()
        self._jobs: dict[Group, list[JobRecord]] = {}
        self._bytes = Counter[Group]()
        self._full = set[Group]()
        self._total = 0

    def add(self, jobs: Sequence[JobRecord], given: Sequence[bool], created_at: datetime | None = None) -> None:
        """Add jobs to their groups.

        Args:
            jobs: the jobs.
            given: for each, True if the caller has chosen its id.
            created_at: as in `Group`.
        """
        groups = dict[tuple[str, bool, bool], list[JobRecord]]()
        for job, own in zip(jobs, given, strict=True):
            scheduled = job.run_at is not None and job.run_at > job.created_at
            groups.setdefault((job.entrypoint, scheduled, own), []).append(job)
            if job.payload_object is not None:
                self.features.add(OBJECTS)
            if job.concurrency_key is not None:
                self.features.add(LIMITS)
        for group, some in groups.items():
            self.extend(Group(*group, created_at), some)

    def extend(self, group: Group, jobs: Sequence[JobRecord]) -> None:
        """Add jobs of one group."""
        there = self._jobs.setdefault(group, [])
        there += jobs
        size = sum([ROW_BYTES + len(job.id) + len(job.payload) * 4 // 3 for job in jobs])
        size += sum([options_bytes(job) for job in jobs if job.headers])
        self._bytes[group] += size
        self._total += size
        if len(there) >= self._rows or self._bytes[group] >= self._size:
            self._full.add(group)

    def full(self) -> Iterator[tuple[Group, list[JobRecord]]]:
        """Yield the jobs of groups that must be written, and forget them."""
        while self._full:
            yield self.pop(next(iter(self._full)))
        while self._total > self._together:
            yield self.pop(max(self._jobs, key=self._bytes.__getitem__))

    def rest(self) -> Iterator[tuple[Group, list[JobRecord]]]:
        """Yield the jobs of all groups, and forget them. Those with most jobs come first."""
        while self._jobs:
            yield self.pop(max(self._jobs, key=lambda group: len(self._jobs[group])))

    def pop(self, group: Group) -> tuple[Group, list[JobRecord]]:
        """Return the jobs of a group, and forget them."""
        self._total -= self._bytes.pop(group)
        self._full.discard(group)
        return group, self._jobs.pop(group)


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


class SegmentStager:
    """Encodes the jobs of one task.

    Args:
        limits: largest sizes that the queue accepts.
        created_at: the time of the enqueue, from which delays count.
        new_id: an id that no other task has, from which those of the jobs are made.
        rows, size, chunk_rows: largest number of rows and of bytes of a segment, and number of rows in a chunk.

    Attributes:
        jobs: number of jobs so far.
        created_at: as in the arguments.
    """

    def __init__(
        self,
        limits: Limits,
        created_at: datetime,
        new_id: str,
        *,
        rows: int = STAGED_ROWS,
        size: int = STAGED_BYTES,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        self.jobs = 0
        self.created_at = created_at
        self._chunk_rows = chunk_rows
        self._groups = JobGroups(rows, size, size)
        rest = bulk_rest(new_id)
        self._preparation = Preparation(
            limits, 1.0, lambda: bulk_id(self.jobs + 1, rest), _no_claims, object_bytes=None
        )

    def add(
        self, entrypoint: str, payload: bytes = b"", priority: int = 0, *, job_id: str | None = None, **options: Any
    ) -> None:
        """Add a job.

        Args:
            entrypoint: the name of the handler.
            payload: bytes-like.
            priority: lower is served first.
            job_id: an id that no other job ever has; None: it is made here.
            options: options of `Enqueue` that are allowed in a bulk enqueue.

        Raises:
            InvalidJobError: an argument is wrong.
            TypeError: there is no such option here.
        """
        check_names("SegmentStager.add", options, IN_BULK)
        new = Enqueue(entrypoint, payload, priority, **options).prepared(self._preparation)
        job = new.job(self.jobs + 1, self.created_at)
        if job_id is not None:
            job = job.evolve(id=job_id)
        self._groups.add([job], [job_id is not None], self.created_at)
        self.jobs += 1

    @property
    def features(self) -> set[str]:
        """Critical features that the jobs need."""
        return self._groups.features

    def full(self) -> Iterator[EncodedSegment]:
        """Yield segments that are complete, and forget their rows."""
        return map(self._encoded, self._groups.full())

    def rest(self) -> Iterator[EncodedSegment]:
        """Yield segments with all other jobs."""
        return map(self._encoded, self._groups.rest())

    def _encoded(self, found: tuple[Group, list[JobRecord]]) -> EncodedSegment:
        group, jobs = found
        return exhaust(
            encoding_segment(jobs, scheduled=group.scheduled, own_ids=not group.given, chunk_rows=self._chunk_rows)
        )


def _no_claims(job: object) -> Any:
    raise InvalidJobError("staged jobs have no claims")
