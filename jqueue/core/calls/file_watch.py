"""The watch of a queue's folders while callers wait for jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from jqueue.runtime.file_events import FileEvents
from jqueue.runtime.threads import in_a_thread


class FileWatch:
    """Wakes the writer when something may have changed in the queue's folders.

    Args:
        folders: returns the folders; None if the queue has none.
        wake: called in the event loop.

    Attributes:
        noticed: True if something may have changed since the last read.
    """

    def __init__(self, folders: Callable[[], Sequence[Path]] | None, wake: Callable[[], None]) -> None:
        self._folders = folders
        self._wake = wake
        self._events: FileEvents | None = None
        self._ending: list[FileEvents] = []
        self.noticed = False

    @property
    def active(self) -> bool:
        """True if every change is noticed."""
        return self._events is not None and self._events.active

    def begin(self) -> None:
        """Start watching, as a caller waits for jobs."""
        if self._events is not None or self._folders is None or not FileEvents.available():
            return
        loop = asyncio.get_running_loop()

        def changed() -> None:
            with suppress(RuntimeError):  # the loop was closed, and no caller waits
                loop.call_soon_threadsafe(self._notice, events)

        self._events = events = FileEvents(self._folders, changed)
        events.begin()

    def end(self) -> None:
        """Stop watching, as no caller waits for jobs."""
        if self._events is not None:
            self._events.end()
            self._ending = [events for events in self._ending if not events.has_ended()] + [self._events]
        self._events, self.noticed = None, False

    async def ended(self) -> None:
        """Stop watching, and wait until all threads have ended."""
        self.end()
        while self._ending:
            await in_a_thread(self._ending.pop().join)

    def _notice(self, events: FileEvents) -> None:
        if events is self._events:
            self.noticed = True
            self._wake()
