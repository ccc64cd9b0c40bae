"""The history of a queue: an event for each transition of a job, numbered without gaps.

Each commit appends its events to the *outbox* in the header of the blob. A writer moves a long outbox to an immutable
object beside the queue, and a later commit drops the moved events. The numbers are computed from the draft at each try
and are written with the commit. So they have no gap and no double, even if the answer to a write is lost.

The events of a commit are kept as a *batch*: one JSON text, which is encoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw

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

SERIES_KEPT = 64
"""Number of earlier series that the header names."""

START = "start"
"""The verb of the event with which a history begins."""

_encode = msgspec.json.Encoder().encode


class Series(NamedTuple):
    """A series of objects that is no longer written to."""

    name: str
    last: Count
    """The last number that is valid in it."""


class HistoryHeader(Entry, frozen=True):
    """The part of the history that stands in the header of the blob.

    Attributes:
        series: id of the series of objects to which the outbox is moved.
        last: number of the last event.
        removed: number of the last event that was removed for its age, or for the size of the history.
        lost: number of events that were dropped because no writer could move them.
        stopped: True if the history is switched off; its events are kept.
        older: earlier series, the oldest first. A new one begins when the history is switched on again, and when a
            backup of the blob was restored and its numbers were used for other events.
        batches: the outbox: the JSON texts of batches of events, in the order of their numbers.
    """

    series: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    last: Count = 0
    removed: Count = 0
    lost: Count = 0
    stopped: bool = False
    older: tuple[Series, ...] = ()
    batches: tuple[Raw, ...] = ()

    @property
    def first(self) -> int:
        """The number of the first event in the outbox; if it is empty, the number of the next event."""
        return span_of(self.batches[0]).first if self.batches else self.last + 1


class Moved(NamedTuple):
    """Batches that stand in an object.

    Attributes:
        series: the series of the object.
        batches: the batches.
        removed: number of the last event that is to be removed once the header says so; 0 if none is.
    """

    series: str
    batches: Sequence[Raw]
    removed: int = 0


class Span(NamedTuple):
    """The events of a batch.

    Attributes:
        first: number of its first event.
        last: number of its last event.
        at: time of all of them, in seconds since 1970.
    """

    first: int
    last: int
    at: float


def span_of(batch: Raw) -> Span:
    """Return the numbers and the time of the events in a batch, given its text. The rest is not read.

    Raises:
        ValueError: the text is not a batch.
    """
    first, count, at = bytes(batch)[1:].split(b",", 3)[:3]
    return Span(int(first), int(first) + int(count) - 1, float(at.rstrip(b"]")))


def started(history: HistoryHeader | None, now: datetime, new_id: Callable[[], str]) -> HistoryHeader:
    """Return a history that is switched on. If it was not, it begins now, in a new series, with an event that says so.

    Args:
        history: the history before; None if it was never switched on.
        now: the time of the commit.
        new_id: makes the id of the new series.
    """
    if history is not None and not history.stopped:
        return history
    number = 1 if history is None else history.last + 1
    batch = batch_of(number, now, [[None, START]], [[0]])
    if history is None:
        return HistoryHeader(series=new_id(), last=1, batches=(batch,))
    return _in_new_series(history, new_id()).evolve(stopped=False, last=number, batches=(*history.batches, batch))


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
    lost = history.lost + (span_of(left[0]).first - history.first if surplus else 0)
    return history.evolve(batches=(*left, *batches), last=span_of(batches[-1]).last, lost=lost)


def _in_new_series(history: HistoryHeader, series: str) -> HistoryHeader:
    older = (*history.older, Series(history.series, history.first - 1))[-SERIES_KEPT:]
    return history.evolve(series=series, older=older)


def surplus_of(history: HistoryHeader, settings: QueueSettings) -> int:
    """Return the number of batches at the beginning of the outbox that are too many. The last one never is."""
    batches = history.batches
    surplus, most = 0, len(batches) - 1
    while surplus < most and history.last - span_of(batches[surplus]).last >= MOST_EVENTS:
        surplus += 1
    if settings.history_payloads:
        size = sum(map(len, batches[surplus:]))
        while size > MOST_BYTES and surplus < most:
            size -= len(batches[surplus])
            surplus += 1
    return surplus


def trimmed(history: HistoryHeader, moved: Moved, new_id: Callable[[], str]) -> HistoryHeader:
    """Return the history without the batches that are in an object.

    If the object has other events under the same numbers, or numbers that the blob has not used, a backup of the blob
    was restored. Then nothing is dropped, and the outbox will be moved to a new series.
    """
    if moved.removed > history.removed:
        history = history.evolve(removed=min(moved.removed, history.first - 1))
    ours = history.batches
    if moved.series != history.series or not ours or not moved.batches:
        return history
    first, last = history.first, span_of(moved.batches[-1]).last
    if not span_of(moved.batches[0]).first <= first <= last:
        return history
    theirs = [batch for batch in moved.batches if span_of(batch).first >= first]
    pairs = zip(ours, theirs, strict=False)
    if last > history.last or not all(one == other or _is_same(one, other) for one, other in pairs):
        return _in_new_series(history, new_id())
    return history.evolve(batches=ours[len(theirs) :])


def _is_same(one: Raw, other: Raw) -> bool:
    """Return True if two texts are the same batch. A person may have changed the layout of one."""
    try:
        return bool(msgspec.json.decode(one) == msgspec.json.decode(other))
    except ValueError:
        return False


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
    oldest = span_of(batches[0])
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
