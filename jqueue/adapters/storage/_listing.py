"""Common parts of the listings of all storages."""

from __future__ import annotations

from datetime import datetime

RawListed = tuple[str, datetime, int]
"""One object in a store's list: its full name, the time of its last write, and its size in bytes."""


def check_prefix(prefix: str) -> None:
    """Refuse an empty prefix, which fits every object, including this one."""
    if not prefix:
        raise ValueError(
            "list_beside needs a prefix, such as '.staged.': an empty prefix also matches the object itself"
        )
