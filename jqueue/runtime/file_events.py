"""Events of the file system: they tell a waiting queue that something changed in its folders, so it need not poll.

They need the extra `formats`, which installs watchfiles. Without it, or if the system has no free watches, there are no
events, and the queue polls.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jqueue.ports.log import Logger, logger_of

logger: Logger = logger_of("jqueue")

STEP_MILLISECONDS, IDLE_STEP_MILLISECONDS = 5, 50
"""Milliseconds for which events are gathered, and between two checks of the stop flag: at first, and while idle."""

QUICK_MILLISECONDS = 2000
"""Milliseconds without an event after which the thread is idle."""

RETRY_SECONDS = 0.05

Places = dict[str, tuple[int, int]]


@cache
def _notify() -> Any:
    """Import the watches of watchfiles at their first use, as they import multiprocessing. None without the extra."""
    try:  # a documented import; the public functions of watchfiles do not tell when a watch has begun
        from watchfiles import _rust_notify
    except ImportError:
        return None
    return _rust_notify


class FileEvents(threading.Thread):
    """A thread that waits for the events of some folders.

    A folder need not exist: its nearest existing parent is watched instead. So a folder may also be removed and created
    again.

    Args:
        folders: returns the absolute paths of the folders; called whenever one may have been created or removed.
        changed: called in the thread when something may have changed. The first call comes when the watch has begun, so
            that no change since the last poll is missed.
    """

    def __init__(self, folders: Callable[[], Sequence[Path]], changed: Callable[[], None]) -> None:
        super().__init__(name="jqueue-file-events")
        self._folders = folders
        self._changed = changed
        self._over = threading.Event()
        self.active: bool = False

    @staticmethod
    def available() -> bool:
        """True if the extra is installed."""
        return _notify() is not None

    def end(self) -> None:
        """Tell the thread to end soon."""
        self._over.set()

    def is_set(self) -> bool:
        """True if the thread must end: after `end`, or when the interpreter is exiting and waits for the thread."""
        return self._over.is_set() or not threading.main_thread().is_alive()

    def run(self) -> None:
        """Watch until the thread must end."""
        try:
            while not self.is_set():
                self._watch()
                self.active = False
        except (OSError, _notify().WatchfilesRustInternalError) as error:
            logger.warning("the file system reports no events, so its files are polled: %s", error)
        finally:
            self.active = False

    def _watch(self) -> None:
        """Watch until the thread must end, or a folder is created, removed or replaced.

        Raises:
            OSError, WatchfilesRustInternalError: they cannot be watched.
        """
        folders = {os.path.realpath(folder) for folder in self._folders()}
        places = _places(folders)
        try:
            events = _notify().RustNotify(sorted(places), False, False, 0, False, True)
        except FileNotFoundError:  # a folder was removed just now
            self._over.wait(RETRY_SECONDS)
            return
        with events:
            if places != _places(folders):
                return
            self.active = True
            self._changed()
            step, timeout = STEP_MILLISECONDS, QUICK_MILLISECONDS
            while True:
                changes = events.watch(step, step, timeout, self)
                if changes == "timeout":
                    step, timeout = IDLE_STEP_MILLISECONDS, 0
                    self._changed()  # an event of this moment was dropped
                    continue
                if isinstance(changes, str):
                    return
                step, timeout = STEP_MILLISECONDS, QUICK_MILLISECONDS
                paths = {path for _, path in changes}
                if any(path in folders or os.path.dirname(path) in folders for path in paths):
                    self._changed()
                if not paths.isdisjoint(places):
                    return  # it may have been removed and created again with the same device and inode numbers
                if places != _places(folders) or folders != {os.path.realpath(folder) for folder in self._folders()}:
                    return


def _places(folders: set[str]) -> Places:
    """Return the places to watch: each folder and its parent, or their nearest existing parents."""
    places: Places = {}
    for folder in folders:
        for place in (folder, os.path.dirname(folder)):
            while True:
                try:
                    status = os.stat(place)
                    break
                except OSError:
                    place = os.path.dirname(place)
            places[place] = (status.st_dev, status.st_ino)
    return places
