"""Events of the file system: who waits for jobs is told when something changes in a folder, and need not look.

With the extra `formats`, which has watchfiles. Without it, and where the system has no more watches to give, nothing is
told, and whoever waits looks now and then.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from jqueue.ports.log import logger_of

try:  # as its documentation has it; what it exports besides does not say when a watch has begun
    from watchfiles._rust_notify import RustNotify, WatchfilesRustInternalError
except ImportError:
    _installed = False
else:
    _installed = True

logger = logger_of("jqueue")

STEP_MILLISECONDS = 5
"""So long events are gathered, and so often it is asked whether to stop."""

RETRY_SECONDS = 0.05

Places = dict[str, tuple[int, int]]


class FileEvents:
    """A thread that waits for the events of some folders.

    A folder need not be there: its nearest parent that is there is watched for it. So it may also be removed, and made
    again.

    Args:
        folders: asked for the folders, absolute, whenever one has come or gone.
        changed: called in that thread: something may have changed. The first time when the watch has begun, so that
            nothing is missed that happened since the last look.
    """

    def __init__(self, folders: Callable[[], Sequence[Path]], changed: Callable[[], None]) -> None:
        self._folders = folders
        self._changed = changed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jqueue-file-events")
        self.active = False

    @staticmethod
    def are_there() -> bool:
        """Whether the extra is installed."""
        return _installed

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Have the thread end soon."""
        self._stop.set()

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def has_ended(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def is_set(self) -> bool:
        """Whether the thread must end: it was told so, or the interpreter is about to exit and waits for it."""
        return self._stop.is_set() or not threading.main_thread().is_alive()

    def _run(self) -> None:
        try:
            while not self.is_set():
                self._watch()
                self.active = False
        except (OSError, WatchfilesRustInternalError) as error:
            logger.warning("no events of the file system, it is looked now and then: %s", error)
        finally:
            self.active = False

    def _watch(self) -> None:
        """Watch as long as the folders are the same.

        Raises:
            OSError, WatchfilesRustInternalError: they cannot be watched.
        """
        folders = {os.path.realpath(folder) for folder in self._folders()}
        places = _places(folders)
        try:
            events = RustNotify(sorted(places), False, False, 0, False, True)
        except FileNotFoundError:  # one has just gone
            self._stop.wait(RETRY_SECONDS)
            return
        with events:
            if places != _places(folders):
                return
            self.active = True
            self._changed()
            while True:
                found = events.watch(STEP_MILLISECONDS, STEP_MILLISECONDS, 0, self)
                if isinstance(found, str):
                    return
                paths = {path for _, path in found}
                if any(path in folders or os.path.dirname(path) in folders for path in paths):
                    self._changed()
                if not paths.isdisjoint(places):
                    return  # it may have been removed and made again, with all numbers as before
                if places != _places(folders) or folders != {os.path.realpath(folder) for folder in self._folders()}:
                    return


def _places(folders: set[str]) -> Places:
    """What is to be watched: each folder and the one that it is in, or the nearest that is there."""
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
