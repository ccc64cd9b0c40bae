"""The verbs of a queue, grouped by role, and the capabilities that a queue may lack.

The roles are `Producer`, `Consumer` and `Operator`; a `JobQueue` serves all three. A function that takes a queue names
the role that it needs. The format of another program may have no place for some features. The `Capabilities` of a queue
in such a format list them, and the queue refuses calls that need them. Silently dropping a priority, a delay or a key
would change the job.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self, Unpack, runtime_checkable

import msgspec

from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidJobError, JobNotFoundError
from jqueue.domain.events import HistoryEvent
from jqueue.domain.header import WorkerRecord
from jqueue.domain.job import JobStatus, Step
from jqueue.domain.job_options import EnqueueOptions, ScheduleOptions, takes_options
from jqueue.domain.large_values import PayloadSource
from jqueue.domain.models import Job, QueueState
from jqueue.domain.operations.base import JobReference, Operation
from jqueue.domain.operations.call import NewJob, NewJobs
from jqueue.domain.operations.dequeue import DequeueOptions
from jqueue.domain.operations.groups import GroupStatus
from jqueue.domain.operations.operator import Redriven
from jqueue.domain.operations.rules import UNCHANGED, Unchanged
from jqueue.domain.rules import QueueSettings, Schedule
from jqueue.domain.segments import JobFailure, Lease
from jqueue.domain.stats import QueueStats


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Features of a queue. A call that needs a missing one raises InvalidJobError before anything changes.

    Attributes:
        priority: serves jobs by `priority`.
        delay: keeps jobs until later: `delay`, `run_at`, and the delay of a nack.
        expiry: removes jobs not claimed by `expires_at`.
        headers: carries `headers`.
        job_ids: accepts job ids from callers, which makes an enqueue idempotent.
        unique_keys: `unique_key`, `unique_for` and `on_conflict`.
        dead_letters: `max_attempts`, dead jobs, and the verbs for them: `nack(dead=True)`, `redrive`, `purge`.
        errors: keeps the `error` of a nack with its job.
        uncharged: `nack(charge=False)` hands a job back. It keeps its place, and no failure is counted.
        fencing: distinguishes the current claim of a job from a lost one.
        heartbeat: a heartbeat extends a claim.
        claim_timeout: each claim can have its own timeout.
        transactions: several operations in one commit, all or nothing: `apply`, `enqueue_many`.
        wait: a dequeue can wait for jobs.
        size_limit: refuses new jobs with QueueFullError before the queue is too large to handle.
        cancel_running: `cancel(running=True)`. The worker that holds the job learns of it at its next heartbeat.
        reschedule: `reschedule`, `reprioritise` and `redrive(payload=)`.
        limits: `pause` and `resume`, `limit`, and `concurrency_key`.
        retention: `configure(dead_retention=)`.
        results: `keep_result`, the `result` of an ack, and the verb `result` that waits for it.
        schedules: cron entries.
        groups: counts the members of groups, and enqueues a job when all have ended: `group`.
        staged: transactions of bulk enqueues: `LastTransaction`.
        history: keeps the events of jobs: `configure(history=)` and `history`.
        objects: keeps large payloads and results in objects of their own beside the queue, and takes payloads from
            files and async iterables.
        leases: claims thousands of jobs as one: `claim_lease`, `read_lease`, `end_lease`.
        steps: keeps the results of steps, and progress: `RecordStep`, `ctx.step` and `ctx.progress` of a worker.
        encodings: keeps how a payload is encoded: `encoding`.
        holders: a claim can name its holder, and be limited to jobs up to a place: `Dequeue(holder=, through=)`.
        parents: a job can wait for other jobs: `after` and `on_dead`.
        timeouts: keeps the `timeout` of a job.
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
    groups: bool = True
    staged: bool = True
    history: bool = True
    encodings: bool = True
    holders: bool = True
    objects: bool = True
    leases: bool = True
    parents: bool = True
    steps: bool = True
    timeouts: bool = True

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of the capabilities that the queue lacks."""
        return tuple(name for name in self.__struct_fields__ if not getattr(self, name))

    def require(self, *names: str) -> None:
        """Refuse a call that needs a capability which the queue lacks.

        Raises:
            InvalidJobError: a capability of these names is missing; the message says which.
        """
        lacking = [name for name in names if not getattr(self, name)]
        if lacking:
            raise InvalidJobError(
                f"the format of this queue has no {', no '.join(lacking)}, so nothing was done: use a queue in "
                "jqueue's own format"
            )


class Wait(float):
    """Seconds that a dequeue may wait for jobs, and that its caller can end early without losing what it claims.

        wait = Wait(30)
        jobs = asyncio.create_task(queue.dequeue(wait=wait))
        wait.end()  # on the event loop of the call, which is answered soon: with jobs, or with none

    A queue that does not know this class takes it as a number of seconds, and its call goes on.
    """

    def __init__(self, seconds: float) -> None:
        self.ended: bool = False
        self._ending: Callable[[], object] | None = None

    def on_end(self, ending: Callable[[], object]) -> None:
        """Set the function that ends the wait. It is for the queue, and is called at once if the wait is over."""
        self._ending = ending
        if self.ended:
            ending()

    def end(self) -> None:
        """End the wait."""
        if not self.ended:
            self.ended = True
            if self._ending is not None:
                self._ending()


@runtime_checkable
class SupportsPeek(Protocol):
    """A queue that can be searched without being read whole, as jqueue's own queues can."""

    async def peek(
        self, entrypoint: str | Sequence[str] | None = None, *, batch_size: int = 1, deadline: Duration | None = None
    ) -> list[Job]:
        """Return the jobs that a dequeue would claim now, in that order. They are not claimed, and have no payload.

        Other consumers may claim them at any time.

        Args:
            entrypoint: of the jobs; one name, several, or None for all.
            batch_size: maximum number of jobs.
            deadline: maximum time for the call.

        Raises:
            QueueMissingError: there is no queue.
        """

    async def until_ready(
        self, entrypoint: str | Sequence[str] | None = None, *, wait: Duration, deadline: Duration | None = None
    ) -> bool:
        """Wait until a job is ready that was not ready at the last `peek`. Return True if one was ready in time.

        Args:
            entrypoint: of the jobs; one name, several, or None for all.
            wait: maximum time to wait.
            deadline: maximum time for the call, in addition to `wait`.
        """

    async def find(self, job_id: str, *, deadline: Duration | None = None) -> Job | None:
        """Return the current state of a job, without its payload; None if it is not in the queue.

        A job that finished a short while ago is returned with only its id, its attempt and the status `COMPLETED`.

        Raises:
            QueueMissingError: there is no queue.
        """

    def watch(self, job_id: Job | str, *, deadline: Duration | None = None) -> AsyncGenerator[Job, None]:
        """Yield the state of a job now, and at each change until it ends: it is done, dead, or leaves the queue.

        A change is another status or attempt, progress, a step, and what an operator changes. Changes that follow each
        other quickly may come as one. The last state is that of a job which is done or dead. If the job leaves the
        queue otherwise, by a purge for example, the iteration ends without another state. The jobs have no payload.

        Args:
            job_id: the job, or its id.
            deadline: maximum time for the store to answer.

        Raises:
            JobNotFoundError: it is not in the queue.
        """


@runtime_checkable
class SupportsHistory(Protocol):
    """A queue that can keep the history of its jobs. `configure(history=...)` switches it on."""

    def history(
        self,
        *,
        job_id: str | None = None,
        entrypoint: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        deadline: Duration | None = None,
    ) -> AsyncIterator[HistoryEvent]:
        """Iterate over the events of jobs, the newest first. At most one object of the history is held in memory.

        Args:
            job_id: events of this job only. The event of a bulk enqueue names no job.
            entrypoint: events of this entrypoint only.
            since: events from this time on only.
            until: events before this time only.
            deadline: maximum time for each request to the store.

        Raises:
            HistoryDamagedError: some events are missing. It is raised at the end, after all other events.
            InvalidJobError: an argument is wrong, or the store of the queue cannot keep a history.
            QueueMissingError: there is no queue.
            StorageError: the store failed.
        """


@runtime_checkable
class SupportsLeases(Protocol):
    """A queue in which thousands of jobs can be claimed as one, by a *lease*: one claim, one heartbeat, one end.

    Heartbeats take `lease.claim`. The jobs of a lease that becomes stale, or whose holder gives it back, wait again as
    a whole: the next lease takes them as they are.
    """

    async def claim_lease(
        self,
        entrypoint: str,
        rows: int,
        *,
        least: int = 1,
        inline: bool = False,
        claim_timeout: Duration | None = None,
        holder: str | None = None,
        deadline: Duration | None = None,
    ) -> Lease | None:
        """Claim the next jobs of a segment as one. Return None if the next job is not in a segment, or none is ready.

        The jobs are the first of a segment, or of those rows of it that were in one lease before. It is None while the
        segment cannot be read.

        A dequeue claims the jobs that are in no segment. It also claims all jobs of an entrypoint with limits, of a
        segment whose rows have just become due, and of a segment with a job that keeps a result, expires, or has a
        concurrency key, a fair key or a group.

        Keep the claim alive with `HeartbeatManager(queue, lease)`, or with `heartbeat_many([lease.claim])`. A job that
        is cancelled leaves the lease, and its outcome is ignored. Its holder is not told.

        Args:
            entrypoint: of the jobs.
            rows: maximum number of jobs.
            least: minimum number of jobs. If fewer can be claimed, none is.
            inline: True to claim none from a segment with payloads in objects of their own: they may not fit in memory.
            claim_timeout: time that the claim lasts without a heartbeat; the queue's `stale_timeout` by default.
            holder: name kept with the claim; the queue's `holder` by default.
            deadline: maximum time for the call.

        Raises:
            DeadlineExceededError: the store did not answer in time; nothing was claimed.
            UnknownOutcomeError: the answer of the store was lost. A claim that was made is handed back, or becomes
                stale.
            StorageError: the store failed.
        """

    def read_lease(self, lease: Lease, *, deadline: Duration | None = None) -> AsyncGenerator[Job, None]:
        """Iterate over the jobs of a lease, in order, in bounded memory. Any process may read them.

        Args:
            lease: as returned by `claim_lease`.
            deadline: maximum time for each request to the store.

        Raises:
            SegmentDamagedError: the segment is missing or was changed. End the lease with `worked_on=0`: its jobs wait
                until the segment is restored or repaired. This queue object goes on with other segments.
            ObjectMissingError: a payload in an object of its own does not exist.
            StorageError: the store failed.
        """

    async def end_lease(
        self,
        lease: Lease,
        *,
        failed: Mapping[str, JobFailure | BaseException | str | None] | None = None,
        worked_on: int | None = None,
        deadline: Duration | None = None,
    ) -> None:
        """End a lease: its jobs are done, but for some. Repeating it soon after changes nothing.

        A failed job becomes a single job of the queue. The failure of a job that was cancelled meanwhile is ignored.

        Args:
            lease: as returned by `claim_lease`.
            failed: errors by job id, each with a delay and more if it is a `JobFailure`. These jobs are tried again,
                or are dead, as after a nack.
            worked_on: number of jobs that were worked on, from the start of the lease; None for all. The others are
                handed back: they wait again in their places, uncharged.
            deadline: maximum time for the call.

        Raises:
            ClaimLostError: the claim became stale, or was ended otherwise. Nothing changed.
            JobNotFoundError: `failed` names a job that nobody worked on. Nothing changed.
            SegmentDamagedError: a failed job cannot be read, so that nothing can be noted with it. Nothing changed.
            DeadlineExceededError: the store did not answer in time; nothing changed.
            UnknownOutcomeError: the answer of the store was lost. Repeat the call, or call `resolve()`.
        """


@runtime_checkable
class SupportsWorkers(Protocol):
    """A queue that keeps a record of each worker. Each commit writes it. An idle worker makes one commit a minute.

    A worker that waits for a queue that does not exist makes none.
    """

    def attend(self, run: str, describe: Callable[[float], WorkerRecord], stop: Callable[[], object]) -> None:
        """Add a worker.

        Args:
            run: id of this run of the worker.
            describe: returns its record at a time, in seconds since 1970. Called with every commit.
            stop: called on the event loop of the queue when it reads an operator's order to stop this worker. It may be
                called several times for one order.
        """

    def leave(self, run: str) -> None:
        """Remove a worker that has ended. Its record goes with the next commit, or when it is an hour old."""

    async def remove_left(self, deadline: Duration) -> None:
        """Remove the records of workers that have left, if no commit has done so.

        Raises:
            StorageError: the store failed, or did not answer by the deadline.
        """


@runtime_checkable
class SupportsOffering(Protocol):
    """A queue object that can commit the calls of other processes together with its own."""

    def offer(self, url: str | None = None) -> None:
        """Commit the calls of other processes from when no other process does, until the queue is closed.

        It does nothing where processes cannot reach each other.

        Args:
            url: where this process already answers them, on a store that several machines use. Other processes find it
                in the queue. A store of one machine needs none.
        """


@runtime_checkable
class SupportsLargeValues(Protocol):
    """A queue that may keep large payloads and results in objects of their own beside it."""

    def open_payload(self, job: Job) -> AsyncGenerator[bytes, None]:
        """Yield the payload of a job in pieces, checked at the end: `async for piece in queue.open_payload(job)`.

        Args:
            job: as dequeued, or from `read_state`. A job from `peek` or `find` has a payload only if it is large.

        Raises:
            ObjectMissingError: the object of the payload does not exist.
            ObjectDamagedError: the object has other bytes than were stored. The pieces must not be used.
            StorageError: the store failed.
        """

    async def step_result(self, job: Job, step: Step, *, deadline: Duration | None = None) -> Any:
        """Return the result of a step in `job.steps`, loaded from its object if it is large.

        Raises:
            ObjectMissingError: the object of the result does not exist.
            ObjectDamagedError: the object has other bytes than were stored.
            StorageError: the store failed.
        """

    async def collect(self, *, deadline: Duration | None = None) -> int:
        """Remove the objects beside the queue that no job names and that are older than an hour. Return their number.

        A queue object that ends jobs with large payloads does this by itself, every ten minutes at most. Files that no
        queue creates, such as `.DS_Store`, are left alone.

        Args:
            deadline: maximum time for the call; None: as long as it takes.

        Raises:
            DeadlineExceededError: the deadline passed. Some objects may be removed.
            StorageError: the store failed, or the queue cannot be read.
        """


@runtime_checkable
class SupportsApply(Protocol):
    """A queue that takes operations: the common part of producers, consumers and operators.

    Every verb takes `deadline`, a timedelta or seconds: the maximum time for the call. Every verb may raise
    StorageError (the store failed), DeadlineExceededError (not done), UnknownOutcomeError (perhaps done; its `resolve`
    finds out), QueueClosedError, and InvalidJobError (an argument is wrong, or needs a capability that is missing).
    """

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of this queue."""

    async def apply(self, *operations: Operation, deadline: Duration | None = None) -> list[Any]:
        """Carry out several operations in one commit, all or nothing: `apply(Ack(job), Enqueue("next", data))`.

        Returns:
            The result of each operation, in order.

        Raises:
            JQueueError: an operation was refused; none of them was done.
            DeadlineExceededError: the store did not answer in time; none was done.
            UnknownOutcomeError: the answer of the store was lost: all were done, or none. `resolve()` finds out.
        """

    async def apply_each(self, *operations: Operation, deadline: Duration | None = None) -> list[Any]:
        """Carry out several operations in one commit. A refused one does not affect the others.

        Returns:
            The result of each operation, in order, or the JQueueError that refused it.
        """


class JobGroup(Protocol):
    """A group of jobs, as `queue.group()` returns it. It holds nothing but the id: any process may look at the group.

    Attributes:
        id: its id, to be given as the option `group` of an enqueue.
    """

    id: str

    async def __aenter__(self) -> Self:
        """Open the group. One that is still open under this id is gone on with.

        Raises:
            GroupEndedError: a group with this id was closed.
            QueueFullError: there is no room for it, or too many groups have not ended.
        """

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        """Close the group: its opener adds no more jobs. If the block has failed, cancel it."""

    async def enqueue(
        self,
        job: str | NewJob,
        payload: PayloadSource = b"",
        priority: int = 0,
        *,
        deadline: Duration | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Job:
        """Add a job to the group, as `Producer.enqueue` does.

        Args:
            job: `handler.call(...)` or `Enqueue(...)`, without the other arguments; or the name of the handler.
            payload: see `Producer.enqueue`.
            priority: see there.
            deadline: see there.
            options: see there.

        Raises:
            GroupEndedError: the group is closed and has ended, or the queue does not know it.
        """

    async def enqueue_many(self, jobs: NewJobs, *, deadline: Duration | None = None) -> Sequence[Job]:
        """Add many jobs to the group in one commit, as `Producer.enqueue_many` does.

        Raises:
            GroupEndedError: the group is closed and has ended, or the queue does not know it.
        """

    async def status(self, *, deadline: Duration | None = None) -> GroupStatus:
        """Return the numbers of its jobs.

        Raises:
            GroupEndedError: the queue does not know the group: it was never opened, or ended long ago.
        """

    async def wait(self, timeout: Duration | None = None, *, deadline: Duration | None = None) -> GroupStatus:
        """Wait until it is closed, and no job of it waits or runs. Return the numbers then: some jobs may be dead.

        Args:
            timeout: maximum time to wait; None: no limit.
            deadline: maximum time for the store to answer, in addition to `timeout`.

        Raises:
            ResultTimeoutError: it has not ended in time.
            GroupEndedError: the queue does not know the group.
        """

    async def cancel(self, *, deadline: Duration | None = None) -> GroupStatus:
        """Remove its waiting jobs, tell its running ones to stop, and drop the job of `then`. Dead jobs stay."""

    async def redrive(self, *, deadline: Duration | None = None) -> Redriven:
        """Queue its dead jobs again. Return their number."""

    def results(self, *, deadline: Duration | None = None) -> AsyncGenerator[Job, None]:
        """Iterate over its finished jobs whose results are kept, each with its `result`, in no particular order.

        It reads the queue once, and looks at every job in the queue's object.

        Raises:
            GroupEndedError: the queue does not know the group, and has no result of it.
        """


@runtime_checkable
class Producer(SupportsApply, Protocol):
    """The verbs of a program that adds jobs and may wait for their results."""

    @takes_options(EnqueueOptions)
    async def enqueue(
        self,
        entrypoint: str,
        payload: PayloadSource = b"",
        priority: int = 0,
        *,
        deadline: Duration | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Job:
        """Add a job. Once this returns, no crash loses it.

        Args:
            entrypoint: the name of the handler.
            payload: bytes-like; text is refused. Empty by default. For a payload of any size, a `pathlib.Path` or an
                async iterable of bytes: it is read in pieces.
            priority: lower is served first; a signed 32-bit number.
            deadline: maximum time for the call.

        Returns:
            The job; its status is `COMPLETED` if it has already finished.

        Raises:
            DuplicateJobError: the unique key or the job id is taken and on_conflict="raise", or the key is taken, it is
                "replace" and the job is in progress.
            QueueFullError: there is no room.
            DeadlineExceededError: the store did not answer in time; nothing was added.
            UnknownOutcomeError: the answer of the store was lost: the job was added once, or not. `resolve()` finds
                out, or an enqueue with the same `job_id`.
        """

    async def enqueue_many(self, jobs: NewJobs, *, deadline: Duration | None = None) -> Sequence[Job]:
        """Add many jobs in one commit, all or none of them.

        A queue that keeps waiting jobs in segments (`Limits.hot_bytes`) takes any number of jobs. They are written
        beside the queue as they come, in bounded memory, and the commit at the end adds them. It must come within 45
        minutes of the call. Other queues take at most `Limits.batch_size`.

        Args:
            jobs: an iterable or an async iterable of `Enqueue(...)` and `handler.call(...)`.
            deadline: maximum time for the call after its last job has come.

        Returns:
            The jobs, in the order given; a job that was there already stands for one with the same id or key. Up to
            `Limits.batch_size` jobs are a list. More are an `EnqueuedJobs`: a sequence that also has the numbers
            `added` and `existing`, and whose new jobs are shown without their payloads and options.

        Raises:
            DuplicateJobError: a unique key or a job id is taken; nothing was added.
            InvalidJobError: a job is wrong, or they are too many; nothing was added.
            QueueFullError: there is no room for all; nothing was added.
            DeadlineExceededError: the store did not answer in time; nothing was added.
            UnknownOutcomeError: the answer of the store was lost: all jobs were added, or none. `resolve()` finds out.
        """

    async def result(
        self, job_id: Job | str, *, timeout: Duration | None = None, deadline: Duration | None = None
    ) -> Any:
        """Wait until a job that was enqueued with `keep_result` has finished, and return its result, a JSON value.

        Args:
            job_id: the job, or its id.
            timeout: maximum time to wait for the job; None: no limit.
            deadline: maximum time for the store to answer, in addition to `timeout`.

        Raises:
            JobFailedError: the job is dead; the error says why.
            ResultTimeoutError: the job has not finished in time.
            ResultNotKeptError: the job has finished, but its result was not kept or is no longer kept.
            JobCancelledError: the job was cancelled, as one of the last hundred.
            JobNotFoundError: there is no such job.
            DeadlineExceededError: the store did not answer in time.
        """

    def group(self, id: str | None = None, *, then: NewJob | None = None, on_end: NewJob | None = None) -> JobGroup:
        """Return a group of jobs: `async with queue.group(then=...) as group: await group.enqueue(...)`.

        Any number of jobs may belong to it. Without the block, an existing group is looked at.

        Args:
            id: its id; None means a new UUID.
            then: a job that is enqueued in the commit in which the last job of the closed group is done. While a job is
                dead, it waits for its redrive or purge. Cancelled and expired jobs count as ended.
            on_end: a job that is enqueued, once, when no job of the closed group waits or runs, in any case.
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
            wait: maximum time to wait for the first job if none is ready; None: no wait. The caller can end a
                `jqueue.ports.queue.Wait` early.
            deadline: maximum time for the call, in addition to `wait`.

        Returns:
            The claimed jobs; an empty list if none was ready.

        Raises:
            DeadlineExceededError: the store did not answer in time; nothing was claimed.
            UnknownOutcomeError: the answer of the store was lost. Jobs that were claimed are handed back, or their
                claims become stale. Call `dequeue` again.
            StorageError: the store failed, or the queue cannot be read.
        """

    async def ack(self, job_id: JobReference, *, result: Any = None, deadline: Duration | None = None) -> None:
        """Finish a claimed job. It leaves the queue, or stays there without its payload while its result is kept.

        Args:
            job_id: the job as dequeued, its claim, or the id of a claim that this queue object handed out.
            result: a JSON value, kept if the job was enqueued with `keep_result`.
            deadline: maximum time for the call.

        Raises:
            ClaimLostError: the claim went stale, and another worker may have claimed the job; nothing changed.
                Repeating an ack soon after it succeeded is fine.
            JobNotFoundError: there is no job with this bare id.
            DeadlineExceededError: the store did not answer in time; nothing changed.
            UnknownOutcomeError: the answer of the store was lost: the job has finished, or not. Repeat the ack, or call
                `resolve()`.
        """

    async def ack_many(self, jobs: Iterable[JobReference], *, deadline: Duration | None = None) -> list[Exception]:
        """Finish many jobs in one commit, each as `ack` does. Return the errors of the lost claims.

        Raises:
            DeadlineExceededError: as for `ack`, for all jobs.
            UnknownOutcomeError: as for `ack`, for all jobs.
        """

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
        """Give a claimed job back. It is queued behind the jobs of its priority, or dead if it has no attempts left.

        Args:
            job_id: as for `ack`.
            delay: minimum time until it can be claimed again; None: none.
            error: an exception or a text to keep with the job, cut at 2 KiB.
            dead: True if it must not be tried again.
            charge: False hands it back unharmed: no failure is counted, and it keeps its place.
            deadline: maximum time for the call.

        Raises:
            ClaimLostError: the claim is not current; nothing changed.
            JobNotFoundError: there is no job with this bare id.
            DeadlineExceededError: the store did not answer in time; nothing changed.
            UnknownOutcomeError: the answer of the store was lost: the job was given back, or not. `resolve()` finds
                out.
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
        """Give many jobs back in one commit, each as `nack` does. Return the errors of the lost claims.

        Raises:
            DeadlineExceededError: as for `nack`, for all jobs.
            UnknownOutcomeError: as for `nack`, for all jobs.
        """

    async def heartbeat(self, job_id: JobReference, *, deadline: Duration | None = None) -> None:
        """Report that the work on a claimed job goes on.

        Raises:
            ClaimLostError: the claim is not current. Its `ended_here` is True if the claim was acked or nacked through
                this queue object.
            JobCancelledError: the job was cancelled. The claim holds, but this heartbeat does not count. That of
                `heartbeat_many` does.
            JobNotFoundError: there is no job with this bare id.
            DeadlineExceededError: the store did not answer in time; the claim has the time that it had.
            UnknownOutcomeError: the answer of the store was lost. Send another heartbeat.
        """

    async def heartbeat_many(
        self, jobs: Iterable[JobReference], *, deadline: Duration | None = None
    ) -> Sequence[JobNotFoundError]:
        """Report in one operation that the work on many jobs goes on. Return the errors of the lost claims.

        For a cancelled job the error is JobCancelledError, and its claim holds until it is nacked.
        """


@runtime_checkable
class Operator(SupportsApply, Protocol):
    """The verbs of operators: people and programs that keep a queue in order or inspect it.

    Each may also raise DeadlineExceededError (nothing changed), UnknownOutcomeError (perhaps done, at most once; its
    `resolve` finds out) and StorageError.
    """

    async def cancel(self, job_id: str, *, running: bool = False, deadline: Duration | None = None) -> Job:
        """Remove an unclaimed job, or ask the worker of a job in progress to stop. Return the job.

        Args:
            job_id: of the job.
            running: True to stop a job in progress, too. Its worker learns of it at its next heartbeat, and the job
                leaves the queue when that claim ends; an ack still finishes it. The job is returned while still in
                progress.
            deadline: maximum time for the call.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is dead or completed, or it is in progress and `running` is False.
        """

    async def reschedule(
        self,
        job_id: str,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        deadline: Duration | None = None,
    ) -> Job:
        """Change the time from which a queued job can be claimed, and return the job.

        Args:
            job_id: of the job.
            delay: time from now; 0 means at once. Give either this or `run_at`.
            run_at: the time itself, with a time zone.
            deadline: maximum time for the call.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is not queued.
        """

    async def reprioritise(self, job_id: str, priority: int, *, deadline: Duration | None = None) -> Job:
        """Give a queued job another priority, and return it.

        Args:
            job_id: of the job.
            priority: from -2,147,483,648 to 2,147,483,647; lower is served first, and 0 is the default of enqueue.
            deadline: maximum time for the call.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is not queued.
        """

    async def redrive(
        self,
        job_id: str | None = None,
        *,
        entrypoint: str | None = None,
        delay: Duration = 0,
        fresh: bool = False,
        payload: bytes | None = None,
        deadline: Duration | None = None,
    ) -> Redriven:
        """Queue dead jobs again: one by its id, those of an entrypoint, or all. Return their number.

        Without `job_id`, jobs whose unique key is held by a live job stay dead. The `left` of the number names them.

        Args:
            job_id: of one job.
            entrypoint: of the jobs.
            delay: time from now before which no job is claimed.
            fresh: True to do the steps of the jobs again that are done.
            payload: a new payload for the job `job_id`, in the encoding that it has; None: it keeps its own.
            deadline: maximum time for the call.

        Raises:
            JobNotFoundError: the job `job_id` is not in the queue.
            JobStateError: the job `job_id` is not dead.
            DuplicateJobError: a live job holds the unique key of the job `job_id`.
        """

    async def purge(
        self,
        *,
        status: JobStatus = JobStatus.DEAD,
        entrypoint: str | None = None,
        older_than: Duration | None = None,
        deadline: Duration | None = None,
    ) -> int:
        """Remove dead jobs (or queued or completed ones, by `status`) for good, and return their number.

        Without arguments, it removes all dead jobs of the queue.

        Args:
            status: of the jobs to remove. Jobs in progress are not purged: see `cancel`.
            entrypoint: of the jobs to remove; None: those of every entrypoint.
            older_than: time since a job died or finished, or since its enqueue if it is queued. Younger jobs stay;
                None: jobs of any age are removed.
            deadline: maximum time for the call.
        """

    async def requeue_stale(self, timeout: Duration, *, deadline: Duration | None = None) -> int:
        """Revoke every claim not confirmed within `timeout`, whatever its own timeout is. Return the number of them.

        This is an operator's order. A queue finds stale claims by itself at every dequeue.

        A `timeout` below the interval between heartbeats also revokes claims of live workers: their jobs then run
        twice. A worker sends heartbeats every third of its claim timeout, and at least every 60 seconds.

        Args:
            timeout: time since the last heartbeat, or since the claim. It has no default; 0 revokes all claims.
            deadline: maximum time for the call.
        """

    async def pause(self, entrypoint: str, *, deadline: Duration | None = None) -> None:
        """Stop claims of an entrypoint's jobs until `resume`. Jobs in progress go on, and enqueue takes more jobs."""

    async def resume(self, entrypoint: str, *, deadline: Duration | None = None) -> None:
        """End the pause of an entrypoint."""

    async def limit(
        self,
        entrypoint: str,
        *,
        running: int | None = None,
        rate: int | None = None,
        per: Duration | None = None,
        key_rate: int | None = None,
        key_per: Duration | None = None,
        deadline: Duration | None = None,
    ) -> None:
        """Replace the limits of an entrypoint. A limit that is not given is removed.

        They hold for all consumers of the queue, at every commit.

        Args:
            entrypoint: the entrypoint to limit.
            running: maximum number of jobs in progress at once, from 1; None: any number.
            rate: maximum number of jobs claimed within any period of `per`, from 1, by the clock of the store; None:
                any number.
            per: the period of `rate`, more than 0 seconds. It has no default: give both or neither.
            key_rate: the same for its jobs with the same `concurrency_key`, or if they have none, `fair_key`.
            key_per: the period of `key_rate`.
            deadline: maximum time for the call.

        Raises:
            InvalidJobError: a number is out of range, or only one of `rate` and `per` is given.
            QueueFullError: too many entrypoints have limits or pauses.
        """

    async def configure(
        self,
        *,
        dead_retention: Duration | Unchanged | None = UNCHANGED,
        blob_bytes: int | Unchanged | None = UNCHANGED,
        history: Duration | Unchanged | None = UNCHANGED,
        history_payloads: bool | Unchanged = UNCHANGED,
        deadline: Duration | None = None,
    ) -> QueueSettings:
        """Change settings of the whole queue, and return all settings. Without arguments, only return those of a queue.

        Args:
            dead_retention: time for which dead jobs are kept; None: until they are purged.
            blob_bytes: size limit of the queue's object in bytes, for every writer and in place of the writer's
                `Limits(blob_bytes=...)`; None: each writer uses its own limit.
            history: time for which the events of jobs are kept, in objects beside the queue's; None: not at all.
                Versions of jqueue that know no history refuse the queue from then on.
            history_payloads: True if the history keeps the payloads of enqueued jobs, up to 64 KiB each.
            deadline: maximum time for the call.
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
        """Set a cron entry. At each of its times one job is enqueued, whatever the number of workers.

        Every dequeue of the queue, by any consumer, enqueues the jobs that are due. If times were missed because no
        consumer dequeued, one job is enqueued, for the last missed time. An existing entry of this name is replaced; an
        equal one stays as it is. Daylight saving time is handled as in Debian's cron. The header `jqueue-scheduled-for`
        of a job holds its scheduled time. With a `unique_key`, no job is added before the previous one has finished.

        Args:
            name: of the entry. Its jobs have ids like `cron:<name>:2026-11-21T03:00:00+00:00`.
            cron: five fields (minute, hour, day of the month, month, day of the week), or six, the first for seconds.
            entrypoint: of the jobs.
            payload: of the jobs.
            timezone: IANA name of the time zone of the expression.
            deadline: maximum time for the call.
            options: of the jobs, as below.

        Returns:
            The entry, with its next due time.
        """

    async def unschedule(self, name: str, *, deadline: Duration | None = None) -> bool:
        """Remove a cron entry. The jobs that it has enqueued stay. Return True if there was such an entry."""

    async def schedules(self, *, deadline: Duration | None = None) -> list[Schedule]:
        """Return the cron entries in the order of their names, with their next due times. One read, no commit.

        Raises:
            QueueMissingError: there is no queue.
        """

    async def stop_worker(self, worker: str, *, deadline: Duration | None = None) -> list[WorkerRecord]:
        """Tell a worker to stop as SIGTERM does: it claims no more, finishes or hands back its jobs, and ends.

        It learns of the order at its next read or commit: mostly within seconds, and at most the `beat` of its record
        later, which is a minute, or five if its calls reach another machine that commits them. `stats` shows it as
        `stopping` until it has left.

        Args:
            worker: name of the worker: all workers of this name stop; or `name@host:pid` of one, or the id of its run.
            deadline: maximum time for the call.

        Returns:
            The record of each worker that was told. One that is lost finds the order if it ever comes back.

        Raises:
            WorkerNotFoundError: no worker of the queue has this name.
        """

    async def stats(self, *, deadline: Duration | None = None) -> QueueStats:
        """Return the numbers of ready, scheduled, in progress and dead jobs by entrypoint, and the size of the blob.

        The jobs in segments are counted too. This takes no longer for a million of them than for a thousand.

        Raises:
            QueueMissingError: there is no queue: the URL is wrong, or nothing was enqueued yet.
        """

    def iterate_jobs(
        self,
        *statuses: JobStatus,
        entrypoint: str | Sequence[str] | None = None,
        id_prefix: str = "",
        deadline: Duration | None = None,
    ) -> AsyncGenerator[Job, None]:
        """Iterate over the jobs of one version of the queue: with `async for`, or with `for` in a `SyncQueue`.

        The queue is read when the iteration begins, and nothing is written. No job is claimed. The jobs come in no
        particular order, with their payloads as the queue keeps them: large payloads are not loaded. Jobs outside the
        queue's object are read bit by bit, so they may be many.

        Args:
            statuses: statuses of the jobs; all by default.
            entrypoint: of the jobs; one name, several, or None for all.
            id_prefix: beginning of their ids.
            deadline: maximum time for each request to the store.

        Raises:
            JobsUnreadableError: segments are missing or damaged. It is raised at the end, after all other jobs.
            QueueMissingError: there is no queue.
            StorageError: the store failed, or the queue's object is gone or cannot be read.
        """

    async def read_state(self, *, hot: bool = False, deadline: Duration | None = None) -> QueueState:
        """Return the queue as it is now, with every job. No commit. A broker need not be entered for it.

        The jobs of the queue's object come first, and then those in segments, which are read and held as a whole:
        `iterate_jobs` yields them one by one. The state of a queue with segments does not name them.

        Args:
            hot: True for the state of the queue's object alone: one read. It names the segments, and lacks their jobs.
            deadline: maximum time for each request to the store.

        Raises:
            JobsUnreadableError: segments are missing or damaged, and `hot` is False.
            StorageError: the store failed, or the queue's object is gone or cannot be read.
        """


@runtime_checkable
class JobQueue(Producer, Consumer, Operator, Protocol):
    """The verbs of every queue."""


async def payload_of(queue: JobQueue, job: Job) -> AsyncGenerator[bytes, None]:
    """Yield the payload of a job in pieces, from any queue."""
    if not job.payload_apart:
        if job.payload:
            yield job.payload
    elif (open_payload := getattr(queue, "open_payload", None)) is not None:
        async with aclosing(open_payload(job)) as pieces:
            async for piece in pieces:
                yield piece
    else:
        raise InvalidJobError(f"the payload of job {job.id!r} is in an object, which this queue cannot read")
