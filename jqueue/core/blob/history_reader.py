"""Reads the history of a queue, newest first: the outbox of the blob, then the objects beside it, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from jqueue.core.blob.history_objects import FOLDER, Place, decode_object, last_number, place_of
from jqueue.core.engine.engine import read_until
from jqueue.domain.errors import (
    HistoryDamagedError,
    InvalidBlobError,
    ObjectMissingError,
)
from jqueue.domain.events import HistoryEvent, events_in
from jqueue.domain.history import HistoryHeader, span_of
from jqueue.domain.models import QueueState
from jqueue.ports.clock import Entropy
from jqueue.ports.storage import Listed, SupportsObjects

Answer = TypeVar("Answer")

CLOCKS_DIFFER = timedelta(hours=1)
"""Time by which the clocks that date events and objects may differ."""

EVENTS_PER_SLICE = 100
"""Number of events after which the event loop gets a turn."""


@dataclass
class HistoryReader:
    """Reads the history of one queue once.

    Attributes:
        objects: the store.
        entropy: makes jitter.
        deadline: maximum seconds for a request, with its repetitions.
        call_timeout: maximum seconds for one try.
        since: events before this time are not needed; None: all are.
        wanted: a text that the batch of every wanted event contains, so that the others need not be read; "" if there
            is none.
        damaged: objects that are missing or cannot be read, each with the reason.
        gaps: first and last number of each range of events that is missing.
    """

    objects: SupportsObjects | None
    entropy: Entropy
    deadline: float
    call_timeout: float
    since: datetime | None = None
    wanted: str = ""
    damaged: list[str] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    _below: int = 0

    async def events(self, header: QueueState) -> AsyncGenerator[HistoryEvent, None]:
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
        if self.objects is not None:
            async for event in self._moved(self.objects, header.queue, history):
                yield event
        if self.damaged or self.gaps:
            raise HistoryDamagedError(self.damaged, self.gaps, history.lost if self.gaps else 0)

    async def _moved(
        self, objects: SupportsObjects, queue: str, history: HistoryHeader
    ) -> AsyncGenerator[HistoryEvent, None]:
        """Iterate over the events in objects that are older than all events so far."""
        listed = await self._patiently(lambda: objects.list_beside(FOLDER))
        for series, through in ((history.series, history.last), *reversed(history.older)):
            for place, each in _newest_first(listed, series):
                if place.first > through or place.first >= self._below:
                    continue
                if self.since is not None and each.modified + CLOCKS_DIFFER < self.since:
                    return
                try:
                    content = await self._patiently(lambda suffix=place.suffix: objects.read_object(suffix))  # type: ignore[misc]
                    texts = decode_object(content, queue, place.first)
                except ObjectMissingError as error:
                    if await self._have_all_gone(objects, place):
                        return
                    self._note_damaged(place, f"{error}")
                except InvalidBlobError as error:
                    self._note_damaged(place, f"{place.suffix}: {error}", last_number(content))
                else:
                    for event in self._taken(texts, through):
                        yield event
                await asyncio.sleep(0)

    def _taken(self, batches: Iterable[str], through: int) -> Iterator[HistoryEvent]:
        """Yield the wanted events among these, the newest first. Those that were there before are left out."""
        for batch in reversed(list(batches)):
            first, last, at = span_of(batch)
            above, last = self._below, min(last, self._below - 1, through)
            if last < first:
                continue
            if last < above - 1:
                self.gaps.append((last + 1, above - 1))
            self._below = first
            if self.wanted not in batch or (self.since is not None and at < self.since.timestamp()):
                continue
            try:
                events = events_in(batch)
            except ValueError:
                self.gaps.append((first, last))
                continue
            yield from reversed(events[: last - first + 1])

    def _note_damaged(self, place: Place, why: str, last: int | None = None) -> None:
        """Note that an object cannot be read. Its events, up to the last if that is known, are not a gap."""
        self.damaged.append(why)
        if last is not None and last < self._below - 1:
            self.gaps.append((last + 1, self._below - 1))
        self._below = place.first

    async def _have_all_gone(self, objects: SupportsObjects, place: Place) -> bool:
        """Return True if an object was removed because of its age, and so are all older ones, while this was read."""
        listed = await self._patiently(lambda: objects.list_beside(FOLDER))
        return not any(there.first <= place.first for there, _ in _newest_first(listed, place.series))

    async def _patiently(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Make a request, and repeat it until the deadline if the store fails.

        Raises:
            DeadlineExceededError: the store could not be read in time.
            StorageError: the store refused.
        """

        async def once() -> Answer:
            async with asyncio.timeout(self.call_timeout):
                return await call()

        return await read_until(self.deadline, once, self.entropy, "the history of the queue")


def _newest_first(listed: Iterable[Listed], series: str) -> list[tuple[Place, Listed]]:
    """Return the objects of a series, those with the highest numbers first."""
    places = [(place, each) for each in listed if (place := place_of(each.suffix)) is not None]
    return sorted((pair for pair in places if pair[0].series == series), reverse=True)
