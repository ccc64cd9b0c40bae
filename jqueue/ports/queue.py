"""What a queue is to those who use it: the verbs that every queue has, and what one of them may be unable to do.

The worker, the server and the contract tests know queues by `JobQueue` alone. A queue that keeps its jobs in a format
of somebody else's says in its `Capabilities` what that format has no place for, and refuses to be asked for it: a job
whose priority, delay or key were dropped silently would be another job than the one that was meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidJobError, JobNotFoundError
from jqueue.domain.models import Job, JobStatus, QueueState
from jqueue.domain.operations import Enqueue, JobReference, OnConflict, Operation
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
class JobQueue(Protocol):
    """The verbs that every queue has.

    Every verb but the two that only look takes `deadline`, a timedelta or seconds: by then the call has ended. Any may
    raise StorageError (the store failed), DeadlineExceededError (not done), UnknownOutcomeError (perhaps done; it can
    be asked), QueueClosedError, and InvalidJobError: an argument is wrong, or needs a capability that is missing.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this queue can do."""
        ...

    async def enqueue(
        self,
        entrypoint: str,
        payload: bytes,
        priority: int = 0,
        *,
        job_id: str | None = None,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        expires_at: datetime | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, str] | None = None,
        unique_key: str | None = None,
        unique_for: Duration | None = None,
        on_conflict: OnConflict = "return",
        deadline: Duration | None = None,
    ) -> Job:
        """Add a job, and return it as it stands.

        Raises:
            DuplicateJobError: the unique key is taken, and that is not to be passed over.
            QueueFullError: there is no room.
        """
        ...

    async def enqueue_many(self, jobs: Iterable[Enqueue], *, deadline: Duration | None = None) -> list[Job]:
        """Add many jobs, all or none of them, in one commit."""
        ...

    async def dequeue(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        batch_size: int = 1,
        wait: Duration | None = None,
        claim_timeout: Duration | None = None,
        deadline: Duration | None = None,
    ) -> list[Job]:
        """Claim ready jobs, by priority and then by commit order; none if there are none within `wait`."""
        ...

    async def ack(self, job_id: JobReference, *, deadline: Duration | None = None) -> None:
        """Finish a claimed job: it leaves the queue.

        Raises:
            ClaimLostError: the claim is not current.
            JobNotFoundError: there is no job with this bare id.
        """
        ...

    async def ack_many(self, jobs: Iterable[JobReference], *, deadline: Duration | None = None) -> list[Exception]:
        """Finish many jobs, each for itself; returns the errors of those that could not be finished."""
        ...

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
        """Give a claimed job back: queued behind its equals, or dead.

        Raises:
            ClaimLostError: the claim is not current.
            JobNotFoundError: there is no job with this bare id.
        """
        ...

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
        """Give many jobs back, each for itself; returns the errors of those that could not be given back."""
        ...

    async def heartbeat(self, job_id: JobReference, *, deadline: Duration | None = None) -> None:
        """Say that the work on a claimed job goes on.

        Raises:
            ClaimLostError: the claim is not current.
            JobNotFoundError: there is no job with this bare id.
        """
        ...

    async def heartbeat_many(
        self, jobs: Iterable[JobReference], *, deadline: Duration | None = None
    ) -> Sequence[JobNotFoundError]:
        """Say that the work on many jobs goes on, in one operation; returns the errors of the lost ones."""
        ...

    async def apply(self, *operations: Operation, deadline: Duration | None = None) -> list[Any]:
        """Do several things in one commit, all or nothing; returns the result of each, in order.

        Raises:
            JQueueError: one was refused; none of them was done.
        """
        ...

    async def cancel(self, job_id: str, *, deadline: Duration | None = None) -> Job:
        """Remove a job that nobody has claimed, and return it.

        Raises:
            JobNotFoundError: it is not in the queue.
            JobStateError: it is in progress, or dead.
        """
        ...

    async def redrive(
        self, job_id: str | None = None, *, entrypoint: str | None = None, deadline: Duration | None = None
    ) -> int:
        """Queue dead jobs again: one by its id, those of an entrypoint, or all. Returns how many."""
        ...

    async def purge(
        self,
        *,
        status: JobStatus = JobStatus.DEAD,
        entrypoint: str | None = None,
        older_than: Duration | None = None,
        deadline: Duration | None = None,
    ) -> int:
        """Remove dead jobs for good (or queued ones, if asked), and return how many."""
        ...

    async def requeue_stale(self, timeout: Duration, *, deadline: Duration | None = None) -> int:
        """Revoke every claim that was not confirmed within `timeout`, and return how many."""
        ...

    async def stats(self, *, deadline: Duration | None = None) -> QueueStats:
        """The queue in figures."""
        ...

    async def read_state(self, *, deadline: Duration | None = None) -> QueueState:
        """The queue as it is now, as a value."""
        ...
