"""Time and chance, handed in: whoever holds these two decides what a program sees of either."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """Two readings of time. Waiting is asyncio's: an event loop with virtual time makes waits virtual too."""

    def now(self) -> datetime:
        """The wall clock, as an aware datetime in UTC. It may jump, and other machines disagree with it."""

    def monotonic(self) -> float:
        """Seconds that only grow, on a scale of this process's own."""


@runtime_checkable
class Entropy(Protocol):
    """Ids and jitter."""

    def new_id(self) -> str:
        """An id never given before, printable and at most 64 characters long."""

    def jitter(self, bound: float) -> float:
        """A number of seconds spread evenly over [0, bound]."""
