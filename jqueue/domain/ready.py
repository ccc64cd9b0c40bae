"""The orders in which jobs are looked for: heaps whose entries may be out of date, checked when they surface.

A change of a job pushes a new entry and leaves the old one where it is. Entries that no longer say the truth are
dropped when they reach the top, or all at once when they are more than half of the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Entry = tuple[Any, ...]
"""The sort key, ending in a job's id."""


class LazyHeap:
    """A heap of entries that end in a job id, each valid or not by the word of `is_valid`."""

    __slots__ = ("_entries", "_floor", "_is_valid")

    def __init__(self, is_valid: Callable[[Entry], bool], entries: Iterable[Entry] = ()) -> None:
        self._is_valid = is_valid
        self._entries = list(entries)
        heapq.heapify(self._entries)
        self._floor = max(64, 2 * len(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """Every entry, valid or not, in no order."""
        return iter(self._entries)

    def push(self, entry: Entry) -> None:
        """Add an entry; O(log n), and now and then a clean-up that the pushes before it have paid for."""
        heapq.heappush(self._entries, entry)
        if len(self._entries) > self._floor:
            self._entries = [entry for entry in set(self._entries) if self._is_valid(entry)]
            heapq.heapify(self._entries)
            self._floor = max(64, 2 * len(self._entries))

    def top(self) -> Entry | None:
        """The smallest valid entry, left where it is; None if there is none."""
        entries, is_valid = self._entries, self._is_valid
        while entries:
            if is_valid(entries[0]):
                return entries[0]
            heapq.heappop(entries)
        return None

    def pop(self) -> Entry | None:
        """The smallest valid entry, taken out; None if there is none."""
        return None if self.top() is None else heapq.heappop(self._entries)
