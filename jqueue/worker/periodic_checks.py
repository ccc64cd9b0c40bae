"""The regular check of a worker: it warns of jobs that wait without a handler."""

from __future__ import annotations

import asyncio

from jqueue.domain.errors import JQueueError
from jqueue.domain.operations.lookups import CountQueued
from jqueue.ports.log import Logger, logger_of
from jqueue.worker.run_state import RunState

logger: Logger = logger_of("jqueue.worker")

CHECK_EVERY, LONGEST_PAUSE = 60.0, 1200.0
"""Seconds between two looks for jobs without a handler. Each asks the store. They double while there are none: an idle
worker would ask for little else."""

MAX_NAMED = 10
"""Largest number of entrypoints that one warning names."""


async def check_regularly(state: RunState) -> None:
    """Look for jobs without a handler, until cancelled. A warning names entrypoints that waited at two looks, once."""
    pause = CHECK_EVERY
    waiting: dict[str, int] = {}  # at the last look: entrypoints without a handler here, and their number of jobs
    warned: set[str] = set()  # the entrypoints that were named
    while True:
        await asyncio.sleep(pause)
        try:
            [counts] = await state.queue.apply_each(CountQueued())
        except JQueueError:  # the claimer logs such failures
            continue
        if not isinstance(counts, dict):
            continue
        before, waiting = waiting, {name: count for name, count in counts.items() if name not in state.handlers}
        pause = CHECK_EVERY if waiting else min(LONGEST_PAUSE, 2 * pause)
        if due := [name for name in sorted(waiting) if name in before and name not in warned]:
            warned.update(due)
            logger.warning(
                "this worker has no handler for waiting jobs of %s%s. Start a worker that has one, or they wait"
                " forever. A handler that was renamed takes them with aliases=[...]",
                ", ".join(f"{name} ({waiting[name]})" for name in due[:MAX_NAMED]),
                f" and {len(due) - MAX_NAMED} more" if len(due) > MAX_NAMED else "",
            )
