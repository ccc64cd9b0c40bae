"""The jobs of a draft with what finds them: the next one, those in progress, the holders of unique keys."""

from __future__ import annotations

from typing import Any

from jqueue.domain.job_table import JobTable, Packed, place_of, unpacked
from jqueue.domain.journal import ABSENT
from jqueue.domain.models import Job, JobStatus
from jqueue.domain.order import Order

KEY_HOLDERS = (JobStatus.QUEUED, JobStatus.IN_PROGRESS)
"""Only these hold their unique key."""


class IndexedJobs(JobTable):
    """Every job by id. `put` and `remove` keep the indexes in step.

    Attributes:
        order: the orders in which they are served, and what holds them back.
        claimed: the ids of the jobs in progress.
        keys_held: who holds each unique key, by the key.
        dirty: ids whose line in the blob may differ from the job; whoever encodes clears it.
        claims_moved: ids whose claim may have begun, moved or ended; whoever watches claims clears it.
        last_sequence: the highest sequence number that any job was given, by anybody.
    """

    __slots__ = ("claimed", "claims_moved", "dirty", "keys_held", "last_sequence", "order")

    def __init__(self) -> None:
        super().__init__()
        self.order = Order(self)
        self.claimed: dict[str, None] = {}
        self.keys_held: dict[str, str] = {}
        self.dirty: dict[str, None] = {}
        self.claims_moved: dict[str, None] = {}
        self.last_sequence = 0

    def put(self, job: Job, before: Job | None = None) -> None:
        """Put a job in its places, out of the ones that it had. Heaps find out by themselves.

        Args:
            job: as it shall be.
            before: as it is, if the caller knows it.
        """
        job_id = job.id
        before = self._leave(job_id, before)
        self[job_id] = job
        if job.sequence > self.last_sequence:
            self.last_sequence = job.sequence
        if job.unique_key is not None and job.status in KEY_HOLDERS:
            self.keys_held[job.unique_key] = job_id
        if job.status is JobStatus.IN_PROGRESS:
            self.claimed[job_id] = None
            self.claims_moved[job_id] = None
        self.order.changed(before, job)

    def remove(self, job_id: str, before: Job | None = None) -> None:
        """Take a job out of all its places, if it is there."""
        before = self._leave(job_id, before)
        self.entries.pop(job_id, None)
        self.order.changed(before, None)

    def restore(self, job_id: str, old: Any) -> None:
        """Put a job back as it was: see `Journal`."""
        if old is ABSENT:
            self.remove(job_id)
        else:
            self.put(old)

    def put_waiting(self, job_id: str, entry: Packed) -> bool:
        """Take over a packed job that nobody here knows, and that waits for nothing but its turn: `put`, much faster.

        Returns:
            Whether it is one, and has been taken over.
        """
        place = place_of(entry)
        if place is None or not place[1] or job_id in self.entries:
            return False
        self.entries[job_id] = entry
        self.dirty[job_id] = None
        self.last_sequence = max(self.last_sequence, place[1])
        self.order.waits(job_id, entry, place)
        return True

    def _leave(self, job_id: str, before: Job | None) -> Job | None:
        """Take a job out of the indexes that name it. Returns it as it was."""
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
