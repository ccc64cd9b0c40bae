"""Moves the outbox of the history to objects beside the queue, in the background.

A commit that makes the outbox too long starts a task, which creates one object. The next commit that is made anyway
drops the moved events from the blob. Until then they stand in both places, and readers drop doubles by number. If two
writers move at the same time, one creates the object, and the other reads it and drops what is in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from jqueue.core.blob.history_objects import FOLDER, Place, decode_object, encode_object, place_of
from jqueue.core.engine.observers import Observers
from jqueue.domain.errors import CASConflictError, InvalidBlobError
from jqueue.domain.history import EVENTS_PER_OBJECT, HistoryHeader, Moved, is_due, span_of
from jqueue.domain.models import QueueState
from jqueue.domain.rules import QueueSettings
from jqueue.ports.clock import Clock
from jqueue.ports.log import logger_of
from jqueue.ports.storage import Listed, ObjectStoragePort, SupportsObjects

logger = logger_of("jqueue")

MOVES_PER_COLLECTION = 8
"""Number of moves of one queue object for which old objects are looked for once."""

SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds after a failure until the next try: they double from the first to the second."""


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
        self._moves = 0
        self.events_per_object = EVENTS_PER_OBJECT  # the simulation shortens it
        self._begin()

    def _begin(self) -> None:
        self.moved: Moved | None = None
        self._task: asyncio.Task[None] | None = None
        self._pause = 0.0
        self._not_before = -float("inf")

    def forget(self) -> None:
        """Begin anew, after a fork or on another event loop. A task on the old loop has no effect any longer."""
        self._begin()

    def landed(self, before: HistoryHeader | None, header: QueueState) -> None:
        """Note a commit that has landed, and start to move the outbox if that is due.

        Args:
            before: the history before the commit.
            header: the header that the commit wrote.
        """
        history = header.history
        if history is None:
            return
        if self.moved is not None and not _is_in(history, self.moved):
            self.moved = None
        if self._objects is None or self.moved is not None or self._task is not None:
            return
        waited = 0 if before is None else before.last + 1 - history.first  # events that another writer should move
        most = self.events_per_object
        if waited > most and history.last + 1 - history.first <= most * 1.5:
            return
        if self._clock.monotonic() < self._not_before:
            return
        if is_due(history, header.settings, self._now().timestamp(), most):
            work = self._run(self._objects, history, header.queue, header.settings)
            self._task = asyncio.get_running_loop().create_task(work, name="jqueue-history")

    async def finish(self, seconds: float) -> None:
        """Wait until the task has ended. Cancel it after some seconds."""
        task = self._task
        if task is not None and not task.done():
            await asyncio.wait([task], timeout=max(0.0, seconds))
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=1.0)

    async def _run(self, objects: SupportsObjects, history: HistoryHeader, queue: str, settings: QueueSettings) -> None:
        task = asyncio.current_task()
        try:
            moved = await self._move(objects, history, queue)
            if self._task is task:
                self.moved, self._pause = moved, 0.0
            self._moves += 1
            if self._moves % MOVES_PER_COLLECTION == 1:
                await self._collect(objects, settings)
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
                return Moved(place.series, (f"[{place.first}, 1, 0]",))  # fits no batch: a new series begins
        return Moved(place.series, batches)

    async def _collect(self, objects: SupportsObjects, settings: QueueSettings) -> None:
        """Remove the objects that are older than the history is kept, and the oldest if all are too large."""
        async with self._observers.limited("list", self._call_timeout):
            listed = await objects.list_beside(FOLDER)
        for old in surplus(listed, settings, self._now()):
            async with self._observers.limited("remove", self._call_timeout):
                await objects.remove_object(old.suffix)


def _is_in(history: HistoryHeader, moved: Moved) -> bool:
    """Return True if the outbox may still hold events that were moved."""
    last = span_of(moved.batches[-1]).last
    return history.series == moved.series and bool(history.batches) and history.first <= last


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
