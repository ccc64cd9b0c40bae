"""Time and chance for tests: a clock that is moved by hand, and an entropy that draws no random waits.

Code under test believes that hours have passed, and no test waits for them. No special event loop is needed. To make
all waiting take no time, use the event loop of `jqueue.testing.virtual_time`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jqueue.domain.durations import Duration, to_seconds
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.testing.virtual_time import EPOCH


class FakeClock:
    """A `jqueue.ports.clock.Clock` that is moved by hand.

    Give it to the queue and to an in-memory storage alike: a queue goes by the time of its storage, if that has one.

        clock = FakeClock()
        queue = DirectQueue(InMemoryStorage(clock=clock), clock=clock)

    Args:
        start: time shown at first, with its time zone; by default the first moment of 2026 in UTC.

    Raises:
        ValueError: `start` has no time zone.
    """

    def __init__(self, start: datetime = EPOCH) -> None:
        self._now = _in_utc(start)
        self._moved = 0.0
        self._system = SystemClock()
        self._began = self._system.monotonic()

    def now(self) -> datetime:
        """Return the time of the wall clock, in UTC. It stands still until it is moved."""
        return self._now

    def monotonic(self) -> float:
        """Return the seconds by which the clock was moved, plus the seconds that have really passed.

        Queues use it to measure the response time of their store, and would wait forever if it stood still.
        """
        return self._moved + self._system.monotonic() - self._began

    def advance(self, duration: Duration) -> datetime:
        """Move the clock forward, and return the new time.

        Args:
            duration: a timedelta or seconds.

        Raises:
            InvalidJobError: `duration` is not a duration, or is negative: time does not go backwards.
        """
        seconds = to_seconds("duration", duration)
        self._now += timedelta(seconds=seconds)
        self._moved += seconds
        return self._now

    def move_to(self, moment: datetime) -> datetime:
        """Move the clock forward to a moment, and return it.

        Raises:
            ValueError: the moment is past, or has no time zone.
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
    """A `jqueue.ports.clock.Entropy` without randomness: of all possible waits it draws the longest.

    With it, `Exponential(base=2)` waits for 2, 4 and 8 seconds.
    """

    def jitter(self, bound: float) -> float:
        """Return the bound itself."""
        return bound


def _in_utc(moment: datetime) -> datetime:
    if moment.utcoffset() is None:
        raise ValueError(f"{moment.isoformat()} has no time zone: write datetime(..., tzinfo=UTC)")
    return moment.astimezone(UTC)
