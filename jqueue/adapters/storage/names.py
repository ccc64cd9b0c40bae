"""The name of the object behind a storage, as users know it, without secrets and safe to print."""

from __future__ import annotations

from jqueue.domain.printable import printable


def describe(storage: object) -> str:
    """Return the name of the object behind a storage, as users know it, without secrets and safe to print."""
    name = getattr(storage, "name", None)
    return printable(name if isinstance(name, str) else repr(storage))
