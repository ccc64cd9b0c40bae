"""The jobs of one partition as a queue, for the worker in the process of the handlers.

It hands out jobs that the driver has claimed, and passes on what becomes of them; the driver tells the queue. The
driver also keeps the claims alive, and sets limits and schedules before it claims. A heartbeat of the worker is a look
at the queue, which tells of lost claims and cancelled jobs. Everything else that a handler may
ask of `ctx.queue` goes to the queue itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Any

from msgspec.structs import replace

from jqueue.core.claims import ClaimRegistry
from jqueue.core.view import QueueView
from jqueue.core.workers import Describe
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import ClaimLostError, InvalidJobError, JobCancelledError, JobNotFoundError, JQueueError
from jqueue.domain.job import Claim, JobStatus
from jqueue.domain.models import Job
from jqueue.domain.operations.base import JobReference, Operation, Preparation
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.ports.queue import Capabilities, JobQueue
from jqueue.runtime.queue_options import QueueOptions
from jqueue.spark.batch.outcomes import NOT_KEPT, Outcome, outcome_of
from jqueue.spark.batch.partition_rows import BEGUN, DONE, TOLD, PartitionRows


class PartitionQueue:
    """A queue of jobs that are claimed already. One run of a worker uses it, on one event loop.

    Args:
        rows: the jobs, in the order in which they are handed out.
        ended: called with the outcomes of jobs, but for those of jobs that are simply done or handed back: marks tell
            of them.
        make_queue: makes a queue object for calls that only the queue itself can answer.
        options: settings, as of a queue.
        told_only: entrypoints whose results are passed on, and not kept by the queue unless their jobs say so.

    Attributes:
        rows, options: as given.
        store, storage: None, so that a worker that looks at them does not open the queue in each task.
    """

    store = None
    storage = None

    def __init__(
        self,
        rows: PartitionRows,
        ended: Callable[[Sequence[Outcome]], None],
        *,
        make_queue: Callable[[], JobQueue],
        options: QueueOptions | None = None,
        told_only: Collection[str] = (),
    ) -> None:
        self.rows = rows
        self._told_only = told_only
        self.options = QueueOptions() if options is None else options
        self._passed: list[int] = []
        self._ours: dict[Claim, int] = {}
        self._ended = ended
        self._make_queue = make_queue
        self._real_queue: JobQueue | None = None
        self._declaring = True
        self._preparation = Preparation(
            limits=self.options.limits,
            claim_timeout=to_seconds("stale_timeout", self.options.stale_timeout),
            new_id=self.options.entropy.new_id,
            find_claim=ClaimRegistry(self.options.clock).find,
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._real_queue is None:
            self._real_queue = self._make_queue()
        return getattr(self._real_queue, name)

    def attend(self, run: str, describe: Describe, stop: Callable[[], object]) -> None:
        """Do nothing: the driver, not the partition, commits."""

    def leave(self, run: str) -> None:
        """Do nothing."""

    async def remove_left(self, deadline: Duration) -> None:
        """Do nothing."""

    @property
    def capabilities(self) -> Capabilities:
        """Everything but ranges: their jobs are handed out one by one."""
        return Capabilities(ranges=False)

    async def dequeue(
        self, entrypoint: Any = None, *, batch_size: int = 1, wait: Any = None, **options: Any
    ) -> list[Job]:
        """Hand out jobs of these entrypoints. Once all are handed out, no others will come."""
        self._declaring = False
        taken = self._take({entrypoint} if isinstance(entrypoint, str) else set(entrypoint or ()), batch_size)
        if not taken and wait is not None and batch_size:
            await asyncio.sleep(to_seconds("wait", wait))
        return taken

    async def heartbeat_many(
        self, jobs: Iterable[JobReference], *, deadline: Duration | None = None
    ) -> list[JobNotFoundError]:
        """Return the errors of lost claims and cancelled jobs, by a look at the queue. The driver keeps them."""
        lost, cancelled = found_in(await self.__getattr__("view")(deadline=deadline), self.rows)
        self.rows.cancelled |= {place for place, job_id in enumerate(self.rows.ids) if job_id in cancelled}
        errors: list[JobNotFoundError] = []
        for job in jobs:
            claim = job.claim if isinstance(job, Job) else job
            if not isinstance(claim, Claim):
                raise InvalidJobError("a heartbeat in a batch on Spark takes jobs or claims")
            if lost(claim):
                errors.append(ClaimLostError(*claim))
            elif claim.job_id in cancelled:
                errors.append(JobCancelledError(*claim))
        return errors

    def _take(self, entrypoints: set[str], count: int) -> list[Job]:
        """Take the first jobs of these entrypoints, or of any, out of those that are left."""
        taken: list[Job] = []
        passed: list[int] = []
        before = iter(self._passed)
        left = chain(before, self.rows.places)
        while len(taken) < count and (place := next(left, None)) is not None:
            if entrypoints and self.rows.names[place] not in entrypoints:
                passed.append(place)
                continue
            job = self.rows.job(place)
            if place in self.rows.cancelled:
                job = job.evolve(cancel_requested=True)
            self._ours[job.claim] = place
            self.rows.marks[place] = BEGUN
            taken.append(job)
        self._passed = [*passed, *before]
        return taken

    async def apply_each(self, *operations: Operation, **options: Any) -> list[Any]:
        """Note what became of jobs, each by itself. Any other call goes to the queue itself."""
        places = [self._place_of(operation) for operation in operations]
        marks, told, results = self.rows.marks, list[Outcome](), list[JQueueError | None]()
        if None in places:
            return list(await self.__getattr__("apply_each")(*operations, **options))
        for place, operation in zip(places, operations, strict=True):
            assert place is not None
            refusal = None
            if isinstance(operation, Ack) and operation.result is None and operation.keep_result is None:
                marks[place] = DONE
            elif _hands_back(operation):
                marks[place] = TOLD
            else:
                try:
                    told.append(self._told(outcome_of([operation.prepared(self._preparation)])))
                    marks[place] = TOLD
                except JQueueError as error:
                    refusal = error
            results.append(refusal)
        if told:
            self._ended(told)
        return results

    async def apply(self, *operations: Operation, **options: Any) -> list[Any]:
        """Pass on what became of a job, with the jobs to enqueue. Any other call goes to the queue itself.

        Raises:
            InvalidJobError: an operation beside the ack does not enqueue a job, or the ack is not the last.
        """
        if all(self._place_of(operation) is None for operation in operations):
            return list(await self.__getattr__("apply")(*operations, **options))
        for operation in operations:
            operation.prepared(self._preparation)
        last = operations[-1]
        if (place := self._place_of(last)) is None:
            raise InvalidJobError("the ack of a job must be the last operation")
        outcome = self._told(outcome_of([*operations[:-1], last.prepared(self._preparation)]))
        self.rows.marks[place] = TOLD
        self._ended([outcome])
        return [None] * len(operations)

    async def limit(self, entrypoint: str, **options: Any) -> None:
        """Ignore limits that the worker declares at its start: the driver has set them. Later calls go to the queue."""
        if not self._declaring:
            await self.__getattr__("limit")(entrypoint, **options)

    async def schedule(self, *args: Any, **options: Any) -> Any:
        """As `limit`."""
        return None if self._declaring else await self.__getattr__("schedule")(*args, **options)

    async def schedules(self, **options: Any) -> Any:
        """As `limit`."""
        return [] if self._declaring else await self.__getattr__("schedules")(**options)

    async def aclose(self) -> None:
        """Close the queue object behind this one, if it was made."""
        close = getattr(self._real_queue, "aclose", None)
        if close is not None:
            await close()

    def _told(self, outcome: Outcome) -> Outcome:
        """Return an outcome with a note if its result is not to be kept by the queue."""
        if not self._told_only or outcome.kind != "done":
            return outcome
        job = self.rows.job(self.rows.place_of(outcome.job_id))
        if job.keep_result is not None or job.entrypoint not in self._told_only:
            return outcome
        return replace(outcome, keep_result=NOT_KEPT)

    def _place_of(self, operation: Operation) -> int | None:
        """Return the place of the job whose claim an operation ends; None if it ends none of these."""
        job = operation.job if isinstance(operation, Ack | Nack) else None
        claim = job.claim if isinstance(job, Job) else job
        return self._ours.get(claim) if isinstance(claim, Claim) else None


def _hands_back(operation: Operation) -> bool:
    """Return True if an operation hands a job back unharmed. It needs no message: see `partition_rows.TOLD`."""
    return (
        isinstance(operation, Nack)
        and not operation.charge
        and not operation.dead
        and operation.delay is None
        and operation.error is None
    )


def found_in(view: QueueView, rows: PartitionRows) -> tuple[Callable[[Claim], bool], Collection[str]]:
    """Return what a version of the queue says of a partition: a test for lost claims, and the cancelled jobs."""
    if rows.claim is None:
        jobs = {job.id: job for job in view.records.values() if job.status is JobStatus.IN_PROGRESS}
        cancelled = {job.id for job in jobs.values() if job.cancel_requested}
        return lambda claim: claim.job_id not in jobs or jobs[claim.job_id].claim != claim, cancelled
    held = view.header.ranges.get(rows.claim.id)
    if held is None or held.claims != rows.claim.attempt:
        return lambda claim: True, ()
    return lambda claim: False, set(held.cancelled)
