"""The queue as a worker under test sees it: the queue of the test, watched, whose clock jumps when nothing is ready."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from jqueue.domain.errors import ClaimLostError, JobNotFoundError, JQueueError
from jqueue.domain.models import Claim, Job, JobStatus, QueueState
from jqueue.domain.occurrences import time_shown
from jqueue.domain.operations import Ack, JobReference, Nack, Operation
from jqueue.domain.rates import opens_at
from jqueue.ports.queue import JobQueue
from jqueue.testing.fake_clock import FakeClock
from jqueue.testing.work_report import Ran, RecordedError, RunawayError
from jqueue.worker.context import Context
from jqueue.worker.retries import CANCELLED, Kind

MOST_JUMPS = 10_000
"""So many times in a row the clock may jump without a job."""

A_TICK = timedelta(microseconds=1)


class WatchedQueue:
    """Everything but claims and outcomes goes straight to the queue.

    Args:
        queue: the queue itself.
        clock: its clock.
        names: the entrypoints of the worker.
        end: the clock is not moved beyond; None: it goes wherever jobs are due.
        most: so many jobs may be claimed.

    Attributes:
        ran: what ran so far.
    """

    def __init__(
        self, queue: JobQueue, clock: FakeClock, *, names: Sequence[str], end: datetime | None, most: int
    ) -> None:
        self.ran: list[Ran] = []
        self._queue = queue
        self._clock = clock
        self._names = frozenset(names)
        self._end = end
        self._most = most
        self._claimed = 0
        self._held: dict[Claim, Job] = {}
        self._returned: dict[Claim, tuple[Any, BaseException | None]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    # What the worker calls

    async def dequeue(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        batch_size: int = 1,
        wait: Any = None,
        **options: Any,
    ) -> list[Job]:
        """Claim jobs. If there are none, and the worker holds none, move the clock to when there are."""
        if batch_size == 0:
            return await self._queue.dequeue(entrypoint, batch_size=0, **options)
        for _ in range(MOST_JUMPS):
            allowed = min(batch_size, self._most - self._claimed)
            if self._held and wait is not None:
                if allowed <= 0:
                    await asyncio.sleep(wait)  # until what runs has ended, which ends this call
                    return []
                options["wait"] = wait
            if self._held and allowed <= 0:
                return []
            jobs = await self._queue.dequeue(entrypoint, batch_size=max(1, allowed), **options)
            if jobs and allowed <= 0:
                await self._queue.nack_many(jobs, charge=not self._queue.capabilities.uncharged)
                raise self._runaway(f"{self._claimed} jobs ran, and there is more to do")
            if jobs or self._held:
                self._claimed += len(jobs)
                self._held.update((job.claim, job) for job in jobs)
                return jobs
            due = next_due(await self._queue.read_state(), self._names, self._clock.now(), self._end)
            if due is None:
                return []
            self._clock.move_to(due)
        raise self._runaway(f"the clock jumped {MOST_JUMPS} times, and no job came")

    async def apply_each(self, *operations: Operation, **options: Any) -> list[Any]:
        """Pass outcomes on, and note those that the queue took."""
        results = await self._queue.apply_each(*operations, **options)
        for operation, result in zip(operations, results, strict=True):
            self._note(operation, result)
        return results

    async def apply(self, *operations: Operation, **options: Any) -> list[Any]:
        """Pass an outcome on with all that goes with it, and note it."""
        try:
            results = await self._queue.apply(*operations, **options)
        except JQueueError as error:
            for operation in operations:
                self._note(operation, error)
            raise
        for operation in operations:
            self._note(operation, None)
        return results

    async def watch(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Stand around every handler, outside of all middleware, and note what it returns or raises."""
        __tracebackhide__ = True
        ctx._queue = self._queue  # handlers use the queue itself
        try:
            value = await call_next()
        except BaseException as error:
            self._returned[ctx.claim] = None, error
            raise
        self._returned[ctx.claim] = value, None
        return value

    # What became of it

    def forget_lost(self) -> bool:
        """The worker has ended: note the jobs that it lost. Returns whether there were any."""
        lost = list(self._held)
        for claim in lost:
            self._ended(claim, "lost", None)
        return bool(lost)

    def _note(self, operation: Operation, refused: object) -> None:
        if not isinstance(operation, Ack | Nack):
            return
        claim = _claim_of(operation.job)
        if claim not in self._held:
            return
        if isinstance(refused, ClaimLostError | JobNotFoundError):
            self._ended(claim, "lost", None)
        elif isinstance(refused, JQueueError):
            return  # the worker decides anew
        elif isinstance(operation, Ack):
            self._ended(claim, "succeeded", None)
        else:
            self._ended(claim, _kind_of(operation), operation.error)

    def _ended(self, claim: Claim, kind: Kind, text: BaseException | str | None) -> None:
        job = self._held.pop(claim)
        value, raised = self._returned.pop(claim, (None, None))
        if isinstance(raised, asyncio.CancelledError):
            raised = None  # the worker's own means of stopping it
        error = raised if raised is not None or text is None else RecordedError(str(text))
        self.ran.append(Ran(job.entrypoint, job.id, job.attempt, kind, value if kind == "succeeded" else None, error))

    def _runaway(self, what: str) -> RunawayError:
        counts = Counter((ran.entrypoint, ran.outcome) for ran in self.ran)
        most = ", ".join(f"{count} times {name!r} {kind}" for (name, kind), count in counts.most_common(3))
        until = f"the clock shows {self._clock.now().isoformat()}"
        return RunawayError(f"{what}: {most or 'nothing ran'}; {until}. If that is meant, give a larger max_jobs")


def next_due(state: QueueState, names: frozenset[str], now: datetime, end: datetime | None) -> datetime | None:
    """When something is due next for a worker; None if nothing is, or not by then.

    Args:
        state: the queue, in which nothing is ready.
        names: the entrypoints of the worker.
        now: what the clock shows.
        end: the last moment that counts. Without one, schedules count only on the way to a job.
    """
    rules = state.entrypoints
    names = frozenset(name for name in names if name not in rules or not rules[name].paused)
    queued = [job for job in state.jobs if job.status is JobStatus.QUEUED and job.entrypoint in names]
    moments = [job.run_at for job in queued if job.run_at is not None and job.run_at > now]
    for name in {job.entrypoint for job in queued if job.run_at is None or job.run_at <= now} & rules.keys():
        rate, per = rules[name].rate, rules[name].per
        if rate is not None and per is not None:
            opening = opens_at(state.recent.get(name, ()), now.timestamp(), rate, per)
            if opening is not None:
                moments.append(max(datetime.fromtimestamp(opening, UTC), now) + A_TICK)
    if moments or end is not None:
        entries = [entry for entry in state.schedules.values() if entry.entrypoint in names]
        moments += [time_shown(entry, now) for entry in entries]
    return min((moment for moment in moments if moment > now and (end is None or moment <= end)), default=None)


def _claim_of(job: JobReference) -> Claim:
    if isinstance(job, Job):
        return job.claim
    return job if isinstance(job, Claim) else Claim(job, 0)


def _kind_of(nack: Nack) -> Kind:
    """What a worker meant by giving a job back."""
    if nack.dead:
        return "dead"
    if not nack.charge:
        return "handed_back" if nack.delay is None else "snoozed"
    return "cancelled" if nack.error == CANCELLED.error else "failed"
