"""How fast to go: backoff after failures, and the room that a busy writer leaves to the others."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping

from jqueue.domain.backoff import exponential_bound
from jqueue.domain.models import CommitRecord
from jqueue.ports.clock import Entropy

FAILURE_BASE, FAILURE_CAP = 0.05, 5.0
THROTTLED_BASE, THROTTLED_CAP = 0.5, 10.0
CONFLICT_CAP = 2.0
LEAST_CYCLE = 0.001
ACTIVE_SECONDS = 30.0
"""A writer that committed within so many seconds is active."""

SHARE_KNOWN, SHARE_UNKNOWN = 0.2, 0.05
"""The share of its time that a continuous writer pauses: for each that contends, and for those not in the table yet."""

CONTENDING_VERSIONS = 64
"""A writer whose last commit is among so many is contending."""

CYCLES_LEFT = 2.0
"""A pause lasts so many cycles of the slowest: a whole one fits in, wherever in its own it is."""

WIDTHS = (1, 2, 4, 8, 16, 32, 64)
"""Pauses for writers that are not in the table are so many times as long, in turn: nobody knows how slow they are."""

LONGEST_PAUSE = 2.0


class Backoff:
    """The waits between the tries of one commit: full jitter, growing."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy
        self._failures = 0
        self._conflicts = 0

    async def failure(self, *, throttled: bool) -> None:
        """Wait after a failure of the store; longer if it asked for fewer requests."""
        self._failures += 1
        base, cap = (THROTTLED_BASE, THROTTLED_CAP) if throttled else (FAILURE_BASE, FAILURE_CAP)
        await asyncio.sleep(self._entropy.jitter(exponential_bound(self._failures, base, cap)))

    async def conflict(self, cycle: float, writers: int) -> None:
        """Wait after losing a race: not at all the first time, then for some cycles.

        A race is lost to somebody who has won it, so the store is well; who waits longer than it takes all the others
        to have their turn only loses more of them.

        Args:
            cycle: seconds that this writer takes to read and write the blob once.
            writers: how many writers are active.
        """
        self._conflicts += 1
        if self._conflicts > 1:
            cap = min(CONFLICT_CAP, max(cycle, LEAST_CYCLE) * max(1, writers - 1))
            bound = exponential_bound(self._conflicts - 1, max(cycle, LEAST_CYCLE), cap)
            await asyncio.sleep(self._entropy.jitter(bound))


class CycleTime:
    """How long this writer takes to read and write the blob once, in seconds: moving averages."""

    WEIGHT = 0.2

    def __init__(self) -> None:
        self._read = 0.0
        self._write = 0.0

    @property
    def seconds(self) -> float:
        """One read and one write."""
        return (self._read or self._write) + (self._write or self._read)

    def read(self, seconds: float) -> None:
        """A read took so long."""
        self._read += (seconds - self._read) * (self.WEIGHT if self._read else 1.0)

    def write(self, seconds: float) -> None:
        """A write took so long."""
        self._write += (seconds - self._write) * (self.WEIGHT if self._write else 1.0)


def active(commits: Mapping[str, CommitRecord], own: str, now: float) -> list[CommitRecord]:
    """The records of the other writers that committed lately.

    Args:
        commits: the commit table.
        own: this writer's id.
        now: the time, in seconds since 1970.
    """
    return [record for writer, record in commits.items() if writer != own and abs(now - record.at) <= ACTIVE_SECONDS]


class Courtesy:
    """The room that a continuous writer leaves.

    A writer that lost a race needs a read and a write where the holder of the cache needs one write: without pauses,
    the fast starve the slow.
    """

    def __init__(self) -> None:
        self._owed_known = self._owed_unknown = 0.0
        self._widths = itertools.cycle(WIDTHS)
        self._width = next(self._widths)

    def earn(self, busy: float, own: str, commits: Mapping[str, CommitRecord], now: float, cycle: float) -> float:
        """Count time spent writing; return the pause that is due, in seconds, or 0.

        Args:
            busy: seconds spent on the last commit.
            own: this writer's id.
            commits: the commit table.
            now: the time, in seconds since 1970.
            cycle: this writer's own cycle, in seconds.
        """
        records = active(commits, own, now)
        others = [record.cycle for record in records]
        newest = max((record.version for record in commits.values()), default=0)
        contending = sum(record.version > newest - CONTENDING_VERSIONS for record in records)
        known = min(LONGEST_PAUSE, CYCLES_LEFT * max([*others, cycle]))
        unknown = min(LONGEST_PAUSE, CYCLES_LEFT * cycle * self._width)
        self._owed_known += busy * min(1.0, SHARE_KNOWN * max(1, contending)) if others else 0.0
        self._owed_unknown += busy * SHARE_UNKNOWN
        if self._owed_unknown >= unknown:
            self._owed_unknown, self._width = 0.0, next(self._widths)
            return unknown
        if others and self._owed_known >= known:
            self._owed_known = 0.0
            return known
        return 0.0
