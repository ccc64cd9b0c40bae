"""The interfaces of the clock and of the source of randomness, so that tests and simulations can replace both."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """A wall clock and a monotonic clock. Waiting is left to asyncio: a virtual event loop makes waits virtual too."""

    def now(self) -> datetime:
        """Return the wall clock time, as an aware datetime in UTC. It may jump, and other machines may disagree."""

    def monotonic(self) -> float:
        """Return the seconds on a clock that never goes back. Only values of the same process can be compared."""


@runtime_checkable
class SupportsSuspension(Protocol):
    """A clock whose monotonic time stands still while the machine is suspended."""

    def suspended(self) -> float:
        """Return the seconds for which the machine has been suspended so far. Only differences have a meaning."""


@runtime_checkable
class SupportsProcesses(Protocol):
    """A source of ids that knows the processes of its machine."""

    def is_gone(self, pid: int, mark: str) -> bool:
        """Return True if a process has certainly ended: one of this machine, and of this namespace of process ids.

        Args:
            pid: its id, which another process may have by now.
            mark: what tells it from all others that had its id; empty if it is not known.
        """


@runtime_checkable
class Entropy(Protocol):
    """A source of ids and jitter."""

    def new_id(self) -> str:
        """Return an id that was never returned before, printable and at most 64 characters long."""

    def jitter(self, bound: float) -> float:
        """Return a random number of seconds, uniformly distributed over [0, bound]."""
