"""The jobs of a draft by id, with the indexes that find them by what they are: ready, claimed, or held by a key."""

from __future__ import annotations

from typing import Any

from jqueue.domain.job import IN_PROGRESS, QUEUED, JobRecord
from jqueue.domain.journal import ABSENT
from jqueue.domain.order import Order
from jqueue.domain.segment_rows import SegmentRows

KEY_HOLDERS = frozenset((QUEUED, IN_PROGRESS))
"""Statuses in which a job holds its unique key."""


class IndexedJobs(dict[str, JobRecord]):
    """Jobs by id, in the order in which they were added. They change by `put` and `remove` alone.

    Attributes:
        rows: the rows of segments. Those that are loaded stand among the jobs.
        order: the orders in which jobs are served, and the limits that hold them back.
        claimed: ids of the jobs in progress.
        keys_held: id of the job that holds each unique key, by the key.
        dirty: ids of jobs whose line in the blob may be outdated. The code that encodes the lines clears it.
        claims_moved: ids of jobs whose claim may have begun, moved or ended. The code that watches claims clears it.
        last_sequence: the highest sequence number given to any job, by any writer.
    """

    __slots__ = ("claimed", "claims_moved", "dirty", "keys_held", "last_sequence", "order", "rows")

    def __init__(self) -> None:
        super().__init__()
        self.rows = SegmentRows(self)
        self.order = Order(self, self.rows)
        self.claimed: dict[str, None] = {}
        self.keys_held: dict[str, str] = {}
        self.dirty: dict[str, None] = {}
        self.claims_moved: dict[str, None] = {}
        self.last_sequence = 0

    def put(self, job: JobRecord) -> None:
        """Add a job or replace it, in the table and in the indexes. Heaps drop its old entries by themselves."""
        job_id = job.id
        before = self.get(job_id)
        self[job_id] = job
        if before is not None:
            self._unindex(before)
        self.dirty[job_id] = None
        if job.sequence > self.last_sequence:
            self.last_sequence = job.sequence
        if job.unique_key is not None and job.status in KEY_HOLDERS:
            self.keys_held[job.unique_key] = job_id
        if job.status is IN_PROGRESS:
            self.claimed[job_id] = None
            self.claims_moved[job_id] = None
        self.order.moved(before, job)

    def remove(self, job_id: str) -> None:
        """Remove a job from the table and the indexes, if it is there."""
        before = self.pop(job_id, None)
        self.dirty[job_id] = None
        if before is not None:
            self._unindex(before)
            self.order.moved(before, None)

    def find(self, job_id: str) -> JobRecord | None:
        """Return the job with an id, in the blob or in a segment; None if there is none.

        Raises:
            RowsMissingError: a segment may hold it, and its row is not loaded.
            SegmentDamagedError: a segment that may hold it cannot be read.
        """
        found = self.loaded(job_id)
        if found is None and self.rows.segments:
            self.rows.find(job_id)
        return found

    def loaded(self, job_id: str) -> JobRecord | None:
        """Return the job with an id if it is in the table, or in progress in a range and loaded; None if not."""
        found = self.get(job_id)
        return self.rows.claimed_job(job_id) if found is None and self.rows.ranges else found

    def find_key(self, key: str) -> str | None:
        """Return the id of the job that holds a unique key; None if no job does. It raises errors as `find` does."""
        holder = self.keys_held.get(key)
        if holder is None and self.rows.ranges:
            holder = self.rows.claimed_key(key)
        if holder is None and self.rows.segments:
            self.rows.find_key(key)
        return holder

    def put_row(self, job: JobRecord) -> None:
        """Add the job of a row. The blob has no line of it, except perhaps from a write that did not land."""
        written = job.id in self.dirty
        self.put(job)
        if not written:
            del self.dirty[job.id]

    def drop_row(self, job_id: str) -> None:
        """Remove the job of a row. The blob has no line of it, except perhaps from a write that did not land."""
        written = job_id in self.dirty
        self.remove(job_id)
        if not written:
            del self.dirty[job_id]

    def restore(self, job_id: str, old: Any) -> None:
        """Restore the old value of a job: see `Journal`."""
        if old is ABSENT:
            self.remove(job_id)
        else:
            self.put(old)

    def _unindex(self, before: JobRecord) -> None:
        """Remove a value of a job from the indexes."""
        job_id = before.id
        if before.status is IN_PROGRESS:
            del self.claimed[job_id]
            self.claims_moved[job_id] = None
        if before.unique_key is not None and self.keys_held.get(before.unique_key) == job_id:
            del self.keys_held[before.unique_key]
