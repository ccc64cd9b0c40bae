"""Moves the outbox of the history to objects beside the queue, in the background.

A commit that makes the outbox too long starts a task, which creates one object. The next commit that is made anyway
drops the moved events from the blob. Until then they stand in both places, and readers drop doubles by number. If two
writers move at the same time, one creates the object, and the other reads it and drops what is in it.

Objects that are too old are removed after a commit has noted the last number that goes. Readers then know which
objects must still be there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from math import inf

from msgspec import Raw

from jqueue.core.blob.history_objects import FOLDER, Place, decode_object, encode_object, place_of
from jqueue.core.observers import Observers
from jqueue.core.tasks import end_tasks
from jqueue.domain.errors import CASConflictError, InvalidBlobError
from jqueue.domain.header import Header
from jqueue.domain.history import EVENTS_PER_OBJECT, HistoryHeader, Moved, is_due, span_of, surplus_of
from jqueue.domain.rules import QueueSettings
from jqueue.ports.clock import Clock
from jqueue.ports.log import logger_of
from jqueue.ports.storage import Listed, ObjectStoragePort, SupportsObjects

logger = logger_of("jqueue")

MOVES_PER_LISTING = 8
"""Number of moves of one queue object for which the objects are listed once."""

SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds after a failure until the next try: they double from the first to the second."""

LONGEST_WAIT = 2.0
"""Seconds that a commit waits for one move of an outbox that is too long."""


class HistoryMover:
    """Moves the history of one queue object.

    Args:
        storage: holds the blob. Nothing is moved if it cannot hold other objects.
        clock: measures pauses.
        now: tells the time, by the store's clock if it has one.
        observers: told of the calls to the store.
        call_timeout: seconds within which a call to the store must end.

    Attributes:
        moved: the batches that the next commit drops from the outbox, as they are in an object.
    """

    def __init__(
        self,
        storage: ObjectStoragePort,
        clock: Clock,
        now: Callable[[], datetime],
        observers: Observers,
        *,
        call_timeout: float,
    ) -> None:
        self._objects = storage if isinstance(storage, SupportsObjects) else None
        self._clock = clock
        self._now = now
        self._observers = observers
        self._call_timeout = call_timeout
        self.events_per_object = EVENTS_PER_OBJECT  # the simulation shortens it
        self._begin()

    def _begin(self) -> None:
        self.moved: Moved | None = None
        self._task: asyncio.Task[None] | None = None
        self._waited: asyncio.Task[None] | None = None
        self._old: list[str] = []  # objects to remove once the header says that events through _removed are gone
        self._removed = 0
        self._version = 0
        self._moves_until_listing = 0
        self._pause = 0.0
        self._not_before = -float("inf")

    @property
    def is_stuck(self) -> bool:
        """True if the outbox cannot be moved by this writer: never, or not for about a minute."""
        return self._objects is None or self._pause >= LONGEST_PAUSE

    def forget(self) -> None:
        """Begin anew, after a fork or on another event loop. A task on the old loop has no effect any longer."""
        self._begin()

    def landed(self, before: HistoryHeader | None, header: Header) -> None:
        """Note a commit that has landed, and start to move the outbox if that is due.

        Args:
            before: the history before the commit.
            header: the header that the commit wrote.
        """
        history = header.history
        if history is None:
            return
        self._note(header.version)
        if before is not None and before.series != history.series and not before.stopped:
            logger.warning("a backup of the queue was restored: the history goes on beside the events after it")
        if self.moved is not None and not _is_in(history, self.moved):
            self.moved = None
        if self._objects is None or self._task is not None:
            return
        if self._old and history.removed >= self._removed:
            self._task = asyncio.get_running_loop().create_task(self._remove(self._objects), name="jqueue-history")
        if self.moved is not None or self._task is not None:
            return
        waited = 0 if before is None else before.last + 1 - history.first  # events that another writer should move
        most = self.events_per_object
        if waited > most and history.last + 1 - history.first <= most * 1.5:
            return
        if is_due(history, header.settings, self._now().timestamp(), most):
            self._start(header)

    def _note(self, version: int) -> None:
        """Note a version of the queue. If it is an earlier one, a backup was restored: the next move lists objects."""
        if version < self._version:
            self._moves_until_listing = 0
        self._version = version

    def _start(self, header: Header) -> None:
        """Start to move the outbox, if no move has just failed or awaits its commit."""
        objects, history = self._objects, header.history
        busy = self.moved is not None or self._task is not None or self._clock.monotonic() < self._not_before
        if objects is None or history is None or busy:
            return
        work = self._run(objects, history, header.queue, header.settings)
        self._task = asyncio.get_running_loop().create_task(work, name="jqueue-history")

    async def make_room(self, header: Header) -> None:
        """Move an outbox that is too long before the next commit, so that it drops it. Wait for some seconds at most.

        Programs that end soon after a commit would otherwise never drop what was moved.
        """
        history = header.history
        if history is None or self._objects is None or not surplus_of(history, header.settings):
            return
        self._note(header.version)
        self._start(header)
        task = self._task
        if task is not None and task is not self._waited and self.moved is None:
            self._waited = task
            await asyncio.wait([task], timeout=LONGEST_WAIT)

    async def finish(self, seconds: float) -> None:
        """Wait until the task has ended. Cancel it after some seconds."""
        if self._task is not None:
            await end_tasks([self._task], seconds)

    async def _run(self, objects: SupportsObjects, history: HistoryHeader, queue: str, settings: QueueSettings) -> None:
        task = asyncio.current_task()
        try:
            listed: list[Listed] | None = None
            if not self._moves_until_listing:
                async with self._observers.limited("list", self._call_timeout):
                    listed = await objects.list_beside(FOLDER)
            if listed and has_others(listed, history):
                moved = _of_others(history)
            else:
                moved = await self._move(objects, history, queue)
            removed, old = (0, []) if listed is None else outdated(listed, history, settings, self._now())
            if self._task is task:
                self.moved, self._pause = moved._replace(removed=removed), 0.0
                self._moves_until_listing = (self._moves_until_listing or MOVES_PER_LISTING) - 1
                if old:
                    self._removed, self._old = removed, old
        except Exception as error:
            if self._task is task:
                self._pause = min(LONGEST_PAUSE, max(SHORTEST_PAUSE, self._pause * 2))
                self._not_before = self._clock.monotonic() + self._pause
            logger.warning("the history could not be moved beside the queue, and will be tried again: %r", error)
        finally:
            if self._task is task:
                self._task = None

    async def _move(self, objects: SupportsObjects, history: HistoryHeader, queue: str) -> Moved:
        """Create an object with the events of the outbox, and return what is in it."""
        place, batches = Place(history.series, history.first), history.batches
        try:
            async with self._observers.limited("create", self._call_timeout):
                await objects.create_object(place.suffix, encode_object(queue, batches))
        except CASConflictError:  # another writer was quicker, or this writer itself: an earlier try has landed
            async with self._observers.limited("fetch", self._call_timeout):
                content = await objects.read_object(place.suffix)
            try:
                return Moved(place.series, decode_object(content, queue, place.first))
            except InvalidBlobError as error:
                logger.warning("%s is damaged, and the history goes on beside it: %s", place.suffix, error)
                return _of_others(history)
        return Moved(place.series, batches)

    async def _remove(self, objects: SupportsObjects) -> None:
        """Remove the objects whose removal the header notes. After a failure, a later listing finds them again."""
        task, old = asyncio.current_task(), self._old
        self._old = []
        try:
            for suffix in old:
                async with self._observers.limited("remove", self._call_timeout):
                    await objects.remove_object(suffix)
        except Exception as error:
            logger.warning("old objects of the history could not be removed, and will be tried again: %r", error)
        finally:
            if self._task is task:
                self._task = None


def _is_in(history: HistoryHeader, moved: Moved) -> bool:
    """Return True if the outbox may still hold events that were moved."""
    last = span_of(moved.batches[-1]).last
    return history.series == moved.series and bool(history.batches) and history.first <= last


def _of_others(history: HistoryHeader) -> Moved:
    """Return a move after which the outbox gets a new series: it fits none of the events."""
    return Moved(history.series, (Raw(f"[{history.first},1,0]"),))


def has_others(listed: Sequence[Listed], history: HistoryHeader) -> bool:
    """Return True if a series has events beyond the outbox: a backup of the blob was restored.

    The object behind the outbox may be gone for its age, so its name alone does not tell.
    """
    places = (place_of(each.suffix) for each in listed)
    return any(place.series == history.series and place.first > history.first for place in places if place)


def outdated(
    listed: list[Listed], history: HistoryHeader, settings: QueueSettings, now: datetime
) -> tuple[int, list[str]]:
    """Return the number of the last event that need no longer be kept, and the suffixes of the objects to remove.

    Args:
        listed: all objects of the history.
        history: the history.
        settings: the settings of the queue.
        now: the time, by the clock that dates the objects.
    """
    ends = {**dict(history.older), history.series: inf}  # the history may have gone on since
    places = {each.suffix: place for each in listed if (place := place_of(each.suffix))}
    firsts = {suffix: place.first for suffix, place in places.items() if place.first <= ends.get(place.series, 0)}
    old = [each.suffix for each in surplus(listed, settings, now)]
    gone = {*old}
    if not firsts.keys() & gone:
        return 0, old
    removed = min([history.first, *(first for suffix, first in firsts.items() if suffix not in gone)]) - 1
    return removed, [suffix for suffix in old if firsts.get(suffix, 0) <= removed]


def surplus(listed: list[Listed], settings: QueueSettings, now: datetime) -> list[Listed]:
    """Return the objects of a history that need no longer be kept, the oldest first.

    Args:
        listed: all objects of the history.
        settings: the settings of the queue.
        now: the time, by the clock that dates the objects.
    """
    ours = sorted((each for each in listed if place_of(each.suffix)), key=lambda each: (each.modified, each.suffix))
    kept = settings.history
    old = [] if kept is None else [each for each in ours if each.modified + timedelta(seconds=kept) < now]
    rest, most = ours[len(old) :], settings.history_bytes
    size = sum(each.size for each in rest)
    for each in rest[:-1]:
        if most is None or size <= most:
            break
        size -= each.size
        old.append(each)
    return old
