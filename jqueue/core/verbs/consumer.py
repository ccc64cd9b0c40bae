"""The verbs of `Consumer`: claim jobs, and end the claims."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Unpack

from jqueue.core.blob.segment_reader import DAMAGED, reason_of
from jqueue.core.queue_base import BlobBase, QueueBase, first_of, nothing
from jqueue.core.tasks import retried
from jqueue.domain.durations import Duration
from jqueue.domain.errors import (
    DeadlineExceededError,
    InvalidJobError,
    JobNotFoundError,
    JQueueError,
    SegmentDamagedError,
)
from jqueue.domain.job import JobRecord
from jqueue.domain.job_options import check_names, takes_options
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations.base import JobReference
from jqueue.domain.operations.dequeue import Dequeue, DequeueOptions
from jqueue.domain.operations.ends import Ack, Heartbeat, Nack
from jqueue.domain.operations.leases import ClaimLease, EndLease
from jqueue.domain.segments import FOLDER, JobFailure, Lease
from jqueue.ports.queue import Consumer, SupportsLeases


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
        return await self._claimed(self._dequeues(entrypoint, options), wait, deadline)

    async def _claimed(self, operations: tuple[Dequeue], wait: Duration | None, deadline: Duration | None) -> list[Job]:
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


CHUNKS_AT_ONCE = 16
"""Number of chunks that are read at once."""


class LeaseVerbs(BlobBase, SupportsLeases):
    """The verbs of `SupportsLeases`, for queues on one blob."""

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
        self.capabilities.require("leases")
        terms: dict[str, Any] = {"claim_timeout": claim_timeout, "holder": holder}
        operation = self._prepared(ClaimLease(entrypoint, rows=rows, least=least, inline=inline, **terms))
        [leases] = await self._submit((operation,), deadline, convert=nothing)  # resolve() hands out no claims
        return leases[0] if leases else None

    async def end_lease(
        self,
        lease: Lease,
        *,
        failed: Mapping[str, JobFailure | BaseException | str | None] | None = None,
        worked_on: int | None = None,
        deadline: Duration | None = None,
    ) -> None:
        self.capabilities.require("leases")
        operation = self._prepared(EndLease(lease, {} if failed is None else failed, worked_on=worked_on))
        await self._submit((operation,), deadline, convert=nothing)

    async def read_lease(self, lease: Lease, *, deadline: Duration | None = None) -> AsyncGenerator[Job, None]:
        seconds = self._seconds(deadline)
        async with aclosing(self.read_packed_lease(lease, deadline=deadline)) as packed:
            async for rows in packed:
                for row in rows:
                    job = lease.entry.job_of(row)
                    yield job_of(job if job.payload_object is None else await self._with_payload(job, seconds))

    async def read_packed_lease(
        self, lease: Lease, *, deadline: Duration | None = None
    ) -> AsyncGenerator[Sequence[JobRecord], None]:
        """Yield the rows of a lease, chunk by chunk: the job of each, as before the claim.

        It is much faster than `read_lease`, and loads no payloads from objects of their own.

        Raises:
            SegmentDamagedError: some cannot be read. The next claims go around the whole segment.
        """
        if not isinstance(lease, Lease):
            raise InvalidJobError(f"pass what claim_lease returned, got {type(lease).__name__}")
        name, entry, seconds = lease.segment, lease.entry, self._seconds(deadline)
        self.capabilities.require("leases")
        assert self._engine.segments is not None
        reader, entropy, what = (
            self._engine.segments.reader,
            self.options.entropy,
            f"segment {FOLDER}{name} could not be read",
        )
        chunks = [chunk for chunk in range(entry.chunks) if not entry.is_chunk_taken(chunk)]
        try:
            index = await retried(seconds, partial(reader.index, name, entry), entropy, what)
            for start in range(0, len(chunks), CHUNKS_AT_ONCE):
                read = partial(reader.chunks, name, entry, index, chunks[start : start + CHUNKS_AT_ONCE])
                for number, rows in await retried(seconds, read, entropy, what):
                    yield entry.those_left(rows, number)
        except (*DAMAGED, DeadlineExceededError) as error:
            self.suspect_segment(name, error)
            raise SegmentDamagedError(FOLDER + name, reason_of(error), lasts=isinstance(error, DAMAGED)) from error

    def suspect_segment(self, name: str, error: JQueueError) -> None:
        """Note that a segment could not be read, here or by another process: see `SegmentLoader.suspect`."""
        assert self._engine.segments is not None
        self._engine.segments.loader.suspect(name, error, self._engine.draft.jobs.rows)

    async def _with_payload(self, job: JobRecord, seconds: float) -> JobRecord:
        """Return a job with its payload, if that is in an object and not too large to be handed out."""
        stored = job.payload_object
        if stored is None or stored.size > self.options.limits.most_payload(objects=True):
            return job
        assert self._objects is not None
        return job.evolve(payload=await self._objects.read(stored, seconds))
