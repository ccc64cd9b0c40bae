"""Filling batches: a batch that was begun with few jobs claims more of them, before its handler is called.

Claims for free slots are of all entrypoints together, so that jobs are served by priority and age. The jobs of a batch
handler among them begin a batch, which then claims for itself what else is ready. Meanwhile the worker's other claims
leave its entrypoint out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from jqueue.domain.models import Job
from jqueue.ports.log import logger_of
from jqueue.worker.claims import Claims
from jqueue.worker.held_jobs import Work

logger = logger_of("jqueue.worker")

CLAIMS_PER_WAIT = 10
"""Number of claims by which a batch looks for more jobs within its `batch_wait`."""


class Gatherer:
    """Fills the batches of one run.

    Args:
        source: claims the jobs.
        add: adds claimed jobs to a batch.
        waits: True if batches wait for jobs as their handlers say; False to take only jobs that are ready.
    """

    def __init__(self, source: Claims, add: Callable[[Work, Sequence[Job]], None], *, waits: bool) -> None:
        self._source = source
        self._add = add
        self._waits = waits

    def is_needed(self, work: Work, more: bool) -> bool:
        """True if a batch that is not full must claim jobs. `more` is True if more of them may be ready."""
        return more or self._seconds(work) > 0

    async def fill(self, work: Work) -> None:
        """Claim jobs for a batch until it is full, or until no more are ready and its wait is over."""
        loop = asyncio.get_running_loop()
        seconds = self._seconds(work)
        assert work.batch is not None
        end = loop.time() + seconds
        while (room := min(work.batch - len(work.jobs), self._source.limit)) > 0:
            try:
                jobs = await self._source.claim(work.handler.entrypoint, room)
            except Exception as error:  # the claims for free slots meet and report the same trouble
                logger.debug("a batch of %s stays as it is: %s", work.handler.entrypoint, type(error).__name__)
                return
            self._add(work, jobs)
            left = end - loop.time()
            if len(jobs) < room:
                if left <= 0:
                    return
                await asyncio.sleep(min(left, seconds / CLAIMS_PER_WAIT))

    def _seconds(self, work: Work) -> float:
        return work.handler.options.wait_seconds if self._waits else 0.0
