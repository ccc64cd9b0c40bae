"""Calls that fail until their deadline, which passes between two attempts: it is certain that nothing was done."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from jqueue.formats.queue import StoreQueue


async def run_until_deadline(queue: StoreQueue, call: Coroutine[Any, Any, Any]) -> Any:
    """Make a call, and let its deadline pass as soon as it is between two attempts. Return or raise its outcome.

    A deadline in seconds may pass in the middle of an attempt, whose outcome is then unknown.
    """
    task, writer = asyncio.create_task(call), queue._writer
    async with asyncio.timeout(30):
        while not task.done():
            for request in (*writer.calls.carried, *writer.calls.waiting):
                if request.last_error is not None and not request.in_flight:
                    request.expire()
                    return await task
            await asyncio.sleep(0.01)
    return await task
