"""Staged segments: a task of a bulk enqueue encodes its jobs as segments in their final form, and a commit names them.

Rows are numbered from 1 on in each task. The commit adds to these numbers, in the manifest, so nothing is written
again, and the process that commits never sees a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jqueue.core.blob.segment_columns import SegmentColumns
from jqueue.core.blob.segment_object import EncodedSegment, encoding_columns
from jqueue.core.blob.segment_writer import row_of
from jqueue.domain.enqueued_jobs import bulk_id, bulk_rest
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.job_options import IN_BULK, check_names
from jqueue.domain.limits import Limits
from jqueue.domain.operations import NewSegment, Preparation, new_job
from jqueue.domain.rules import LIMITS
from jqueue.domain.segments import CHUNK_ROWS
from jqueue.domain.slices import exhaust

STAGED_ROWS = 262_144
"""Largest number of rows of a staged segment: large ones keep the manifest short."""

STAGED_BYTES = 48 << 20
"""Bytes of rows above which a staged segment is complete. They are held in memory until it is written."""

Group = tuple[str, bool, bool]
"""The entrypoint of rows; True if they are scheduled; True if jqueue makes their ids."""


@dataclass(frozen=True, slots=True)
class StagedTask:
    """The segments that one task has staged. It is small, and may be pickled.

    Attributes:
        jobs: number of jobs in them.
        segments: the segments, with rows numbered from 1 on.
        features: critical features that the jobs need.
    """

    jobs: int
    segments: Sequence[NewSegment]
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """A queue as tasks that stage segments need to know it. It may be pickled.

    Attributes:
        queue: id of the queue; empty if it was not read.
        created_at: the time of the enqueue; None: each task reads its own clock.
    """

    queue: str = ""
    created_at: datetime | None = None


class SegmentStager:
    """Encodes the jobs of one task.

    Args:
        limits: largest sizes that the queue accepts.
        created_at: the time of the enqueue, from which delays count.
        new_id: an id that no other task has, from which those of the jobs are made. It must need no escapes in JSON.
        queue: id of the queue; empty if it is not known.
        rows, size, chunk_rows: largest number of rows and of bytes of a segment, and number of rows in a chunk.

    Attributes:
        jobs: number of jobs so far.
        features: critical features that they need.
        rest_of_ids: the end of the ids that it makes: see `bulk_id`.
        most_rows, most_bytes: largest number of rows and of bytes of a segment.
        created_at, queue, chunk_rows, limits: as in the arguments.
    """

    def __init__(
        self,
        limits: Limits,
        created_at: datetime,
        new_id: str,
        *,
        queue: str = "",
        rows: int = STAGED_ROWS,
        size: int = STAGED_BYTES,
        chunk_rows: int = CHUNK_ROWS,
    ) -> None:
        self.limits = limits
        self.jobs = 0
        self.features: set[str] = set()
        self.created_at, self._since = created_at, created_at.timestamp()
        self.rest_of_ids = bulk_rest(new_id)
        self.queue = queue
        self.most_rows, self.most_bytes, self.chunk_rows = rows, size, chunk_rows
        self._groups: dict[Group, SegmentColumns] = {}

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
        number = self.jobs + 1
        preparation = Preparation(
            self.limits, 1.0, lambda: job_id or bulk_id(number, self.rest_of_ids), _no_claims, object_bytes=None
        )
        new = new_job(preparation, entrypoint, payload, priority, **options)
        job = new.job.evolve(sequence=number, created_at=self.created_at)
        if new.delay is not None:
            job = job.evolve(run_at=self.created_at + timedelta(seconds=new.delay))
        scheduled = job.run_at is not None and job.run_at > self.created_at
        self._columns((job.entrypoint, scheduled, job_id is None)).add(row_of(job))
        if job.concurrency_key is not None:
            self.features.add(LIMITS)
        self.jobs = number

    def full(self) -> Iterator[EncodedSegment]:
        """Yield segments that are complete, and forget their rows."""
        for group, columns in list(self._groups.items()):
            if len(columns) >= self.most_rows or columns.size >= self.most_bytes:
                yield self._encoded(group)
        while sum(columns.size for columns in self._groups.values()) > self.most_bytes:
            yield self._encoded(max(self._groups, key=lambda group: self._groups[group].size))

    def rest(self) -> Iterator[EncodedSegment]:
        """Yield segments with all other jobs."""
        for group in list(self._groups):
            yield self._encoded(group)

    def _columns(self, group: Group) -> SegmentColumns:
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = SegmentColumns(self._since, own_ids=group[2])
        return found

    def _encoded(self, group: Group) -> EncodedSegment:
        columns, (entrypoint, scheduled, _) = self._groups.pop(group), group
        return exhaust(
            encoding_columns(columns, self.queue, entrypoint, scheduled=scheduled, chunk_rows=self.chunk_rows)
        )


def _no_claims(job: object) -> Any:
    raise InvalidJobError("staged jobs have no claims")
