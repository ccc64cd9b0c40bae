"""Reads the history of a queue, newest first: the outbox of the blob, then the objects beside it, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import TypeVar

from msgspec import Raw

from jqueue.core.blob.history_objects import FOLDER, Place, decode_object, last_number, place_of
from jqueue.core.tasks import retried
from jqueue.domain.errors import (
    HistoryDamagedError,
    InvalidBlobError,
    ObjectMissingError,
)
from jqueue.domain.events import HistoryEvent, events_in
from jqueue.domain.header import Header
from jqueue.domain.history import HistoryHeader, span_of
from jqueue.ports.clock import Entropy
from jqueue.ports.storage import Listed, SupportsObjects

Answer = TypeVar("Answer")

CLOCKS_DIFFER = 3600.0
"""Seconds by which the clocks that date events may differ."""

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
        present: reads the present header of the queue, to learn which events were removed meanwhile.
        since: events before this time are not needed; None: all are.
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
    wanted: bytes = b""
    damaged: list[str] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    _holes: list[tuple[int, int]] = field(default_factory=list)
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
            async for event in self._moved(self.objects, header.queue, history):
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
        for series, through in ((history.series, history.last), *reversed(history.older)):
            for place in _newest_first(listed, series):
                if place.first > through or not history.removed < place.first < self._below:
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
        """True if all earlier events are too old to be wanted."""
        return self.since is not None and self._at + CLOCKS_DIFFER < self.since.timestamp()

    def _taken(self, batches: Iterable[Raw], through: int) -> Iterator[HistoryEvent]:
        """Yield the wanted events among these, the newest first. Those that were there before are left out."""
        for batch in reversed(list(batches)):
            first, last, at = span_of(batch)
            above, last = self._below, min(last, self._below - 1, through)
            if last < first:
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


def _newest_first(listed: Iterable[Listed], series: str) -> list[Place]:
    """Return the objects of a series, those with the highest numbers first."""
    places = [place for each in listed if (place := place_of(each.suffix)) is not None]
    return sorted((place for place in places if place.series == series), reverse=True)
