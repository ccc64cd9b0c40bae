"""The older formats by their URLs, and the files in their folders."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from jqueue import connect
from jqueue.formats.journal import Journal
from jqueue.formats.queue import StoreQueue
from jqueue.ports.clock import Clock
from jqueue.runtime.system import SystemClock
from jqueue.testing.fake_clock import FakeClock

FORMATS = {
    "vsqs": "vsqs://{}/queue?entrypoint=work",
    "simple": "dirq://{}/queue?kind=simple&entrypoint=work",
    "elements": "dirq://{}/queue?kind=queue&entrypoint=work",
    "text": "textq://{}/queue?entrypoint=work",
}

in_each_format = pytest.mark.parametrize("form", FORMATS)


class StandingClock(FakeClock):
    """A clock on which no time passes by itself: each claim of a queue reads its store."""

    moved = 0.0

    def monotonic(self):
        return self.moved


def clock_of(form: str) -> FakeClock | SystemClock:
    """Return a clock that stands still, unless the format compares it with the times of files."""
    return SystemClock() if form == "text" else FakeClock()


def open_queue(form: str, folder: Path, clock: Clock | None = None, *, more: str = "", **settings: Any) -> StoreQueue:
    """Return a queue called `queue` in a folder, with further options in its URL."""
    url = FORMATS[form].format(folder) + (f"&{more}" if more else "")
    queue = connect(url, StoreQueue, clock=clock or clock_of(form), **settings)
    return queue


def filled(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Write these files into a folder, and return it."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return the content of each file below a folder, and None for each folder; without files of jqueue's own."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if not any(part.startswith(".jqueue") for part in path.relative_to(folder).parts)
    }


JOURNALS = {"vsqs": ".jqueue-journal", "simple": ".jqueue/journal", "elements": ".jqueue/journal"}
"""Path of the journal in the folder of a queue."""


def journal_of(folder: Path, form: str = "vsqs", present: Callable[[], set[str]] = set) -> Journal:
    """Return the journal of the queue in a folder, as it is now."""
    journal = Journal(str(folder / JOURNALS[form]), str(folder), present)
    journal.read()
    return journal


def open_vsqs(folder: Path, clock: FakeClock | None = None) -> StoreQueue:
    """Return a queue on a folder of vsqs."""
    queue = connect(f"vsqs://{folder}", StoreQueue, clock=clock or FakeClock(), create=True)
    return queue


def names(folder: Path) -> list[str]:
    """Return the names in a folder that do not begin with a dot."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
