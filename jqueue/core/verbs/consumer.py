"""The verbs of `Consumer`: claim jobs, and end the claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from jqueue.core.queue_base import QueueBase, first_of, nothing
from jqueue.domain.durations import Duration
from jqueue.domain.errors import JobNotFoundError
from jqueue.domain.job_options import check_names, takes_options
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations import Ack, DequeueOptions, Heartbeat, JobReference, Nack
from jqueue.ports.queue import Consumer


class ConsumerVerbs(QueueBase, Consumer):
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
        if options:
            check_names("dequeue", options, DequeueOptions.__annotations__)
        if wait:
            self.capabilities.require("wait")
        operations = self._dequeues(entrypoint, options)
        longest_wait = wait if operations[0].batch_size else None  # a dequeue of no jobs does not wait
        request = self._enter(operations, deadline, wait=longest_wait, convert=first_of)
        results = await request
        if self._claims.saw_objects:
            results = await self._with_payloads(request, results)
        return [job_of(job) for job in results[0]]

    async def ack(self, job_id: JobReference, *, result: Any = None, deadline: Duration | None = None) -> None:
        if result is None:
            await self._enter((Ack(self._claims.find(job_id)),), deadline, convert=first_of)
        else:
            operation = self._checked(Ack(job_id, result).prepared(self._preparation))
            await self._submit((operation,), deadline, convert=first_of)

    async def ack_many(self, jobs: Iterable[JobReference], *, deadline: Duration | None = None) -> list[Exception]:
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
        return await self._each([Nack(job, delay, error, dead, charge) for job in jobs], deadline)

    async def heartbeat(self, job_id: JobReference, *, deadline: Duration | None = None) -> None:
        operation = self._prepared(Heartbeat((job_id,)))
        await self._enter((operation,), deadline, convert=nothing)

    async def heartbeat_many(
        self, jobs: Iterable[JobReference], *, deadline: Duration | None = None
    ) -> list[JobNotFoundError]:
        operation = self._checked(Heartbeat(tuple(jobs), tolerant=True).prepared(self._preparation))
        if not operation.jobs:
            return []
        self._check_size(len(operation.jobs))
        [errors] = await self._enter((operation,), deadline, convert=first_of)
        return list(errors)
