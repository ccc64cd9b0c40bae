"""Heaps that find jobs in order. Entries may be outdated; they are checked when they reach the top.

A change of a job pushes a new entry and leaves the old one in the heap. Outdated entries are dropped when they reach
the top, or all at once when they may be more than half of the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

Entry = tuple[Any, ...]
"""A sort key that ends in a job's id."""


class LazyHeap:
    """A heap of entries that end in a job id. `is_valid` tells the valid ones from the outdated.

    Args:
        is_valid: returns True if an entry is up to date.
        entries: the first entries.
        live: returns the largest possible number of valid entries. While that is half of all entries or more, no
            clean-up is tried.

    Attributes:
        entries: the heap, with valid and outdated entries.
    """

    __slots__ = ("_floor", "_is_valid", "_live", "entries")

    def __init__(
        self,
        is_valid: Callable[[Entry], bool],
        entries: Iterable[Entry] = (),
        *,
        live: Callable[[], int] = lambda: 0,
    ) -> None:
        self._is_valid = is_valid
        self._live = live
        self.entries = list(entries)
        heapq.heapify(self.entries)
        self._floor = max(64, 2 * len(self.entries))

    def push(self, entry: Entry) -> None:
        """Add an entry. This costs O(log n), averaged over many pushes: a clean-up is rare."""
        heapq.heappush(self.entries, entry)
        if len(self.entries) > self._floor:
            self._clean_up()

    def _clean_up(self) -> None:
        if len(self.entries) > 2 * self._live():
            self.entries = [entry for entry in set(self.entries) if self._is_valid(entry)]
            heapq.heapify(self.entries)
        self._floor = max(64, 2 * len(self.entries))

    def top(self) -> Entry | None:
        """Return the smallest valid entry, and leave it in the heap; None if there is none."""
        entries, is_valid = self.entries, self._is_valid
        while entries:
            if is_valid(entries[0]):
                return entries[0]
            heapq.heappop(entries)
        return None

    def pop(self) -> Entry | None:
        """Remove and return the smallest valid entry; None if there is none."""
        entries, is_valid = self.entries, self._is_valid
        while entries:
            entry = heapq.heappop(entries)
            if is_valid(entry):
                return entry
        return None

    def first(self, fits: Callable[[Entry], bool]) -> Entry | None:
        """Return the smallest entry that fits, and change nothing; None if none does.

        Entries behind it are not looked at, except for some of those that are compared with it.
        """
        entries, found, places = self.entries, None, [0]
        while places:
            place = places.pop()
            if place >= len(entries) or (found is not None and entries[place] >= found):
                continue
            if fits(entries[place]):
                found = entries[place]  # no entry below this place is smaller
            else:
                places += (2 * place + 2, 2 * place + 1)
        return found
