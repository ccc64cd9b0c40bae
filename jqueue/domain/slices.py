"""Long work cut into slices: a generator that yields between them and returns the result.

`exhaust` runs all slices at once. On an event loop, `jqueue.core.tasks` gives the loop a turn at each yield.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

Result = TypeVar("Result")
Slices: TypeAlias = Generator[None, None, Result]

LINES_PER_SLICE = 256
"""Number of lines to read or write in one slice, which takes some milliseconds."""

JOBS_PER_SLICE = 1024
"""Number of jobs to look at in one slice."""


def exhaust(slices: Slices[Result]) -> Result:
    """Run all slices at once, and return the result."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            result: Result = end.value
            return result
