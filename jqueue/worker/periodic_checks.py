"""Regular checks of a worker: they warn of handlers that do not stop, and of jobs that wait without a handler."""

from __future__ import annotations

import asyncio

from jqueue.domain.errors import JQueueError
from jqueue.domain.operations.lookups import CountQueued
from jqueue.ports.log import Logger, logger_of
from jqueue.worker.run_state import RunState

logger: Logger = logger_of("jqueue.worker")

CHECK_EVERY = 60.0
"""Seconds between two checks."""

MOST_SKIPPED = 20
"""Largest number of checks until the next look for jobs without a handler. Each look asks the store. It doubles while
there are none: an idle worker would ask for little else."""

MAX_NAMED = 10
"""Largest number of handlers or entrypoints that one check names."""


async def check_regularly(state: RunState) -> None:
    """Check each minute for handlers and jobs to warn about, until cancelled. A drain ignores jobs of others."""
    checks, next_look, skipped = 0, 0, 1
    waiting: dict[str, int] = {}  # at the last look: entrypoints without a handler here, and their number of jobs
    warned: set[str] = set()  # the entrypoints that were named
    while True:
        await asyncio.sleep(CHECK_EVERY)
        checks += 1
        _warn_of_stuck(state)
        if state.drain or checks < next_look or (counts := await _count_queued(state)) is None:
            continue
        before, waiting = waiting, {name: count for name, count in counts.items() if name not in state.handlers}
        skipped = 1 if waiting else min(MOST_SKIPPED, 2 * skipped)
        next_look = checks + skipped
        if due := [name for name in sorted(waiting) if name in before and name not in warned]:
            warned.update(due)
            logger.warning(
                "this worker has no handler for waiting jobs of %s%s. Start a worker that has one, or they wait"
                " forever. A handler that was renamed takes them with aliases=[...]",
                ", ".join(f"{name} ({waiting[name]})" for name in due[:MAX_NAMED]),
                f" and {len(due) - MAX_NAMED} more" if len(due) > MAX_NAMED else "",
            )


async def _count_queued(state: RunState) -> dict[str, int] | None:
    """Return the number of waiting jobs by entrypoint; None if the queue cannot tell."""
    try:
        [counts] = await state.queue.apply_each(CountQueued())
    except JQueueError:  # the claimer logs such failures
        return None
    return counts if isinstance(counts, dict) else None


def _warn_of_stuck(state: RunState) -> None:
    """Log the handlers that were told to stop and go on, the oldest first."""
    for execution, since in list(state.stuck.items())[:MAX_NAMED]:
        execution.warn(
            ": its handler still runs, %.0f s after it should have stopped; such handlers take %d of %d slots",
            state.loop.time() - since,
            state.slots.stuck,
            state.concurrency,
        )
