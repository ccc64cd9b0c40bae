"""The folders of a queue of dirq as they were found: their names, and the elements in them."""

from __future__ import annotations

import os
from typing import NamedTuple

from jqueue.domain.models import JobStatus
from jqueue.formats.port import Kept

SURE = 0.05
"""Seconds after which a time that has not moved says that nothing has changed: file systems count time in ticks."""

Stamp = tuple[int, ...]


class Seen(NamedTuple):
    """An element as it was found.

    Attributes:
        stamp: what moves when it is changed.
        kept: the job; None if it is none.
        locked: whether somebody has it.
    """

    stamp: Stamp
    kept: Kept | None
    locked: bool

    @classmethod
    def of(cls, stamp: Stamp, kept: Kept | None, locked: bool) -> Seen:
        """An element whose job was read after its stamp.

        If the lock came or went between the two, the stamp is that of no element, so that the next look reads the job
        again. Linux counts a link out before the name is gone: the stamp may be the last one, and the job locked.
        """
        agree = kept is None or kept.job.status is JobStatus.DEAD or locked == bool(kept.job.heartbeat_at)
        return cls(stamp if agree else (), kept, locked)


class Listing:
    """The names in a folder, read again only when they may have changed.

    A list is trusted if the folder had the same time a moment before the list was made as after it, so that no change
    can hide in the same tick. No clock is compared with that of the file system.

    Attributes:
        names: as they were found.
        missing: whether there is no such folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.names: tuple[str, ...] = ()
        self.missing = True
        self._time: int | None = None
        self._since = 0.0
        self._sure = False

    def has_moved(self) -> bool:
        """Whether it may have changed since it was read."""
        return not self._sure or self._modified() != self._time

    def read(self, now: float) -> bool:
        """Read it if it may have changed. Returns whether it was read.

        Args:
            now: seconds, of which only differences count.
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
    """One of the folders of elements, as it was found.

    Attributes:
        listing: its names.
        elements: the names of elements, in order.
        seen: what they are.
    """

    def __init__(self, path: str) -> None:
        self.listing = Listing(path)
        self.elements: list[str] = []
        self.seen: dict[str, Seen] = {}
