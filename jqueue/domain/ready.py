"""The orders in which jobs are looked for: heaps whose entries may be out of date, checked when they surface.

A change of a job pushes a new entry and leaves the old one where it is. Entries that no longer say the truth are
dropped when they reach the top, or all at once when they are more than half of the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

Entry = tuple[Any, ...]
"""The sort key, ending in a job's id."""


class LazyHeap:
    """A heap of entries that end in a job id, each valid or not by the word of `is_valid`.

    Args:
        is_valid: says whether an entry is up to date.
        entries: those there are at first.
        live: number of entries that may be valid, at the most. While they are half of all, no clean-up is tried.

    Attributes:
        entries: the heap, valid entries and others.
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
        """Add an entry; O(log n), and now and then a clean-up that the pushes before it have paid for."""
        heapq.heappush(self.entries, entry)
        if len(self.entries) > self._floor:
            self._clean_up()

    def _clean_up(self) -> None:
        if len(self.entries) > 2 * self._live():
            self.entries = [entry for entry in set(self.entries) if self._is_valid(entry)]
            heapq.heapify(self.entries)
        self._floor = max(64, 2 * len(self.entries))

    def top(self) -> Entry | None:
        """The smallest valid entry, left where it is; None if there is none."""
        entries, is_valid = self.entries, self._is_valid
        while entries:
            if is_valid(entries[0]):
                return entries[0]
            heapq.heappop(entries)
        return None

    def pop(self) -> Entry | None:
        """The smallest valid entry, taken out; None if there is none."""
        entries, is_valid = self.entries, self._is_valid
        while entries:
            entry = heapq.heappop(entries)
            if is_valid(entry):
                return entry
        return None
