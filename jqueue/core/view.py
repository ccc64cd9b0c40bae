"""One version of a queue to look at. Its jobs become models one by one, as they are looked at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime

from jqueue.core.lazy_state import LazyState, Looked, Noticed
from jqueue.domain.job import JobRecord, JobStatus, objects_of
from jqueue.domain.limits import Limits
from jqueue.domain.models import Job, QueueState, SetAside, job_of
from jqueue.domain.stats import Census, QueueStats
from jqueue.domain.stored_object import StoredObject


@dataclass(frozen=True, slots=True)
class QueueView:
    """One version of a queue. Memory is taken by the jobs of the queue's object alone, and only while it is kept.

    Attributes:
        header: the state without its jobs.
        size: bytes of the blob; 0 if there is none. In the formats of older queues, bytes of the payloads.
        etag: the store's token of this version; None if the store has none.
    """

    _content: LazyState = field(repr=False)
    _limits: Limits = field(repr=False)
    _taken: int = field(repr=False)
    size: int
    etag: str | None = None

    @property
    def header(self) -> QueueState:
        """The state without its jobs."""
        return self._content.header

    @property
    def absent(self) -> bool:
        """True if there is no queue yet."""
        return self._content.absent

    @property
    def set_aside(self) -> tuple[SetAside, ...]:
        """The lines that cannot be read as jobs."""
        return self._content.set_aside

    def telling(self, looked: Looked | None = None, noticed: Noticed | None = None) -> QueueView:
        """Return the same version. It tells of reads of jobs that are not in the queue's object: see `JobRows`."""
        rows = self._content.rows
        return (
            self if rows is None else replace(self, _content=replace(self._content, rows=rows.telling(looked, noticed)))
        )

    async def jobs(
        self,
        *statuses: JobStatus,
        entrypoints: Collection[str] = (),
        prefix: str = "",
        others: bool = True,
    ) -> AsyncGenerator[Job, None]:
        """Iterate over jobs. Other jobs do not become models, and the event loop gets a turn now and then.

        Jobs of the queue's object come first, in the order in which the object has them. All other jobs follow.

        Args:
            statuses: statuses of the jobs; all by default.
            entrypoints: entrypoints of the jobs; all by default.
            prefix: beginning of their ids.
            others: False for the jobs of the queue's object alone.
        """
        wanted, names = frozenset(statuses), frozenset(entrypoints)
        for part in self._content.parts(wanted, names, prefix):
            for job in part:
                yield job_of(job)
            await asyncio.sleep(0)
        if others:
            async with self.other_jobs(wanted, names, prefix) as rows:
                async for other in rows:
                    yield other

    async def find(self, job_id: str) -> Job | None:
        """Return the job with an id; None if there is none. Few requests find it, whatever the number of jobs.

        Raises:
            JobsUnreadableError: a segment that may hold it is missing or damaged.
            StorageError: the store failed.
        """
        job, rows = self._content.entries.get(job_id), self._content.rows
        if job is None and rows is not None:
            job = await rows.find(job_id)
        return None if job is None else job_of(job)

    async def ids(self, prefix: str = "") -> AsyncGenerator[str, None]:
        """Iterate over the ids of the jobs. Jobs of the queue's object do not become models.

        Args:
            prefix: beginning of the ids.
        """
        for part in self._content.parts(prefix=prefix):
            for job in part:
                yield job.id
            await asyncio.sleep(0)
        if self._content.rows is not None:
            async with aclosing(self._content.rows.ids(prefix)) as others:
                async for job_id in others:
                    yield job_id

    async def objects(self) -> AsyncGenerator[StoredObject, None]:
        """Iterate over the objects beside the queue that jobs of the queue's object name."""
        for part in self._content.parts():
            for job in part:
                for stored in objects_of(job):
                    yield stored
            await asyncio.sleep(0)

    async def stats(self, now: datetime, deadline: float | None = None) -> QueueStats:
        """Return the statistics of this version at a time.

        Args:
            now: the time.
            deadline: maximum seconds for reads of segments; None: that of the call that has read the queue.

        Raises:
            StorageError: the store failed.
        """
        census = Census(now)
        for part in self._content.parts():
            census.count_all(part)
            await asyncio.sleep(0)
        if self._content.rows is not None:
            await self._content.rows.count(census, deadline)
        return census.figures(self.header, self.set_aside, self.size, self._taken, self._limits)

    def other_jobs(
        self, statuses: frozenset[JobStatus] = frozenset(), names: frozenset[str] = frozenset(), prefix: str = ""
    ) -> aclosing[AsyncGenerator[Job, None]]:
        """Return an iteration over the jobs that are not in the queue's object: `async with view.other_jobs() as jobs`.

        Args:
            statuses: statuses of the jobs; all if empty.
            names: entrypoints of the jobs; all if empty.
            prefix: beginning of their ids.
        """
        source = self._content.rows
        return aclosing(_for_callers(None if source is None else source.rows(statuses, names, prefix)))

    async def other_numbers(self, now: datetime) -> Mapping[str, tuple[int, int]]:
        """Return the numbers of ready and of scheduled jobs that are not in the queue's object, by entrypoint.

        Raises:
            StorageError: the store failed.
        """
        census = Census(now)
        if self._content.rows is not None:
            await self._content.rows.count(census)
        return census.waiting()

    def others_in_order(
        self, entrypoints: frozenset[str] = frozenset(), *, scheduled: bool
    ) -> aclosing[AsyncGenerator[Job, None]]:
        """Return an iteration over other jobs as they are served, or are due. They are read when they come up.

        Args:
            entrypoints: their entrypoints; all if empty.
            scheduled: True for the jobs that were scheduled when they were written.
        """
        source = self._content.rows
        rows = None if source is None else source.in_order(entrypoints, scheduled=scheduled)
        return aclosing(_for_callers(rows))


async def _for_callers(jobs: AsyncGenerator[JobRecord, None] | None) -> AsyncGenerator[Job, None]:
    """Yield jobs as callers get them."""
    if jobs is not None:
        async with aclosing(jobs):
            async for job in jobs:
                yield job_of(job)
