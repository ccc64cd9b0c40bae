"""The verbs of `Producer`: add jobs, and wait for their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from typing import Any, Unpack

from pydantic_core import from_json

from jqueue.core.queue_base import QueueBase, first_of
from jqueue.core.values import LEAST
from jqueue.domain.durations import LONGEST, Duration, to_seconds
from jqueue.domain.errors import (
    DeadlineExceededError,
    InvalidJobError,
    QueueClosedError,
    ResultTimeoutError,
    UnknownOutcomeError,
)
from jqueue.domain.job import JobRecord
from jqueue.domain.job_options import EnqueueOptions, takes_options
from jqueue.domain.large_values import PayloadSource
from jqueue.domain.models import Job, job_of
from jqueue.domain.operations import AwaitResult, Configure, Enqueue, EnqueueSegments
from jqueue.domain.operations.enqueue import LINE_BYTES
from jqueue.ports.queue import Producer

PIECE = 256
"""Number of jobs that are taken from an iterator at once."""

A_MOMENT = 0.01
"""Seconds by which a timer may fire early."""


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
        operation = Enqueue(entrypoint, payload, priority, **options).prepared(self._preparation)
        operations = (self._checked(operation),)
        if not operation.apart:
            jobs: list[JobRecord] = await self._enter(operations, deadline, convert=first_of)
        else:
            jobs = await self._submit(operations, deadline, convert=first_of)
        return job_of(jobs[0])

    async def enqueue_many(
        self, jobs: Iterable[Enqueue] | AsyncIterable[Enqueue], *, deadline: Duration | None = None
    ) -> Sequence[Job]:
        if isinstance(jobs, str | bytes | Mapping) or not isinstance(jobs, Iterable | AsyncIterable):
            raise InvalidJobError(f"enqueue_many takes an iterable of Enqueue(...), got {type(jobs).__name__}")
        if not isinstance(jobs, AsyncIterable) and self._bulk_threshold is None:
            return await self.apply(*_all_enqueues(jobs), deadline=deadline)
        self.capabilities.require("transactions")
        async with aclosing(_pieces(jobs)) as pieces:
            limits = self.options.limits
            first = await _few(pieces, limits.batch_size, limits.enqueue_bytes)
            if self._bulk_threshold is None or (first.complete and len(first.jobs) <= self._bulk_threshold):
                return await self.apply(*_all_enqueues(first.jobs), deadline=deadline)
            return await self._enqueue_bulk(first, pieces, self._seconds(deadline))

    async def _enqueue_bulk(
        self, first: _First, others: AsyncIterator[Sequence[Enqueue]], seconds: float
    ) -> Sequence[Job]:
        """Enqueue any number of jobs in one commit. The deadline counts from the end of `others`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        if not self._engine.loaded:
            await self._done(Configure(), seconds)  # reads it
        self._writer.check_open()
        bulk = self._new_bulk(seconds)
        closed = QueueClosedError("the queue was closed while jobs were encoded, and nothing was done")

        async def encode() -> EnqueueSegments:
            if first.complete:
                bulk.until = until
            await bulk.feed(first.jobs)
            if not first.complete:
                async for several in others:
                    await bulk.feed(several)
                bulk.until = loop.time() + seconds
            return await bulk.operation()

        try:
            _, found = await self._submit_segments(bulk, encode(), closed, lambda results: bulk.answer(results[0]))
            return bulk.answer(found)
        finally:
            await bulk.end()

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

    async def _wait_for_result(self, operation: AwaitResult, wait_seconds: float, seconds: float) -> list[JobRecord]:
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


def _all_enqueues(jobs: Iterable[Enqueue]) -> list[Enqueue]:
    found = list(jobs)
    for job in found:
        if not isinstance(job, Enqueue):
            raise InvalidJobError(f"enqueue_many takes Enqueue(...), got {type(job).__name__}")
    return found


@dataclass(frozen=True, slots=True)
class _First:
    """The first jobs of a call; `complete` is True if they are all."""

    jobs: list[Enqueue]
    complete: bool


async def _few(pieces: AsyncIterator[list[Enqueue]], most: int, most_bytes: int) -> _First:
    """Return the first jobs: all of them, if they are not more than some number of jobs and of bytes."""
    found: list[Enqueue] = []
    size = 0
    async for several in pieces:
        found += several
        size += sum(_bytes_of(job) for job in several)
        if len(found) > most or size > most_bytes:
            return _First(found, complete=False)
    return _First(found, complete=True)


def _bytes_of(job: object) -> int:
    payload = getattr(job, "payload", b"")
    return LINE_BYTES + (len(payload) if isinstance(payload, bytes | bytearray | memoryview) else 0)


async def _pieces(jobs: Iterable[Enqueue] | AsyncIterable[Enqueue]) -> AsyncGenerator[list[Enqueue], None]:
    """Yield the jobs of an iterable, some at a time, with a turn of the event loop between them."""
    if not isinstance(jobs, AsyncIterable):
        rest = iter(jobs)
        while several := list(islice(rest, PIECE)):
            yield several
            await asyncio.sleep(0)
        return
    piece: list[Enqueue] = []
    try:
        async for job in jobs:
            piece.append(job)
            if len(piece) == PIECE:
                yield piece
                piece = []
                await asyncio.sleep(0)
        if piece:
            yield piece
    finally:
        if isinstance(jobs, AsyncGenerator):
            await jobs.aclose()
