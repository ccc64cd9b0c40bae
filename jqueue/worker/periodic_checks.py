"""Regular checks of a worker: they warn of handlers that do not stop, and of jobs that wait without a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Container

from jqueue.domain.errors import JQueueError
from jqueue.domain.operations.lookups import CountQueued
from jqueue.ports.log import logger_of
from jqueue.ports.queue import SupportsApply
from jqueue.worker.queue_health import QueueHealth, all_slots_stuck
from jqueue.worker.run_state import RunState

logger = logger_of("jqueue.worker")

CHECK_EVERY = 60.0
"""Seconds between two checks."""

MOST_SKIPPED = 20
"""Largest number of checks until the next look for jobs without a handler. Each look asks the store. It doubles while
there are none: an idle worker would ask for little else."""

WARN_AGAIN_AFTER = 60
"""Number of checks after which an entrypoint without a handler is named again."""

MAX_NAMED = 10
"""Largest number of handlers or entrypoints that one check names."""


class PeriodicChecks:
    """Checks each minute for handlers and jobs to warn about.

    Args:
        queue: the queue to check.
        state: the state of the run.
        health: is told when all slots are taken by handlers that do not stop.
        handled: the entrypoints that have handlers here; None to skip the check for jobs without a handler.
    """

    def __init__(
        self, queue: SupportsApply, state: RunState, health: QueueHealth, handled: Container[str] | None
    ) -> None:
        self._queue = queue
        self._state = state
        self._health = health
        self._handled = handled
        self._waiting_before: set[str] = set()
        self._warned: dict[str, int] = {}
        self._checks = self._next_look = 0
        self._skipped = 1
        state.stuck_changed = self._note_stuck

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(CHECK_EVERY)
            self._checks += 1
            self._warn_of_stuck()
            if self._handled is not None and self._checks >= self._next_look:
                await self._warn_of_unhandled(self._handled)

    def _note_stuck(self) -> None:
        if len(self._state.stuck) >= self._state.concurrency:
            self._health.block("slots", all_slots_stuck(self._state.concurrency))
        else:
            self._health.unblock("slots")

    def _warn_of_stuck(self) -> None:
        """Log the handlers that were told to stop and go on, the oldest first."""
        state, now = self._state, asyncio.get_running_loop().time()
        for work, since in list(state.stuck.items())[:MAX_NAMED]:
            logger.warning(
                "%s: its handler still runs, %.0f s after it should have stopped; such handlers take %d of %d slots",
                work.name,
                now - since,
                len(state.stuck),
                state.concurrency,
                extra=work.about,
            )

    async def _warn_of_unhandled(self, handled: Container[str]) -> None:
        """Log, now and then, the entrypoints without a handler here that had waiting jobs at the last check too."""
        try:
            [found] = await self._queue.apply_each(CountQueued())
        except JQueueError:  # the claimer logs such failures
            return
        if not isinstance(found, dict):  # the queue cannot count its jobs
            return
        others = {name: count for name, count in found.items() if name not in handled}
        self._skipped = 1 if others else min(MOST_SKIPPED, 2 * self._skipped)
        self._next_look = self._checks + self._skipped
        due = [name for name in sorted(others) if name in self._waiting_before and self._is_due(name)]
        self._waiting_before = set(others)
        self._warned = {name: check for name, check in self._warned.items() if name in others}
        if not due:
            return
        self._warned.update(dict.fromkeys(due, self._checks))
        more = f" and {len(due) - MAX_NAMED} more" if len(due) > MAX_NAMED else ""
        logger.warning(
            "this worker has no handler for waiting jobs of %s%s. Start a worker that has one, or they wait forever",
            ", ".join(f"{name} ({others[name]})" for name in due[:MAX_NAMED]),
            more,
        )

    def _is_due(self, name: str) -> bool:
        check = self._warned.get(name)
        return check is None or self._checks - check >= WARN_AGAIN_AFTER
