"""The driver's side of the queue in a batch: claim jobs, keep the claims alive, and end them by their outcomes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jqueue.core.direct import DirectQueue
from jqueue.domain.errors import InvalidBlobError, InvalidJobError, JQueueError, ResultWantedError, SegmentDamagedError
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation
from jqueue.domain.operations.leases import EndLease
from jqueue.domain.operations.lookups import PATIENCE, LookAtBacklog, LookAtHeld
from jqueue.domain.printable import counted
from jqueue.domain.segments import FOLDER, Lease
from jqueue.ports.log import Logger, logger_of
from jqueue.runtime.tasks import all_at_once, to_the_end
from jqueue.spark.batch.children import BatchTask
from jqueue.spark.claims import (
    LEAST_ROWS,
    Heartbeats,
    Held,
    Outcome,
    Staged,
    check_queue,
    claiming,
    claims_held_by,
    end_claims,
    end_of_job,
    end_of_lease,
)
from jqueue.spark.staging import PREFIX
from jqueue.worker import Worker
from jqueue.worker.declaring import declare
from jqueue.worker.queue_health import QueueHealth
from jqueue.worker.retries import Decision, error_text

logger: Logger = logger_of("jqueue.spark")

TRIED = 300.0
"""Seconds for which the end of a batch is tried, unless the claims last longer."""

HOLDERS = "run_batch/"
"""Start of the names of the holders of all claims of batches."""

LOOK = 1.0
"""Seconds between two looks for jobs of a batch whose driver may be dead."""

MOST_ROWS = 100_000
"""Largest number of jobs of a lease. They are repeated together if its task fails."""


@dataclass
class BatchClaims:
    """The work of the driver on the queue. All of it runs on one event loop.

    Attributes:
        queue: see `open_queue`.
        worker: has the handlers.
        names: the entrypoints whose jobs are claimed.
        claim_timeout: seconds that a claim lasts without a heartbeat.
        holder: kept with the jobs while they are claimed.
        held: the claims.
        others: number of jobs that others hold, if there is none to claim.
        awaited: ids of jobs that other jobs wait for, whose results they need.
    """

    queue: DirectQueue
    worker: Worker
    names: tuple[str, ...]
    claim_timeout: float
    holder: str
    held: Held = field(default_factory=Held)
    others: int = 0
    awaited: frozenset[str] = frozenset()
    _ends: bool = False

    def __post_init__(self) -> None:
        self._beats = Heartbeats(self.queue)

    async def begin(self, jobs: int, parts: int) -> None:
        """Set the limits and schedules that the handlers declare, claim jobs, and keep the claims alive from now on.

        If no job is ready, but another batch has claims and sends no heartbeat, wait until it does, or its jobs can be
        claimed: its driver may be dead. So it is with any claims that are stale by the clock of the store.

        Args:
            jobs: largest number of jobs.
            parts: least number of leases, if they are large enough.
        """
        queue, names, worker = self.queue, self.names, self.worker
        await check_queue(queue)
        crons = [cron for cron in worker.crons if cron.entrypoint in names]
        handlers = [worker.handlers[name] for name in names]
        await declare(queue, handlers, crons, QueueHealth("the queue", queue.options.entropy))
        [backlog] = await queue.apply(LookAtBacklog(names))
        rows = max(LEAST_ROWS, min(MOST_ROWS, -(-min(jobs, backlog.jobs) // parts)))
        alone = tuple(name for name in names if worker.handlers[name].options.keep_result is not None)
        claim = claiming(names, jobs, self.claim_timeout, self.holder, rows=rows, alone=alone)
        clock = queue.options.clock
        until, before = clock.monotonic() + max(self.claim_timeout + LOOK, PATIENCE), None
        while True:
            claimed, held = await queue.apply(claim, LookAtHeld(names))
            self.held += claimed
            if self.held.number:
                break
            self.others, before = held.jobs, await self._silent_batches(before)
            if not (before or held.silent) or clock.monotonic() > until:
                break
            await asyncio.sleep(LOOK)
        await self._beats.keep([self.held])
        view = await queue.view()
        self.awaited = frozenset(parent for job in view.records.values() for parent in job.waits_for)

    async def _silent_batches(self, before: set[Any] | None) -> set[Any]:
        """Return the claims of batches that have sent no heartbeat since the last look: their drivers may be dead.

        Claims that last longer than those of this batch are left out, as nothing waits for them.

        Args:
            before: the result of the last look; None for the first one.
        """
        claims = set()
        for each in await claims_held_by(self.queue, HOLDERS):
            held = each if isinstance(each, Job) else each.entry
            if held.entrypoint in self.names and (held.claim_timeout or 0.0) <= self.claim_timeout:
                claims.add((each.claim, held.heartbeat_at))
        return claims if before is None else claims & before

    async def finish(self, task: BatchTask, names: Sequence[str] | None) -> tuple[Counter[str], Exception | None]:
        """End the claims, and remove the staged objects. Return the counts, and the error if not all is known.

        Args:
            task: the task of the batch.
            names: of the objects with the outcomes; None if Spark has failed.
        """
        several: list[Staged] = []
        problem: Exception | None = None
        async with task.staging.opened() as objects:
            try:
                if names is None:
                    staged = await objects.names_with(f"{PREFIX}{task.write_id}-")
                    names = [each for each in staged or () if each != task.marker]
                contents = await objects.read(names)
            except JQueueError as error:
                contents, problem = [], error
            for content in contents:
                try:
                    several.append(Staged.decode(content))
                except InvalidBlobError as error:
                    problem = error
            counts, _ = await all_at_once(self._settle(several), objects.clean(task.write_id))
        return counts, problem

    async def _settle(self, several: Iterable[Staged]) -> Counter[str]:
        """End the claims in one commit, by their known outcomes. Jobs without one are handed back unharmed.

        If the queue refuses to enqueue what jobs add (there is no room, a key is taken), a second commit follows. A
        single job has failed then. In a lease, these jobs are handed back: done again by itself, each is refused for
        itself. A lease is handed back as a whole if failures cannot be noted with its jobs.

        Returns:
            The number of jobs of each kind of outcome, and of the kinds `lost` and `killed`.

        Raises:
            StorageError: the queue could not be written.
        """
        several = list(several)
        ranks = {"handed_back": 0, "succeeded": 2}  # the attempt that has done most of its job counts
        attempts = [each for staged in several for each in staged.outcomes]
        outcomes = {each.job_id: each for each in sorted(attempts, key=lambda each: ranks.get(each.kind, 1))}
        leases = {staged.lease_id: staged for staged in sorted(several, key=lambda each: (each.all_done, -each.left))}
        for name, why in {pair for staged in leases.values() for pair in staged.unread.items()}:
            logger.warning("jobs of a batch are handed back: %s", SegmentDamagedError(FOLDER + name, why))
        counts: dict[str, Mapping[str, int]] = {}

        def end_of(each: Job | Lease, refused: JQueueError | None) -> Operation:
            if isinstance(each, Job):
                end, counts[each.id] = self._end_of_job(each, outcomes.get(each.id), refused)
            else:
                end, counts[each.id] = self._end_of_lease(each, leases.get(each.id), refused)
            return end

        self._ends = True
        lost = await end_claims(self.held, end_of, self._commit)
        total = Counter(lost=lost.number)
        for each in lost:
            del counts[each.id]
        for kinds in counts.values():
            total.update(kinds)
        if lost.number:
            ids = [each.id for each in lost]
            shown_ids = ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")
            were = counted(lost.number, "job was", "jobs were")
            logger.warning(
                "%s lost before the batch ended: claimed by another worker, or removed (%s)", were, shown_ids
            )
        return total

    def _end_of_job(
        self, job: Job, report: Outcome | None, refused: JQueueError | None
    ) -> tuple[Operation, Mapping[str, int]]:
        """Return the operation that ends the claim on a job, with what it counts."""
        outcome = Outcome(*job.claim, "handed_back") if report is None or report.claim != job.claim else report
        if isinstance(refused, ResultWantedError):  # done again, its result is kept
            outcome = Outcome(*job.claim, "handed_back")
        elif refused is not None and outcome.kind == "succeeded":
            outcome = self._refused(job, refused)
        return end_of_job(job, outcome), {outcome.kind: 1, "killed": int(outcome.killed)}

    def _end_of_lease(
        self, claim: Lease, staged: Staged | None, refused: JQueueError | None
    ) -> tuple[Operation, Mapping[str, int]]:
        """Return the operation that ends a lease, with what it counts.

        The task may have ended the lease already. Repeating that changes nothing.
        """
        if staged is None or staged.left == claim.rows or isinstance(refused, SegmentDamagedError):
            return EndLease(claim, worked_on=0), {"handed_back": claim.rows}
        counts = Counter(succeeded=staged.done, handed_back=staged.left)
        for each in staged.outcomes:
            counts["handed_back" if each.added and refused is not None else each.kind] += 1
            counts["killed"] += each.killed
        return end_of_lease(claim, staged, refused), counts

    def _refused(self, job: Job, error: JQueueError) -> Outcome:
        """Return the outcome of a job that is done, but the queue has refused to enqueue what it adds."""
        if isinstance(error, InvalidJobError):
            return Outcome.decided(job.claim, Decision("dead", error=error_text(error), dead=True))
        return Outcome.of_error(self.worker, job, error)

    async def _commit(self, operations: Sequence[Operation]) -> list[Any]:
        """Do operations in one commit, each by itself. It is tried for some minutes."""
        health = QueueHealth("the queue", self.queue.options.entropy)
        health.expect_answer()  # logs the silence of a store
        try:
            return await self.queue.apply_each(*operations, deadline=max(TRIED, self.claim_timeout))
        finally:
            health.close()

    async def close(self) -> None:
        """Hand back the jobs if their claims were not ended, and close the queue."""
        if self.held.number and not self._ends:  # the batch was interrupted
            await to_the_end(self._hand_back())
        await self._beats.keep(())
        await self.queue.aclose()

    async def _hand_back(self) -> None:
        try:
            await self.queue.nack_many(self.held.jobs, charge=False)
            await self.queue.apply_each(*(EndLease(each, worked_on=0) for each in self.held.leases))
        except JQueueError as error:
            logger.warning("%s could not be handed back: %s", counted(self.held.number, "job"), error)
