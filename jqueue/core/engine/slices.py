"""Work that takes long, cut into slices: a generator that yields between them and returns the result.

Whoever has an event loop to share gives it a turn at each yield; whoever has not carries it through at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeAlias, TypeVar

Result = TypeVar("Result")
Slices: TypeAlias = Generator[None, None, Result]

LINES_PER_SLICE = 256
"""After so many lines read or written there is a turn for others: some milliseconds."""

JOBS_PER_SLICE = 1024
"""After so many jobs looked at there is a turn for others."""


def exhaust(slices: Slices[Result]) -> Result:
    """Carry it through at once."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: Result = end.value
            return result


async def in_turns(slices: Slices[Result]) -> Result:
    """Carry it through, giving the event loop a turn between the slices."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: Result = end.value
            return result
        await asyncio.sleep(0)
