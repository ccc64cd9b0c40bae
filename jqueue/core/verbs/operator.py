"""The verbs of those who keep a queue in order, or only look: `Operator`, and `SupportsPeek`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Unpack

from jqueue.core.engine.slices import JOBS_PER_SLICE, in_turns
from jqueue.core.queue_base import QueueBase
from jqueue.domain.durations import Duration
from jqueue.domain.job_options import ScheduleOptions, takes_options
from jqueue.domain.models import Job, JobStatus, QueueState
from jqueue.domain.occurrences import as_told
from jqueue.domain.operations import (
    UNCHANGED,
    Cancel,
    Configure,
    Dequeue,
    Find,
    Pause,
    Peek,
    Purge,
    Redrive,
    Reprioritise,
    RequeueStale,
    Reschedule,
    Resume,
    SetLimits,
    SetSchedule,
    Unchanged,
    Unschedule,
)
from jqueue.domain.option_names import names_its_options
from jqueue.domain.rules import QueueSettings, Schedule
from jqueue.domain.stats import Census, QueueStats


@names_its_options
class OperatorVerbs(QueueBase):
    """The verbs of `Operator`, and of `SupportsPeek`."""

    async def cancel(self, job_id: str, *, running: bool = False, deadline: Duration | None = None) -> Job:
        """Remove a job that nobody has claimed, and return it.

        Args:
            job_id: which.
            running: whether one in progress shall be stopped. Its holder is told at its next heartbeat, and the job
                leaves when that claim ends; an ack still finishes it. It is returned as it is then, in progress.
            deadline: by then the call has ended.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is in progress, and that was not meant; or it is dead, or completed.
        """
        return await self._done(Cancel(job_id, running), deadline)  # type: ignore[no-any-return]

    async def reschedule(
        self,
        job_id: str,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        deadline: Duration | None = None,
    ) -> Job:
        """Have a queued job claimed at another time: after a delay (0 means at once), or at `run_at`. Returns it.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is not queued.
        """
        operation = Reschedule(job_id, delay=delay, run_at=run_at)
        return await self._done(operation, deadline)  # type: ignore[no-any-return]

    async def reprioritise(self, job_id: str, priority: int, *, deadline: Duration | None = None) -> Job:
        """Give a queued job another priority, and return it.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is not queued.
        """
        return await self._done(Reprioritise(job_id, priority), deadline)  # type: ignore[no-any-return]

    async def redrive(
        self, job_id: str | None = None, *, entrypoint: str | None = None, deadline: Duration | None = None
    ) -> int:
        """Queue dead jobs again: one by its id, those of an entrypoint, or all. Returns how many.

        Raises:
            JobNotFoundError: the one named is not in the queue.
            JobStateError: the one named is not dead.
            DuplicateJobError: a live job holds the unique key of the one named. Of many, such jobs stay dead.
        """
        return await self._done(Redrive(job_id, entrypoint), deadline)  # type: ignore[no-any-return]

    async def purge(
        self,
        *,
        status: JobStatus = JobStatus.DEAD,
        entrypoint: str | None = None,
        older_than: Duration | None = None,
        deadline: Duration | None = None,
    ) -> int:
        """Remove dead jobs for good (or queued or completed ones, if asked), and return how many."""
        return await self._done(Purge(status, entrypoint, older_than), deadline)  # type: ignore[no-any-return]

    async def requeue_stale(self, timeout: Duration, *, deadline: Duration | None = None) -> int:
        """Revoke every claim that was not confirmed within `timeout`, whatever its own says; returns how many.

        An operator's order. The queues find stale claims by themselves when they dequeue.
        """
        return await self._done(RequeueStale(timeout), deadline)  # type: ignore[no-any-return]

    # What holds jobs back

    async def pause(self, entrypoint: str, *, deadline: Duration | None = None) -> None:
        """Have no job of an entrypoint claimed until `resume`. Those in progress go on, and enqueue takes more."""
        await self._done(Pause(entrypoint), deadline)

    async def resume(self, entrypoint: str, *, deadline: Duration | None = None) -> None:
        """End a pause."""
        await self._done(Resume(entrypoint), deadline)

    async def limit(
        self,
        entrypoint: str,
        *,
        running: int | None = None,
        rate: int | None = None,
        per: Duration | None = None,
        deadline: Duration | None = None,
    ) -> None:
        """Set the limits of an entrypoint, in place of those that it has; without any, it has none.

        They hold for all consumers of the queue, at every commit.

        Args:
            entrypoint: whose.
            running: so many may be in progress at once.
            rate: so many may be claimed within any `per` seconds, by the clock of the store.
            per: see `rate`.
            deadline: by then the call has ended.
        """
        await self._done(SetLimits(entrypoint, running=running, rate=rate, per=per), deadline)

    async def configure(
        self,
        *,
        aging: Duration | Unchanged | None = UNCHANGED,
        dead_retention: Duration | Unchanged | None = UNCHANGED,
        blob_bytes: int | Unchanged | None = UNCHANGED,
        deadline: Duration | None = None,
    ) -> QueueSettings:
        """Change settings of the queue as a whole, and return those that hold then; without any, only look.

        Args:
            aging: so much waiting is worth one step of priority; None: a priority stays as it is.
            dead_retention: how long dead jobs are kept; None: until they are purged.
            blob_bytes: the size limit of the queue's object, for every writer and in place of its
                `Limits(blob_bytes=...)`; None: each writer goes by its own.
            deadline: by then the call has ended.
        """
        operation = Configure(aging=aging, dead_retention=dead_retention, blob_bytes=blob_bytes)
        return await self._done(operation, deadline)  # type: ignore[no-any-return]

    # Cron

    @takes_options(ScheduleOptions)
    async def schedule(
        self,
        name: str,
        cron: str,
        entrypoint: str,
        payload: bytes = b"",
        *,
        timezone: str = "UTC",
        deadline: Duration | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Set a cron entry: a job is enqueued at each of its times, once, whatever the number of workers.

        Every dequeue of the queue, by whomever, enqueues what is due. What was missed while nobody dequeued is made up
        for by one job, for the last time that was missed. An entry of that name is replaced; an equal one stays as it
        is. Daylight saving time is dealt with as in Debian's cron. The header `jqueue-scheduled-for` tells a job for
        which time it is. With a `unique_key`, no job is added while the one before has not finished.

        Args:
            name: of the entry. Its jobs have ids like `cron:<name>:2026-11-21T03:00:00+00:00`.
            cron: five fields (minute, hour, day of the month, month, day of the week), or six, the first for seconds.
            entrypoint: of the jobs.
            payload: of the jobs.
            timezone: in which the expression is meant, by its IANA name.
            deadline: by then the call has ended.
            options: of the jobs, as below.

        Returns:
            The entry, which says when it is due next.
        """
        operation = SetSchedule(name, cron, entrypoint, payload, timezone=timezone, **options)
        return await self._done(operation, deadline)  # type: ignore[no-any-return]

    async def unschedule(self, name: str, *, deadline: Duration | None = None) -> bool:
        """Remove a cron entry; the jobs that it has enqueued stay. Returns whether there was one."""
        return await self._done(Unschedule(name), deadline)  # type: ignore[no-any-return]

    async def schedules(self, *, deadline: Duration | None = None) -> list[Schedule]:
        """The cron entries, by name, each due as this process's clock has it: one read, no commit."""
        self.capabilities.require("schedules")
        sight, _, _ = await self._engine.look(self._seconds(deadline))
        now = self._engine.now()
        return [as_told(schedule, now) for _, schedule in sorted(sight.header.schedules.items())]

    # Looking

    async def peek(
        self, entrypoint: str | Sequence[str] | None = None, *, batch_size: int = 1, deadline: Duration | None = None
    ) -> list[Job]:
        """The jobs that a dequeue would claim now, in that order, without claiming them and without their payloads.

        They may be claimed by others at any time.

        Args:
            entrypoint: whose jobs; one name, several, or None for all.
            batch_size: how many at the most.
            deadline: by then the call has ended.
        """
        operation = self._prepared(Peek(Dequeue(entrypoint, batch_size=batch_size)))
        [found] = await self._submit((operation,), deadline)
        return list(found)

    async def until_ready(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        wait: Duration,
        deadline: Duration | None = None,
    ) -> bool:
        """Wait until a job is ready that was not at the last `peek`, and say whether there was one in time.

        Args:
            entrypoint: whose jobs; one name, several, or None for all.
            wait: how long to wait.
            deadline: by then, after the wait, the call has ended.
        """
        operation = self._prepared(Peek(Dequeue(entrypoint)))
        [found] = await self._submit((operation,), deadline, wait=wait, looked=True)
        return bool(found)

    async def find(self, job_id: str, *, deadline: Duration | None = None) -> Job | None:
        """A job as it stands, without its payload; None if it is not in the queue.

        Of one that was finished a short while ago, it has the id, the attempt and the status `COMPLETED`.
        """
        found = await self._done(Find(job_id), deadline)
        return found[0] if found else None

    async def read_state(self, *, deadline: Duration | None = None) -> QueueState:
        """The queue as it is now: one read, no commit; also before a broker is entered, and after it was left.

        Raises:
            StorageError: the store failed, or the queue's object is gone or cannot be read.
        """
        sight, _, _ = await self._engine.look(self._seconds(deadline))
        return await in_turns(sight.freezing())

    async def stats(self, *, deadline: Duration | None = None) -> QueueStats:
        """How many jobs are ready, scheduled, in progress and dead, by entrypoint, and how full the blob is."""
        sight, size, taken = await self._engine.look(self._seconds(deadline))
        census = Census(self._engine.now())
        for number, job in enumerate(sight.jobs(), 1):
            census.count(job)
            if number % JOBS_PER_SLICE == 0:
                await asyncio.sleep(0)
        return census.figures(sight.header, sight.set_aside, size, taken, self.options.limits)
