"""A bulk enqueue under way: its jobs are encoded as they come, and stored in segments that one commit names.

Memory stays bounded: the jobs of an entrypoint are written when they are many, and forgotten. A few jobs of an
entrypoint enter the blob instead, in the same commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jqueue.core.blob.segment_staging import Group, JobGroups
from jqueue.core.blob.segments import Segments
from jqueue.core.calls.segment_commit import CONFLICTS_LATE, SegmentCommit
from jqueue.core.engine import Engine
from jqueue.core.values import ValueObjects
from jqueue.domain.enqueued_jobs import EnqueuedJobs, GivenJobs, bulk_id, bulk_rest
from jqueue.domain.errors import DeadlineExceededError, InvalidJobError, JQueueError
from jqueue.domain.job import JobRecord
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations import (
    BulkAdded,
    BulkConflicts,
    Enqueue,
    EnqueueSegments,
    NewSegment,
    Preparation,
)
from jqueue.domain.operations.enqueue import LINE_BYTES
from jqueue.domain.segments import SEGMENTS_KEPT
from jqueue.domain.slices import LINES_PER_SLICE

BUFFER_BYTES = 32 << 20
"""Bytes of the rows of all entrypoints above which the largest group of them is written."""

MOST_SEGMENTS = SEGMENTS_KEPT // 2
"""Number of new segments above which those of each group are joined."""


class BulkEnqueue(SegmentCommit):
    """The jobs of one bulk enqueue.

    Args:
        engine: will commit it.
        segments: the segments of the engine.
        objects: stores large payloads.
        preparation: completes the jobs.
        seconds: time within which the store must take an object.
    """

    def __init__(
        self, engine: Engine, segments: Segments, objects: ValueObjects, preparation: Preparation, seconds: float
    ) -> None:
        super().__init__(engine, segments, objects, preparation, seconds)
        now, rest = engine.now(), bulk_rest(preparation.new_id())
        self._given = GivenJobs(rest, now)
        self._prepared = 0  # number of jobs
        self._preparation = replace(preparation, new_id=lambda: bulk_id(self._prepared, rest))
        self._created_at, self._before = now, now + objects.named_within
        self._groups = JobGroups(self._sizes.most_rows, self._sizes.most_bytes, BUFFER_BYTES)
        self._few: list[tuple[int, Enqueue]] = []
        self._new: list[NewSegment] = []
        self._creating: asyncio.Task[NewSegment] | None = None
        self._whole: list[tuple[JobRecord, bool]] | None = []  # the jobs, and True for each with a given id
        self._whole_bytes = 0

    # Encoding

    async def feed(self, jobs: Sequence[Enqueue]) -> None:
        """Take more jobs.

        Raises:
            InvalidJobError: a job is wrong, or is no `Enqueue`.
            StorageError: the store failed.
        """
        for first in range(0, len(jobs), LINES_PER_SLICE):
            several = [self._new_job(job) for job in jobs[first : first + LINES_PER_SLICE]]
            contents = [new.payload for new in several]
            self._add(await self._stored(several), contents)
            for full in self._groups.full():
                await self._begin(*full)
            await asyncio.sleep(0)

    def _new_job(self, job: Enqueue) -> Enqueue:
        if not isinstance(job, Enqueue):
            raise InvalidJobError(f"enqueue_many takes Enqueue(...), got {type(job).__name__}")
        self._prepared += 1
        return job.prepared(self._preparation)

    async def _stored(self, jobs: list[Enqueue]) -> list[Enqueue]:
        """Return jobs with the objects of their large payloads, which are stored."""
        if not any(new.apart for new in jobs):
            return jobs
        stored, _ = await self._objects.store(jobs, self.seconds_left)
        for each in stored:
            if isinstance(each, JQueueError):
                raise each
        return [new for new in stored if isinstance(new, Enqueue)]

    def _add(self, several: Sequence[Enqueue], contents: Sequence[Any]) -> None:
        """Add jobs to their groups.

        Args:
            several: the jobs, whose large payloads are stored.
            contents: their payloads.
        """
        first, given = len(self._given) + 1, [new.job_id is not None for new in several]
        jobs = [new.job(number, self._created_at) for number, new in enumerate(several, first)]
        self._given.add(jobs, given)
        self._groups.add(jobs, given)
        for number, new in enumerate(several, first):
            if new.on_conflict != self._on_conflict:
                self._modes[number] = new.on_conflict
        if self._whole is not None:
            payloads = [content if isinstance(content, bytes) else b"" for content in contents]
            whole = zip(jobs, payloads, given, strict=True)
            self._whole += [(job.evolve(payload=payload), own) for job, payload, own in whole]
            self._whole_bytes += sum(map(len, payloads))
            limits = self._preparation.limits
            if len(self._whole) > limits.batch_size or self._whole_bytes > limits.enqueue_bytes:
                self._whole = None

    # Writing

    async def _begin(self, group: Group, jobs: list[JobRecord]) -> None:
        """Encode the jobs of a group, while the segment before it is stored, and begin to store them."""
        encoded = await self._encoded(group, jobs)
        await self._created()
        self._creating = asyncio.create_task(self._create(group, encoded))

    async def _created(self) -> None:
        """Wait until the segment that is being stored exists."""
        if self._creating is not None:
            creating, self._creating = self._creating, None
            try:
                self._new.append(await creating)
            finally:
                creating.cancel()

    async def end(self) -> None:
        """Cancel the segment that is being stored. Stored segments are litter if no commit names them."""
        if self._creating is not None:
            self._creating.cancel()
            await asyncio.wait([self._creating])

    # The commit

    async def operation(self) -> EnqueueSegments:
        """Store the rest of the jobs but for the few that enter the blob. Return the operation that adds all."""
        room = self._sizes.hot_bytes or 0
        for group, jobs in self._groups.rest():
            size = sum(LINE_BYTES + len(job.payload) for job in jobs)
            if len(jobs) < self._sizes.fewest_rows and (size <= room or len(self._new) >= MOST_SEGMENTS):
                room -= size
                self._few += [self._single(job, group.given) for job in jobs]
            else:
                await self._begin(group, jobs)
        await self._created()
        new = self._new if len(self._new) <= MOST_SEGMENTS else await self._joined(self._new)
        few = sorted(self._few, key=lambda pair: pair[0])
        number, features = len(self._given), frozenset(self._groups.features)
        return await self.ready(EnqueueSegments(number, self._created_at, new, few, self._before, features))

    def answer(self, outcome: BulkAdded | BulkConflicts) -> list[Job] | EnqueuedJobs:
        """Return the answer to the caller: a list of whole jobs if they are few.

        Raises:
            DeadlineExceededError: nothing was added by a commit whose outcome was unknown for a while.
        """
        if isinstance(outcome, BulkConflicts):
            raise DeadlineExceededError(CONFLICTS_LATE)
        if self._whole is None:
            return EnqueuedJobs(self._given, outcome)
        return [job_of(self._whole_job(job, given, outcome)) for job, given in self._whole]

    @staticmethod
    def _whole_job(job: JobRecord, given: bool, outcome: BulkAdded) -> JobRecord:
        known, sequence = outcome.one_by_one.get(job.sequence), outcome.offset + job.sequence
        if known is not None:
            return known.evolve(payload=job.payload) if known.sequence == sequence else known
        attempt = outcome.attempt if given else 0
        return job.evolve(sequence=sequence, attempt=attempt, attempts_before=attempt)
