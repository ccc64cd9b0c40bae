"""Long work in slices on an event loop, which gets a turn between them."""

from __future__ import annotations

import asyncio

from jqueue.domain.slices import Result, Slices


async def in_turns(slices: Slices[Result]) -> Result:
    """Run the slices, with a turn of the event loop between them, and return the result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: Result = end.value
            return result
        await asyncio.sleep(0)
