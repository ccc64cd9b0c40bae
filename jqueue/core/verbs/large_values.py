"""The verbs of `SupportsLargeValues`: large payloads in pieces, URLs for them, and the removal of what is left over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from jqueue.core.queue_base import QueueBase
from jqueue.domain.durations import Duration
from jqueue.domain.errors import DeadlineExceededError, InvalidJobError, JobNotFoundError, ResultNotKeptError
from jqueue.domain.job import JobStatus, StoredObject
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations import Find
from jqueue.ports.queue import JobQueue, SupportsLargeValues
from jqueue.ports.storage import SupportsObjectURLs


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


class LargeValueVerbs(QueueBase, SupportsLargeValues):
    """The verbs of `SupportsLargeValues`."""

    async def open_payload(self, job: Job) -> AsyncGenerator[bytes, None]:
        if not isinstance(job, Job):
            raise InvalidJobError(f"open_payload takes a Job from dequeue, got {type(job).__name__}")
        stored = job.payload_object
        if stored is None or not job.payload_apart:
            if job.payload:
                yield job.payload
        elif self._objects is None:
            raise InvalidJobError(f"the payload of job {job.id!r} is in an object, which this queue cannot read")
        else:
            async for piece in self._objects.pieces(stored, self._deadline):
                yield piece

    async def payload_url(self, job: Job | str, lifetime: Duration, *, deadline: Duration | None = None) -> str:
        known = job if isinstance(job, Job) and job.payload_object is not None else await self._find(job, deadline)
        if known.payload_object is None:
            raise InvalidJobError(
                f"the payload of job {known.id!r} has no URL: it is in the queue itself, as it is not large"
            )
        return await self._url_of(known.payload_object, lifetime)

    async def result_url(self, job: Job | str, lifetime: Duration, *, deadline: Duration | None = None) -> str:
        known = await self._find(job, deadline)
        if known.result_object is not None:
            return await self._url_of(known.result_object, lifetime)
        if known.status is not JobStatus.COMPLETED:
            raise InvalidJobError(f"job {known.id!r} has no result yet: it is {known.status}")
        if known.keep_result is None or known.result_dropped:
            raise ResultNotKeptError(known.id, known.result_dropped)
        raise InvalidJobError(
            f"the result of job {known.id!r} has no URL: it is in the queue itself, as it is not large. Read it with "
            "`result`"
        )

    async def collect(self, *, deadline: Duration | None = None) -> int:
        self.capabilities.require("objects")
        assert self._collector is not None
        seconds = None if deadline is None else self._seconds(deadline)
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._collector.collect()
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceededError(
                "the deadline passed before all objects that no job names were removed: some may be, and the next call "
                "goes on"
            ) from None

    async def _find(self, job: Job | str, deadline: Duration | None) -> Job:
        job_id = job.id if isinstance(job, Job) else job
        found = await self._done(Find(job_id), deadline)
        if not found:
            raise JobNotFoundError(job_id)
        return job_of(found[0])

    async def _url_of(self, stored: StoredObject, lifetime: Duration) -> str:
        storage = None if self._objects is None else self._objects.storage
        if not isinstance(storage, SupportsObjectURLs):
            raise InvalidJobError(
                "this storage cannot make URLs for its objects: read the payload with open_payload, or keep the queue "
                "in S3, Google Cloud Storage or Azure"
            )
        return await storage.object_url(stored.suffix, lifetime)
