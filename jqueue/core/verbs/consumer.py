"""The verbs of those who take jobs and end them: `Consumer`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from jqueue.core.queue_base import QueueBase, first_of, nothing
from jqueue.domain.durations import Duration
from jqueue.domain.errors import JobNotFoundError
from jqueue.domain.job_options import takes_options
from jqueue.domain.models import Job
from jqueue.domain.operations import Ack, DequeueOptions, Heartbeat, JobReference, Nack
from jqueue.domain.option_names import names_its_options


@names_its_options
class ConsumerVerbs(QueueBase):
    """The verbs of `Consumer`."""

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
            entrypoint: whose jobs; one name, several, or None for all.
            wait: how long to wait for the first, if there is none.
            deadline: by then, after the wait, the call has ended.

        Returns:
            The claimed jobs; none if there were none.
        """
        if wait:
            self.capabilities.require("wait")
        operations = self._dequeues(entrypoint, **options)
        patience = wait if operations[0].batch_size else None  # who wants none waits for nothing
        jobs: list[list[Job]] = await self._submit(operations, deadline, wait=patience, convert=first_of)
        return jobs[0]

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
