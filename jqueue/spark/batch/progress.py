"""The progress of a batch, told now and then: the number of jobs whose partitions have staged their outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from jqueue.domain.errors import JQueueError
from jqueue.ports.log import logger_of
from jqueue.spark.staging import Staging

logger = logger_of("jqueue.spark")

Progress = Callable[[int, int], object]
"""Called with the number of jobs that are done, and the number of all jobs."""

REPORT_INTERVAL = 1.0
"""Seconds between two looks at the staged objects."""


async def report_progress(progress: Progress, staging: Staging, write_id: str, sizes: Sequence[int]) -> None:
    """Tell the progress whenever it has changed, until cancelled.

    Args:
        progress: is called with it. An error that it raises ends the telling, and nothing else.
        staging: where outcomes are staged.
        write_id: of the batch.
        sizes: number of jobs in each partition.
    """
    total, reported = sum(sizes), -1
    while True:
        try:
            async with staging.opened() as objects:
                names = await objects.of_write(write_id) or ()
            done = sum(sizes[number] for number in finished(names, write_id))
        except JQueueError as error:
            logger.info("the progress of the batch cannot be read: %s", error)
        else:
            if done > reported:
                reported = done
                if not await call_progress(progress, done, total):
                    return
        await asyncio.sleep(REPORT_INTERVAL)


async def call_progress(progress: Progress, done: int, total: int) -> bool:
    """Tell the progress once. Return False if that raised an error, so that no more is told."""
    try:
        await asyncio.to_thread(progress, done, total)
    except Exception as error:
        logger.warning("progress is no longer reported, as the function raised %s: %s", type(error).__name__, error)
        return False
    return True


def finished(names: Iterable[str], write_id: str) -> dict[int, list[str]]:
    """Return the partitions that have staged something, with the names of the objects of each."""
    found: dict[int, list[str]] = {}
    for name in names:
        number = name.partition(f"{write_id}-")[2].partition("-")[0]
        if number.isdigit():
            found.setdefault(int(number), []).append(name)
    return found
