"""The claims of a worker: made, and kept alive, by calls of bounded size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from jqueue.domain.errors import JobNotFoundError
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT
from jqueue.domain.models import Job
from jqueue.ports.queue import JobQueue, Wait
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import process_name
from jqueue.worker.handler_options import WorkerSettings, seconds_of
from jqueue.worker.queue_health import RETRIED_ERRORS


class Claims:
    """Claims the jobs of one run, and keeps their claims alive.

    Args:
        queue: the queue of the jobs.
        settings: the settings of the worker.

    Attributes:
        limit: largest number of jobs in one call.
    """

    def __init__(self, queue: JobQueue, settings: WorkerSettings) -> None:
        timeout = seconds_of("claim_timeout", settings.claim_timeout)
        self.limit: int = options_of(queue).limits.batch_size
        self._queue = queue
        self._options: dict[str, Any] = {}
        if timeout is not None and queue.capabilities.claim_timeout:
            self._options["claim_timeout"] = timeout
        if queue.capabilities.holders:
            self._options["holder"] = f"{settings.name}@{process_name()}"
        self._usual_timeout = DEFAULT_CLAIM_TIMEOUT.total_seconds() if timeout is None else timeout

    async def claim(self, names: Sequence[str], count: int, deadline: float | None = None) -> list[Job]:
        """Claim up to `count` jobs that are ready now. Fewer than that only if no more are ready."""
        return await self._queue.dequeue(names, batch_size=count, deadline=deadline, **self._options)

    async def wait(self, names: Sequence[str], count: int, wait: Wait) -> list[Job]:
        """Claim up to `count` jobs as soon as there are any, by a long poll."""
        return await self._queue.dequeue(names, batch_size=count, wait=wait, **self._options)

    def shortest_timeout(self, jobs: Iterable[Job]) -> float:
        """Return the shortest time in seconds that the claim of any of these jobs lasts without a heartbeat."""
        return min((job.claim_timeout for job in jobs if job.claim_timeout), default=self._usual_timeout)

    async def heartbeat_many(
        self, jobs: Sequence[Job], deadline: float
    ) -> tuple[Sequence[JobNotFoundError], dict[str, Exception]]:
        """Keep the claims on some jobs alive, by calls of which each may fail alone.

        Returns:
            What is wrong, by the ids of jobs; and the ids of jobs whose heartbeat failed, with the errors.
        """
        claims = [job.claim for job in jobs]
        lots = [claims[start : start + self.limit] for start in range(0, len(claims), self.limit)]
        calls = [self._queue.heartbeat_many(lot, deadline=deadline) for lot in lots]
        errors: list[JobNotFoundError] = []
        failed: dict[str, Exception] = {}
        for lot, answer in zip(lots, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(answer, RETRIED_ERRORS):
                failed.update((claim.job_id, answer) for claim in lot)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                errors += answer
        return errors, failed
