"""What one can ask of a queue: every verb, once, for all queues. Each becomes operations, and one commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jqueue.core.operator_verbs import OperatorVerbs
from jqueue.core.queue_base import first_of, nothing
from jqueue.domain.durations import Duration
from jqueue.domain.errors import InvalidJobError, JobNotFoundError, JQueueError
from jqueue.domain.models import Job
from jqueue.domain.operations import (
    Ack,
    Enqueue,
    Heartbeat,
    JobReference,
    Nack,
    OnConflict,
    Operation,
    new_job,
)
from jqueue.domain.option_names import names_its_options
from jqueue.ports.queue import Capabilities


@names_its_options
class QueueVerbs(OperatorVerbs):
    """The verbs of every queue on one blob. The queues add when they can be used, and how much goes into a commit.

    Every verb takes `deadline`, a timedelta or seconds: by then the call has ended. Every verb may raise
    `StorageError` (the store failed), `DeadlineExceededError` (not done), `UnknownOutcomeError` (perhaps done; ask it)
    and `InvalidJobError` (an argument is wrong).
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this queue can do: everything."""
        return Capabilities()

    # Jobs in and out

    async def enqueue(
        self,
        entrypoint: str,
        payload: bytes = b"",
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
        concurrency_key: str | None = None,
        concurrency_limit: int | None = None,
        keep_result: Duration | None = None,
        deadline: Duration | None = None,
    ) -> Job:
        """Add a job. Once this returns, no crash loses it.

        Args:
            entrypoint: the name of what handles it.
            payload: bytes-like; text is refused. Empty by default.
            priority: lower is served first; 32 bits.
            job_id: makes the call idempotent: a job with this id, live or recently finished, is returned as it is.
            delay: not to be claimed before so long from now.
            run_at: not to be claimed before this time; give one of the two.
            expires_at: to be removed if nobody has claimed it by this time.
            max_attempts: after so many failures it is dead; None means never.
            headers: names and texts that travel with it.
            unique_key: no second job with the same key, while one is queued, scheduled or in progress.
            unique_for: how long the key stays taken after the ack.
            on_conflict: if the key is taken, "return" the job that has it, "raise", or "replace" it if it is queued.
            concurrency_key: jobs that share it, of whatever entrypoint, are not claimed beyond a ceiling.
            concurrency_limit: it is claimed while fewer jobs with the key are in progress. 1 if not given.
            keep_result: how long the result is kept after the ack, for `result`.
            deadline: by then the call has ended.

        Returns:
            The job; its status is `COMPLETED` if it was finished already.

        Raises:
            DuplicateJobError: the key is taken, and on_conflict="raise"; or "replace", and the job is in progress.
            QueueFullError: there is no room.
        """
        operation = new_job(
            self._preparation,
            entrypoint,
            payload,
            priority,
            job_id,
            delay,
            run_at,
            expires_at,
            max_attempts,
            headers,
            unique_key,
            unique_for,
            on_conflict,
            concurrency_key,
            concurrency_limit,
            keep_result,
        )
        jobs: list[Job] = await self._one(self._checked(operation), deadline)
        return jobs[0]

    async def enqueue_many(self, jobs: Iterable[Enqueue], *, deadline: Duration | None = None) -> list[Job]:
        """Add many jobs in one commit, all or none of them.

        Raises:
            DuplicateJobError: a key is taken; nothing was added.
            QueueFullError: there is no room for all; nothing was added.
        """
        return await self.apply(*jobs, deadline=deadline)

    async def dequeue(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        batch_size: int = 1,
        wait: Duration | None = None,
        claim_timeout: Duration | None = None,
        deadline: Duration | None = None,
    ) -> list[Job]:
        """Claim ready jobs, by priority and then by commit order.

        Args:
            entrypoint: whose jobs; one name, several, or None for all.
            batch_size: how many at the most.
            wait: how long to wait for the first, if there is none.
            claim_timeout: how long a claim lasts without a heartbeat; the queue's `stale_timeout` by default.
            deadline: by then, after the wait, the call has ended.

        Returns:
            The claimed jobs; none if there were none.
        """
        operations = self._dequeues(entrypoint, batch_size, claim_timeout)
        patience = wait if operations[0].batch_size else None  # who wants none waits for nothing
        jobs: list[list[Job]] = await self._submit(operations, deadline, wait=patience, convert=first_of)
        return jobs[0]

    # Claims

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
        operation = Ack(self._claims.find(job_id))
        if result is not None:
            operation = self._checked(Ack(job_id, result).prepared(self._preparation))
        await self._submit((operation,), deadline, convert=first_of)

    async def ack_many(self, jobs: Iterable[JobReference], *, deadline: Duration | None = None) -> list[Exception]:
        """Finish many jobs in one commit; returns the errors of those whose claim is lost, and finishes the others."""
        return await self._each([Ack(job) for job in jobs], deadline)

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
            dead: it shall not be tried again.
            charge: False hands it back unharmed: no failure is counted, and it keeps its place.
            deadline: by then the call has ended.

        Raises:
            ClaimLostError: the claim is not current; nothing changed.
            JobNotFoundError: there is no job with this bare id.
        """
        operation = self._prepared(Nack(job_id, delay, error, dead, charge))
        await self._submit((operation,), deadline, convert=first_of)

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
        """Give many jobs back in one commit; returns the errors of those whose claim is lost."""
        return await self._each([Nack(job, delay, error, dead, charge) for job in jobs], deadline)

    async def heartbeat(self, job_id: JobReference, *, deadline: Duration | None = None) -> None:
        """Say that the work on a claimed job goes on.

        Raises:
            ClaimLostError: the claim is not current. `ended_here` says whether it was acked or nacked through this
                queue object.
            JobNotFoundError: there is no job with this bare id.
        """
        operation = self._prepared(Heartbeat((job_id,)))
        await self._one(operation, deadline, nothing)

    async def heartbeat_many(
        self, jobs: Iterable[JobReference], *, deadline: Duration | None = None
    ) -> list[JobNotFoundError]:
        """Say that the work on many jobs goes on, in one operation; returns the errors of the lost claims."""
        operation = self._checked(Heartbeat(tuple(jobs), tolerant=True).prepared(self._preparation))
        if not operation.jobs:
            return []
        self._check_size(len(operation.jobs))
        [errors] = await self._one(operation, deadline)
        return list(errors)

    # Several things at once

    async def apply(self, *operations: Operation, deadline: Duration | None = None) -> list[Any]:
        """Do several things in one commit, all or nothing: `apply(Ack(job), Enqueue("next", data))`.

        Returns:
            The result of each operation, in order.

        Raises:
            JQueueError: one was refused; none of them was done.
        """
        for operation in operations:
            if not isinstance(operation, Operation):
                raise InvalidJobError(f"apply takes operations such as Ack(job), got {type(operation).__name__}")
        if not operations:
            return []
        prepared = [self._prepared(operation) for operation in operations]
        self._check_size(len(prepared), *(len(operation.job_ids()) for operation in prepared))
        return await self._submit(prepared, deadline)

    async def apply_each(self, *operations: Operation, deadline: Duration | None = None) -> list[Any]:
        """Do several things in one commit, each for itself.

        Returns:
            The result of each operation, in order, or the JQueueError that refused it.
        """
        prepared: list[Operation | JQueueError] = []
        for operation in operations:
            if not isinstance(operation, Operation):
                raise InvalidJobError(f"apply_each takes operations such as Ack(job), got {type(operation).__name__}")
            try:
                prepared.append(self._prepared(operation))
            except JQueueError as error:
                prepared.append(error)
        valid = [operation for operation in prepared if isinstance(operation, Operation)]
        if not valid:
            return list(prepared)
        self._check_size(len(valid), *(len(operation.job_ids()) for operation in valid))

        def in_place(results: list[Any]) -> list[Any]:
            rest = iter(results)
            return [next(rest) if isinstance(entry, Operation) else entry for entry in prepared]

        return in_place(await self._submit(valid, deadline, atomic=False, convert=in_place))
