"""The claims of a batch: made in one commit, kept alive while Spark works on the jobs, and ended in one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from jqueue.connect import connect
from jqueue.core.direct import DirectQueue
from jqueue.core.heartbeat import HeartbeatManager
from jqueue.domain.counting import counted
from jqueue.domain.errors import JQueueError, QueueFullError, StorageError, StorageFatalError, UnknownOutcomeError
from jqueue.domain.limits import Limits
from jqueue.domain.models import DEFAULT_CLAIM_TIMEOUT, Job
from jqueue.domain.operations import Dequeue, Operation
from jqueue.ports.log import logger_of
from jqueue.worker import Worker
from jqueue.worker.declaring import declare
from jqueue.worker.queue_health import CallFailures

logger = logger_of("jqueue.spark")

DEADLINE = 60.0
"""Seconds that one call of the queue may take: it carries thousands of jobs."""

LEAST = 0.1
"""Seconds that a call may take even if the claims end sooner."""


def queue_for(url: str, most: int) -> DirectQueue:
    """Return a queue object that takes this many jobs in one call."""
    return connect(url, DirectQueue, limits=Limits(batch_size=max(most, Limits().batch_size)), deadline=DEADLINE)


class BatchClaims:
    """The work of the driver on the queue. All of it runs on one event loop.

    Args:
        queue: takes as many operations in one call as there may be jobs.
        names: the entrypoints whose jobs are claimed.
        most: largest number of jobs.
        claim_timeout: seconds that a claim lasts without a heartbeat; None: as the queue says.
        holder: kept with the jobs while they are claimed.
    """

    def __init__(
        self, queue: DirectQueue, names: Sequence[str], most: int, claim_timeout: float | None, holder: str
    ) -> None:
        self.queue = queue
        self.jobs: list[Job] = []
        self._claim = Dequeue(tuple(names), batch_size=most, claim_timeout=claim_timeout, holder=holder)
        self._names = names
        self._patience = DEFAULT_CLAIM_TIMEOUT.total_seconds() if claim_timeout is None else claim_timeout
        self._beats: HeartbeatManager | None = None
        self._ends = False

    async def begin(self, worker: Worker) -> list[Job]:
        """Set the limits and schedules that the handlers declare, claim jobs, and keep the claims alive from now on."""
        handlers = [worker.handlers[name] for name in self._names]
        crons = [cron for cron in worker.crons if cron.handler.entrypoint in self._names]
        await declare(self.queue, handlers, crons, self.queue.options.entropy)
        [self.jobs] = await self.queue.apply(self._claim)
        if self.jobs:
            # A lost claim does not affect the others. The loss is found when the claim is to be ended.
            self._beats = HeartbeatManager(self.queue, self.jobs, on_lost="event")
            await self._beats.__aenter__()
        return self.jobs

    async def end(self, operations: Sequence[Operation]) -> list[Any]:
        """Do all operations in one commit, each by itself. Return the result or the refusal of each.

        The commit is tried while the claims last.

        Raises:
            StorageError: the queue could not be written.
        """
        self._ends, queue = True, self.queue
        clock, failures = queue.options.clock, CallFailures("sending outcomes of jobs", queue.options.entropy)
        until = clock.monotonic() + self._patience
        unknown: UnknownOutcomeError | None = None
        while True:
            failure: Exception
            deadline = min(DEADLINE, max(LEAST, until - clock.monotonic()))
            try:
                if unknown is None:
                    return await queue.apply_each(*operations, deadline=deadline)
                return list(await unknown.resolve(deadline))
            except UnknownOutcomeError as error:  # sent again, the operations might be done twice
                failure = unknown = error
            except StorageFatalError:
                raise
            except (StorageError, QueueFullError) as error:  # they were certainly not done
                failure, unknown = error, None
            if clock.monotonic() >= until:
                raise failure
            await asyncio.sleep(failures.add(failure))

    async def close(self) -> None:
        """Hand back the jobs if their claims were not ended, and close the queue."""
        if self.jobs and not self._ends:  # the batch was interrupted
            try:
                await self.queue.nack_many(self.jobs, charge=False)
            except JQueueError as error:
                logger.warning("%s could not be handed back: %s", counted(len(self.jobs), "job"), error)
        if self._beats is not None:
            beats, self._beats = self._beats, None
            await beats.__aexit__(None, None, None)
        await self.queue.aclose()
