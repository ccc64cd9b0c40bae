"""The source of jobs of a worker with batch handlers: it claims ranges where they pay, and single jobs elsewhere.

A range costs a commit for its claim and one for its end, whatever the number of its jobs. So it is claimed
only if it holds at least a chunk of a segment. Its jobs are held in memory, so none has a payload in an object of its
own. It has only as many jobs as this worker does within a moment, because no other worker can have them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from jqueue.core.queue_base import options_of
from jqueue.domain.errors import JQueueError
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT
from jqueue.domain.models import Job
from jqueue.domain.printable import counted
from jqueue.ports.log import logger_of
from jqueue.ports.queue import Consumer, SupportsRanges
from jqueue.worker.claiming import SingleClaims
from jqueue.worker.handlers import Handler
from jqueue.worker.heartbeats import BEATS_PER_TIMEOUT
from jqueue.worker.held_jobs import LEAST, HeldRange
from jqueue.worker.run_state import RunState

logger = logger_of("jqueue.worker")

MOST = 4096
"""Largest number of jobs of a range."""

SECONDS = 2.0
"""Seconds that the jobs of a range may take this worker, by the last batches."""


class RangeClaims(SingleClaims):
    """A source of jobs that claims the jobs of batch handlers by ranges: see `jqueue.worker.gathering.JobSource`.

    Args:
        queue: the queue to claim from.
        claim_timeout: seconds that a claim lasts without a heartbeat; None for the queue's default.
        name: name of the worker, kept with its claims.
        handlers: the handlers of the worker, by entrypoint.
        state: the state of the run, which keeps the ranges.
    """

    def __init__(
        self,
        queue: Consumer,
        claim_timeout: float | None,
        name: str,
        handlers: Mapping[str, Handler[..., object]],
        state: RunState,
    ) -> None:
        super().__init__(queue, claim_timeout, name)
        self._ranges = state.ranges
        self._state = state
        self._owner = queue if queue.capabilities.ranges and isinstance(queue, SupportsRanges) else None
        self._sizes = {
            name: handler.options.batch
            for name, handler in handlers.items()
            if handler.options.batch is not None and handler.options.keep_result is None
        }
        self._is_alone = len(handlers) == 1
        self._most = options_of(queue).limits.batch_size - 1
        timeout = DEFAULT_CLAIM_TIMEOUT.total_seconds() if claim_timeout is None else claim_timeout
        self._seconds = min(SECONDS, timeout / BEATS_PER_TIMEOUT)
        self._singles_first: Counter[str] = Counter()

    async def claim(self, entrypoints: str | Sequence[str], count: int) -> list[Job]:
        """See `jqueue.worker.gathering.JobSource`."""
        names = (entrypoints,) if isinstance(entrypoints, str) else entrypoints
        jobs: list[Job] = []
        for name in names if self._ranges else ():
            jobs += self._ranges.take(name, count - len(jobs))
        name = names[0] if len(names) == 1 else ""
        try:
            while len(jobs) < count and (rows := self._rows(name, count - len(jobs))):
                if not await self._claim_range(name, rows):
                    self._singles_first[name] = LEAST
                jobs += self._ranges.take(name, count - len(jobs))
            if len(jobs) < count:
                more = await super().claim(entrypoints, count - len(jobs))
                if name in self._sizes:
                    self._singles_first[name] -= len(more)
                jobs += more
        except BaseException:
            self._ranges.put_back(jobs)
            raise
        return jobs

    def _rows(self, name: str, count: int) -> int:
        """Return the number of jobs to claim by a range when `count` are wanted; 0 to claim them one by one."""
        size = self._sizes.get(name)
        if size is None or self._owner is None or self._singles_first[name] > 0:
            return 0
        most = int(self._most / max(1.0, self._ranges.added.get(name, 0.0)))  # its end is one call
        rows = min(MOST, most, int(self._ranges.rates.get(name, 0.0) * self._seconds))
        if not self._is_alone:  # the next batch may have to wait for jobs of other entrypoints
            rows = min(rows, count)
        if rows > size:
            rows -= rows % size
        return rows if rows >= LEAST else 0

    async def _claim_range(self, name: str, rows: int) -> bool:
        """Claim a range, and read its jobs. Return False if there is none."""
        assert self._owner is not None
        claim = await self._owner.claim_range(name, rows, least=LEAST, inline=True, **self._options)
        if claim is None:
            return False
        held = HeldRange(claim, asyncio.get_running_loop().time())
        self._ranges.add(held)
        self._state.claimed.set()
        jobs: list[Job] = []
        try:
            async for job in self._owner.read_range(claim):
                jobs.append(job)
        except BaseException as error:
            self._close(held)
            if not isinstance(error, JQueueError):
                raise
            logger.warning("%s of %s cannot be read, and are handed back: %s", counted(claim.rows, "job"), name, error)
            return False
        held.jobs = jobs
        return True

    def _close(self, held: HeldRange) -> None:
        """Give the jobs of a range back."""
        held.closing = True
        self._state.has_outcomes.set()
