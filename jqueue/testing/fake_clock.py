"""Time and chance for tests: a clock that shows one moment until it is told to show a later one, and no chance at all.

Whoever is given it believes that hours have passed, and nobody waits for them. Tests need no event loop of their own
for that; where all waiting shall take no time, `jqueue.testing.virtual_time` has one.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jqueue.domain.durations import Duration, to_seconds
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.testing.virtual_time import EPOCH


class FakeClock:
    """A `jqueue.ports.clock.Clock` that is moved by hand.

    Give it to the queue and to a storage in memory alike: a queue goes by the time of its storage, if that has one.

        clock = FakeClock()
        queue = DirectQueue(InMemoryStorage(clock=clock), clock=clock)

    Args:
        start: what it shows at first, with its time zone; the first moment of 2026 in UTC by default.

    Raises:
        ValueError: `start` does not say its time zone.
    """

    def __init__(self, start: datetime = EPOCH) -> None:
        self._now = _in_utc(start)
        self._moved = 0.0
        self._system = SystemClock()
        self._began = self._system.monotonic()

    def now(self) -> datetime:
        """The wall clock, UTC. It stands still until it is moved."""
        return self._now

    def monotonic(self) -> float:
        """Seconds by which the clock was moved, and those that have really passed.

        Queues measure with it how long their store takes to answer, and would wait for ever if that stood still.
        """
        return self._moved + self._system.monotonic() - self._began

    def advance(self, duration: Duration) -> datetime:
        """Move the clock on, and return what it shows then.

        Args:
            duration: a timedelta or seconds.

        Raises:
            InvalidJobError: it is no duration, or negative: time does not go backwards.
        """
        seconds = to_seconds("duration", duration)
        self._now += timedelta(seconds=seconds)
        self._moved += seconds
        return self._now

    def move_to(self, moment: datetime) -> datetime:
        """Move the clock on to a moment, and return it.

        Raises:
            ValueError: the moment is past, or does not say its time zone.
        """
        moment = _in_utc(moment)
        if moment < self._now:
            raise ValueError(f"the clock shows {self._now.isoformat()} and cannot go back to {moment.isoformat()}")
        self._moved += (moment - self._now).total_seconds()
        self._now = moment
        return moment

    def __repr__(self) -> str:
        return f"FakeClock({self._now.isoformat()})"


class LongestWaits(SystemEntropy):
    """A `jqueue.ports.clock.Entropy` with which nothing that waits is left to chance: it draws the longest wait.

    With it, `Exponential(base=2)` waits for 2, 4, 8 seconds.
    """

    def jitter(self, bound: float) -> float:
        """The bound itself."""
        return bound


def _in_utc(moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise ValueError(f"{moment.isoformat()} has no time zone: write datetime(..., tzinfo=UTC)")
    return moment.astimezone(UTC)
