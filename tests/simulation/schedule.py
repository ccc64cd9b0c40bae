"""The schedule of a seed: the source of all randomness, and the choice of which optional events take place."""

from __future__ import annotations

import asyncio
import random
from zlib import crc32


class Schedule:
    """All randomness of one simulation, and its events by name.

    Every part of the simulation draws from dice of its own. So an event can be left out while the rest stays nearly the
    same, which is how a failure is made short.

    Args:
        seed: the seed.
        left_out: names of events that do not take place.

    Attributes:
        taken: events that took place, in order: the time in seconds of the simulation, and the name.
    """

    def __init__(self, seed: int, left_out: frozenset[str] = frozenset()) -> None:
        self.seed = seed
        self.left_out = left_out
        self.taken: list[tuple[float, str]] = []

    def dice(self, name: str) -> random.Random:
        """Return the dice of one part of the simulation."""
        return random.Random(self._number(name))

    def reset(self, dice: random.Random, name: str) -> None:
        """Seed dice again by a name, so that earlier draws have no influence on later ones."""
        dice.seed(self._number(name))

    def takes_place(self, event: str) -> bool:
        """True if an event takes place. Ask once for each event: it is recorded."""
        if event in self.left_out:
            return False
        self.taken.append((asyncio.get_running_loop().time(), event))
        return True

    def _number(self, name: str) -> int:
        return self.seed << 32 | crc32(name.encode())
