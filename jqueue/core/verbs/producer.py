"""The verbs of `Producer`: add jobs, and wait for their results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, Unpack

from pydantic_core import from_json

from jqueue.core.calls.claimed_payloads import LEAST
from jqueue.core.queue_base import QueueBase, first_of
from jqueue.domain.durations import LONGEST, Duration, to_seconds
from jqueue.domain.errors import DeadlineExceededError, QueueClosedError, ResultTimeoutError, UnknownOutcomeError
from jqueue.domain.job_options import EnqueueOptions, takes_options
from jqueue.domain.large_values import PayloadSource
from jqueue.domain.models import Job
from jqueue.domain.operations import AwaitResult, Enqueue, new_job
from jqueue.domain.option_names import checks_option_names
from jqueue.ports.queue import Producer

A_MOMENT = 0.01
"""Seconds by which a timer may fire early."""


@checks_option_names
class ProducerVerbs(QueueBase, Producer):
    """The verbs of `Producer`."""

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
        operation = new_job(self._preparation, entrypoint, payload, priority, **options)
        if operation.large is None:
            jobs: list[Job] = await self._one(self._checked(operation), deadline)
        else:
            jobs = await self._submit((self._checked(operation),), deadline, convert=first_of)
        return jobs[0]

    async def enqueue_many(self, jobs: Iterable[Enqueue], *, deadline: Duration | None = None) -> list[Job]:
        return await self.apply(*jobs, deadline=deadline)

    async def result(
        self, job_id: Job | str, *, timeout: Duration | None = None, deadline: Duration | None = None
    ) -> Any:
        reference = job_id.id if isinstance(job_id, Job) else job_id
        wait_seconds = LONGEST if timeout is None else to_seconds("timeout", timeout)
        operation = self._checked(AwaitResult(reference).prepared(self._preparation))
        until = asyncio.get_running_loop().time() + wait_seconds + self._seconds(deadline)
        found = await self._wait_for_result(operation, wait_seconds, self._seconds(deadline))
        if not found:
            raise ResultTimeoutError(reference, wait_seconds)
        stored = found[0].result_object
        if stored is not None and self._objects is not None:
            reading = self._objects.read(stored, max(LEAST, until - asyncio.get_running_loop().time()))
            closed = QueueClosedError("the queue was closed while the result was loaded")
            return from_json(await self._writer.objects.load(reading, closed), allow_inf_nan=False)
        return deepcopy(found[0].result)  # the cached state holds the same object

    async def _wait_for_result(self, operation: AwaitResult, wait_seconds: float, seconds: float) -> list[Job]:
        """Return the finished job, or nothing if it has not finished in time. A mere search has no unknown outcome."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_seconds
        while True:
            try:
                now = loop.time()
                [found] = await self._submit((operation,), min(seconds, end + seconds - now), wait=max(0.0, end - now))
            except UnknownOutcomeError as error:
                if loop.time() >= end + seconds - A_MOMENT:
                    raise DeadlineExceededError("the store did not answer in time", error) from None
            else:
                return list(found)
