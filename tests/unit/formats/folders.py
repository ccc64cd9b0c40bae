"""Folders of vsqs for tests: their files made by hand, and queues on them whose clock is moved by hand."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jqueue.formats.queue import StoreQueue
from jqueue.formats.vsqs.store import VsqsFolder
from jqueue.testing.fake_clock import FakeClock

NOW = 1_767_225_600_000_000
"""What a new FakeClock shows, in microseconds since 1970."""


def filled(folder: Path, files: Mapping[str, bytes]) -> Path:
    """A folder with files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def queue_on(folder: Path, clock: FakeClock | None = None, deadline: float = 30, **options: Any) -> StoreQueue:
    """A queue on a folder."""
    store = VsqsFolder(folder, fsync=False, **options)
    return StoreQueue(store, deadline=deadline) if clock is None else StoreQueue(store, clock=clock, deadline=deadline)


def names(folder: Path) -> list[str]:
    """The names of what is in a folder, besides what is hidden."""
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))
