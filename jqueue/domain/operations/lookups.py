"""Operations that change nothing: they look at jobs without a claim, at claims, and at numbers.

A caller that chooses among several queues must know the jobs of each before it claims from one. A restarted caller
finds its claims by their holder's name. A caller that is to take only jobs that are there now reads the last sequence
number, and passes it to its dequeues as `through`.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import UTC, datetime
from typing import ClassVar, NamedTuple

from msgspec.structs import replace

from jqueue.domain.draft import Draft
from jqueue.domain.durations import exact_time
from jqueue.domain.errors import (
    JobCancelledError,
    JobFailedError,
    JobNotFoundError,
    ResultNotKeptError,
)
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT, JobRecord, JobStatus
from jqueue.domain.limits import CLOCK_ALLOWANCE, LONGEST_GRACE, check_name
from jqueue.domain.models import NotLoaded
from jqueue.domain.operations.base import OnJob, Operation, Preparation
from jqueue.domain.operations.dequeue import Dequeue
from jqueue.domain.operations.groups import AwaitGroup, LookAtGroup
from jqueue.domain.segment_rows import RowsMissingError, Wanted
from jqueue.domain.segments import Lease, Segment, hash_of, object_of


class Peek(Operation, frozen=True):
    """Look up the jobs that a dequeue would return. Its result is the list of them, unclaimed and without payloads.

    It does everything that a dequeue does except the claims: it removes expired jobs, and enqueues the jobs of cron
    entries that are due. So a caller can wait with it, as with a dequeue.

    Attributes:
        dequeue: the dequeue whose jobs are looked up.
    """

    claims_jobs = True

    dequeue: Dequeue

    def prepared(self, preparation: Preparation) -> Peek:
        """Return the operation with its dequeue checked."""
        return replace(self, dequeue=self.dequeue.prepared(preparation))

    def change(self, draft: Draft, now: datetime) -> list[JobRecord]:
        """Claim the jobs, note their ids, and undo the claims. So every limit holds as in a dequeue."""
        self.dequeue.tidy(draft, now)
        savepoint = draft.savepoint()
        ids = [job.id for job in self.dequeue.claim(draft, now)]
        draft.rollback(savepoint)
        return [draft.jobs[job_id].evolve(payload=NotLoaded()) for job_id in ids]

    def search_key(self) -> Hashable | None:
        """Return the key of the dequeue: if one of the two finds nothing, the other finds nothing either."""
        return self.dequeue.search_key()


class CountQueued(Operation, frozen=True):
    """Count the queued jobs. Its result is the number of queued jobs, ready or not, by entrypoint."""

    def change(self, draft: Draft, now: datetime) -> dict[str, int]:
        """Return the numbers, and change nothing."""
        return draft.jobs.order.waiting()


class Backlog(NamedTuple):
    """The jobs that wait in a queue."""

    jobs: int
    """Number of queued jobs, ready or not."""
    oldest: datetime | None
    """Earliest time since when one of the ready jobs waits, or an earlier time; None if none is ready."""


class LookAtBacklog(Operation, frozen=True):
    """Look at the jobs that wait. Its result is a `Backlog`.

    Attributes:
        entrypoints: of the jobs; None for all.
    """

    entrypoints: tuple[str, ...] | None = None

    def change(self, draft: Draft, now: datetime) -> Backlog:
        """Return the backlog, and change nothing."""
        names = None if self.entrypoints is None else frozenset(self.entrypoints)
        jobs = sum(number for name, number in draft.jobs.order.waiting().items() if names is None or name in names)
        since = [
            job.run_at or job.created_at
            for job in draft.jobs.values()
            if job.status is JobStatus.QUEUED and not job.waits_for and (names is None or job.entrypoint in names)
        ]
        for segment in map(draft.jobs.rows.manifest.current, draft.header.segments):
            if segment is not None and segment.waiting and (names is None or segment.entrypoint in names):
                since.append(exact_time(datetime.fromtimestamp(segment.oldest, UTC)))
        return Backlog(jobs, min((at for at in since if at <= now), default=None))


PATIENCE = LONGEST_GRACE + 2.0
"""Seconds that a short run waits for silent claims, which it may not revoke at once: see `HeldJobs`."""


class HeldJobs(NamedTuple):
    """The jobs that are in progress."""

    jobs: int
    """Number of them."""
    silent: int
    """Number of them whose claims have had no heartbeat for so long that any process may revoke them: the timeout of
    the claim, and an allowance for clocks that disagree."""


class LookAtHeld(Operation, frozen=True):
    """Look at the jobs in progress. Its result is `HeldJobs`.

    Attributes:
        entrypoints: of the jobs; None for all.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("holders",)

    entrypoints: tuple[str, ...] | None = None

    def change(self, draft: Draft, now: datetime) -> HeldJobs:
        """Return the numbers, and change nothing."""
        names = None if self.entrypoints is None else frozenset(self.entrypoints)
        claims: list[tuple[JobRecord | Segment, int]] = [(draft.jobs[job_id], 1) for job_id in draft.jobs.claimed]
        claims += [(each, each.left) for each in draft.jobs.rows.manifest.leases().values()]
        wanted = [(claim, jobs) for claim, jobs in claims if names is None or claim.entrypoint in names]
        silent = sum(jobs for claim, jobs in wanted if _is_silent(claim, now))
        return HeldJobs(sum(jobs for _, jobs in wanted), silent)


def _is_silent(claim: JobRecord | Segment, now: datetime) -> bool:
    lasts = DEFAULT_CLAIM_TIMEOUT.total_seconds() if claim.claim_timeout is None else claim.claim_timeout
    return claim.heartbeat_at is not None and (now - claim.heartbeat_at).total_seconds() > lasts + CLOCK_ALLOWANCE


class Find(OnJob, frozen=True):
    """Look at a job. Its result is a list: the job, or nothing if it is not there.

    For a job that finished a short while ago and is gone, the result has the id, the attempt and the status completed.

    Attributes:
        job_id: the id of the job.
        with_payload: True to return its payload too, unless that is in an object.
    """

    with_payload: bool = False

    def change(self, draft: Draft, now: datetime) -> list[JobRecord]:
        """Return the job in a list, and change nothing."""
        job = draft.jobs.find(self.job_id)
        if job is not None:
            return [job if self.with_payload else job.evolve(payload=NotLoaded())]
        attempt = draft.header.finished.get(self.job_id)
        if attempt is None:
            return []
        return [JobRecord(self.job_id, "", b"", JobStatus.COMPLETED, 0, now, attempt=attempt)]


class AwaitResult(OnJob, frozen=True):
    """Look for the result of a job. Its result is a list: the finished job, or nothing while it has not finished.

    It is applied after the other operations of a commit, like a dequeue: a job that they finish is seen at once.
    """

    claims_jobs = True
    needs_space = False
    always_needs: ClassVar[tuple[str, ...]] = ("results",)

    def change(self, draft: Draft, now: datetime) -> list[JobRecord]:
        """Return the finished job in a list; an empty list while it has not finished.

        Raises:
            JobFailedError: it is dead.
            ResultNotKeptError: it has finished, and its result was not kept or is no longer kept.
            JobCancelledError: it was cancelled, and is still among the last cancelled ids.
            JobNotFoundError: it is not in the queue, and not among the finished ids.
        """
        if self.job_id not in draft.jobs and self.job_id in draft.header.finished:
            raise ResultNotKeptError(self.job_id)
        if self.job_id in draft.header.cancelled and draft.jobs.find(self.job_id) is None:
            raise JobCancelledError(self.job_id)
        job = draft.get(self.job_id)
        if job.status is JobStatus.DEAD:
            raise JobFailedError(job.id, job.error, job.error_dropped)
        if job.status is not JobStatus.COMPLETED:
            return []
        kept_until = draft.jobs.order.leaves_at(job)
        if kept_until is not None and kept_until <= now:  # its time is over: the next change of the queue removes it
            raise ResultNotKeptError(job.id)
        if job.result_dropped:
            raise ResultNotKeptError(job.id, job.result_dropped)
        return [job]


def face_of(job: JobRecord) -> str:
    """Return what a watcher sees of a job, in short. It differs at each change but that of a heartbeat."""
    parts = (job.status, job.attempt, job.failures, job.run_at, job.priority, job.cancel_requested)
    return f"{parts} {len(job.steps)} {len(job.waits_for)} {job.progress}"


class AwaitChange(OnJob, frozen=True):
    """Look for a change of a job. Its result is a list: the job, or nothing while it is as it was seen.

    It is applied after the other operations of a commit, like a dequeue.

    Attributes:
        seen: `face_of` the job as it was seen; empty if it was not.
    """

    claims_jobs = True
    needs_space = False

    seen: str = ""

    def change(self, draft: Draft, now: datetime) -> list[JobRecord]:
        """Return the job in a list, as `Find` does; an empty list while it has not changed.

        Raises:
            JobNotFoundError: it is not in the queue, and not among the finished ids.
        """
        jobs = Find(self.job_id).change(draft, now)
        if not jobs:
            raise JobNotFoundError(self.job_id)
        return [] if face_of(jobs[0]) == self.seen else jobs


class HeldBy(Operation, frozen=True):
    """Look up the jobs in progress whose holder's name begins with a prefix. Its result is their list, in order.

    Attributes:
        prefix: the prefix of the name.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("holders",)
    hands_out_jobs = True

    prefix: str

    def change(self, draft: Draft, now: datetime) -> list[JobRecord]:
        """Return the jobs, by priority and sequence, and change nothing."""
        claimed = (draft.jobs[job_id] for job_id in draft.jobs.claimed)
        held = [job for job in claimed if job.holder is not None and job.holder.startswith(self.prefix)]
        return sorted(held, key=lambda job: (job.priority, job.sequence))


class LeasesHeldBy(Operation, frozen=True):
    """Look up the leases whose holder's name begins with a prefix. Its result is their list.

    Attributes:
        prefix: the prefix of the name.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("leases",)

    prefix: str

    def change(self, draft: Draft, now: datetime) -> list[Lease]:
        """Return the leases, by segment and row, and change nothing."""
        leases = draft.jobs.rows.manifest.leases().items()
        held = [
            Lease(*each) for each in leases if (holder := each[1].holder) is not None and holder.startswith(self.prefix)
        ]
        return sorted(held, key=lambda lease: (lease.segment, lease.entry.next))


class JobsInLeases(Operation, frozen=True):
    """Look up jobs by their ids. Its result has an entry for each job in progress in a lease: ids of lease and job.

    The indexes of segments tell, by the hashes of ids, so that no row is read. If the index of a segment cannot be
    read, there is an entry for each lease of the segment.

    Attributes:
        ids: the ids.
    """

    always_needs: ClassVar[tuple[str, ...]] = ("leases",)

    ids: tuple[str, ...]

    def change(self, draft: Draft, now: datetime) -> list[tuple[str, str]]:
        """Return the ids, and change nothing.

        Raises:
            RowsMissingError: indexes are not loaded. It names those of all segments with leases.
        """
        rows, held = draft.jobs.rows, dict[str, list[tuple[str, Segment]]]()
        for lease, each in draft.jobs.rows.manifest.leases().items():
            held.setdefault(object_of(lease), []).append((lease, each))
        unread = held.keys() - rows.manifest.indexes.keys()
        if missing := [Wanted(name, None) for name in unread if rows.damage_of(name) is None]:
            raise RowsMissingError(missing)
        leased_ids = list[tuple[str, str]]()
        for job_id in self.ids:
            hashed = hash_of(job_id)
            for name, leases in held.items():
                places = None if name in unread else rows.manifest.indexes[name].rows_of(job_id, hashed)
                for lease, each in leases:
                    if places is None or not all(map(each.is_taken, places)):
                        leased_ids.append((lease, job_id))
        return leased_ids


class LastSequence(Operation, frozen=True):
    """Look up the last sequence number that was given to a job. Jobs that come later get higher numbers."""

    always_needs: ClassVar[tuple[str, ...]] = ("holders",)

    def change(self, draft: Draft, now: datetime) -> int:
        """Return the number, and change nothing."""
        return draft.jobs.last_sequence


class LastTransaction(Operation, frozen=True):
    """Look up the version of an application's last write. Its result is that version, or None."""

    always_needs: ClassVar[tuple[str, ...]] = ("staged",)

    app_id: str

    def prepared(self, preparation: Preparation) -> LastTransaction:
        """Check the id."""
        return LastTransaction(check_name("transaction's app_id", self.app_id, preparation.limits))

    def change(self, draft: Draft, now: datetime) -> int | None:
        """Return the version, and change nothing."""
        record = draft.header.transactions.get(self.app_id)
        return None if record is None else record.version


TRAVELLING = (
    *(Peek, CountQueued, LookAtBacklog, LookAtHeld, Find, AwaitResult, AwaitChange, HeldBy),
    *(LeasesHeldBy, JobsInLeases, LastSequence, LastTransaction, LookAtGroup, AwaitGroup),
)
