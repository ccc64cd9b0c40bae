"""The claims of a streaming query: found again after a restart, kept alive while its batches run, and acked after.

Each batch of the query is one claim, made under a name of its own. One commit acks the batch that is done and claims
the next. If the driver dies after that commit, before it writes its offset log, the claim is found by its holder's
name. It becomes the next batch of the restarted query.

* A claim is acked only if Spark begins the next batch at its offset: then all of its rows have gone through the query.
* The jobs of a batch never become more. A repeated batch leaves out jobs that were lost meanwhile, and adds no others.
  So a sink that remembers the numbers of its finished batches may skip a repeated batch.
* The heartbeat and the query take turns: while one talks to the store about the claims, the other waits.

It lives on one event loop, and one query calls it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

from jqueue.core.direct import DirectQueue
from jqueue.domain.counting import counted
from jqueue.domain.errors import JobCancelledError, JQueueError
from jqueue.domain.models import Job
from jqueue.domain.operations import Ack, Dequeue, Operation
from jqueue.domain.operations.holders import HeldBy, LastSequence
from jqueue.ports.log import logger_of
from jqueue.spark.stream.offsets import Offset, holder_of, holder_prefix
from jqueue.spark.stream.source_options import SourceOptions

logger = logger_of("jqueue")

BEATS_PER_TIMEOUT = 3
MAX_HEARTBEAT_DEADLINE = 30.0
"""Seconds that a heartbeat may take: meanwhile the query waits."""

ID_LENGTH = 12


def one_line(error: BaseException) -> str:
    """Return the message of an error, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


class ClaimsOfQuery:
    """The claims of one streaming query, as the process that runs its source knows them.

    Args:
        queue: a queue object for this query alone.
        options: of the query.
    """

    def __init__(self, queue: DirectQueue, options: SourceOptions) -> None:
        self._queue = queue
        self._options = options
        self._turn = asyncio.Lock()
        self._source: str | None = None  # the query whose claims are known
        self._held: dict[str, list[Job]] = {}  # by claim, in the order in which they become batches
        self._through: int | None = None  # the sequence number of the last job to take
        self._next_poll = float("-inf")
        self._confirmed = 0.0  # when the claims were last confirmed, on the clock of the event loop
        self._heartbeat_task: asyncio.Task[None] | None = None

    def new_id(self) -> str:
        """Return a fresh id. It is short, since it is kept with every job in progress."""
        return self._queue.options.entropy.new_id().replace("-", "")[:ID_LENGTH]

    @property
    def is_due(self) -> bool:
        """True if it is time to look for jobs. Until then the store is left alone."""
        return self._through is not None or self._queue.options.clock.monotonic() >= self._next_poll

    async def freeze(self) -> None:
        """From now on, take only jobs that are in the queue at this moment."""
        [self._through] = await self._queue.apply(LastSequence())

    def begin(self, source: str) -> None:
        """Take an id that has never been used: nothing is claimed under it."""
        self._source, self._held = source, {}

    async def after(self, start: Offset, most: int) -> Offset:
        """Finish the batch that ends at an offset, and claim the next.

        Args:
            start: the start of the next batch.
            most: largest number of jobs in it.

        Returns:
            The end of the next batch; `start` if there is nothing to do.

        Raises:
            JQueueError: the store failed. The next call finds the claims again.
        """
        async with self._turn:
            try:
                await self._find_claims(start.source)
                end = await self._next(start, most)
            except BaseException:
                self._source = None  # it may have been done: look again
                raise
            self._keep_alive()
            return end

    async def jobs_of(self, end: Offset) -> Sequence[Job]:
        """Return the jobs of the batch that ends at an offset; after a restart, only jobs that are still ours."""
        async with self._turn:
            if end.claim not in self._held:
                await self._find_claims(end.source)
                self._keep_alive()
            return self._held.get(end.claim, ())

    async def stop(self) -> None:
        """Send no more heartbeats. The claims stay: after a restart the query goes on with them."""
        task, self._heartbeat_task = self._heartbeat_task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _next(self, start: Offset, most: int) -> Offset:
        finished = self._held.get(start.claim, [])
        waiting = next((claim for claim in self._held if claim != start.claim), None)
        operations: list[Operation] = [Ack(job) for job in finished]
        claim = self.new_id()
        if waiting is None:
            operations.append(
                Dequeue(
                    self._options.entrypoints,
                    batch_size=most,
                    claim_timeout=self._options.claim_timeout,
                    holder=holder_of(start.source, claim),
                    through=self._through,
                )
            )
        began = asyncio.get_running_loop().time()
        results = await self._queue.apply_each(*operations)
        self._held.pop(start.claim, None)
        self._log_refused(start, results[: len(finished)])
        if waiting is None:
            claimed = results[-1]
            if isinstance(claimed, JQueueError):
                raise claimed
            if claimed:
                waiting, self._held[claim] = claim, claimed
                self._confirmed = began
            pause = 0.0 if len(claimed) >= most else self._options.poll_interval
            self._next_poll = self._queue.options.clock.monotonic() + pause
        return start if waiting is None else start.followed_by(waiting)

    async def _find_claims(self, source: str) -> None:
        """Find the claims of a query and send a heartbeat for them, unless this process knows them already."""
        if self._source == source:
            return
        [jobs] = await self._queue.apply(HeldBy(holder_prefix(source)))
        held: dict[str, list[Job]] = {}
        for job in jobs:
            held.setdefault(job.holder.removeprefix(holder_prefix(source)), []).append(job)
        self._held = held
        await self._send_heartbeat()
        self._source = source
        if held:
            logger.info("the query continues with %s that it had claimed before", counted(len(jobs), "job"))

    # Heartbeats

    def _keep_alive(self) -> None:
        if self._held and self._heartbeat_task is None:
            self._heartbeat_task = asyncio.get_running_loop().create_task(
                self._send_heartbeats(), name="jqueue-stream-heartbeat"
            )

    async def _send_heartbeats(self) -> None:
        """Send heartbeats for all claims again and again, well before they could be stale."""
        loop, interval = asyncio.get_running_loop(), self._options.claim_timeout / BEATS_PER_TIMEOUT
        while True:
            await asyncio.sleep(max(0.0, self._confirmed + interval - loop.time()))
            try:
                async with self._turn:
                    if loop.time() >= self._confirmed + interval:  # no claim was made meanwhile
                        await self._send_heartbeat()
            except Exception as error:
                jobs = sum(len(jobs) for jobs in self._held.values())
                logger.warning("a heartbeat for %s failed: %s", counted(jobs, "job"), one_line(error))
                await asyncio.sleep(interval / BEATS_PER_TIMEOUT)

    async def _send_heartbeat(self) -> None:
        """Send a heartbeat for all claims, and forget the lost ones."""
        jobs = [job for group in self._held.values() for job in group]
        began = asyncio.get_running_loop().time()
        if jobs:
            seconds = min(MAX_HEARTBEAT_DEADLINE, self._options.claim_timeout / BEATS_PER_TIMEOUT)
            errors = await self._queue.heartbeat_many(jobs, deadline=seconds)
            lost = {error.job_id for error in errors if not isinstance(error, JobCancelledError)}
            if lost:
                self._forget(lost)
                logger.warning(
                    "%d of %s that this query had claimed went to other workers after too long without a heartbeat: "
                    "they may be done twice",
                    len(lost),
                    counted(len(jobs), "job"),
                )
        self._confirmed = began

    def _forget(self, lost: set[str]) -> None:
        kept = {claim: [job for job in jobs if job.id not in lost] for claim, jobs in self._held.items()}
        self._held = {claim: jobs for claim, jobs in kept.items() if jobs}

    @staticmethod
    def _log_refused(start: Offset, results: Iterable[object]) -> None:
        outcomes = list(results)
        refused = [outcome for outcome in outcomes if isinstance(outcome, JQueueError)]
        if refused:
            logger.warning(
                "%d of %s of batch %d went to other workers before the batch was finished: they may be done twice",
                len(refused),
                counted(len(outcomes), "job"),
                start.batch,
            )
