"""Decisions read from bytes: the same bytes always make the same input, with or without the fuzzer.

The fuzzer's own provider would do as well, but then a crasher could be replayed only where the fuzzer is installed.
When the bytes are used up, every decision is the first one, so that any bytes are a whole input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Choices:
    """Bytes that are used up, one decision after the other.

    Args:
        data: the bytes.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Number of bytes that are not used yet."""
        return max(0, len(self._data) - self._at)

    def byte(self) -> int:
        """Return the next byte; 0 if none is left."""
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def below(self, bound: int) -> int:
        """Return a number from 0 up to, but not including, `bound`."""
        value, room = 0, 1
        while room < bound:
            value, room = value * 256 + self.byte(), room * 256
        return value % bound if bound else 0

    def one_in(self, bound: int) -> bool:
        """Return True once in `bound` times; False when the bytes are used up."""
        return self.below(bound) == bound - 1

    def pick(self, items: Sequence[Item]) -> Item:
        """Return one of the items."""
        return items[self.below(len(items))]

    def take(self, size: int) -> bytes:
        """Return the next bytes as they are; fewer if fewer are left."""
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        return taken
