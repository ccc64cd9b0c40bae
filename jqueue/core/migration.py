"""`migrate(source, dest)` moves jobs from one queue to another, whatever their formats.

It is a consumer of the source: it claims jobs, adds them to the destination with their ids, and removes them from the
source. If it is killed, its claims time out, and the next run finds the jobs that it had added already.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

from jqueue.core.heartbeat import HeartbeatManager
from jqueue.core.queue_base import is_same_place
from jqueue.domain.errors import (
    InvalidJobError,
    JobStateError,
    JobsUnreadableError,
    JQueueError,
    NotLoadedError,
    UnknownOutcomeError,
)
from jqueue.domain.job import NO_CLAIM, JobStatus
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.enqueue import Arrive, Depart
from jqueue.domain.operations.lookups import Find
from jqueue.domain.stats import QueueStats
from jqueue.ports.queue import JobQueue, SupportsApply, payload_of
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.tasks import to_the_end

Item = TypeVar("Item")

BATCH_JOBS = 500
"""Maximum number of jobs in one claim."""

BATCH_BYTES = 4 << 20
"""Maximum bytes of payloads that are added in one commit; a larger job is added alone."""

MOST_REFUSED = 1_000
"""Number of claimed jobs that DEST has refused at which a move ends: they stay claimed until then."""

FAMILY = "jobs wait for them, or they for others: let workers finish these at SOURCE"

IN_BOTH = "they were claimed or changed at SOURCE during the move, and are in both queues"


@dataclass
class MigrationReport:
    """The result of a move.

    Attributes:
        moved: number of moved jobs; of a dry run, number of jobs that would move.
        refused: ids of jobs that stay at the source, by the reason.
        left: the figures of the source after the move; of a dry run, without the jobs that could move.
        damaged: segments of the source that are missing or damaged, with the reason. Jobs of theirs stay.
        stopped: True if the move was stopped before its end.
    """

    moved: int = 0
    refused: dict[str, list[str]] = field(default_factory=dict)
    left: QueueStats = field(default_factory=QueueStats)
    damaged: dict[str, str] = field(default_factory=dict)
    stopped: bool = False

    @property
    def complete(self) -> bool:
        """True if no job stays that could have been worked on at the other queue."""
        left = self.left
        waiting = left.ready or left.scheduled or left.waiting or left.in_progress or left.dead
        return not (waiting or left.unreadable or self.damaged or self.refused)

    def refuse(self, job: Job, reason: str) -> None:
        """Note that a job stays."""
        self.refused.setdefault(reason, []).append(job.id)


async def migrate(
    source: JobQueue,
    dest: SupportsApply,
    *,
    dry_run: bool = False,
    on_progress: Callable[[int], None] | None = None,
    stop: asyncio.Event | None = None,
) -> MigrationReport:
    """Move the jobs of a queue to another one, in their order. Programs may go on using both queues.

    Jobs in progress stay with their workers, and jobs that cannot be claimed now (their entrypoint is paused, or at its
    limit) wait at the source: move them later. Scheduled and dead jobs move without a claim. A move that was killed is
    finished by the next one, once its claims have timed out.

    Args:
        source: the queue that the jobs leave.
        dest: the queue that the jobs move to; it need not exist yet. An id names the same job in both queues: a job
            that has finished there is only removed here.
        dry_run: True to only count the jobs that would move.
        on_progress: called with the number of jobs that have been moved.
        stop: once it is set, no further batch is begun.

    Raises:
        InvalidJobError: both are the same queue.
        StorageError: a store failed. Run it again.
    """
    if is_same_place(source, dest):
        raise InvalidJobError("both queues are the same queue: there is nothing to move")
    mover = _Mover(source, dest, on_progress or (lambda moved: None), stop or asyncio.Event())
    await source.stats()  # if there is no source, that is an error
    await _each(dest, [Find("any")])  # if the destination cannot be read, nothing is claimed
    await (mover.count() if dry_run else mover.move())
    mover.report.left, mover.report.stopped = await source.stats(), mover.stop.is_set()
    if dry_run:
        mover.report.left = replace(mover.report.left, ready=0, scheduled=0, dead=0)
    return mover.report


@dataclass
class _Mover:
    source: JobQueue
    dest: SupportsApply
    tell: Callable[[int], None]
    stop: asyncio.Event
    report: MigrationReport = field(default_factory=MigrationReport)
    claimed: dict[str, Job] = field(default_factory=dict)
    needed: frozenset[str] = frozenset()  # ids of parents

    async def move(self) -> None:
        await self._find_families()
        try:
            while not self.stop.is_set() and len(self.claimed) < MOST_REFUSED:
                try:
                    jobs = await self.source.dequeue(batch_size=BATCH_JOBS)
                except NotLoadedError:
                    continue  # their queue has set them aside: there may be others
                if not jobs:
                    break
                self.claimed.update((job.id, job) for job in jobs)
                beats: Any = nullcontext()
                if self.source.capabilities.heartbeat:
                    beats = HeartbeatManager(self.source, self.claimed.values(), on_lost="event")
                async with beats:
                    await self._transfer(jobs)
            now, batch = self._now(), list[Job]()
            async with aclosing(self._waiting()) as jobs_waiting:
                async for job in jobs_waiting:
                    if self.stop.is_set():
                        break
                    if job.status is JobStatus.DEAD or job.waits_for or (job.run_at is not None and job.run_at > now):
                        batch.append(job)
                    if len(batch) == BATCH_JOBS:
                        await self._transfer(batch)
                        batch = []
            await self._transfer(batch)
        finally:  # they were refused, or the move failed
            if self.claimed:
                charge = not self.source.capabilities.uncharged
                await to_the_end(self.source.nack_many(self.claimed.values(), charge=charge))

    async def _find_families(self) -> None:
        """Note which jobs others wait for. Both stay, as the results of parents do."""
        if self.source.capabilities.parents:
            jobs = (await self.source.read_state(hot=True)).jobs
            self.needed = frozenset(parent for job in jobs for parent in job.after)

    def _stays(self, job: Job) -> bool:
        stays = bool(job.after) or job.id in self.needed
        if stays:
            self.report.refuse(job, FAMILY)
        return stays

    async def count(self) -> None:
        await self._find_families()
        async for job in self._waiting():
            if self._stays(job):
                continue
            try:
                self.dest.capabilities.require(*self._arrival(job).needs(0.0))
            except InvalidJobError as error:
                self.report.refuse(job, str(error))
            else:
                self.report.moved += 1

    async def _waiting(self) -> AsyncGenerator[Job, None]:
        try:
            async with aclosing(self.source.iterate_jobs(JobStatus.QUEUED, JobStatus.DEAD)) as jobs:
                async for job in jobs:
                    yield job
        except JobsUnreadableError as error:  # it comes after all other jobs
            self.report.damaged.update(error.segments)

    async def _transfer(self, jobs: Sequence[Job]) -> None:
        """Add jobs to the destination, then remove from the source each job that the destination has taken."""
        for part in parts([job for job in jobs if not self._stays(job)], lambda job: job.payload):
            arrived: list[Job] = []
            results = await _each(self.dest, [self._arrival(job) for job in part])
            for job, result in zip(part, results, strict=True):
                finished = isinstance(result, JobStateError) and result.status is JobStatus.COMPLETED
                if isinstance(result, Job) or finished:
                    arrived.append(job)
                else:
                    self.report.refuse(job, str(result))
            results = await _each(self.source, [Depart(job) for job in arrived])
            for job, result in zip(arrived, results, strict=True):
                self.claimed.pop(job.id, None)
                if isinstance(result, JQueueError):
                    self.report.refuse(job, IN_BOTH)
                else:
                    self.report.moved += 1
            self.tell(self.report.moved)

    def _arrival(self, job: Job) -> Arrive:
        changes: dict[str, Any] = {}
        if job.status is JobStatus.IN_PROGRESS:  # the claim was no try of it
            changes = {"failures": max(0, job.failures - 1), "attempts_before": job.attempts_before + 1}
        apart = payload_of(self.source, job) if job.payload_apart else None
        return Arrive(arriving(job, self._now()).evolve(**changes), payload=apart)

    def _now(self) -> datetime:
        return options_of(self.source).clock.now()


def arriving(job: Job, now: datetime) -> Job:
    """Return a job as it is added to another queue: without its claim, and ready if it was in progress or is due."""
    status = JobStatus.QUEUED if job.status is JobStatus.IN_PROGRESS else job.status
    run_at = None if job.run_at is None or job.run_at <= now else job.run_at
    return job.evolve(status=status, run_at=run_at, **NO_CLAIM)


def parts(
    several: Iterable[Item], payload: Callable[[Item], bytes], most: int = BATCH_JOBS, most_bytes: int = BATCH_BYTES
) -> Iterator[list[Item]]:
    """Split jobs into parts whose payloads fit into a commit.

    Args:
        several: jobs, with what belongs to each.
        payload: returns the payload of one.
        most: largest number of jobs in a part.
        most_bytes: bytes of payloads in a part of several jobs, at most.
    """
    part, size = list[Item](), 0
    for each in several:
        if part and (len(part) == most or size + len(payload(each)) > most_bytes):
            yield part
            part, size = [], 0
        part.append(each)
        size += len(payload(each))
    if part:
        yield part


async def _each(queue: SupportsApply, operations: Sequence[Operation]) -> list[Any]:
    """Carry out operations, each for itself, and resolve an unknown outcome."""
    if not operations:
        return []
    try:
        return await queue.apply_each(*operations)
    except UnknownOutcomeError as error:
        return list(await error.resolve())
