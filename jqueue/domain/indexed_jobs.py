"""The jobs of a draft and their indexes: the next job, the jobs in progress, the holders of unique keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jqueue.domain.job_table import JobTable, Packed, place_of, unpacked
from jqueue.domain.journal import ABSENT
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.order import Order
from jqueue.domain.segment_rows import SegmentRows
from jqueue.domain.transitions import MoveRun

KEY_HOLDERS = (JobStatus.QUEUED, JobStatus.IN_PROGRESS)
"""The statuses in which a job holds its unique key."""


class IndexedJobs(JobTable):
    """Every job by id. `put` and `remove` keep the indexes up to date.

    Attributes:
        rows: the rows of segments, of which the loaded ones are in the table.
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

    def put(self, job: Job, before: Job | None = None) -> None:
        """Add a job or replace it, in the table and in the indexes. Heaps drop its old entries by themselves.

        Args:
            job: the new value of the job.
            before: its value until now, if the caller knows it.
        """
        job_id = job.id
        before = self._unindex(job_id, before)
        self.entries[job_id] = job
        self._whole.append(job_id)
        if job.sequence > self.last_sequence:
            self.last_sequence = job.sequence
        if job.unique_key is not None and job.status in KEY_HOLDERS:
            self.keys_held[job.unique_key] = job_id
        if job.status is JobStatus.IN_PROGRESS:
            self.claimed[job_id] = None
            self.claims_moved[job_id] = None
        self.order.changed(before, job)

    def add_plain(self, jobs: Sequence[Job], fields: Sequence[Mapping[str, Any]]) -> None:
        """Add new plain jobs that are queued, with rising sequence numbers: as `put` does one by one.

        Args:
            jobs: the jobs.
            fields: `fields_of` them.
        """
        entries, whole, dirty = self.entries, self._whole, self.dirty
        for job, values in zip(jobs, fields, strict=True):
            job_id = values["id"]
            entries[job_id] = job
            whole.append(job_id)
            dirty[job_id] = None
        self.last_sequence = max(self.last_sequence, fields[-1]["sequence"])
        self.order.add_plain(fields)

    def claim_plain(self, jobs: Sequence[Job], fields: Sequence[Mapping[str, Any]]) -> None:
        """Put plain jobs that were queued and are in progress now: as `put` does one by one.

        Args:
            jobs: the jobs.
            fields: `fields_of` them.
        """
        entries, dirty = self.entries, self.dirty
        claimed, claims_moved = self.claimed, self.claims_moved
        for job, values in zip(jobs, fields, strict=True):  # they are not packed while they are in progress
            job_id = values["id"]
            entries[job_id] = job
            dirty[job_id] = claimed[job_id] = claims_moved[job_id] = None
        self.order.claim_plain(fields)

    def finish_plain(self, fields: Sequence[Mapping[str, Any]]) -> None:
        """Remove plain jobs that were in progress, by their `fields_of`: as `remove` does one by one."""
        entries, dirty, claimed, claims_moved = self.entries, self.dirty, self.claimed, self.claims_moved
        for values in fields:
            job_id = values["id"]
            dirty[job_id] = claims_moved[job_id] = None
            del entries[job_id], claimed[job_id]
        self.order.finish_plain(fields)

    def remove(self, job_id: str, before: Job | None = None) -> None:
        """Remove a job from the table and the indexes, if it is there."""
        before = self._unindex(job_id, before)
        self.entries.pop(job_id, None)
        self.order.changed(before, None)

    def find(self, job_id: str) -> Job | None:
        """Return the job with an id, in the blob or in a segment; None if there is none.

        Raises:
            RowsMissingError: a segment may hold it, and its row is not loaded.
            SegmentDamagedError: a segment that may hold it cannot be read.
        """
        found = self.loaded(job_id)
        if found is None and self.rows.segments:
            self.rows.find(job_id)
        return found

    def loaded(self, job_id: str) -> Job | None:
        """Return the job with an id if it is in the table, or in progress in a range and loaded; None if not."""
        entry = self.entries.get(job_id)
        if entry is not None:
            return unpacked(job_id, entry)
        return self.rows.claimed_job(job_id) if self.rows.ranges else None

    def find_key(self, key: str) -> str | None:
        """Return the id of the job that holds a unique key; None if no job does. It raises errors as `find` does."""
        holder = self.keys_held.get(key)
        if holder is None and self.rows.ranges:
            holder = self.rows.claimed_key(key)
        if holder is None and self.rows.segments:
            self.rows.find_key(key)
        return holder

    def put_row(self, job_id: str, entry: Packed) -> None:
        """Add the job of a row. The blob has no line of it, except perhaps from a write that did not land."""
        written = job_id in self.dirty
        if not self.put_waiting(job_id, entry):
            self.put(unpacked(job_id, entry))
        if not written:
            del self.dirty[job_id]

    def drop_row(self, job_id: str) -> None:
        """Remove the job of a row. The blob has no line of it, except perhaps from a write that did not land."""
        written = job_id in self.dirty
        self.remove_waiting(job_id)
        if not written:
            del self.dirty[job_id]

    def remove_waiting(self, job_id: str) -> None:
        """Remove a queued job: like `remove`, faster if it is packed and waits only for its turn."""
        entry = self.entries[job_id]
        place = place_of(entry) if isinstance(entry, tuple) else None
        if place is None:
            self.remove(job_id)
            return
        del self.entries[job_id]
        self.dirty[job_id] = None
        self.order.removed_packed(job_id, place)

    def restore(self, job_id: str, old: Any) -> None:
        """Restore the old value of a job, or of all jobs of a run: see `Journal`."""
        if isinstance(old, MoveRun):
            for _, before, after in reversed(old.moves()):
                job = before or after
                assert job is not None
                self.restore(job.id, ABSENT if before is None else before)
        elif old is ABSENT:
            self.remove(job_id)
        else:
            self.put(old)

    def put_waiting(self, job_id: str, entry: Packed) -> bool:
        """Add a packed job that is not in the table and waits only for its turn: like `put`, much faster.

        Returns:
            True if it is such a job, and was added.
        """
        place = place_of(entry)
        if place is None or not place[1] or job_id in self.entries:
            return False
        self.entries[job_id] = entry
        self.dirty[job_id] = None
        self.last_sequence = max(self.last_sequence, place[1])
        self.order.add_packed(job_id, entry, place)
        return True

    def _unindex(self, job_id: str, before: Job | None) -> Job | None:
        """Remove a job from the indexes that name it, and return its value until now."""
        self.dirty[job_id] = None
        if before is None and job_id in self.entries:
            before = unpacked(job_id, self.entries[job_id])
        if before is not None:
            if before.status is JobStatus.IN_PROGRESS:
                del self.claimed[job_id]
                self.claims_moved[job_id] = None
            if before.unique_key is not None and self.keys_held.get(before.unique_key) == job_id:
                del self.keys_held[before.unique_key]
        return before
