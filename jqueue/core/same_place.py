"""Detects that two queue objects or storages refer to the same queue, even if they name it differently."""

from __future__ import annotations

import os
from typing import Any


def place_of(queue: object) -> tuple[Any, ...]:
    """Return the place of a queue, as far as it is known without access to the store.

    Args:
        queue: a queue, a storage, or a store of jobs.
    """
    kept: Any = getattr(queue, "store", None) or getattr(queue, "storage", None) or queue
    path = getattr(kept, "path", None)
    if isinstance(path, str | os.PathLike):
        return "path", os.path.realpath(os.fspath(path))
    url, endpoint = getattr(kept, "url", None), getattr(kept, "endpoint_url", None)
    if isinstance(url, str):
        return "url", url, endpoint
    return "object", id(kept)


def is_same_place(one: object, other: object) -> bool:
    """True if two queue objects refer to the same queue. Links and other names of the same file are recognised."""
    ours, theirs = place_of(one), place_of(other)
    if ours == theirs:
        return True
    if ours[0] != "path" or theirs[0] != "path":
        return False
    try:
        return os.path.samefile(ours[1], theirs[1])
    except OSError:
        return False
