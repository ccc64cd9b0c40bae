"""One heartbeat for all jobs that a worker holds, including jobs whose outcome is not in the queue yet.

The answer names lost claims and cancelled jobs, and their handlers are stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

from jqueue.domain.durations import BEATS_PER_TIMEOUT, SHORTEST_BEAT, heartbeat_interval
from jqueue.domain.errors import JobCancelledError
from jqueue.runtime.queue_options import options_of
from jqueue.runtime.system import rest
from jqueue.runtime.tasks import all_at_once
from jqueue.worker.executions import HeldJob
from jqueue.worker.queue_health import RETRIED_ERRORS
from jqueue.worker.run_state import RunState

CALLS = "sending heartbeats"


async def send_heartbeats(state: RunState) -> None:
    """Send heartbeats until cancelled."""
    clock, lived, pause = options_of(state.queue).clock, state.presence.lived, 0.0
    while True:
        while not state.held:
            state.health.forget(CALLS)
            await state.claimed.wait()
        await rest(pause or heartbeat_interval(state.shortest_timeout), clock)
        if not state.held:
            continue
        all_held, timeout, pause = list(state.held), state.shortest_timeout, 0.0
        deadline = max(SHORTEST_BEAT, timeout / 2)
        lots = [all_held[start : start + state.call_limit] for start in range(0, len(all_held), state.call_limit)]
        failures = await all_at_once(*(_beat(state, lot, deadline) for lot in lots))
        failure = next(filter(None, failures), None)
        if failure is None:
            state.health.answered(CALLS)
            continue
        state.health.failed(CALLS, failure)
        for held in list(state.held):
            lasts = held.job.claim_timeout or timeout
            if lived() - held.confirmed >= lasts:
                state.lose(held, f"the store confirmed no heartbeat for {lasts:g} s")
        ends = [held.confirmed + (held.job.claim_timeout or timeout) for held in state.held]
        left = min(ends, default=lived() + timeout) - lived()
        pause = max(SHORTEST_BEAT, min(heartbeat_interval(timeout), left / BEATS_PER_TIMEOUT))


async def _beat(state: RunState, several: Sequence[HeldJob], deadline: float) -> Exception | None:
    """Keep the claims of some jobs alive, and stop the work on jobs that are lost or cancelled. Return an error."""
    try:
        errors = await state.queue.heartbeat_many([held.job.claim for held in several], deadline=deadline)
    except RETRIED_ERRORS as error:
        return error
    refused = {error.job_id: error for error in errors}
    for held in several:
        refusal = refused.get(held.job.id)
        if getattr(refusal, "attempt", None) not in (None, held.job.attempt):
            refusal = None  # it is about another claim
        if refusal is None or isinstance(refusal, JobCancelledError):
            held.confirmed = state.presence.lived()
        if isinstance(refusal, JobCancelledError):
            state.stop_job(held, "cancelled")
        elif refusal is not None and not getattr(refusal, "ended_here", False):
            state.lose(held, "another worker has it, or it was removed")
    return None
