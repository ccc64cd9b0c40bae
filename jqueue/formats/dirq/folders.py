"""The folders of a dirq queue as they were last read: their names, and the elements in them."""

from __future__ import annotations

import os
from typing import NamedTuple

from jqueue.domain.job import JobStatus
from jqueue.formats.port import StoredJob

SURE = 0.05
"""Seconds after which an unchanged folder time is trusted: two changes may fall into one tick of the file system."""

Stamp = tuple[int, ...]


class KnownElement(NamedTuple):
    """An element as it was last read.

    Attributes:
        stamp: inode and times of the element, which change with it.
        kept: the job of the element; None if it is ignored.
        locked: True if a program has locked the element.
    """

    stamp: Stamp
    kept: StoredJob | None
    locked: bool

    @classmethod
    def of(cls, stamp: Stamp, kept: StoredJob | None, locked: bool) -> KnownElement:
        """Make the entry of an element whose job was read after its stamp.

        If the lock came or went between the two, the stamp is left empty, so that the next scan reads the job again.
        Linux counts a removed link down before its name is gone. So the stamp may already be the final one while the
        job still looks locked.
        """
        agree = kept is None or kept.job.status is JobStatus.DEAD or locked == bool(kept.job.heartbeat_at)
        return cls(stamp if agree else (), kept, locked)


class Listing:
    """The names in a folder, read again only when they may have changed.

    A list is trusted if the folder already had its present time `SURE` seconds before the list was made. So no change
    can hide in the same tick. The clock of the file system is not compared with any other clock.

    Attributes:
        names: the names as they were last read.
        missing: True if there is no such folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.names: tuple[str, ...] = ()
        self.missing = True
        self._time: int | None = None
        self._since = 0.0
        self._sure = False

    def may_have_changed(self) -> bool:
        """Return True if the folder may have changed since it was read."""
        return not self._sure or self._modified() != self._time

    def read(self, now: float) -> bool:
        """Read the folder if it may have changed. Returns True if it was read.

        Args:
            now: the time in seconds, of any clock: only differences count.
        """
        modified = self._modified()
        if modified != self._time or self._time is None:
            self._time, self._since, self._sure = modified, now, False
        elif self._sure:
            return False
        else:
            self._sure = not 0 <= now - self._since < SURE
        try:
            self.names, self.missing = tuple(os.listdir(self.path)), False
        except FileNotFoundError:
            self.names, self.missing = (), True
        return True

    def _modified(self) -> int:
        try:
            return os.stat(self.path).st_mtime_ns
        except FileNotFoundError:
            return 0


class Folder:
    """One of the folders of elements, as it was last read.

    Attributes:
        listing: names in the folder.
        elements: names of the elements, in order.
        seen: the elements by name.
    """

    def __init__(self, path: str) -> None:
        self.listing = Listing(path)
        self.elements: list[str] = []
        self.seen: dict[str, KnownElement] = {}
