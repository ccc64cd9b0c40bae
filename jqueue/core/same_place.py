"""Whether two queue objects, or two storages, are about the same queue, however it is spelled."""

from __future__ import annotations

import os
from typing import Any


def place(queue: object) -> tuple[Any, ...]:
    """Where a queue is: equal for two objects that are about one place, as far as that can be told without looking.

    Args:
        queue: a queue, a storage, or a store of jobs.
    """
    kept: Any = getattr(queue, "store", None) or getattr(queue, "storage", None) or queue
    path = getattr(kept, "path", None)
    if isinstance(path, str | os.PathLike):
        return ("path", *_file(os.fspath(path)))
    url, endpoint = getattr(kept, "url", None), getattr(kept, "endpoint_url", None)
    if isinstance(url, str):
        return "url", url, endpoint
    return "object", id(kept)


def _file(path: str) -> tuple[Any, ...]:
    """A file by what it is, if it is there: hard links and other file systems' names for it included."""
    resolved = os.path.realpath(path)
    try:
        found = os.stat(resolved)
    except OSError:
        return (resolved,)
    return found.st_dev, found.st_ino
