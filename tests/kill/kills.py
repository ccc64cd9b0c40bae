"""Kills of one piece of work, at one system call after the other, each time from the same beginning."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from jqueue import JQueueError
from tests.kill.children import at_most
from tests.kill.tracing import START, Point, Trace, ViolationError, trace_call

SECONDS = 60.0
TRIES = 5

ON_FILES = frozenset({"openat", "flock", "write", "fsync", "pwrite64", "rename", "link", "unlink", "mkdir"})
"""System calls that every run makes alike. Others occur by chance, as threads wait, start or are reused. So does the
`close` of a replaced file, which its thread makes before the answer at times, and after it at others."""

_LIKE = {"renameat": "rename", "renameat2": "rename", "linkat": "link", "unlinkat": "unlink", "mkdirat": "mkdir"}

Opened = AbstractAsyncContextManager[Callable[[], Awaitable[Any]]]


class Kills:
    """The kills of one piece of work. A subclass does the work, and checks what it promises.

    Args:
        name: name of the work.
        folder: an empty folder.

    Attributes:
        calls_made: system calls that must be seen, or the wrong process was watched.
        counts: number of kills, and of what they met.
        points: the points of the last run that nobody killed.
    """

    calls_made: frozenset[str] = frozenset()

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.counts: Counter[str] = Counter()
        self.points: list[Point] = []

    def begin(self) -> None:
        """Make the place of the work as it is before."""
        raise NotImplementedError

    def opened(self) -> Opened:
        """Open the place in the child, and return the calls that are killed."""
        raise NotImplementedError

    def look(self) -> None:
        """Look at the place after a run that nobody killed."""

    def check(self, answered: bool) -> None:
        """Check the place after a kill, and go on as the next process. True is for work that had its answer."""
        raise NotImplementedError

    def run(self, both: bool, every: int) -> None:
        """Kill at points, the last one first, as kills after the answer tell most.

        Args:
            both: True to kill at the entry and the exit of each system call; otherwise at each entry.
            every: 1 to kill at each of these points, 2 at every second one, and so on; chance decides which is first.

        Raises:
            ViolationError: a promise was not kept.
        """
        for _ in range(2):  # the second run and all later ones find everything imported
            self.begin()
            trace, answered = self.trace(None)
            if trace.code != 0 or not answered:
                raise ViolationError(f"{self.name} ended with {trace.code}, though nobody killed it")
            self.look()
        self.points = trace.points
        if unseen := self.calls_made - {_name_of(point) for point in trace.points}:
            raise ViolationError(f"{self.name} was watched, and made no call of {', '.join(sorted(unseen))}")
        *before, last = [point for point in trace.points if both or not point.at_exit or point is trace.points[-1]]
        for point in reversed([*before[random.randrange(every) :: every], last]):
            self._kill_at(point)

    def trace(self, point: Point | None) -> tuple[Trace, bool]:
        """Do the work in a child, and kill it at a point. Return the trace, and True if the work had its answer."""

        async def work(descriptor: int) -> None:
            async with self.opened() as calls:
                signal.raise_signal(START)
                await calls()
                os.write(descriptor, b"!")

        return trace_call(lambda descriptor: asyncio.run(work(descriptor)), point, SECONDS, self.name)

    def _kill_at(self, point: Point) -> None:
        for _ in range(TRIES if _name_of(point) in ON_FILES else 1):
            self.begin()
            trace, answered = self.trace(point)
            if trace.killed:
                self.counts["kills"] += 1
                try:
                    with at_most(SECONDS, "the next process"):
                        self.check(answered)
                except (AssertionError, TimeoutError, JQueueError) as error:
                    raise ViolationError(f"{self.name}, killed at {point}: {error}") from error
                return
        self.counts["missed"] += 1


def _name_of(point: Point) -> str:
    """Return the name of a system call, one for all variants of it."""
    return _LIKE.get(point.name, point.name)
