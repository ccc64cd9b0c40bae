"""Claimed jobs with large payloads: each payload is loaded before its job is handed out.

One payload that is missing or changed fails its own job alone: the job is dead, with an error that names the object.
The other jobs of the call are handed out. If a payload cannot be read for another reason, its job is set aside for a
moment, uncharged and with the error, so that the jobs behind it are served. A payload above
`Limits.most_payload` stays in its object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from jqueue.core.calls.value_objects import ValueObjects
from jqueue.domain.errors import (
    JQueueError,
    ObjectDamagedError,
    ObjectMissingError,
    StorageError,
    UnknownOutcomeError,
)
from jqueue.domain.job import Claim, JobRecord
from jqueue.domain.limits import Limits
from jqueue.domain.operations import Nack, NewJob, Operation
from jqueue.domain.range_jobs import RangeClaim
from jqueue.ports.log import logger_of

logger = logger_of("jqueue")

LEAST = 0.1
"""Seconds for loading payloads and for ending jobs, even if the deadline of the call is closer."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds for which a job is set aside: they double with each failure, from the first to the second."""

FAILURES_KEPT = 1024
"""Number of jobs set aside whose failures are remembered."""


class NotLoadedError(UnknownOutcomeError):
    """The payloads of claimed jobs could not be loaded. The claims are handed back, so `resolve` returns no jobs."""

    def __init__(self, cause: BaseException | None = None, reason: str = "could not be loaded") -> None:
        super().__init__(f"payloads of claimed jobs {reason}, and the claims are handed back", cause, resolver=_no_jobs)


async def _no_jobs(timeout: float | None) -> list[JobRecord]:
    return []


def holds_objects(jobs: Iterable[JobRecord | RangeClaim]) -> bool:
    """Return True if one of these jobs has its payload in an object."""
    return any([job.payload_object is not None for job in jobs])  # noqa: C419 - a generator costs more for one job


class ClaimedPayloads:
    """Loads the payloads of claimed jobs.

    Args:
        objects: loads them.
        limits: of the queue object.
        hand_back: hands claims back to the queue, with the next commit.
        end: carries out nacks within a number of seconds.

    Attributes:
        seen: True once a job with an object was claimed.
    """

    def __init__(
        self,
        objects: ValueObjects,
        limits: Limits,
        hand_back: Callable[[Sequence[Claim]], None],
        end: Callable[[Sequence[Nack], float], Awaitable[object]],
    ) -> None:
        self.seen = False
        self._objects = objects
        self._limits = limits
        self._hand_back = hand_back
        self._end = end
        self._failures: dict[str, int] = {}

    def has_objects(self, operations: Sequence[Operation], results: Sequence[Any]) -> bool:
        """Return True if a job that was handed out has its payload in an object."""
        for place, operation in enumerate(operations):
            result = results[place]
            if operation.hands_out_jobs and isinstance(result, list) and holds_objects(result):
                self.seen = True
                return True
        return False

    async def loaded(self, operations: Sequence[Operation], results: list[Any], until: float) -> list[Any]:
        """Return the results of operations, with the payloads of the jobs that they claimed.

        A job is left out if its payload could not be loaded. The others wait for it while one request may take, and
        at most for half the time after which its claim is stale. If the payloads of one call take more memory than the
        queue's object may have, the last jobs are handed back.

        Args:
            operations: the operations.
            results: of the operations.
            until: end of the call, on the clock of the event loop.

        Raises:
            NotLoadedError: no payload could be loaded, and the call did nothing else.
        """
        claimed = [
            job
            for operation, result in zip(operations, results, strict=True)
            if operation.hands_out_jobs and isinstance(result, list)
            for job in result
        ]
        wanted = [job for job in claimed if self._is_wanted(job)]
        if not wanted:
            return results
        wanted, surplus = self._within_memory(wanted)
        loop = asyncio.get_running_loop()
        patience = min([self._objects.call_timeout, *(job.claim_timeout / 2 for job in wanted if job.claim_timeout)])
        found = await self._objects.load(wanted, max(LEAST, min(patience, until - loop.time())))
        found |= dict.fromkeys([job.id for job in surplus], StorageError("the memory of one call is full"))
        ended = [job for job in wanted if isinstance(found[job.id], ObjectMissingError | ObjectDamagedError)]
        failed = [job for job in wanted if isinstance(found[job.id], StorageError) and job not in ended]
        if surplus:
            self._hand_back([job.claim for job in surplus])
        for job in wanted:
            if isinstance(found[job.id], JobRecord):
                self._failures.pop(job.id, None)
        if failed:
            await self._set_aside([(job, found[job.id]) for job in failed], max(LEAST, until - loop.time()))
        if ended:
            await self._make_dead([(job, found[job.id]) for job in ended], max(LEAST, until - loop.time()))
        if failed and len(failed) == len(claimed) and all(each.hands_out_jobs for each in operations):
            error = found[failed[0].id]
            assert isinstance(error, StorageError)
            raise NotLoadedError(error)
        return [
            [job for job in (found.get(job.id, job) for job in result) if isinstance(job, JobRecord | RangeClaim)]
            if operation.hands_out_jobs and isinstance(result, list)
            else result
            for operation, result in zip(operations, results, strict=True)
        ]

    def _is_wanted(self, job: JobRecord) -> bool:
        return job.payload_object is not None and 0 < job.payload_object.size <= self._limits.most_payload(objects=True)

    def _within_memory(self, jobs: list[JobRecord]) -> tuple[list[JobRecord], list[JobRecord]]:
        """Return the jobs whose payloads fit into memory together, at least one, and the other jobs."""
        taken = 0
        for number, job in enumerate(jobs):
            assert job.payload_object is not None
            taken += job.payload_object.size
            if number and taken > self._limits.blob_bytes:
                return jobs[:number], jobs[number:]
        return jobs, []

    async def _set_aside(self, failures: list[tuple[JobRecord, Any]], seconds: float) -> None:
        """Queue jobs again whose payloads could not be read, from a later time on. The claims count as no failures."""
        nacks = []
        for job, error in failures:
            times = self._failures[job.id] = self._failures.pop(job.id, 0) + 1
            pause = min(FIRST_PAUSE * 2 ** min(times - 1, 10), LONGEST_PAUSE)
            nacks.append(Nack(job.claim, delay=pause, error=error, charge=False))
            logger.warning("job %s is set aside for %g s, as its payload cannot be read: %s", job.id, pause, error)
        while len(self._failures) > FAILURES_KEPT:
            del self._failures[next(iter(self._failures))]
        try:
            await self._end(nacks, seconds)
        except JQueueError:
            self._hand_back([job.claim for job, _ in failures])  # with the next commit that lands

    async def _make_dead(self, failures: list[tuple[JobRecord, Any]], seconds: float) -> None:
        """Make jobs dead whose payloads are lost. A claim that is lost meanwhile needs nothing."""
        for job, error in failures:
            logger.error("job %s is dead, as its payload cannot be loaded: %s", job.id, error)
        try:
            await self._end([Nack(job.claim, error=error, dead=True) for job, error in failures], seconds)
        except JQueueError as error:
            logger.warning("jobs whose payloads are lost could not be made dead: %s. Their claims will be stale", error)


def with_given_payloads(given: Sequence[Operation], named: Sequence[Operation], results: list[Any]) -> list[Any]:
    """Return the results of enqueues: a new job has the payload that was given as bytes.

    Args:
        given: the operations as they were prepared.
        named: the same operations, with their objects.
        results: of these operations.
    """
    return [
        result.evolve(payload=operation.large.content)
        if isinstance(operation, NewJob)
        and isinstance(stored, NewJob)
        and operation.large is not None
        and isinstance(operation.large.content, bytes)
        and isinstance(result, JobRecord)
        and result.payload_object == stored.job.payload_object
        else result
        for operation, stored, result in zip(given, named, results, strict=True)
    ]
