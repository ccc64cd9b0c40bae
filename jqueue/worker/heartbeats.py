"""One heartbeat for all jobs that a worker holds, including jobs whose outcome is not in the queue yet.

The answer names lost claims and cancelled jobs, and their handlers are stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from jqueue.domain.errors import JobCancelledError, JobNotFoundError
from jqueue.ports.clock import Entropy
from jqueue.ports.log import logger_of
from jqueue.worker.claims import BEATS_PER_TIMEOUT, Claims
from jqueue.worker.executions import HeldJob
from jqueue.worker.job_log import about
from jqueue.worker.job_runner import JobRunner
from jqueue.worker.queue_health import RETRIED_ERRORS, CallFailures, QueueHealth
from jqueue.worker.run_state import RunState

logger = logger_of("jqueue.worker")

LONGEST_INTERVAL = 60.0
SHORTEST_INTERVAL = 0.01


class Heartbeats:
    """Sends the heartbeats of one run.

    Args:
        claims: the claims to keep alive.
        state: the state of the run, with the jobs held.
        job_runner: stops handlers.
        entropy: required by `CallFailures`. Heartbeats need no jitter, as each worker begins them at its own time.
        health: is told of failed and answered heartbeats.
    """

    def __init__(
        self, claims: Claims, state: RunState, job_runner: JobRunner, entropy: Entropy, health: QueueHealth
    ) -> None:
        self._claims = claims
        self._state = state
        self._job_runner = job_runner
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
            jobs = list(self._state.held)
            try:
                errors = await self._claims.heartbeat_many(
                    [held.job for held in jobs], max(SHORTEST_INTERVAL, timeout / 2)
                )
            except RETRIED_ERRORS as error:
                self._failures.add(error)
                self._lose_old(loop.time(), timeout)
                oldest = min((held.confirmed for held in self._state.held), default=loop.time())
                left = oldest + timeout - loop.time()
                pause = max(SHORTEST_INTERVAL, min(interval_of(timeout), left / BEATS_PER_TIMEOUT))
                continue
            self._failures.clear()
            self._handle_answer(jobs, errors, loop.time())

    @property
    def _has_claims(self) -> bool:
        return bool(self._state.held or self._state.open_claims)

    def _handle_answer(self, jobs: Iterable[HeldJob], errors: Sequence[JobNotFoundError], now: float) -> None:
        """Stop the handlers of lost claims and of cancelled jobs."""
        refused = {error.job_id: error for error in errors}
        for held in jobs:
            error = refused.get(held.job.id)
            attempt = getattr(error, "attempt", None)
            if error is None or attempt not in (None, held.job.attempt):
                held.confirmed = now
            elif isinstance(error, JobCancelledError):
                held.confirmed = now
                self._job_runner.stop_job(held, "cancelled")
            elif not getattr(error, "ended_here", False):
                self._lose(held, "another worker has it, or it was removed")

    def _lose_old(self, now: float, timeout: float) -> None:
        """Give up claims that were not confirmed within the timeout: other workers may have their jobs by now."""
        for held in list(self._state.held):
            if now - held.confirmed >= timeout:
                self._lose(held, f"the store confirmed no heartbeat for {timeout:g} s")

    def _lose(self, held: HeldJob, why: str) -> None:
        if held.outcome is not None or held.reason == "lost":
            return
        job = held.job
        logger.warning("job %s (%s, attempt %d) is lost: %s", job.id, job.entrypoint, job.tries, why, extra=about(job))
        self._job_runner.lose(held)

    def _shortest_timeout(self) -> float:
        return self._claims.shortest_timeout([held.job for held in self._state.held])


def interval_of(timeout: float) -> float:
    """Return the seconds between two heartbeats of claims that last `timeout` seconds without one."""
    return max(SHORTEST_INTERVAL, min(LONGEST_INTERVAL, timeout / BEATS_PER_TIMEOUT))
