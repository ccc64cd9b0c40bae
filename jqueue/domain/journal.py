"""The changes of a draft since its last commit, each with what was there before: what takes them back."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, Protocol

ABSENT: Any = object()
"""Stands for what was not there."""


class Restores(Protocol):
    """Something that can put one of its values back."""

    def restore(self, key: str, old: Any) -> None:
        """Put a value back, or take one away that was ABSENT."""


class Journal:
    """What was changed, in order.

    Attributes:
        changed: whether there is anything to commit.
        entries: for each change where it was, under which key or name, and the value before.
    """

    __slots__ = ("changed", "entries")

    def __init__(self) -> None:
        self.changed = False
        self.entries: list[tuple[MutableMapping[str, Any] | Restores, str, Any]] = []

    def set(self, table: MutableMapping[str, Any], key: str, value: Any) -> None:
        """Set an entry of a table."""
        self.changed = True
        self.entries.append((table, key, table.get(key, ABSENT)))
        table[key] = value

    def drop(self, table: MutableMapping[str, Any], key: str) -> None:
        """Drop an entry of a table, if it is there."""
        if key in table:
            self.changed = True
            self.entries.append((table, key, table.pop(key)))

    def assign(self, owner: Restores, name: str, value: Any) -> None:
        """Set an attribute."""
        self.changed = True
        self.entries.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def undo(self, mark: int) -> Iterator[tuple[object, str]]:
        """Take back the changes behind a mark, the last one first; yields where each was."""
        entries = self.entries
        while len(entries) > mark:
            place, key, old = entries.pop()
            if not isinstance(place, dict):
                place.restore(key, old)  # type: ignore[union-attr]
            elif old is ABSENT:
                del place[key]
            else:
                place[key] = old
            yield place, key

    def settle(self) -> None:
        """Make the changes permanent: they were committed."""
        self.entries.clear()
        self.changed = False
