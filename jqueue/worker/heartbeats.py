"""One heartbeat for all jobs that a worker holds, including jobs whose outcome is not in the queue yet.

The answer names lost claims and cancelled jobs, and their handlers are stopped.
"""

from __future__ import annotations

from jqueue.domain.errors import JobCancelledError
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import rest
from jqueue.worker.run_state import RunState

LONGEST_INTERVAL = 60.0
BEATS_PER_TIMEOUT = 3
SHORTEST_INTERVAL = 0.01

CALLS = "sending heartbeats"


async def send_heartbeats(state: RunState) -> None:
    """Send heartbeats until cancelled."""
    claims, loop, clock, pause = state.claims, state.loop, options_of(state.queue).clock, 0.0
    while True:
        while not state.held:
            state.health.forget(CALLS)
            await state.claimed.wait()
        await rest(pause or _interval_of(claims.shortest_timeout(state.jobs)), clock)
        if not state.held:
            continue
        all_held, timeout, pause = list(state.held), claims.shortest_timeout(state.jobs), 0.0
        deadline = max(SHORTEST_INTERVAL, timeout / 2)
        errors, failed = await claims.heartbeat_many(state.jobs, deadline)
        refused = {error.job_id: error for error in errors}
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
            lasts = held.claim_timeout or timeout
            if loop.time() - held.confirmed >= lasts:
                state.lose(held, f"the store confirmed no heartbeat for {lasts:g} s")
        ends = [held.confirmed + (held.claim_timeout or timeout) for held in state.held]
        left = min(ends, default=loop.time() + timeout) - loop.time()
        pause = max(SHORTEST_INTERVAL, min(_interval_of(timeout), left / BEATS_PER_TIMEOUT))


def _interval_of(timeout: float) -> float:
    """Return the seconds between two heartbeats of claims that last `timeout` seconds without one."""
    return max(SHORTEST_INTERVAL, min(LONGEST_INTERVAL, timeout / BEATS_PER_TIMEOUT))
