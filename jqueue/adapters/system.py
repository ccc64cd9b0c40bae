"""The real clock and the real dice: the one place where jqueue asks the machine for either."""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, datetime


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """The machine's wall clock, UTC."""
        return datetime.now(UTC)  # noqa: TID251 - this is the adapter

    def monotonic(self) -> float:
        """The machine's monotonic clock, in seconds."""
        return time.monotonic()  # noqa: TID251 - this is the adapter


class SystemEntropy:
    """Random ids from the operating system, jitter from a pseudo-random generator."""

    def new_id(self) -> str:
        """A random UUID, as text."""
        return str(uuid.uuid4())  # noqa: TID251 - this is the adapter

    def jitter(self, bound: float) -> float:
        """Seconds spread evenly over [0, bound]."""
        return random.uniform(0.0, bound)  # noqa: TID251 - this is the adapter
