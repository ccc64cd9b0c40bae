"""The objects of the history: events that have left the outbox, in immutable objects beside the queue's.

An object is `.history/<number of its first event, 16 digits>.jsonl`: one event a line, in the order of the numbers. Its
first line also has `last`, the number of its last event, and `crc`, a checksum of the queue's id and of the object
without this field.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import TypeVar

import msgspec
from msgspec import Raw

from jqueue.core.access import Access
from jqueue.core.tasks import LONGEST_PAUSE, Background, end_tasks, in_turns, retried
from jqueue.domain.errors import CASConflictError, HistoryDamagedError, InvalidBlobError, ObjectMissingError
from jqueue.domain.events import HistoryEvent, events_in
from jqueue.domain.header import Header
from jqueue.domain.history import HistoryHeader, Moved, is_due, numbers_of, surplus_of
from jqueue.domain.rules import QueueSettings
from jqueue.domain.slices import Slices
from jqueue.ports.clock import Entropy
from jqueue.ports.log import Logger, logger_of
from jqueue.ports.storage import Listed, SupportsObjects

FOLDER = ".history/"
_NAME = re.compile(r"\.history/([0-9]{16})\.jsonl")
_END = re.compile(rb',"last":([0-9]+)(,"crc":([0-9]+))\}\n')

EVENTS_PER_SLICE = 100
"""Number of events after which the event loop gets a turn."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(HistoryEvent).decode


def name_of(first: int) -> str:
    """Return the suffix of the object whose first event has this number."""
    return f"{FOLDER}{first:016d}.jsonl"


def first_of(suffix: str) -> int | None:
    """Return the number of the first event of the object with this suffix; None if the suffix is of another kind."""
    match = _NAME.fullmatch(suffix)
    return None if match is None else int(match[1])


def encoding_object(queue: str, batches: Sequence[Raw]) -> Slices[bytes]:
    """Return the content of an object with the events of these batches, in slices; b"" if none of them can be read."""
    lines = list[bytes]()
    for batch in batches:
        lines += map(_encode, _readable(batch))
        if len(lines) % EVENTS_PER_SLICE < 2:
            yield
    if not lines:
        return b""
    lines[0] = b'%b,"last":%d}' % (lines[0][:-1], numbers_of(batches[-1]).last)
    content = b"\n".join((*lines, b""))
    end = len(lines[0]) - 1
    return b'%b,"crc":%d%b' % (content[:end], _crc(queue, content), content[end:])


def _readable(batch: Raw) -> list[HistoryEvent]:
    """Return the events of a batch; none if it was changed by hand and cannot be read."""
    try:
        return events_in(batch)
    except ValueError as error:
        logger.warning(
            "events %d to %d of the history cannot be read, and are left out: %s", *numbers_of(batch)[:2], error
        )
        return []


def _crc(queue: str, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(queue.encode()))


def last_number(content: bytes) -> int | None:
    """Return the number of the last event that an object should have; None if its first line does not tell it."""
    match = _END.search(content)
    return None if match is None else int(match[1])


def decode_object(content: bytes, queue: str) -> list[bytes]:
    """Return the lines of an object, each an event.

    Args:
        content: its bytes.
        queue: id of the queue.

    Raises:
        InvalidBlobError: it is damaged, or belongs elsewhere.
    """
    end_mark = _END.search(content)
    if end_mark is None or int(end_mark[3]) != _crc(queue, content[: end_mark.start(2)] + content[end_mark.end(2) :]):
        raise InvalidBlobError("its checksum does not match: it is cut off, was changed, or belongs to another queue")
    return content.split(b"\n")[:-1]


def number_of(line: bytes) -> int:
    """Return the number of an event, given its line."""
    return int(line[len(b'{"number":') : line.index(b",")])


def comparing(history: HistoryHeader, content: bytes, queue: str) -> Slices[tuple[Moved, bool]]:
    """Compare an outbox with the object that has its name, in slices. The object was created by another writer.

    Args:
        history: the history with the outbox.
        content: the content of the object.
        queue: id of the queue.

    Returns:
        The batches at the beginning of the outbox that are in the object, and True if it has other events, too.
    """
    first, batches, matching = history.first, history.batches, 0
    try:
        lines = decode_object(content, queue)
    except InvalidBlobError as error:
        logger.warning("%s is damaged, and the history goes on behind it: %s", name_of(first), error)
        return Moved(first, ()), True
    for count, batch in enumerate(batches):
        if matching == len(lines):
            return Moved(first, batches[:count]), False
        own = _readable(batch)
        if own != [_decode(line) for line in lines[matching : matching + len(own)]]:
            return Moved(first, batches[:count]), True
        matching += len(own)
        yield
    has_more = matching < len(lines)  # this writer may not have read the version with these events yet
    return Moved(first, batches, through=number_of(lines[-1]) if has_more else 0), has_more


logger: Logger = logger_of("jqueue")

MOVES_PER_LISTING = 8
"""Number of moves of one queue object for which the objects are listed once."""

LONGEST_WAIT = 2.0
"""Seconds that a commit waits for one move of an outbox that is too long."""


class HistoryMover:
    """Moves the history of one queue object.

    Args:
        access: to the store. Nothing is moved if it cannot hold other objects.

    Attributes:
        moved: the batches that the next commit drops from the outbox, as they are in an object.
    """

    def __init__(self, access: Access) -> None:
        self._objects, self._now, self._numbers = access.objects, access.now, access.numbers
        self._observers, self._call_timeout = access.observers, access.call_timeout
        self._moves = Background(access.clock, "jqueue-history", "the history could not be moved beside the queue")
        self._removals = Background(access.clock, "jqueue-history", "old objects of the history could not be removed")
        self.moved: Moved | None = None
        self._waited: asyncio.Task[None] | None = None
        self._old: list[str] = []  # objects to remove once the header says that events through _removed are gone
        self._removed = 0
        self._version = 0
        self._moves_until_listing = 0

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
        if self.moved is not None and not self.moved.fits(history):
            if 0 < self.moved.behind < history.first:
                logger.warning(
                    "a backup of the queue was restored: the history goes on behind event %d", self.moved.behind
                )
            self.moved = None
        if self._objects is None or self._task is not None:
            return
        if self._old and history.removed >= self._removed:
            old, self._old = self._old, []
            self._removals.begin(partial(self._remove, self._objects, old), lambda _: None)
        if self.moved is not None or self._task is not None:
            return
        waited = 0 if before is None else before.last + 1 - history.first  # events that another writer should move
        most, is_on = self._numbers.events_per_object, header.settings.history is not None
        if is_on and waited > most and history.last + 1 - history.first <= most * 1.5:
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
        listed = {} if self._moves_until_listing else await self._list(objects)
        moved = await self._move(objects, history, queue, listed, is_last=settings.history is None)
        removed, old = outdated(listed, history, settings, self._now())
        return moved._replace(removed=removed), old

    async def _list(self, objects: SupportsObjects) -> dict[int, Listed]:
        """Return the objects of the history by the numbers of their first events, in order."""
        listed = await self._observers.call("list", self._call_timeout, objects.list_beside, FOLDER)
        return {first: each for each in listed if (first := first_of(each.suffix)) is not None}

    def _has_moved(self, result: tuple[Moved, list[str]]) -> None:
        self.moved, old = result
        self._moves_until_listing = (self._moves_until_listing or MOVES_PER_LISTING) - 1
        if old:
            self._removed, self._old = self.moved.removed, old

    async def _move(
        self,
        objects: SupportsObjects,
        history: HistoryHeader,
        queue: str,
        listed: Mapping[int, Listed],
        *,
        is_last: bool,
    ) -> Moved:
        """Create an object with the events of the outbox, and return what is in it.

        Another writer may have created it with some of them. The next move creates one for the others; there is none
        if the history was switched off.

        If a backup was restored, objects have other events under their numbers. The one named by the first of them may
        be gone for its age.
        """
        moved, name = Moved(history.first, ()), name_of(history.first)
        if history.first in listed or history.first > max(listed, default=0):
            content = await in_turns(encoding_object(queue, history.batches))
            try:
                if content:
                    await self._observers.call("create", self._call_timeout, objects.create_object, name, content)
                return moved._replace(batches=history.batches)
            except CASConflictError:  # another writer was quicker, or this writer itself: an earlier try has landed
                content = await self._fetch(objects, name)
            moved, has_others = await in_turns(comparing(history, content, queue))
            if not has_others:
                rest = history.evolve(batches=history.batches[len(moved.batches) :])
                if not (is_last and rest.batches):
                    return moved
                more = await self._move(objects, rest, queue, {}, is_last=True)
                return more._replace(first=history.first, batches=(*moved.batches, *more.batches))
        highest = max(await self._list(objects))
        content = await self._fetch(objects, name_of(highest))
        # each event of a damaged object takes more than a byte
        return moved._replace(behind=last_number(content) or highest + len(content))

    async def _fetch(self, objects: SupportsObjects, suffix: str) -> bytes:
        return await self._observers.call("fetch", self._call_timeout, objects.read_object, suffix)

    async def _remove(self, objects: SupportsObjects, old: Iterable[str]) -> None:
        """Remove the objects whose removal the header notes. After a failure, a later listing finds them again."""
        for suffix in old:
            await self._observers.call("remove", self._call_timeout, objects.remove_object, suffix)


def outdated(
    listed: Mapping[int, Listed], history: HistoryHeader, settings: QueueSettings, now: datetime
) -> tuple[int, list[str]]:
    """Return the number of the last event that need no longer be kept, and the suffixes of the objects to remove.

    Args:
        listed: all objects of the history, by the numbers of their first events, in order.
        history: the history.
        settings: the settings of the queue.
        now: the time, by the clock that dates the objects.
    """
    left, retention = [*listed], settings.history
    while left and left[0] < history.first:
        if retention is None or listed[left[0]].modified + timedelta(seconds=retention) >= now:
            break
        del left[0]
    removed = min(history.first, *left[:1]) - 1 if len(left) < len(listed) else 0
    return removed, [each.suffix for first, each in listed.items() if first <= removed]


Answer = TypeVar("Answer")

CLOCKS_DIFFER = 3600.0
"""Seconds by which the clocks that date events may differ."""


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
        wanted: a text that the JSON of every wanted event contains, so that the others need not be read; b"" if there
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
        for number, event in enumerate(self._latest(history.batches), 1):
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
            missing = "{} (events {} to {}): it is missing"
            self.damaged += [missing.format(name_of(first), first, last) for first, last in self._holes]
        if self.damaged or self.gaps:
            raise HistoryDamagedError(self.damaged, self.gaps, history.lost if self.gaps else 0)

    async def _moved(
        self, objects: SupportsObjects, queue: str, history: HistoryHeader
    ) -> AsyncGenerator[HistoryEvent, None]:
        """Iterate over the events in objects that are older than all events so far."""
        listed = await self._patiently(lambda: objects.list_beside(FOLDER))
        firsts = sorted((first for each in listed if (first := first_of(each.suffix)) is not None), reverse=True)
        for first in firsts:
            if not history.removed < first < self._below:  # it is removed, or of a time before a restored backup
                continue
            try:
                content = await self._patiently(lambda first=first: objects.read_object(name_of(first)))  # type: ignore[misc]
                lines = decode_object(content, queue)
            except ObjectMissingError:
                continue  # the next object, or the end, shows which events are missing
            except InvalidBlobError as error:
                self._note_damaged(first, f"{error}", last_number(content))
            else:
                for number, event in enumerate(self._in_lines(lines, is_wanted=self.wanted in content), 1):
                    yield event
                    if number % EVENTS_PER_SLICE == 0:
                        await asyncio.sleep(0)
                self._at = _decode(lines[0]).at.timestamp()
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

    def _latest(self, batches: Sequence[Raw]) -> Iterator[HistoryEvent]:
        """Yield the wanted events of the outbox, the newest first."""
        for batch in reversed(batches):
            first, last, at = numbers_of(batch)
            if last <= self.after:
                return
            self._reach(first, last)
            self._at = at
            if self.wanted in bytes(batch) and (self.since is None or at >= self.since.timestamp()):
                try:
                    yield from reversed(events_in(batch))
                except ValueError:
                    self.gaps.append((first, last))

    def _in_lines(self, lines: Sequence[bytes], *, is_wanted: bool) -> Iterator[HistoryEvent]:
        """Yield the wanted events of an object, the newest first."""
        above, first, last = self._below, number_of(lines[0]), number_of(lines[-1])
        if last - first + 1 == len(lines):
            self._reach(first, last)
        else:  # some could not be read when the object was written
            for number in map(number_of, reversed(lines)):
                self._reach(number, number)
        for line in reversed(lines if is_wanted else ()):
            if self.wanted in line:
                event = _decode(line)
                if self.after < event.number < above and (self.since is None or event.at >= self.since):
                    yield event

    def _reach(self, first: int, last: int) -> None:
        """Note that these events are there, and which are missing between them and those so far."""
        if last < self._below - 1:
            self._holes.append((last + 1, self._below - 1))
        self._below = first

    def _note_damaged(self, first: int, why: str, last: int | None) -> None:
        """Note that an object cannot be read. Its events, up to the last if that is known, are not a gap."""
        if last is not None and last < self._below - 1:
            self._reach(last + 1, last)
        self.damaged.append(f"{name_of(first)} (events {first} to {self._below - 1}): {why}")
        self._below = first

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
