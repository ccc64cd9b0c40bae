"""One heartbeat for all jobs that a worker holds, including jobs whose outcome is not in the queue yet.

The answer names lost claims and cancelled jobs, and their handlers are stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from jqueue.core.queue_base import options_of
from jqueue.domain.errors import JobCancelledError, JobNotFoundError
from jqueue.domain.job import DEFAULT_CLAIM_TIMEOUT, Claim
from jqueue.domain.printable import counted
from jqueue.ports.clock import Entropy
from jqueue.ports.log import logger_of
from jqueue.ports.queue import Consumer
from jqueue.worker.held_jobs import HeldJob, HeldRange
from jqueue.worker.job_log import about
from jqueue.worker.job_runner import JobRunner
from jqueue.worker.queue_health import RETRIED_ERRORS, CallFailures, QueueHealth
from jqueue.worker.run_state import RunState

logger = logger_of("jqueue.worker")

BEATS_PER_TIMEOUT = 3
LONGEST_INTERVAL = 60.0
SHORTEST_INTERVAL = 0.01


class Heartbeats:
    """Sends the heartbeats of one run.

    Args:
        queue: the queue of the claims.
        state: the state of the run, with the jobs held.
        job_runner: stops handlers.
        entropy: required by `CallFailures`. Heartbeats need no jitter, as each worker begins them at its own time.
        health: is told of failed and answered heartbeats.
        claim_timeout: seconds that the worker asks for with each claim; None for the queue's default.
    """

    def __init__(
        self,
        queue: Consumer,
        state: RunState,
        job_runner: JobRunner,
        entropy: Entropy,
        health: QueueHealth,
        claim_timeout: float | None,
    ) -> None:
        self._queue = queue
        self._state = state
        self._job_runner = job_runner
        self._timeout = claim_timeout
        self._batch_limit = options_of(queue).limits.batch_size
        self._failures = CallFailures("sending heartbeats", entropy, health)

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        loop = asyncio.get_running_loop()
        pause = None
        while True:
            while not self._has_claims:
                self._failures.forget()
                await self._state.claimed.wait()
            await asyncio.sleep(interval_of(self._shortest_timeout()) if pause is None else pause)
            if not self._has_claims:
                continue
            pause = None
            timeout = self._shortest_timeout()
            jobs, ranges = list(self._state.held), list(self._state.ranges)
            claims = [held.claim for held in jobs if held.range is None] + [each.claim.claim for each in ranges]
            try:
                errors = await self._send(claims, timeout)
            except RETRIED_ERRORS as error:
                self._failures.add(error)
                self._lose_old(loop.time(), timeout)
                held = (*self._state.held, *self._state.ranges)
                oldest = min((each.confirmed for each in held), default=loop.time())
                left = oldest + timeout - loop.time()
                pause = max(SHORTEST_INTERVAL, min(interval_of(timeout), left / BEATS_PER_TIMEOUT))
                continue
            self._failures.clear()
            self._handle_ranges(ranges, errors, loop.time())
            self._handle_answer(jobs, errors, loop.time())

    @property
    def _has_claims(self) -> bool:
        return bool(self._state.held or self._state.ranges)

    async def _send(self, claims: list[Claim], timeout: float) -> Sequence[JobNotFoundError]:
        deadline = max(SHORTEST_INTERVAL, timeout / 2)
        batches = [claims[start : start + self._batch_limit] for start in range(0, len(claims), self._batch_limit)]
        errors: list[JobNotFoundError] = []
        for batch in batches:
            errors += await self._queue.heartbeat_many(batch, deadline=deadline)
        return errors

    def _handle_ranges(self, ranges: Iterable[HeldRange], errors: Sequence[JobNotFoundError], now: float) -> None:
        """Stop the handlers of lost ranges, and remember the cancelled jobs of the others."""
        cancelled = {error.job_id for error in errors if isinstance(error, JobCancelledError)}
        lost = {error.job_id for error in errors if not getattr(error, "ended_here", False)} - cancelled
        for each in ranges:
            if each.claim.id not in lost:
                each.confirmed = now
                each.cancelled |= cancelled
            elif each in self._state.ranges:
                self._lose_range(each, "another worker has them, or they were removed")

    def _handle_answer(self, jobs: Iterable[HeldJob], errors: Sequence[JobNotFoundError], now: float) -> None:
        """Stop the handlers of lost claims and of cancelled jobs."""
        refused = {error.job_id: error for error in errors}
        for held in jobs:
            error = refused.get(held.job.id)
            attempt = getattr(error, "attempt", None)
            if error is None or attempt not in (None, held.claim.attempt):
                held.confirmed = now
            elif isinstance(error, JobCancelledError):
                held.confirmed = now
                self._job_runner.stop(held, "cancelled")
            elif not getattr(error, "ended_here", False):
                self._lose(held, "another worker has it, or it was removed")

    def _lose_old(self, now: float, timeout: float) -> None:
        """Give up claims that were not confirmed within the timeout: other workers may have their jobs by now."""
        for held in list(self._state.held):
            if now - held.confirmed >= timeout and held.range is None:
                self._lose(held, f"the store confirmed no heartbeat for {timeout:g} s")
        for each in self._state.ranges:
            if now - each.confirmed >= timeout:
                self._lose_range(each, f"the store confirmed no heartbeat for {timeout:g} s")

    def _lose(self, held: HeldJob, why: str) -> None:
        if held.decided or held.reason == "lost":
            return
        job = held.job
        logger.warning("job %s (%s, attempt %d) is lost: %s", job.id, job.entrypoint, job.tries, why, extra=about(job))
        self._job_runner.lose(held)

    def _lose_range(self, held: HeldRange, why: str) -> None:
        claim = held.claim
        logger.warning("%s of %s claimed together are lost: %s", counted(claim.rows, "job"), claim.entrypoint, why)
        self._job_runner.lose_range(held)

    def _shortest_timeout(self) -> float:
        timeouts = [held.job.claim_timeout for held in self._state.held if held.job.claim_timeout]
        timeouts += [each.claim.held.claim_timeout for each in self._state.ranges]
        usual = DEFAULT_CLAIM_TIMEOUT.total_seconds() if self._timeout is None else self._timeout
        return min(timeouts, default=usual)


def interval_of(timeout: float) -> float:
    """Return the seconds between two heartbeats of claims that last `timeout` seconds without one."""
    return max(SHORTEST_INTERVAL, min(LONGEST_INTERVAL, timeout / BEATS_PER_TIMEOUT))
