"""Damage to segments in the store: for a while, a segment is missing, cut off, or has other bytes than were written.

Or it cannot be read: reads of it are refused, fail, or are never answered.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Set
from datetime import datetime

from jqueue.domain.errors import StorageError, StorageFatalError
from tests.simulation.chain import Version, last_version, object_of
from tests.simulation.network import HonestStore, Network
from tests.simulation.schedule import Schedule
from tests.simulation.stored_segments import FOLDER

MOST = 3
"""Largest number of segments that are damaged in one simulation."""

_SEQUENCE = re.compile(rb'(?:"sequence": ?|\x02)(\d+)')
"""A sequence number: behind its name, or behind the byte that stands for that."""


class Damage:
    """Damages segments that the queue names, one after the other, and repairs them.

    Args:
        schedule: the schedule of the seed.
        network: the way to the store.
        store: the store.

    Attributes:
        names: names of the segments that were damaged.
    """

    def __init__(self, schedule: Schedule, network: Network, store: HonestStore) -> None:
        self.names: set[str] = set()
        self._schedule = schedule
        self._network = network
        self._store = store
        self._dice = schedule.dice("damage")
        self._whole: dict[str, tuple[bytes, datetime]] = {}

    async def run(self) -> None:
        """Damage a few segments."""
        for number in range(1, MOST + 1):
            self._schedule.reset(self._dice, f"damage {number}")
            await asyncio.sleep(self._dice.expovariate(1 / 8))
            if self._schedule.takes_place(f"damage {number}"):
                self._damage()
                await asyncio.sleep(self._dice.choice([0.2, 5.0, 20.0]))
                self.repair()

    def repair(self) -> None:
        """Restore what was damaged, unless it was removed meanwhile."""
        for suffix, whole in self._whole.items():
            if suffix not in self._store.removed:
                self._store.objects[suffix] = whole
        self._whole.clear()
        self._store.unreadable.clear()

    def _damage(self) -> None:
        version = last_version(self._network)
        names = sorted(name for name in version.stored if FOLDER + name in self._store.objects)
        if not names:
            return
        name = self._dice.choice(names)
        content, moment = self._whole[FOLDER + name] = self._store.objects[FOLDER + name]
        self.names.add(name)
        match self._dice.choice(["lose", "cut", "spoil", "edit", "hide"]):
            case "lose":
                del self._store.objects[FOLDER + name]
                return
            case "cut":
                content = content[: self._dice.randrange(len(content))]
            case "spoil":  # one byte
                place = self._dice.randrange(len(content))
                other = bytes([content[place] ^ self._dice.randint(1, 255)])
                content = content[:place] + other + content[place + 1 :]
            case "edit":  # a sequence number, as a person may do who opens the object in an editor
                last = self._dice.choice(list(_SEQUENCE.finditer(content))).end(1) - 1
                digit = b"%d" % ((int(content[last : last + 1]) + 1) % 10)
                content = content[:last] + digit + content[last + 1 :]
            case "hide":  # reads fail, or are answered never
                errors = [StorageFatalError("permission refused"), StorageError("input/output error"), None]
                self._store.unreadable[FOLDER + name] = self._dice.choice(errors)
        self._store.objects[FOLDER + name] = content, moment


def note_damage(versions: Iterable[Version], names: Set[str]) -> None:
    """Mark the jobs in damaged segments in each version."""
    for version in versions:
        if names & version.stored.keys():
            places = (*version.rows.items(), *version.leased.items())
            version.unsure = frozenset(job_id for job_id, (name, _) in places if object_of(name) in names)
