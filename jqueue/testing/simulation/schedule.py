"""The seed: where all chance comes from, and which of the events that may be left out take place."""

from __future__ import annotations

import asyncio
import random
from zlib import crc32


class Schedule:
    """All chance of one simulation, and its events by name.

    Every part of the simulation draws from dice of its own, so that an event can be left out and the rest stays nearly
    as it was: that is how a failure is made short.

    Args:
        seed: the one number.
        left_out: the names of events that do not take place.

    Attributes:
        taken: the events that took place, in order: when, in seconds of the simulation, and their names.
    """

    def __init__(self, seed: int, left_out: frozenset[str] = frozenset()) -> None:
        self.seed = seed
        self.left_out = left_out
        self.taken: list[tuple[float, str]] = []

    def dice(self, name: str) -> random.Random:
        """Dice for one part of the simulation."""
        return random.Random(self._number(name))

    def reset(self, dice: random.Random, name: str) -> None:
        """Make dice go on from a place of their own, whatever was drawn before."""
        dice.seed(self._number(name))

    def takes_place(self, event: str) -> bool:
        """Whether an event takes place; asked once for each."""
        if event in self.left_out:
            return False
        self.taken.append((asyncio.get_running_loop().time(), event))
        return True

    def _number(self, name: str) -> int:
        return self.seed << 32 | crc32(name.encode())
