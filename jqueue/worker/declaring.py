"""Limits and cron entries that the handlers of a worker declare, and jobs and cron entries for which it has no handler.

The worker sets the former on the queue when it starts, and warns of the latter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from typing import Any

from jqueue.domain.errors import JQueueError
from jqueue.domain.operations.lookups import CountQueued
from jqueue.domain.operations.rules import SetLimits, SetSchedule
from jqueue.domain.rules import is_overridden
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.queue import JobQueue, Operator
from jqueue.runtime.tasks import all_at_once
from jqueue.worker.handlers import Handler
from jqueue.worker.queue_health import RETRIED_ERRORS, QueueHealth, raise_if_final

logger: Logger = logger_of("jqueue.worker")

CALLS = "setting limits and schedules"

CHECK_EVERY, LONGEST_PAUSE = 60.0, 1200.0
"""Seconds between two looks for jobs without a handler. Each asks the store. They double while there are none: an idle
worker would ask for little else."""

MAX_NAMED = 10
"""Largest number of entrypoints or cron entries that one warning names."""


async def declare(
    queue: Operator,
    handlers: Iterable[Handler[..., Any]],
    crons: Iterable[SetSchedule],
    health: QueueHealth,
) -> None:
    """Set all limits and schedules concurrently, and repeat each call until it succeeds. Equal values change nothing.

    What an operator has set stays. A line in the log names each such value that differs.

    Raises:
        InvalidJobError: the queue does not support limits or schedules, or a value is invalid.
        StorageFatalError: the queue cannot be used.
    """
    operations: list[SetLimits | SetSchedule] = []
    for handler in handlers:
        options = handler.options
        limits: dict[str, Any] = {} if options.max_running is None else {"running": options.max_running}
        for prefix, rate in (("", options.rate), ("key_", options.rate_per_key)):
            if rate is not None:
                limits |= {f"{prefix}rate": rate.count, f"{prefix}per": rate.per}
        if limits:
            queue.capabilities.require("limits")
            operations.append(SetLimits(handler.entrypoint, **limits, by="program"))
    for cron in crons:
        queue.capabilities.require("schedules")
        operations.append(cron)
    await all_at_once(*(_until_done(queue, each, health) for each in operations))


async def _until_done(queue: Operator, operation: SetLimits | SetSchedule, health: QueueHealth) -> None:
    while True:
        try:
            [rule] = await queue.apply(operation)
        except RETRIED_ERRORS as error:
            raise_if_final(error)
            await asyncio.sleep(health.failed(CALLS, error))
        else:
            health.answered(CALLS)
            if rule is not None and is_overridden(rule):
                what, noun, name = "limits of", "limit", operation.entrypoint
                if isinstance(operation, SetSchedule):
                    what, noun, name = "cron entry", "schedule", operation.name
                logger.warning(
                    "the %s %s: an operator's value holds, not this program's. `jqueue %s URL %s --reset` ends that",
                    *(what, name, noun, name),
                )
            return


async def warn_of_unhandled_crons(queue: Operator, names: Container[str]) -> None:
    """Warn about cron entries whose jobs have no handler here.

    A cron entry that was removed from the code stays in the queue and enqueues jobs for ever.
    """
    if not queue.capabilities.schedules:
        return
    try:
        entries = await queue.schedules()
    except RETRIED_ERRORS:
        return
    unhandled = [entry.name for entry in entries if entry.entrypoint not in names]
    if unhandled:
        logger.warning(
            "this worker has no handler for the jobs of these cron entries: %s. If no other worker has one, the jobs"
            " pile up: remove each entry with `await queue.unschedule(name)`",
            _several(unhandled),
        )


async def warn_of_unhandled_jobs(queue: JobQueue, names: Container[str]) -> None:
    """Look for jobs that have no handler here, until cancelled. Warn once of an entrypoint that waits at two looks."""
    pause = CHECK_EVERY
    waiting: dict[str, int] = {}  # at the last look: entrypoints without a handler here, and their number of jobs
    warned: set[str] = set()  # the entrypoints that were named
    while True:
        await asyncio.sleep(pause)
        try:
            [counts] = await queue.apply_each(CountQueued())
        except JQueueError:  # the claimer logs such failures
            continue
        if not isinstance(counts, dict):
            continue
        before, waiting = waiting, {name: count for name, count in counts.items() if name not in names}
        pause = CHECK_EVERY if waiting else min(LONGEST_PAUSE, 2 * pause)
        if due := [name for name in sorted(waiting) if name in before and name not in warned]:
            warned.update(due)
            logger.warning(
                "this worker has no handler for waiting jobs of %s. Start a worker that has one, or they wait"
                " forever. A handler that was renamed takes them with aliases=[...]",
                _several([f"{name} ({waiting[name]})" for name in due]),
            )


def _several(names: Sequence[str]) -> str:
    """Return names as a text, up to a number of them."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
