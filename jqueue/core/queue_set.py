"""`QueueSet`: claims jobs from several queues in turn, and ends each where it came from."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Self, Unpack

from jqueue.core.queue_base import is_same_place
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import InvalidJobError, JQueueError, QueueClosedError
from jqueue.domain.job_options import takes_options
from jqueue.domain.models import Job
from jqueue.domain.operations.dequeue import DequeueOptions
from jqueue.ports.queue import Consumer

CLAIMS_KEPT = 100_000
"""Maximum number of claims whose queues are remembered; the oldest are dropped first."""

FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.01, 1.0, 1.5
"""Seconds between two rounds of a wait for jobs: the first and the longest pause, and the factor between two."""


class QueueSet:
    """Claims jobs from several queues in turn.

        async with QueueSet(connect("queue.json"), connect("vsqs:///var/spool/mail")) as queues:
            [job] = await queues.dequeue(wait=30)
            await queues.ack(job)

    A worker needs none: `worker.run(first, second)`. All other calls are made on the queues themselves. Entering the
    block opens the queues that are not open; leaving it closes the ones that it opened.

    Args:
        queues: any queues, each once.

    Attributes:
        queues: the queues. The first is asked first: it had jobs the longest time ago.

    Raises:
        InvalidJobError: an argument is not an async queue, or two are the same queue.
    """

    def __init__(self, *queues: Consumer) -> None:
        self.queues: list[Consumer] = []
        self._owners: OrderedDict[object, Consumer | None] = OrderedDict()
        self._stack = AsyncExitStack()
        for queue in queues:
            if not hasattr(queue, "dequeue") or getattr(queue, "blocks", False):
                kind = type(queue).__name__
                raise InvalidJobError(f"a set is made of async queues, got {kind}: `connect(url)` makes one")
            if any(is_same_place(queue, other) for other in self.queues):
                raise InvalidJobError("this queue is in the set already")
            self.queues.append(queue)

    @takes_options(DequeueOptions)
    async def dequeue(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        wait: Duration | None = None,
        deadline: Duration | None = None,
        **options: Unpack[DequeueOptions],
    ) -> list[Job]:
        """Claim ready jobs of one queue: of the one with ready jobs that had its turn the longest time ago.

        Args:
            entrypoint: of the jobs; one name, several, or None for all.
            wait: maximum time to wait for the first job if none is ready.
            deadline: maximum time for the call to each queue; by default, that of the queue.

        Returns:
            The claimed jobs; an empty list if none was ready.

        Raises:
            JQueueError: a queue failed, and no other queue had jobs.
        """
        time, pause = asyncio.get_running_loop().time, FIRST_PAUSE
        end = time() + (0.0 if wait is None else to_seconds("wait", wait))
        while True:
            failure: JQueueError | None = None
            for queue in list(self.queues):
                try:
                    jobs = await queue.dequeue(entrypoint, deadline=deadline, **options)
                except (InvalidJobError, QueueClosedError):
                    raise
                except JQueueError as error:
                    failure = failure or error
                    continue
                if jobs:
                    self.queues.sort(key=lambda each: each is queue)
                    return self._handed_out(queue, jobs)
            if (left := end - time()) <= 0:
                if failure is not None:
                    raise failure
                return []
            await asyncio.sleep(min(left, pause))
            pause = min(LONGEST_PAUSE, pause * GROWTH)

    def _handed_out(self, queue: Consumer, jobs: list[Job]) -> list[Job]:
        for job in jobs:
            key = job.claim, job.created_at
            self._owners[key] = queue if self._owners.get(key, queue) is queue else None
        while len(self._owners) > CLAIMS_KEPT:
            self._owners.popitem(last=False)
        return jobs

    def owner(self, job: Job) -> Consumer:
        """Return the queue of a job that this set handed out.

        Raises:
            InvalidJobError: it is no such job, or two queues have a job like it.
        """
        key = (job.claim, job.created_at) if hasattr(job, "claim") else None
        if (queue := self._owners.get(key)) is None:
            why = "two queues have this job" if key in self._owners else "pass a Job that this set handed out"
            raise InvalidJobError(f"{why}: or end it in its own queue")
        return queue

    async def ack(self, job: Job, **options: Any) -> None:
        """End a job that succeeded: see `Consumer.ack`."""
        await self.owner(job).ack(job, **options)

    async def nack(self, job: Job, **options: Any) -> None:
        """Give a job back: see `Consumer.nack`."""
        await self.owner(job).nack(job, **options)

    async def heartbeat(self, job: Job, **options: Any) -> None:
        """Keep the claim on a job alive: see `Consumer.heartbeat`."""
        await self.owner(job).heartbeat(job, **options)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for queue in self.queues:
                opened: Any = queue
                try:
                    await queue.dequeue(batch_size=0)
                except QueueClosedError:
                    await stack.enter_async_context(opened)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
