"""Waits for tasks of the event loop that leave none behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Answer = TypeVar("Answer")


async def all_at_once(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """Make several calls at once, and return their answers. The first error ends the others, and is raised then."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def to_the_end(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Wait for work, and return its result. A cancellation of the caller is raised once the work has ended."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
