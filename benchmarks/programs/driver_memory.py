"""The memory of Spark's driver in Python: of its own process, and of the processes that plan and commit for it.

With `local[2]` the processes of tasks are children of the same Java process. They are left out, and so is Java, whose
heap is as large as it may be.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

INTERVAL = 0.02
"""Seconds between two looks at the processes."""

OF_TASKS = "pyspark.worker"
"""The last argument of the Python processes of tasks."""


class DriverMemory:
    """Watches the processes of a driver.

    Args:
        process: number of the driver's process.
    """

    def __init__(self, process: int) -> None:
        self._process = process

    def peak_of(self, work: Callable[[], object]) -> float:
        """Return the largest sum of the bytes of the driver's processes during some work."""
        peak, done = [self._resident()], threading.Event()

        def watch() -> None:
            while not done.wait(INTERVAL):
                peak[0] = max(peak[0], self._resident())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            work()
        finally:
            done.set()
            watcher.join()
        return max(peak[0], self._resident())

    def _resident(self) -> float:
        children: dict[int, list[int]] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            if (parent := _parent(folder)) is not None:
                children.setdefault(parent, []).append(int(folder.name))
        whole, left = 0.0, [self._process]
        while left:
            process = left.pop()
            left += children.get(process, ())
            whole += _bytes_of(Path("/proc", str(process)))
        return whole


def _parent(folder: Path) -> int | None:
    """Return the number of the parent of a process; None if the process has ended."""
    with suppress(OSError):
        return int((folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    return None


def _bytes_of(folder: Path) -> float:
    """Return the bytes in memory of a process; 0 if it has ended, or does not count."""
    with suppress(OSError):
        words = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        if "python" in words[0] and words[-1] != OF_TASKS:
            return float((folder / "statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0.0
