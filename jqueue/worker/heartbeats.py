"""One heartbeat for all jobs that a worker holds, including jobs whose outcome is not in the queue yet.

The answer names lost claims and cancelled jobs, and their handlers are stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from jqueue.domain.errors import JobCancelledError, JobNotFoundError
from jqueue.domain.job import Claim
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import rest
from jqueue.worker.queue_health import RETRIED_ERRORS
from jqueue.worker.run_state import RunState

LONGEST_INTERVAL = 60.0
BEATS_PER_TIMEOUT = 3
SHORTEST_INTERVAL = 0.01

CALLS = "sending heartbeats"


async def send_heartbeats(state: RunState) -> None:
    """Send heartbeats until cancelled."""
    loop, clock, pause = state.loop, options_of(state.queue).clock, 0.0
    while True:
        while not state.held:
            state.health.forget(CALLS)
            await state.claimed.wait()
        await rest(pause or _interval_of(state.shortest_timeout), clock)
        if not state.held:
            continue
        all_held, timeout, pause = list(state.held), state.shortest_timeout, 0.0
        deadline = max(SHORTEST_INTERVAL, timeout / 2)
        refused, failed = await _heartbeat_many(state, [held.job.claim for held in all_held], deadline)
        for held in all_held:
            if held.job.id in failed:
                continue
            refusal = refused.get(held.job.id)
            is_of_this_claim = getattr(refusal, "attempt", None) in (None, held.job.attempt)
            if refusal is None or isinstance(refusal, JobCancelledError) or not is_of_this_claim:
                held.confirmed = loop.time()
            if refusal is None or not is_of_this_claim:
                continue
            if isinstance(refusal, JobCancelledError):
                state.stop_job(held, "cancelled")
            elif not getattr(refusal, "ended_here", False):
                state.lose(held, "another worker has it, or it was removed")
        if not failed:
            state.health.answered(CALLS)
            continue
        state.health.failed(CALLS, next(iter(failed.values())))
        for held in list(state.held):
            lasts = held.job.claim_timeout or timeout
            if loop.time() - held.confirmed >= lasts:
                state.lose(held, f"the store confirmed no heartbeat for {lasts:g} s")
        ends = [held.confirmed + (held.job.claim_timeout or timeout) for held in state.held]
        left = min(ends, default=loop.time() + timeout) - loop.time()
        pause = max(SHORTEST_INTERVAL, min(_interval_of(timeout), left / BEATS_PER_TIMEOUT))


async def _heartbeat_many(
    state: RunState, claims: Sequence[Claim], deadline: float
) -> tuple[dict[str, JobNotFoundError], dict[str, Exception]]:
    """Keep some claims alive, by calls of which each may fail alone.

    Returns:
        The problem of each job that has one, by its id; and the ids of jobs whose heartbeat failed, with the errors.
    """
    lots = [claims[start : start + state.call_limit] for start in range(0, len(claims), state.call_limit)]
    calls = [state.queue.heartbeat_many(lot, deadline=deadline) for lot in lots]
    refused: dict[str, JobNotFoundError] = {}
    failed: dict[str, Exception] = {}
    for lot, answer in zip(lots, await asyncio.gather(*calls, return_exceptions=True), strict=True):
        if isinstance(answer, RETRIED_ERRORS):
            failed.update((claim.job_id, answer) for claim in lot)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            refused.update((error.job_id, error) for error in answer)
    return refused, failed


def _interval_of(timeout: float) -> float:
    """Return the seconds between two heartbeats of claims that last `timeout` seconds without one."""
    return max(SHORTEST_INTERVAL, min(LONGEST_INTERVAL, timeout / BEATS_PER_TIMEOUT))
