"""The verbs of a queue, for each role in which a program uses one, and what a queue may be unable to do.

The roles are `Producer`, `Consumer` and `Operator`; a `JobQueue` serves all three. A function that takes a queue
names the part that it needs. A queue that keeps its jobs in a format
of somebody else's says in its `Capabilities` what that format has no place for, and refuses to be asked for it: a job
whose priority, delay or key were dropped silently would be another job than the one that was meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Protocol, Unpack, runtime_checkable

from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidJobError, JobNotFoundError
from jqueue.domain.job_options import EnqueueOptions, ScheduleOptions, takes_options
from jqueue.domain.models import Job, JobStatus, QueueState
from jqueue.domain.operations import UNCHANGED, DequeueOptions, Enqueue, JobReference, Operation, Unchanged
from jqueue.domain.rules import QueueSettings, Schedule
from jqueue.domain.stats import QueueStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a queue can do; what is False is refused with InvalidJobError, before anything changes.

    Attributes:
        priority: serves jobs by `priority`.
        delay: keeps jobs until later: `delay`, `run_at`, and the delay of a nack.
        expiry: removes jobs not claimed by `expires_at`.
        headers: carries `headers`.
        job_ids: takes ids from its callers, which makes an enqueue idempotent.
        unique_keys: `unique_key`, `unique_for` and `on_conflict`.
        dead_letters: `max_attempts`, dead jobs, and what is done to them: `nack(dead=True)`, `redrive`, `purge`.
        errors: keeps the `error` of a nack with its job.
        uncharged: `nack(charge=False)` hands a job back with its place kept and no failure counted.
        fencing: tells the current claim of a job from a lost one.
        heartbeat: prolongs claims.
        claim_timeout: a claim carries a timeout of its own.
        transactions: several operations in one commit, all or nothing: `apply`, `enqueue_many`.
        wait: a dequeue may wait for jobs.
        size_limit: refuses new jobs with QueueFullError before it is too large to handle.
        cancel_running: `cancel(running=True)`, of which the holder of a job is told at its next heartbeat.
        reschedule: `reschedule` and `reprioritise`.
        limits: `pause` and `resume`, `limit`, `concurrency_key`, and `configure(aging=)`.
        retention: `configure(dead_retention=)`.
        results: `keep_result`, the `result` of an ack, and waiting for it.
        schedules: cron entries.
        staged: jobs encoded elsewhere are added in transactions: `EnqueueStaged`, `LastTransaction`.
        holders: a claim may name its holder, and be bounded by a place: `Dequeue(holder=, through=)`.
    """

    priority: bool = True
    delay: bool = True
    expiry: bool = True
    headers: bool = True
    job_ids: bool = True
    unique_keys: bool = True
    dead_letters: bool = True
    errors: bool = True
    uncharged: bool = True
    fencing: bool = True
    heartbeat: bool = True
    claim_timeout: bool = True
    transactions: bool = True
    wait: bool = True
    size_limit: bool = True
    cancel_running: bool = True
    reschedule: bool = True
    limits: bool = True
    retention: bool = True
    results: bool = True
    schedules: bool = True
    staged: bool = True
    holders: bool = True

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of what the queue cannot do."""
        return tuple(field.name for field in fields(self) if not getattr(self, field.name))

    def require(self, *names: str) -> None:
        """Refuse a call that needs what the queue has not.

        Raises:
            InvalidJobError: a capability of that name is missing; the message says which.
        """
        lacking = [name for name in names if not getattr(self, name)]
        if lacking:
            raise InvalidJobError(
                f"this queue has no {', no '.join(lacking)}: its format has no place for it, and nothing was done"
            )


@runtime_checkable
class SupportsPeek(Protocol):
    """A queue that can be looked at without being read whole: see the verbs of jqueue's own queues."""

    async def peek(
        self, entrypoint: str | Sequence[str] | None = None, *, batch_size: int = 1, deadline: Duration | None = None
    ) -> list[Job]:
        """The jobs that a dequeue would claim now, in that order, without claiming them and without their payloads.

        They may be claimed by others at any time.

        Args:
            entrypoint: of the jobs; one name, several, or None for all.
            batch_size: number of jobs at the most.
            deadline: by then the call has ended.
        """

    async def until_ready(
        self, entrypoint: str | Sequence[str] | None = None, *, wait: Duration, deadline: Duration | None = None
    ) -> bool:
        """Wait until a job is ready that was not at the last `peek`, and say whether there was one in time.

        Args:
            entrypoint: of the jobs; one name, several, or None for all.
            wait: how long to wait.
            deadline: by then, after the wait, the call has ended.
        """

    async def find(self, job_id: str, *, deadline: Duration | None = None) -> Job | None:
        """A job as it stands, without its payload; None if it is not in the queue.

        Of one that was finished a short while ago, it has the id, the attempt and the status `COMPLETED`.
        """


@runtime_checkable
class SupportsApply(Protocol):
    """What producers, consumers and operators have in common: a queue that takes operations.

    Every verb takes `deadline`, a timedelta or seconds: by then the call has ended. Any may raise StorageError (the
    store failed), DeadlineExceededError (not done), UnknownOutcomeError (perhaps done; it can be asked),
    QueueClosedError, and InvalidJobError: an argument is wrong, or needs a capability that is missing.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this queue can do."""

    async def apply(self, *operations: Operation, deadline: Duration | None = None) -> list[Any]:
        """Do several things in one commit, all or nothing: `apply(Ack(job), Enqueue("next", data))`.

        Returns:
            The result of each operation, in order.

        Raises:
            JQueueError: one was refused; none of them was done.
        """

    async def apply_each(self, *operations: Operation, deadline: Duration | None = None) -> list[Any]:
        """Do several things in one commit, each for itself.

        Returns:
            The result of each operation, in order, or the JQueueError that refused it.
        """


@runtime_checkable
class Producer(SupportsApply, Protocol):
    """The verbs of a program that adds jobs, and may wait for their results."""

    @takes_options(EnqueueOptions)
    async def enqueue(
        self,
        entrypoint: str,
        payload: bytes = b"",
        priority: int = 0,
        *,
        deadline: Duration | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Job:
        """Add a job. Once this returns, no crash loses it.

        Args:
            entrypoint: the name of what handles it.
            payload: bytes-like; text is refused. Empty by default.
            priority: lower is served first; 32 bits.
            deadline: by then the call has ended.

        Returns:
            The job; its status is `COMPLETED` if it was finished already.

        Raises:
            DuplicateJobError: the key is taken, and on_conflict="raise"; or "replace", and the job is in progress.
            QueueFullError: there is no room.
        """

    async def enqueue_many(self, jobs: Iterable[Enqueue], *, deadline: Duration | None = None) -> list[Job]:
        """Add many jobs in one commit, all or none of them.

        Raises:
            DuplicateJobError: a key is taken; nothing was added.
            QueueFullError: there is no room for all; nothing was added.
        """

    async def result(
        self, job_id: Job | str, *, timeout: Duration | None = None, deadline: Duration | None = None
    ) -> Any:
        """Wait until a job that was enqueued with `keep_result` has finished, and return its result, a JSON value.

        Args:
            job_id: the job, or its id.
            timeout: how long to wait; None means as long as it takes.
            deadline: how long the store may take, besides.

        Raises:
            JobFailedError: it is dead; the error says why.
            ResultTimeoutError: it has not finished by then.
            ResultNotKeptError: it has finished, and no result is kept, or no longer.
            JobNotFoundError: there is no such job (any more): it was cancelled, perhaps.
        """


@runtime_checkable
class Consumer(SupportsApply, Protocol):
    """The verbs of a program that claims jobs, works on them, and ends the claims."""

    @takes_options(DequeueOptions)
    async def dequeue(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        wait: Duration | None = None,
        deadline: Duration | None = None,
        **options: Unpack[DequeueOptions],
    ) -> list[Job]:
        """Claim ready jobs, by priority and then by commit order.

        Args:
            entrypoint: of the jobs; one name, several, or None for all.
            wait: how long to wait for the first, if there is none.
            deadline: by then, after the wait, the call has ended.

        Returns:
            The claimed jobs; none if there were none.
        """

    async def ack(self, job_id: JobReference, *, result: Any = None, deadline: Duration | None = None) -> None:
        """Finish a claimed job: it leaves the queue, or stays without its payload as long as its result is kept.

        Args:
            job_id: the job as dequeued, its claim, or the id of a claim that this queue object handed out.
            result: a JSON value, kept if the job was enqueued with `keep_result`.
            deadline: by then the call has ended.

        Raises:
            ClaimLostError: the claim is not current; nothing changed. Repeating an ack soon after it succeeded is fine.
            JobNotFoundError: there is no job with this bare id.
        """

    async def ack_many(self, jobs: Iterable[JobReference], *, deadline: Duration | None = None) -> list[Exception]:
        """Finish many jobs in one commit, each for itself; returns the errors of those whose claim is lost."""

    async def nack(
        self,
        job_id: JobReference,
        *,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
        dead: bool = False,
        charge: bool = True,
        deadline: Duration | None = None,
    ) -> None:
        """Give a claimed job back: queued behind its equals, or dead if it has no attempts left.

        Args:
            job_id: as for `ack`.
            delay: not to be claimed again before so long from now.
            error: an exception or a text to keep with the job, cut at 2 KiB.
            dead: True if it must not be tried again.
            charge: False hands it back unharmed: no failure is counted, and it keeps its place.
            deadline: by then the call has ended.

        Raises:
            ClaimLostError: the claim is not current; nothing changed.
            JobNotFoundError: there is no job with this bare id.
        """

    async def nack_many(
        self,
        jobs: Iterable[JobReference],
        *,
        delay: Duration | None = None,
        error: BaseException | str | None = None,
        dead: bool = False,
        charge: bool = True,
        deadline: Duration | None = None,
    ) -> list[Exception]:
        """Give many jobs back in one commit, each for itself: see `nack`. Returns the errors of the lost claims."""

    async def heartbeat(self, job_id: JobReference, *, deadline: Duration | None = None) -> None:
        """Say that the work on a claimed job goes on.

        Raises:
            ClaimLostError: the claim is not current. `ended_here` says whether it was acked or nacked through this
                queue object.
            JobNotFoundError: there is no job with this bare id.
        """

    async def heartbeat_many(
        self, jobs: Iterable[JobReference], *, deadline: Duration | None = None
    ) -> Sequence[JobNotFoundError]:
        """Say that the work on many jobs goes on, in one operation; returns the errors of the lost claims.

        JobCancelledError is among them for a job that was cancelled: its claim holds until it is nacked.
        """


@runtime_checkable
class Operator(SupportsApply, Protocol):
    """The verbs of people and programs that keep a queue in order, or only look at it."""

    async def cancel(self, job_id: str, *, running: bool = False, deadline: Duration | None = None) -> Job:
        """Remove a job that nobody has claimed, or have the holder of one in progress told to stop; returns it.

        Args:
            job_id: of the job.
            running: True to stop a job in progress, too. Its holder is told at its next heartbeat, and the job leaves
                when that claim ends; an ack still finishes it. It is returned as it is then, in progress.
            deadline: by then the call has ended.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is in progress, and that was not meant; or it is dead, or completed.
        """

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

    async def reprioritise(self, job_id: str, priority: int, *, deadline: Duration | None = None) -> Job:
        """Give a queued job another priority, and return it.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is not queued.
        """

    async def redrive(
        self, job_id: str | None = None, *, entrypoint: str | None = None, deadline: Duration | None = None
    ) -> int:
        """Queue dead jobs again: one by its id, those of an entrypoint, or all. Returns how many.

        Raises:
            JobNotFoundError: the one named is not in the queue.
            JobStateError: the one named is not dead.
            DuplicateJobError: a live job holds the unique key of the one named. Of many, such jobs stay dead.
        """

    async def purge(
        self,
        *,
        status: JobStatus = JobStatus.DEAD,
        entrypoint: str | None = None,
        older_than: Duration | None = None,
        deadline: Duration | None = None,
    ) -> int:
        """Remove dead jobs for good (or queued or completed ones, if asked), and return how many."""

    async def requeue_stale(self, timeout: Duration, *, deadline: Duration | None = None) -> int:
        """Revoke every claim that was not confirmed within `timeout`, whatever its own says; returns how many.

        An operator's order. The queues find stale claims by themselves when they dequeue.
        """

    async def pause(self, entrypoint: str, *, deadline: Duration | None = None) -> None:
        """Have no job of an entrypoint claimed until `resume`. Those in progress go on, and enqueue takes more."""

    async def resume(self, entrypoint: str, *, deadline: Duration | None = None) -> None:
        """End a pause."""

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
            entrypoint: to limit.
            running: number of jobs that may be in progress at once.
            rate: number of jobs that may be claimed within any `per` seconds, by the clock of the store.
            per: see `rate`.
            deadline: by then the call has ended.
        """

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

    async def unschedule(self, name: str, *, deadline: Duration | None = None) -> bool:
        """Remove a cron entry; the jobs that it has enqueued stay. Returns whether there was one."""

    async def schedules(self, *, deadline: Duration | None = None) -> list[Schedule]:
        """The cron entries, by name, each due as this process's clock has it: one read, no commit."""

    async def stats(self, *, deadline: Duration | None = None) -> QueueStats:
        """How many jobs are ready, scheduled, in progress and dead, by entrypoint, and how full the blob is."""

    async def read_state(self, *, deadline: Duration | None = None) -> QueueState:
        """The queue as it is now: one read, no commit; also before a broker is entered, and after it was left.

        Raises:
            StorageError: the store failed, or the queue's object is gone or cannot be read.
        """


@runtime_checkable
class JobQueue(Producer, Consumer, Operator, Protocol):
    """The verbs that every queue has."""
