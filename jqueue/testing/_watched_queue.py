"""The queue as a worker under test sees it: it records what ran, and moves the clock when no job is ready."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from jqueue.domain.errors import ClaimLostError, JobNotFoundError, JQueueError
from jqueue.domain.job import Claim, JobStatus
from jqueue.domain.models import Job
from jqueue.domain.operations.base import Operation, claim_of
from jqueue.domain.operations.ends import Ack, Nack
from jqueue.domain.rules import key_opens_at, opens_at, time_shown
from jqueue.ports.queue import JobQueue, Wait
from jqueue.testing.fake_clock import FakeClock
from jqueue.testing.work_report import Ran, RecordedError, RunawayError
from jqueue.worker.context import BatchContext, Context
from jqueue.worker.handler_errors import error_in, results_of
from jqueue.worker.retries import CANCELLED, OutcomeKind

MOST_JUMPS = 10_000
"""Number of times in a row that the clock may jump without a job."""

A_TICK = timedelta(microseconds=1)


class WatchedQueue:
    """A wrapper that watches claims and outcomes. All other calls go straight to the queue.

    Args:
        queue: the queue itself.
        clock: clock of the queue.
        names: entrypoints of the worker.
        end: latest time to move the clock to; None for as far as jobs are due.
        most: number of jobs that may be claimed.

    Attributes:
        ran: runs so far.
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

    # Calls from the worker

    async def dequeue(
        self,
        entrypoint: str | Sequence[str] | None = None,
        *,
        batch_size: int = 1,
        wait: Any = None,
        **options: Any,
    ) -> list[Job]:
        """Claim jobs. If none is ready and the worker holds none, move the clock to when one is."""
        if batch_size == 0:
            return await self._queue.dequeue(entrypoint, batch_size=0, **options)
        for _ in range(MOST_JUMPS):
            allowed = min(batch_size, self._most - self._claimed)
            if self._held and wait is not None:
                if allowed <= 0:
                    await _over(wait)  # the worker ends it when a running job has ended
                    return []
                options["wait"] = wait
            if self._held and allowed <= 0:
                return []
            jobs = await self._queue.dequeue(entrypoint, batch_size=max(1, allowed), **options)
            if jobs and allowed <= 0:
                await self._queue.nack_many(jobs, charge=not self._queue.capabilities.uncharged)
                raise self._runaway(f"{self._claimed} jobs ran, and more are ready")
            if jobs or self._held:
                self._claimed += len(jobs)
                self._held.update((job.claim, job) for job in jobs)
                return jobs
            due = await next_due(self._queue, self._names, self._clock.now(), self._end)
            if due is None:
                return []
            self._clock.move_to(due)
        raise self._runaway(f"the clock jumped {MOST_JUMPS} times without a ready job")

    async def apply_each(self, *operations: Operation, **options: Any) -> list[Any]:
        """Pass acks and nacks to the queue, and record what it accepted."""
        results = await self._queue.apply_each(*operations, **options)
        for operation, result in zip(operations, results, strict=True):
            self._note(operation, result)
        return results

    async def apply(self, *operations: Operation, **options: Any) -> list[Any]:
        """Pass an outcome on, with the operations that go with it, and record it."""
        try:
            results = await self._queue.apply(*operations, **options)
        except JQueueError as error:
            for operation in operations:
                self._note(operation, error)
            raise
        for operation in operations:
            self._note(operation, None)
        return results

    async def watch(self, ctx: Context | BatchContext, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Wrap every handler, outside all middleware, and record its return value or exception, for each job."""
        __tracebackhide__ = True
        contexts = [ctx] if isinstance(ctx, Context) else list(ctx)
        for each in (ctx, *contexts):
            each._queue = self._queue  # noqa: SLF001 - handlers use the queue itself
        try:
            value = await call_next()
            results = [value] if ctx is contexts[0] else results_of(value, len(contexts))
        except BaseException as error:
            self._returned.update((each.claim, (None, error)) for each in contexts)
            raise
        for each, result in zip(contexts, results, strict=True):
            failure = None if each is ctx else error_in(result)
            self._returned[each.claim] = (result, None) if failure is None else (None, failure)
        return value

    # Outcomes

    def forget_lost(self) -> bool:
        """Record the jobs that the ended worker still held as lost. Return True if there were any."""
        lost = list(self._held)
        for claim in lost:
            self._ended(claim, "lost", None)
        return bool(lost)

    def _note(self, operation: Operation, refused: object) -> None:
        if not isinstance(operation, Ack | Nack):
            return
        claim = claim_of(operation.job)
        if claim not in self._held:
            return
        if isinstance(refused, ClaimLostError | JobNotFoundError):
            self._ended(claim, "lost", None)
        elif isinstance(refused, JQueueError):
            return  # the worker decides again
        elif isinstance(operation, Ack):
            self._ended(claim, "succeeded", None)
        else:
            self._ended(claim, _kind_of(operation), operation.error)

    def _ended(self, claim: Claim, kind: OutcomeKind, text: BaseException | str | None) -> None:
        job = self._held.pop(claim)
        value, raised = self._returned.pop(claim, (None, None))
        if isinstance(raised, asyncio.CancelledError):
            raised = None  # the worker cancels a handler to stop it
        error = raised if raised is not None or text is None else RecordedError(str(text))
        self.ran.append(Ran(job.entrypoint, job.id, job.attempt, kind, value if kind == "succeeded" else None, error))

    def _runaway(self, what: str) -> RunawayError:
        counts = Counter((ran.entrypoint, ran.outcome) for ran in self.ran)
        most = ", ".join(f"{count} times {name!r} {kind}" for (name, kind), count in counts.most_common(3))
        until = f"the clock shows {self._clock.now().isoformat()}"
        return RunawayError(f"{what}: {most or 'nothing ran'}; {until}. If that is intended, raise max_jobs")


async def _over(wait: Wait) -> None:
    """Wait until a wait has been ended, or its time is over."""
    ended = asyncio.Event()
    wait.on_end(ended.set)
    with suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), wait)


async def next_due(queue: JobQueue, names: frozenset[str], now: datetime, end: datetime | None) -> datetime | None:
    """Return the time at which the next thing is due for a worker; None if nothing is due, or not by `end`.

    Args:
        queue: the queue, in which nothing is ready.
        names: entrypoints of the worker.
        now: time that the clock shows.
        end: the last moment that counts. Without one, schedules do not count, as they never end.
    """
    state = await queue.read_state()
    rules = state.entrypoints
    names = frozenset(name for name in names if name not in rules or not rules[name].paused)
    moments: list[datetime] = []
    held_back: set[str] = set()
    if names and (state.version or state.jobs):  # otherwise there may be no queue yet
        async for job in queue.iterate_jobs(JobStatus.QUEUED, entrypoint=tuple(names)):
            if job.run_at is None or job.run_at <= now:
                held_back.add(job.entrypoint)
            elif not moments or job.run_at < moments[0]:
                moments = [job.run_at]
    for name in held_back & rules.keys():
        keys, rate, per = state.recent_keys, rules[name].rate, rules[name].per
        openings = [key_opens_at(keys, rules, (name, key), now.timestamp()) for key in keys.get(name, ())]
        if rate is not None and per is not None:
            openings.append(opens_at(state.recent.get(name, ()), now.timestamp(), rate, per))
        moments += [max(datetime.fromtimestamp(each, UTC), now) + A_TICK for each in openings if each is not None]
    if end is not None:
        entries = [each for each in state.schedules.values() if each.entrypoint in names and not each.paused]
        moments += [time_shown(entry, now) for entry in entries]
    return min((moment for moment in moments if moment > now and (end is None or moment <= end)), default=None)


def _kind_of(nack: Nack) -> OutcomeKind:
    """Return the outcome that a worker meant by a nack."""
    if nack.dead:
        return "dead"
    if not nack.charge:
        return "handed_back" if nack.delay is None else "snoozed"
    return "cancelled" if nack.error == CANCELLED.error else "failed"
