"""The turns of writers that contend for one object, so that none starves. No safety rule depends on them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Self

from jqueue.domain.models import CommitRecord
from jqueue.ports.clock import Clock

PATIENCE = 1.5
"""Cycles to wait for an absent writer before its turn is skipped: one failed write, one read, one write. Without
patience, four writers on a store 30 ms away send 1.3 failed writes for each that lands, not 0.05."""

RESTED = 2.0
"""Cycles without a read or write after which a writer counts as idle. If no writer did, eight writers of single
commits would make 6 commits a second, not 11."""

ALONE_STEP, KNOWN_STEP = 128, 64
"""Versions between two gaps for newcomers: with one writer, and with several. Without gaps, a newcomer of 150 ms
beside writers of 30 ms gets in after 33 s, not after 6 to 11 s."""

FIRST_GAP, FIRST_GAP_CYCLES, FIRST_GAP_SECONDS = 2, 4.0, 0.15
"""Commits after which a writer leaves its first gap, and the length of that gap: the cycles of the slowest known
writer, up to the seconds, but at least one cycle. If many writers begin at once, the others have lost one race by
then, and may be slower than the known ones. Without the gap, four writers on a store 150 ms away lose twice as many
races. With a gap of one cycle, two writers of 100 ms beside two of 20 ms wait up to 3.8 s for a commit, not 2.2 s."""

ALONE_GAP = 1.75
"""Factor that lengthens the gap of a lone writer, as no round is added to it: time for one failed write, one read
and one write. Without it, a newcomer of 150 ms beside one writer of 30 ms gets in after 20 s, not after 11 s."""

RECENT = 1024
"""Number of versions for which the gaps of a lone writer last as long as the slowest writer needs that committed in
them. Without it, in 3 of 100 runs of two minutes a writer five times slower than the other makes 2 commits or fewer.
A writer whose only try landed does not count: it lost no race, and most such processes have ended."""

LONGEST_PAUSE = 2.0
"""Maximum seconds that a writer leaves to others, whatever the commit table says. It is only a bound, not tuned."""


@dataclass(frozen=True, slots=True)
class Contenders:
    """The contending writers, as one of them knows them at its commit.

    Attributes:
        own: id of the writer that knows them.
        others: id and cycle of each other writer; the one with the oldest commit comes first. A cycle is the time in
            seconds to read and write the blob once.
        cycle: cycle of the writer that knows them.
    """

    own: str = ""
    others: tuple[tuple[str, float], ...] = ()
    cycle: float = 0.0

    @classmethod
    def since(cls, version: int, own: str, commits: Mapping[str, CommitRecord], cycle: float) -> Self:
        """Return the writers that committed after `version`.

        Args:
            version: commits of others up to this version are ignored.
            own: this writer's id; it made the last commit.
            commits: the commit table.
            cycle: seconds that this writer takes to read and write the blob once.
        """
        if commits[own].version <= version + 1:
            return cls(own, cycle=cycle)
        records = {writer: record for writer, record in commits.items() if writer != own and record.version > version}
        others = sorted(records, key=lambda writer: records[writer].version)
        return cls(own, tuple((writer, records[writer].cycle) for writer in others), cycle)

    @property
    def slowest(self) -> float:
        """Seconds of the longest cycle."""
        return max([self.cycle, *(cycle for _, cycle in self.others)])

    @property
    def round(self) -> float:
        """Seconds in which each writer commits once; 0 for a lone writer.

        While one writer writes, the next one reads. So a turn takes half a cycle, and a round at least a whole one.
        """
        if not self.others:
            return 0.0
        turns = (self.cycle + sum(cycle for _, cycle in self.others)) / 2
        return max(turns, self.slowest)

    def gap(self, versions: Iterable[int]) -> float:
        """Return the seconds without writes after some of these versions, so that newcomers get in."""
        step = KNOWN_STEP if self.others else ALONE_STEP
        counts = [version // step for version in versions if version % step == 0]
        if not counts:
            return 0.0
        return self.slowest * max(
            16 if count % 32 == 0 else 4 if count % 4 == 2 or (self.others and count % 2) else 1 for count in counts
        )


class Turns:
    """The turns of the writers that contend for one object: the writer that committed longest ago is next.

    The writer of the last version needs one write for the next version. All others need a failed write, a read and a
    write. So a writer that has committed lets each writer that committed since its own previous commit go first. It
    waits for about as long as they take, and reads before it writes. A writer whose turn is over tries again at once.
    All writers see the same commit table, so they agree on the order. This is a courtesy: no rule of the protocol
    depends on it, and no clocks are compared.

    Newcomers are not in the table. For them, the writers in the table pause for a while after certain versions. A
    writer that sees a newcomer waits a little, as there may be more.

    A writer that rested is in no turn. If the object had changed when it last went on after a rest, it reads first.

    Args:
        clock: measures times.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._contenders = Contenders()
        self._due = self._last_access = self._last_arrival = self._wait_end = -math.inf
        self._since_version: int | None = None
        self._own_version = self._gaps_through = self._arrived = self._landings = 0
        self._known_writers: set[str] = set()
        self._waits = self._rested = self._reads_first = False

    def pause(self) -> float:
        """Return the seconds until it is time to begin; 0 or less if it is time."""
        return self._due - self._clock.monotonic() if self._waits else 0.0

    def begin(self) -> bool:
        """Note that a commit begins. Return True if it should begin with a read."""
        now = self._clock.monotonic()
        self._rested = now > max(self._last_access, self._due) + RESTED * self._contenders.cycle
        if self._rested:
            self._since_version, self._waits = None, False
            return self._reads_first
        self._last_arrival, self._wait_end = now, now + LONGEST_PAUSE
        return self._waits and bool(self._contenders.others)

    def read(self, version: int, *, moved: bool) -> None:
        """Note that the object was read: its version, and whether it had changed."""
        if self._rested and self._last_access > -math.inf:
            self._reads_first = moved
        self._rested = False
        self._last_access = self._clock.monotonic()
        if self._since_version is None:
            self._since_version = version

    def wait_after_read(self, version: int, commits: Mapping[str, CommitRecord]) -> float | None:
        """Return the seconds to wait after a read before the next one; None if it is our turn to write.

        Args:
            version: of the object.
            commits: the commit table.
        """
        now = self._clock.monotonic()
        if not (self._waits and self._contenders.others) or now >= self._wait_end:
            return None
        if version > self._gaps_through:
            self._gaps_through = version
            if gap := self._contenders.gap([version]):
                return min(gap, self._wait_end - now)
        if newcomers := commits.keys() - self._known_writers:
            self._known_writers |= newcomers
            return min(max(commits[writer].cycle for writer in newcomers), self._wait_end - now)
        others = self._contenders.others
        for place, (writer, _) in enumerate(others[self._arrived :], self._arrived + 1):
            if writer in commits and commits[writer].version > self._own_version:
                self._arrived, self._last_arrival = place, now  # it has waited for the writers before it already
        missing = [cycle for _, cycle in others[self._arrived :]]
        if not missing or now - self._last_arrival >= PATIENCE * max(missing):
            return None
        pause = sum(missing[1:]) / 2 + max(0.0, missing[0] / 4 - self._contenders.cycle / 2)
        return min(pause, max(0.0, self._wait_end - now))

    def landed(self, own: str, commits: Mapping[str, CommitRecord], cycle: float) -> None:
        """Note that the last write has landed.

        Args:
            own: this writer's id.
            commits: the commit table that it wrote.
            cycle: seconds that this writer takes to read and write the blob once.
        """
        version = commits[own].version
        self._landings += 1
        contenders = Contenders.since(
            version - 1 if self._since_version is None else self._since_version, own, commits, cycle
        )
        alone = not contenders.others
        gap = contenders.gap(range(version, version + len(contenders.others) + 1))
        if self._landings == FIRST_GAP:
            gap = max(gap, contenders.slowest, min(FIRST_GAP_CYCLES * contenders.slowest, FIRST_GAP_SECONDS))
        if alone and gap:
            recent = (
                record.cycle for record in commits.values() if record.version > version - RECENT and record.sequence > 1
            )
            gap = ALONE_GAP * max([gap, *recent])
        window = min(LONGEST_PAUSE, contenders.round + gap)
        self._last_access = self._clock.monotonic()
        self._due = self._last_access + window - (cycle / 2 if alone else cycle)
        self._contenders, self._waits, self._rested = contenders, window > 0.0, False
        self._own_version = self._since_version = version
        self._gaps_through, self._arrived, self._known_writers = version + len(contenders.others), 0, set(commits)


IN_LINE = 32
"""Commits without a sign of another writer after which a writer no longer waits in line."""

TURN = 0.05
"""Seconds in which a writer makes further commits in one turn, while calls wait. It reads only before the first."""

AFTER_TURN = 0.002
"""Seconds that a writer leaves to the others after its turn: longer than they take to look whether it has ended."""

LONGEST_WAIT = 1.0
"""Seconds after which a writer goes on without a turn, if its store does not answer."""

Begin = Callable[[], AbstractAsyncContextManager[None]]


class Line:
    """The line of the writers of one file. Each waits for its turn before it reads, so that few writes are refused.

    A writer that sees no other one neither waits nor reads.

    Args:
        clock: measures times.
        begin: begins a turn; None if there is no line.
    """

    def __init__(self, clock: Clock, begin: Begin | None) -> None:
        self._clock = clock
        self._begin = begin
        self._turn: AsyncExitStack | None = None
        self._left = 0  # commits until this writer counts as the only one
        self._due = self._ends = -math.inf
        self._has_read = False

    async def join(self) -> None:
        """Wait for a turn if there are other writers, and it has not begun."""
        if self._begin is not None and self._left and self._turn is None:
            async with AsyncExitStack() as turn:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LONGEST_WAIT):
                        await turn.enter_async_context(self._begin())
                self._turn, self._ends = turn.pop_all(), self._clock.monotonic() + TURN

    async def leave(self, *, over: bool = True) -> None:
        """End the turn.

        Args:
            over: False to end it only if its time has passed.
        """
        turn = self._turn
        if turn is not None and (over or self._clock.monotonic() >= self._ends):
            self._turn, self._due = None, self._clock.monotonic() + AFTER_TURN
            await turn.aclose()

    def lost(self) -> None:
        """Note that another writer was quicker."""
        self._left = IN_LINE

    def pause(self) -> float:
        """Return the seconds that are left to the other writers; 0 or less if there are none."""
        return self._due - self._clock.monotonic() if self._left and self._turn is None else 0.0

    def begin(self) -> bool:
        """Return True if a commit should begin with a read."""
        return self._left > 0 and self._turn is None

    def read(self, version: int, *, moved: bool) -> None:
        """Note that the object was read, and whether another writer had changed it."""
        if moved and self._has_read:
            self._left = IN_LINE
        self._has_read = True

    def wait_after_read(self, version: int, commits: Mapping[str, CommitRecord]) -> float | None:
        """Return None: whoever has the turn may write."""
        return None

    def landed(self, own: str, commits: Mapping[str, CommitRecord], cycle: float) -> None:
        """Note that a write of this writer has landed."""
        self._left = max(0, self._left - 1)
