"""When an engine reads and writes: at the pace of a store that takes few writes, or in turns with other writers."""

from __future__ import annotations

from collections.abc import Mapping

from jqueue.core.pacing.pace import CycleTime, WritePace
from jqueue.core.pacing.turns import Turns
from jqueue.domain.models import CommitRecord
from jqueue.ports.clock import Clock, Entropy


class Pacing:
    """The one place that an engine asks when to go on, and tells what the store did.

    Args:
        clock: measures how long reads and writes take.
        entropy: draws the moments of tries.

    Attributes:
        cycle: seconds that one read and one write take.
        pace: the pace of the store; without an interval, while it takes all writes.
        turns: the turns of the writers, which count only then.
    """

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self.cycle = CycleTime()
        self.pace = WritePace(clock, entropy)
        self.turns = Turns(clock)

    @property
    def is_slow(self) -> bool:
        """True while the store refuses writes that come too soon: each commit then takes all calls there are."""
        return self.pace.interval > 0.0

    def pause(self) -> float:
        """Seconds until it is our turn to begin; none or less if it is."""
        return self.pace.pause() if self.is_slow else self.turns.pause()

    def begin(self) -> bool:
        """A commit begins. Returns whether it had better begin with a read."""
        return self.pace.shared if self.is_slow else self.turns.begin()

    def not_yet(self, version: int, commits: Mapping[str, CommitRecord]) -> float | None:
        """After a read: seconds until the next one if it is not our turn to write; None if it is.

        Args:
            version: that of the object.
            commits: the commit table.
        """
        return self.pace.not_yet(version, commits) if self.is_slow else self.turns.not_yet(version, commits)

    def read(self, version: int, *, moved: bool) -> None:
        """The object was read.

        Args:
            version: that of the object.
            moved: whether it was another one than the one known.
        """
        if moved:
            self.pace.moved()
        self.turns.read(version, moved=moved)

    def sent(self) -> float:
        """A write is sent. Returns the time, on the monotonic clock."""
        self.pace.sent = self._clock.monotonic()
        return self.pace.sent

    def landed(self, writer: str, commits: Mapping[str, CommitRecord]) -> None:
        """The last write was taken.

        Args:
            writer: the id of this writer.
            commits: the commit table that it wrote.
        """
        self.pace.landed(writer, commits)
        self.turns.landed(writer, commits, self.cycle.seconds)

    def refused(self) -> float:
        """The store refused the last write, as it came too soon. Returns the seconds until the next try."""
        return self.pace.refused()
