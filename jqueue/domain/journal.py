"""The journal of a draft: its changes since the last commit, each with the old value, so that it can be undone."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, Protocol

from jqueue.domain.transitions import BulkMove, Move

ABSENT: Any = object()
"""Old value of an entry that did not exist."""


class Restores(Protocol):
    """An object that can restore one of its values."""

    def restore(self, key: str, old: Any) -> None:
        """Restore an old value, or remove the value if the old one is ABSENT."""


class Journal:
    """The changes of a draft, in order.

    Attributes:
        changed: True if there is anything to commit.
        entries: for each change, the changed object, the key or name in it, and the old value.
        moves: the transitions of jobs among these changes, in order.
        bulk: the transitions of many jobs at once.
    """

    __slots__ = ("bulk", "changed", "entries", "moves")

    def __init__(self) -> None:
        self.changed = False
        self.entries: list[tuple[MutableMapping[str, Any] | Restores, str, Any]] = []
        self.moves: list[Move] = []
        self.bulk: list[BulkMove] = []

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

    def undo(self, mark: int, moves: int, bulk: int) -> Iterator[tuple[object, str]]:
        """Undo the changes after a mark, the last one first. Yield the object and the key of each.

        Args:
            mark: number of entries to keep.
            moves: number of moves to keep.
            bulk: number of bulk moves to keep.
        """
        entries = self.entries
        del self.moves[moves:]
        del self.bulk[bulk:]
        while len(entries) > mark:
            place, key, old = entries.pop()
            if place.__class__ is not dict:
                place.restore(key, old)  # type: ignore[union-attr]
            elif old is ABSENT:
                del place[key]
            else:
                place[key] = old
            yield place, key

    def settle(self) -> None:
        """Forget the changes, which makes them permanent: they were committed."""
        self.entries.clear()
        self.moves.clear()
        self.bulk.clear()
        self.changed = False
