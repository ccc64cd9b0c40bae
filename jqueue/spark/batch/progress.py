"""The progress of a batch, reported now and then: the number of jobs whose partitions have staged their outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from jqueue.domain.errors import JQueueError
from jqueue.ports.log import logger_of
from jqueue.spark.staging import Staging

logger = logger_of("jqueue.spark")

Progress = Callable[[int, int], object]
"""Called with the number of jobs that are done, and the number of all jobs."""

REPORT_INTERVAL = 1.0
"""Seconds between two looks at the staged objects."""


async def report_progress(progress: Progress, staging: Staging, write_id: str, sizes: Sequence[int]) -> None:
    """Report the progress whenever it has changed, until cancelled.

    Args:
        progress: is called with it. An error that it raises ends the reports, and nothing else.
        staging: where outcomes are staged.
        write_id: of the batch.
        sizes: number of jobs in each partition.
    """
    total, reported = sum(sizes), -1
    while True:
        try:
            async with staging.opened() as objects:
                names = await objects.of_write(write_id) or ()
            ended = {partition_of(name, write_id) for name in names}
            done = sum(size for number, size in enumerate(sizes) if number in ended)
        except JQueueError as error:
            logger.info("the progress of the batch cannot be read: %s", error)
        else:
            if done > reported:
                reported = done
                if not await call_progress(progress, done, total):
                    return
        await asyncio.sleep(REPORT_INTERVAL)


async def call_progress(progress: Progress, done: int, total: int) -> bool:
    """Report the progress once. Return False if that raised an error, so that there are no more reports."""
    try:
        await asyncio.to_thread(progress, done, total)
    except Exception as error:
        logger.warning("progress is no longer reported, as the function raised %s: %s", type(error).__name__, error)
        return False
    return True


def partition_of(name: str, write_id: str) -> int | None:
    """Return the partition that has staged an object; None if it is no object with outcomes."""
    number = name.partition(f"{write_id}-")[2].partition("-")[0]
    return int(number) if number.isdigit() else None
