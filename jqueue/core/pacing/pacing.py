"""The timing of an engine's reads and writes: at the pace of a slow store, or in turns with other writers."""

from __future__ import annotations

from collections.abc import Mapping

from jqueue.core.pacing.pace import CycleTime, WritePace
from jqueue.core.pacing.turns import Begin, Line, Turns
from jqueue.domain.models import CommitRecord
from jqueue.ports.clock import Clock, Entropy


class Pacing:
    """Tells an engine when to read and write, and learns from the store's answers.

    Args:
        clock: measures the time between reads and writes.
        entropy: randomises the moments of tries.
        turn: begins a turn among the writers of the store; None if it has no turns.

    Attributes:
        cycle: time that one read and one write take.
        pace: the pace of the store; it has no interval while the store takes all writes.
        line: the line in which writers wait, if the store has one.
        turns: the turns of the writers, used only while the pace has no interval.
    """

    def __init__(self, clock: Clock, entropy: Entropy, turn: Begin | None = None) -> None:
        self._clock = clock
        self.cycle = CycleTime()
        self.pace = WritePace(clock, entropy)
        self.line = Line(clock, turn)
        self.turns: Turns | Line = Turns(clock) if turn is None else self.line

    @property
    def is_slow(self) -> bool:
        """True while the store refuses writes that come too soon. Each commit then takes all pending calls."""
        return self.pace.interval > 0.0

    def pause(self) -> float:
        """Return the seconds until our turn to begin; 0 or less if it is our turn."""
        return self.pace.pause() if self.is_slow else self.turns.pause()

    def begin(self) -> bool:
        """Note that a commit begins. Return True if it should begin with a read."""
        return self.pace.shared if self.is_slow else self.turns.begin()

    def wait_after_read(self, version: int, commits: Mapping[str, CommitRecord]) -> float | None:
        """Return the seconds to wait after a read before the next one; None if it is our turn to write.

        Args:
            version: of the object.
            commits: the commit table.
        """
        return (
            self.pace.wait_after_read(version, commits)
            if self.is_slow
            else self.turns.wait_after_read(version, commits)
        )

    def read(self, version: int, *, moved: bool) -> None:
        """Note that the object was read.

        Args:
            version: of the object.
            moved: True if the object had changed.
        """
        if moved:
            self.pace.moved()
        self.turns.read(version, moved=moved)

    def sent(self) -> float:
        """Note that a write is being sent, and return the time on the monotonic clock."""
        self.pace.sent = self._clock.monotonic()
        return self.pace.sent

    def landed(self, writer: str, commits: Mapping[str, CommitRecord]) -> None:
        """Note that the last write has landed.

        Args:
            writer: the id of this writer.
            commits: the commit table that it wrote.
        """
        self.pace.landed(writer, commits)
        self.turns.landed(writer, commits, self.cycle.seconds)

    def refused(self) -> float:
        """Note that the last write came too soon for the store, and return the seconds until the next try."""
        return self.pace.refused()
