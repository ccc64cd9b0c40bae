"""What the listings of all storages have in common."""

from __future__ import annotations

from datetime import datetime

Told = tuple[str, datetime, int]
"""What a store tells of an object in a list: its whole name, when it was last written, how many bytes it has."""


def check_prefix(prefix: str) -> None:
    """Refuse the prefix that fits everything, the object itself included."""
    if not prefix:
        raise ValueError("list_beside needs a prefix, such as '.staged.': the empty one fits the object itself")
