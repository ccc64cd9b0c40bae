"""The turns of writers that contend for one object, so that nobody starves: courtesy, which no safety rule needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from jqueue.domain.models import CommitRecord
from jqueue.ports.clock import Clock

PATIENCE = 1.5
"""Number of its cycles for which a turn is left to a writer that does not come: a write in vain, a read and a write.
Without patience, four writers on a store 30 ms away send 1.3 writes in vain for each that lands, and not 0.05."""

RESTED = 2.0
"""Number of cycles after which a writer that did not touch the store counts as idle. If none did, eight writers of
single commits would make 6 a second, and not 11."""

ALONE_STEP, KNOWN_STEP = 128, 64
"""After each version that is a multiple of it there is a gap for newcomers, beside one writer and beside several.
Without them, a newcomer of 150 ms beside writers of 30 ms gets in after 33 s, and not after 6 to 11 s."""

FIRST_GAP, FIRST_GAP_CYCLES, FIRST_GAP_SECONDS = 2, 4.0, 0.15
"""A writer leaves its first gap after that many commits: if many begin at once, the others have lost one race by then.
The gap is one cycle of the slowest writer, or as many as these, up to these seconds, for others that are slower yet.
Without it, four writers on a store 150 ms away lose twice as many races; if it is one cycle, two writers of 100 ms
beside two of 20 ms wait up to 3.8 s for a commit, and not 2.2 s."""

ALONE_GAP = 1.75
"""The gap of a writer that is alone is longer by this factor, as no round is added to it: time for a write in vain, a
read and a write. Without it, a newcomer of 150 ms beside one writer of 30 ms gets in after 20 s, and not after 11 s."""

LONGEST_PAUSE = 2.0
"""Most seconds that a writer leaves to others, whatever the commit table says: a bound, which nothing is tuned to."""


@dataclass(frozen=True, slots=True)
class Group:
    """The writers that contend, as one of them knows them when it commits.

    Attributes:
        own: the id of the writer that knows them.
        others: the ids of the others, and how long each takes to read and write; who committed longest ago comes first.
        cycle: how long we ourselves take.
    """

    own: str = ""
    others: tuple[tuple[str, float], ...] = ()
    cycle: float = 0.0

    @classmethod
    def since(cls, version: int, own: str, commits: Mapping[str, CommitRecord], cycle: float) -> Self:
        """Who has committed since a version.

        Args:
            version: others count from the next one on.
            own: this writer's id; the last commit is its.
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
        """The longest cycle of all."""
        return max([self.cycle, *(cycle for _, cycle in self.others)])

    @property
    def round(self) -> float:
        """Seconds in which each commits once; none if there is one only.

        While one writes, the next one's read is on its way: a turn is half a cycle, and a round at least a whole one.
        """
        turns = (self.cycle + sum(cycle for _, cycle in self.others)) / 2
        return max(turns, self.slowest) if self.others else 0.0

    def gap(self, versions: Iterable[int]) -> float:
        """Seconds for which nobody writes after some of these versions, so that newcomers get in."""
        step = KNOWN_STEP if self.others else ALONE_STEP
        counts = [version // step for version in versions if version % step == 0]
        if not counts:
            return 0.0
        return self.slowest * max(
            16 if count % 32 == 0 else 4 if count % 4 == 2 or (self.others and count % 2) else 1 for count in counts
        )


class Turns:
    """The turns of the writers that contend for one object: who committed longest ago is next.

    Who holds the last version needs a write for the next one; all others a write in vain, a read and a write. So who
    has committed lets each that committed since its own last commit go first, waits for about as long as they take,
    and reads before it writes. Who is not in its turn any more tries again at once. All see the same table, so all
    agree on the order; it is a courtesy, no rule of the protocol depends on it, and no clock is compared with another.

    Newcomers are not in the table. For them, nobody who is writes for a while after certain versions; and who sees a
    new one waits a little, as there may be more.

    A writer that rested is in no turn. If it found the object changed when it last went on, it reads first.

    Args:
        clock: tells how long ago something was.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._group = Group()
        self._due = self._fresh = self._moved = self._until = -math.inf
        self._since: int | None = None
        self._version = self._left = self._came = self._landings = 0
        self._known: set[str] = set()
        self._waits = self._rested = self._reads_first = False

    def pause(self) -> float:
        """Seconds until it is time to begin; none or less if it is."""
        return self._due - self._clock.monotonic() if self._waits else 0.0

    def begin(self) -> bool:
        """A commit begins. Returns whether it had better begin with a read."""
        now = self._clock.monotonic()
        self._rested = now > max(self._fresh, self._due) + RESTED * self._group.cycle
        if self._rested:
            self._since, self._waits = None, False
            return self._reads_first
        self._moved, self._until = now, now + LONGEST_PAUSE
        return self._waits and bool(self._group.others)

    def read(self, version: int, *, moved: bool) -> None:
        """The object was read: its version, and whether it was another one than the one known."""
        if self._rested and self._fresh > -math.inf:
            self._reads_first = moved
        self._rested = False
        self._fresh = self._clock.monotonic()
        if self._since is None:
            self._since = version

    def not_yet(self, version: int, commits: Mapping[str, CommitRecord]) -> float | None:
        """After a read: seconds until the next one, if it is not our turn to write; None if it is.

        Args:
            version: that of the object.
            commits: the commit table.
        """
        now = self._clock.monotonic()
        if not (self._waits and self._group.others) or now >= self._until:
            return None
        if version > self._left:
            self._left = version
            if gap := self._group.gap([version]):
                return min(gap, self._until - now)
        if faces := commits.keys() - self._known:
            self._known |= faces
            return min(max(commits[writer].cycle for writer in faces), self._until - now)
        others = self._group.others
        for place, (writer, _) in enumerate(others[self._came :], self._came + 1):
            if writer in commits and commits[writer].version > self._version:
                self._came, self._moved = place, now  # who was before it and has not come was waited for by it
        missing = [cycle for _, cycle in others[self._came :]]
        if not missing or now - self._moved >= PATIENCE * max(missing):
            return None
        pause = sum(missing[1:]) / 2 + max(0.0, missing[0] / 4 - self._group.cycle / 2)
        return min(pause, max(0.0, self._until - now))

    def landed(self, own: str, commits: Mapping[str, CommitRecord], cycle: float) -> None:
        """The last write was taken.

        Args:
            own: this writer's id.
            commits: the commit table that it wrote.
            cycle: seconds that this writer takes to read and write the blob once.
        """
        version = commits[own].version
        self._landings += 1
        group = Group.since(version - 1 if self._since is None else self._since, own, commits, cycle)
        alone = not group.others
        gap = group.gap(range(version, version + len(group.others) + 1))
        if self._landings == FIRST_GAP:
            gap = max(gap, group.slowest, min(FIRST_GAP_CYCLES * group.slowest, FIRST_GAP_SECONDS))
        if alone:
            gap *= ALONE_GAP
        window = min(LONGEST_PAUSE, group.round + gap)
        self._fresh = self._clock.monotonic()
        self._due = self._fresh + window - (cycle / 2 if alone else cycle)
        self._group, self._waits, self._rested = group, window > 0.0, False
        self._version = self._since = version
        self._left, self._came, self._known = version + len(group.others), 0, set(commits)
