"""The history of a queue: an event for each transition of a job, with a number of its own.

Each commit appends its events to the *outbox* in the header of the blob. A writer moves a long outbox to an immutable
object beside the queue, and a later commit drops the moved events. The numbers are computed from the draft at each try
and are written with the commit. So they have no gap and no double, even if the answer to a write is lost.

If a backup of the blob was restored, objects may have other events under the numbers of the outbox. Then a commit gives
its events new numbers, behind those of all objects.

The events of a commit are kept as a *batch*: one JSON text, which is encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from jqueue.domain.fields import Count, Entry
from jqueue.domain.rules import QueueSettings

EVENTS_PER_OBJECT = 1000
"""Number of events in the outbox above which a writer moves them to an object."""

OUTBOX_SECONDS = 300.0
"""Age of the oldest event in the outbox, in seconds, above which a writer moves the outbox."""

OUTBOX_BYTES = 1 << 20
"""Size of the outbox above which a writer moves it, if it holds payloads."""

MOST_EVENTS = 20_000
"""Number of events in the outbox above which commits wait for the mover. A writer that cannot move them drops some."""

MOST_BYTES = 16 << 20
"""The same for the size of an outbox with payloads."""

START = "start"
"""The verb of the event with which a history begins."""

_encode = msgspec.json.Encoder().encode


class HistoryHeader(Entry, frozen=True):
    """The part of the history that stands in the header of the blob.

    Attributes:
        last: number of the last event.
        removed: number of the last event that was removed for its age, or for the size of the history.
        lost: number of events that were dropped because no writer could move them.
        stopped: True if the history is switched off; its events are kept.
        batches: the outbox: the JSON texts of batches of events, in the order of their numbers.
    """

    last: Count = 0
    removed: Count = 0
    lost: Count = 0
    stopped: bool = False
    batches: tuple[Raw, ...] = ()

    @property
    def first(self) -> int:
        """The number of the first event in the outbox; if it is empty, the number of the next event."""
        return numbers_of(self.batches[0]).first if self.batches else self.last + 1


class Moved(NamedTuple):
    """The beginning of an outbox that stands in an object.

    Attributes:
        first: number of the first event of the outbox.
        batches: the batches at its beginning that stand in the object; a commit drops them.
        removed: number of the last event that is to be removed once the header says so; 0 if none is.
        behind: number of the last event of all objects, if they have other events under the numbers that follow these
            batches: the rest of the outbox goes on behind it. 0: it keeps its numbers.
        through: 0, or number of the last event of an object that has all of the outbox and more. A history that has
            come so far may have these events too, so it stays as it is, and the next move tells.
    """

    first: int
    batches: tuple[Raw, ...]
    removed: int = 0
    behind: int = 0
    through: int = 0

    def fits(self, history: HistoryHeader) -> bool:
        """Return True if the outbox still begins as it did when it was moved."""
        is_same = history.first == self.first and history.batches[: len(self.batches)] == self.batches
        return is_same and not 0 < self.through <= history.last


class EventNumbers(NamedTuple):
    """The events of a batch.

    Attributes:
        first: number of its first event.
        last: number of its last event.
        at: time of all of them, in seconds since 1970.
    """

    first: int
    last: int
    at: float


def numbers_of(batch: Raw) -> EventNumbers:
    """Return the numbers and the time of the events in a batch, given its text. The rest is not read.

    Raises:
        ValueError: the text is not a batch.
    """
    first, count, at = bytes(batch)[1:].split(b",", 3)[:3]
    return EventNumbers(int(first), int(first) + int(count) - 1, float(at.rstrip(b"]")))


def started(history: HistoryHeader | None, now: datetime) -> HistoryHeader:
    """Return a history that is switched on. If it was not, it goes on now, with an event that says so."""
    if history is not None and not history.stopped:
        return history
    history = HistoryHeader() if history is None else history.evolve(stopped=False)
    return with_batches(history, [batch_of(history.last + 1, now, [[None, START]], [[0]])])


def stopped(history: HistoryHeader | None) -> HistoryHeader | None:
    """Return a history that is switched off. Its events are kept."""
    return history if history is None or history.stopped else history.evolve(stopped=True)


def with_batches(history: HistoryHeader, batches: Sequence[Raw], surplus: int = 0) -> HistoryHeader:
    """Return the history with more events.

    Args:
        history: the history.
        batches: the events that follow its last.
        surplus: number of batches to drop from the beginning of the outbox. Their events are counted as lost.
    """
    if not batches:
        return history
    left = history.batches[surplus:]
    lost = history.lost + (numbers_of(left[0]).first - history.first if surplus else 0)
    return history.evolve(batches=(*left, *batches), last=numbers_of(batches[-1]).last, lost=lost)


def surplus_of(history: HistoryHeader, settings: QueueSettings) -> int:
    """Return the number of batches at the beginning of the outbox that are too many. The last one never is."""
    batches = history.batches
    surplus, most = 0, len(batches) - 1
    while surplus < most and history.last - numbers_of(batches[surplus]).last >= MOST_EVENTS:
        surplus += 1
    if settings.history_payloads:
        size = sum(map(len, batches[surplus:]))
        while size > MOST_BYTES and surplus < most:
            size -= len(batches[surplus])
            surplus += 1
    return surplus


def trimmed(history: HistoryHeader, moved: Moved) -> HistoryHeader:
    """Return the history without the batches that are in an object. The rest may go on behind all objects."""
    if moved.removed > history.removed:
        history = history.evolve(removed=min(moved.removed, history.first - 1))
    if not moved.fits(history):
        return history
    left = history.batches[len(moved.batches) :]
    if not moved.behind:
        return history.evolve(batches=left)
    last, batches = moved.behind, list[Raw]()
    for batch in left:
        batches.append(Raw(b"[%d,%b" % (last + 1, bytes(batch).partition(b",")[2])))
        last = numbers_of(batches[-1]).last
    return history.evolve(batches=tuple(batches), last=last)


def is_due(history: HistoryHeader, settings: QueueSettings, now: float, most: int = EVENTS_PER_OBJECT) -> bool:
    """Return True if the outbox must be moved to an object.

    Args:
        history: the history.
        settings: the settings of the queue.
        now: the time, in seconds since 1970.
        most: number of events above which it is moved.
    """
    batches = history.batches
    if not batches:
        return False
    oldest = numbers_of(batches[0])
    if history.last - oldest.first >= most or settings.history is None:
        return True
    if settings.history_payloads and sum(map(len, batches)) > OUTBOX_BYTES:
        return True
    return now - oldest.at > OUTBOX_SECONDS


def batch_of(number: int, now: datetime, kinds: Sequence[Any], rows: Sequence[Any]) -> Raw:
    """Return a batch of events.

    Args:
        number: the number of the first event.
        now: the time of the events.
        kinds: what several events have in common.
        rows: the events.
    """
    return Raw(_encode((number, len(rows), round(now.timestamp(), 6), kinds, rows)))
