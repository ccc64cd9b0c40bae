"""Folders of vsqs for tests: files made by hand, and queues whose clock is moved by hand."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import VsqsFolder
from jqueue.testing.fake_clock import FakeClock

NOW = 1_767_225_600_000_000
"""Time of a new FakeClock, in microseconds since 1970."""


def filled(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write these files into a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def queue_on(folder: Path, clock: FakeClock | None = None, deadline: float = 30, **options: Any) -> StoreQueue:
    """Return a queue on a folder."""
    store = VsqsFolder(folder, fsync=False, **options)
    return StoreQueue(store, deadline=deadline) if clock is None else StoreQueue(store, clock=clock, deadline=deadline)


def names(folder: Path) -> list[str]:
    """Return the names in a folder that do not begin with a dot."""
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))
