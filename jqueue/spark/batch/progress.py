"""How far a batch has come, told now and then: jobs whose partitions have staged what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from jqueue.domain.errors import JQueueError
from jqueue.ports.log import logger_of
from jqueue.spark.staging import Staging

logger = logger_of("jqueue.spark")

Progress = Callable[[int, int], object]
"""Called with the number of jobs that are done, and of all jobs."""

LOOK_EVERY = 1.0
"""Seconds between two looks at what is staged."""


async def tell_progress(progress: Progress, staging: Staging, write_id: str, sizes: Sequence[int]) -> None:
    """Tell until cancelled, and whenever there is something new.

    Args:
        progress: who is told. What it raises ends the telling, and nothing else.
        staging: where outcomes are staged.
        write_id: of the batch.
        sizes: how many jobs each partition has.
    """
    total, told = sum(sizes), -1
    while True:
        try:
            async with staging.opened() as objects:
                names = await objects.of_write(write_id) or ()
            done = sum(sizes[number] for number in finished(names, write_id))
        except JQueueError as error:
            logger.info("how far the batch has come cannot be seen: %s", error)
        else:
            if done > told:
                told = done
                if not await told_to(progress, done, total):
                    return
        await asyncio.sleep(LOOK_EVERY)


async def told_to(progress: Progress, done: int, total: int) -> bool:
    """Tell once. Returns whether whoever was told wants to hear more: not if that was an error."""
    try:
        await asyncio.to_thread(progress, done, total)
    except Exception as error:
        logger.warning("progress is not told any more, as it raised %s: %s", type(error).__name__, error)
        return False
    return True


def finished(names: Iterable[str], write_id: str) -> dict[int, list[str]]:
    """The partitions that have staged something, and the names of what each has."""
    found: dict[int, list[str]] = {}
    for name in names:
        number = name.partition(f"{write_id}-")[2].partition("-")[0]
        if number.isdigit():
            found.setdefault(int(number), []).append(name)
    return found
