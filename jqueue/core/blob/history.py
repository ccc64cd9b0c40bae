"""The objects of the history: events that have left the outbox, in immutable objects beside the queue's.

An object is `.history/<series>/<number of its first event, 16 digits>`. Its first line is JSON with a checksum of the
rest. Then comes one batch of events a line, in the order of the numbers.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from jqueue.core.observers import Observers
from jqueue.core.tasks import LONGEST_PAUSE, Background, end_tasks, retried
from jqueue.domain.errors import CASConflictError, HistoryDamagedError, InvalidBlobError, ObjectMissingError
from jqueue.domain.events import HistoryEvent, events_in
from jqueue.domain.header import Header
from jqueue.domain.history import EVENTS_PER_OBJECT, HistoryHeader, Moved, is_due, span_of, surplus_of
from jqueue.domain.rules import QueueSettings
from jqueue.ports.clock import Clock, Entropy
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.storage import Listed, ObjectStoragePort, SupportsObjects

FORMAT = 1
FOLDER = ".history/"
_NAME = re.compile(r"\.history/([A-Za-z0-9_-]+)/([0-9]{16})")


class Place(NamedTuple):
    """The place of an object in the history."""

    series: str
    first: int
    """The number of its first event."""

    @property
    def suffix(self) -> str:
        """The suffix that names the object."""
        return f"{FOLDER}{self.series}/{self.first:016d}"


def place_of(suffix: str) -> Place | None:
    """Return the place of the object with this suffix; None if the suffix is of another kind."""
    found = _NAME.fullmatch(suffix)
    return None if found is None else Place(found[1], int(found[2]))


def encode_object(queue: str, batches: Sequence[Raw]) -> bytes:
    """Return the content of an object with these batches of events, of which there is at least one."""
    rest = b"\n".join((*batches, b""))
    first, last = span_of(batches[0]).first, span_of(batches[-1]).last
    said = {"history": FORMAT, "queue": queue, "first": first, "last": last, "crc": zlib.crc32(rest)}
    return b"%b\n%b" % (msgspec.json.encode(said), rest)


def last_number(content: bytes) -> int | None:
    """Return the number of the last event that an object should have; None if its first line does not say it."""
    said = _first_line(content)
    last = said.get("last") if isinstance(said, dict) else None
    return last if type(last) is int else None


def _first_line(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content.partition(b"\n")[0])
    except ValueError:
        return None


def decode_object(content: bytes, queue: str, first: int) -> list[Raw]:
    """Return the batches in an object.

    Args:
        content: its bytes.
        queue: id of the queue.
        first: the number of the first event, by the name of the object.

    Raises:
        InvalidBlobError: it is damaged, or belongs elsewhere.
    """
    said, rest = _first_line(content), content.partition(b"\n")[2]
    if not isinstance(said, dict) or "history" not in said:
        raise InvalidBlobError("its first line is not that of a history")
    if said["history"] != FORMAT:
        raise InvalidBlobError("it was written by a later version of jqueue: upgrade jqueue")
    if said.get("crc") != zlib.crc32(rest):
        raise InvalidBlobError("its checksum does not match: it is cut off, or was changed")
    if (said.get("queue"), said.get("first")) != (queue, first):
        raise InvalidBlobError("it belongs to another queue, or has another object's name")
    batches = [Raw(line) for line in rest.split(b"\n")[:-1]]
    try:
        list(map(span_of, batches))
    except ValueError:
        raise InvalidBlobError("a line of it is not a batch of events") from None
    return batches


logger: Logger = logger_of("jqueue")

MOVES_PER_LISTING = 8
"""Number of moves of one queue object for which the objects are listed once."""

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
        self._moves = Background(clock, "jqueue-history", "the history could not be moved beside the queue")
        self._removals = Background(clock, "jqueue-history", "old objects of the history could not be removed")
        self.forget()

    def forget(self) -> None:
        """Begin anew, after a fork or on another event loop."""
        self.moved: Moved | None = None
        self._waited: asyncio.Task[None] | None = None
        self._old: list[str] = []  # objects to remove once the header says that events through _removed are gone
        self._removed = 0
        self._version = 0
        self._moves_until_listing = 0
        self._moves.forget()
        self._removals.forget()

    @property
    def is_stuck(self) -> bool:
        """True if the outbox cannot be moved by this writer: never, or not for about a minute."""
        return self._objects is None or self._moves.pause >= LONGEST_PAUSE

    @property
    def _task(self) -> asyncio.Task[None] | None:
        """The task under way. There is one at a time."""
        return self._moves.task or self._removals.task

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
            old, self._old = self._old, []
            self._removals.begin(partial(self._remove, self._objects, old), lambda _: None)
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
        is_free = self.moved is None and self._task is None and self._moves.is_free
        if objects is not None and history is not None and is_free:
            work = partial(self._moving, objects, history, header.queue, header.settings)
            self._moves.begin(work, self._has_moved)

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

    async def _moving(
        self, objects: SupportsObjects, history: HistoryHeader, queue: str, settings: QueueSettings
    ) -> tuple[Moved, list[str]]:
        """Move the outbox. Return what was moved, and the objects to remove."""
        listed: list[Listed] | None = None
        if not self._moves_until_listing:
            listed = await self._observers.call("list", self._call_timeout, objects.list_beside, FOLDER)
        others = listed is not None and has_others(listed, history)
        moved = _of_others(history) if others else await self._move(objects, history, queue)
        removed, old = (0, []) if listed is None else outdated(listed, history, settings, self._now())
        return moved._replace(removed=removed), old

    def _has_moved(self, result: tuple[Moved, list[str]]) -> None:
        self.moved, old = result
        self._moves_until_listing = (self._moves_until_listing or MOVES_PER_LISTING) - 1
        if old:
            self._removed, self._old = self.moved.removed, old

    async def _move(self, objects: SupportsObjects, history: HistoryHeader, queue: str) -> Moved:
        """Create an object with the events of the outbox, and return what is in it."""
        place, batches = Place(history.series, history.first), history.batches
        try:
            encoded = encode_object(queue, batches)
            await self._observers.call("create", self._call_timeout, objects.create_object, place.suffix, encoded)
        except CASConflictError:  # another writer was quicker, or this writer itself: an earlier try has landed
            content = await self._observers.call("fetch", self._call_timeout, objects.read_object, place.suffix)
            try:
                return Moved(place.series, decode_object(content, queue, place.first))
            except InvalidBlobError as error:
                logger.warning("%s is damaged, and the history goes on beside it: %s", place.suffix, error)
                return _of_others(history)
        return Moved(place.series, batches)

    async def _remove(self, objects: SupportsObjects, old: Iterable[str]) -> None:
        """Remove the objects whose removal the header notes. After a failure, a later listing finds them again."""
        for suffix in old:
            await self._observers.call("remove", self._call_timeout, objects.remove_object, suffix)


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


Answer = TypeVar("Answer")

CLOCKS_DIFFER = 3600.0
"""Seconds by which the clocks that date events may differ."""

EVENTS_PER_SLICE = 100
"""Number of events after which the event loop gets a turn."""


class HistoryReader(msgspec.Struct):
    """Reads the history of one queue once.

    Attributes:
        objects: the store.
        entropy: makes jitter.
        deadline: maximum seconds for a request, with its repetitions.
        call_timeout: maximum seconds for one try.
        present: reads the present header of the queue, to learn which events were removed meanwhile.
        since: events before this time are not needed; None: all are.
        after: events up to this number are not needed.
        wanted: a text that the batch of every wanted event contains, so that the others need not be read; b"" if there
            is none.
        damaged: objects that are missing or cannot be read, each with its events and the reason.
        gaps: first and last number of each range of events that is missing for another reason.
    """

    objects: SupportsObjects | None
    entropy: Entropy
    deadline: float
    call_timeout: float
    present: Callable[[], Awaitable[Header]]
    since: datetime | None = None
    after: int = 0
    wanted: bytes = b""
    damaged: list[str] = msgspec.field(default_factory=list)
    gaps: list[tuple[int, int]] = msgspec.field(default_factory=list)
    _holes: list[tuple[int, int]] = msgspec.field(default_factory=list)
    _below: int = 0
    _at: float = inf

    async def events(self, header: Header) -> AsyncGenerator[HistoryEvent, None]:
        """Iterate over the events up to a version of the queue, the newest first.

        Args:
            header: the header of that version.

        Raises:
            HistoryDamagedError: at the end, if events are missing.
            StorageError: the store failed.
        """
        history = header.history
        if history is None:
            return
        self._below = history.last + 1
        for number, event in enumerate(self._taken(history.batches, history.last), 1):
            yield event
            if number % EVENTS_PER_SLICE == 0:
                await asyncio.sleep(0)
        self.gaps += self._holes
        self._holes.clear()
        if self.objects is not None and not self._is_over:
            async with aclosing(self._moved(self.objects, header.queue, history)) as moved:
                async for event in moved:
                    yield event
        if history.lost:  # the missing events were in an object, or were dropped before
            self.gaps += self._holes
        else:
            self.damaged += [_missing(history, first, last) for first, last in self._holes]
        if self.damaged or self.gaps:
            raise HistoryDamagedError(self.damaged, self.gaps, history.lost if self.gaps else 0)

    async def _moved(
        self, objects: SupportsObjects, queue: str, history: HistoryHeader
    ) -> AsyncGenerator[HistoryEvent, None]:
        """Iterate over the events in objects that are older than all events so far."""
        listed = await self._patiently(lambda: objects.list_beside(FOLDER))
        places = sorted((place for each in listed if (place := place_of(each.suffix)) is not None), reverse=True)
        for series, through in ((history.series, history.last), *reversed(history.older)):
            for place in places:
                if place.series != series or place.first > through or not history.removed < place.first < self._below:
                    continue
                try:
                    content = await self._patiently(lambda suffix=place.suffix: objects.read_object(suffix))  # type: ignore[misc]
                    texts = decode_object(content, queue, place.first)
                except ObjectMissingError:
                    continue  # the next object, or the end, shows which events are missing
                except InvalidBlobError as error:
                    self._note_damaged(place, f"{error}", last_number(content))
                else:
                    for event in self._taken(texts, through):
                        yield event
                if self._is_over:
                    return
                await asyncio.sleep(0)
        if self._below > history.removed + 1:
            self._holes.append((1, self._below - 1))
        if self._holes:  # some may have been removed for their age since the header was read
            removed = max(each.removed for each in (history, (await self.present()).history) if each is not None)
            self._holes = [(max(first, removed + 1), last) for first, last in self._holes if last > removed]

    @property
    def _is_over(self) -> bool:
        """True if no earlier event is wanted: all are too old, or have been read before."""
        is_old = self.since is not None and self._at + CLOCKS_DIFFER < self.since.timestamp()
        return is_old or self._below <= self.after + 1

    def _taken(self, batches: Iterable[Raw], through: int) -> Iterator[HistoryEvent]:
        """Yield the wanted events among these, the newest first. Those that were there before are left out."""
        for batch in reversed(list(batches)):
            first, last, at = span_of(batch)
            above, last = self._below, min(last, self._below - 1, through)
            if last < first or last <= self.after:
                continue
            if last < above - 1:
                self._holes.append((last + 1, above - 1))
            self._below, self._at = first, at
            if self.wanted not in bytes(batch) or (self.since is not None and at < self.since.timestamp()):
                continue
            try:
                events = events_in(batch)
            except ValueError:
                self.gaps.append((first, last))
                continue
            yield from reversed(events[: last - first + 1])

    def _note_damaged(self, place: Place, why: str, last: int | None) -> None:
        """Note that an object cannot be read. Its events, up to the last if that is known, are not a gap."""
        if last is not None and last < self._below - 1:
            self._holes.append((last + 1, self._below - 1))
            self._below = last + 1
        self.damaged.append(f"{place.suffix} (events {place.first} to {self._below - 1}): {why}")
        self._below = place.first

    async def _patiently(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Make a request, and repeat it until the deadline if the store fails.

        Raises:
            DeadlineExceededError: the store could not be read in time.
            StorageError: the store refused.
        """

        async def once() -> Answer:
            async with asyncio.timeout(self.call_timeout):
                return await call()

        return await retried(self.deadline, once, self.entropy, "the history of the queue could not be read")


def _missing(history: HistoryHeader, first: int, last: int) -> str:
    """Return the name of the missing object that should begin with an event, and the numbers of missing events."""
    series = next((series for series, through in history.older if first <= through), history.series)
    return f"{Place(series, first).suffix} (events {first} to {last}): it is missing"
