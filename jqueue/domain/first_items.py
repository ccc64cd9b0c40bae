"""The first items of a long row in the order of a key, found without holding the whole row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

SPARE = 1024
"""Number of items held beyond the limit before the last ones are dropped."""


class FirstItems(Generic[Item]):
    """Finds what sorting the whole row and cutting it would find, equal items in the order in which they came.

    Args:
        limit: maximum number of items to find; None for all.
        key: returns the place of an item.
        reverse: True to sort in the other direction.

    Attributes:
        number: number of items in the row so far.
    """

    def __init__(self, limit: int | None, key: Callable[[Item], Any], *, reverse: bool = False) -> None:
        self.number = 0
        self._limit = limit
        self._key = key
        self._reverse = reverse
        self._items: list[Item] = []

    def add(self, item: Item) -> None:
        """Add the next item of the row."""
        self.number += 1
        self._items.append(item)
        if self._limit is not None and len(self._items) >= self._limit + SPARE:
            self._items = self.found()

    def found(self) -> list[Item]:
        """Return the first items of the row so far, in order."""
        return sorted(self._items, key=self._key, reverse=self._reverse)[: self._limit]
