"""The history of a queue: an event for each transition of a job, numbered without gaps.

Each commit appends its events to the *outbox* in the header of the blob. A writer moves a long outbox to an immutable
object beside the queue, and a later commit drops the moved events. The numbers are computed from the draft at each try
and are written with the commit. So they have no gap and no double, even if the answer to a write is lost.

An event is kept as its JSON text, which is encoded once. A commit joins texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from jqueue.domain.fields import Count
from jqueue.domain.rules import QueueSettings

EVENTS_PER_OBJECT = 1000
"""Number of events in the outbox above which a writer moves them to an object."""

OUTBOX_SECONDS = 300.0
"""Age of the oldest event in the outbox, in seconds, above which a writer moves the outbox."""

OUTBOX_BYTES = 1 << 20
"""Size of the outbox above which a writer moves it, if it holds payloads."""

MOST_EVENTS = 20_000
"""Largest number of events in the outbox. If nobody can move them, the oldest are dropped and counted as lost."""

MOST_BYTES = 16 << 20
"""Largest size of an outbox with payloads."""

SERIES_KEPT = 64
"""Number of earlier series that the header names."""

START = "start"
"""The verb of the event with which a history begins."""


class Series(NamedTuple):
    """A series of objects that is no longer written to."""

    name: str
    last: Count
    """The last number that is valid in it."""


class HistoryHeader(BaseModel):
    """The part of the history that stands in the header of the blob.

    Attributes:
        series: id of the series of objects to which the outbox is moved.
        last: number of the last event.
        lost: number of events that were dropped because no writer could move them.
        stopped: True if the history is switched off; its events are kept.
        older: earlier series, the oldest first. A new one begins when the history is switched on again, and when a
            backup of the blob was restored and its numbers were used for other events.
        events: the outbox: the JSON texts of events, in the order of their numbers.
    """

    model_config = ConfigDict(frozen=True, extra="allow", hide_input_in_errors=True)

    series: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    last: Count = 0
    lost: Count = 0
    stopped: bool = False
    older: tuple[Series, ...] = ()
    events: tuple[str, ...] = Field(default=(), repr=False)

    @property
    def first(self) -> int:
        """The number of the first event in the outbox; if it is empty, the number of the next event."""
        return number_of(self.events[0]) if self.events else self.last + 1


class Moved(NamedTuple):
    """Events that stand in an object."""

    series: str
    events: Sequence[str]


def number_of(event: str) -> int:
    """Return the number of an event, given its text."""
    return int(event[1 : event.index(",")])


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
    event = f'[{number}, null, null, "{START}", null, null, 0, null, {time_text(now)}]'
    if history is None:
        return HistoryHeader(series=new_id(), last=1, events=(event,))
    changes = {"stopped": False, "last": number, "events": (*history.events, event)}
    return _in_new_series(history, new_id()).model_copy(update=changes)


def stopped(history: HistoryHeader | None) -> HistoryHeader | None:
    """Return a history that is switched off. Its events are kept."""
    return history if history is None or history.stopped else history.model_copy(update={"stopped": True})


def with_events(history: HistoryHeader, events: Sequence[str], *, payloads: bool) -> HistoryHeader:
    """Return the history with more events. If the outbox has no room for all, its oldest are dropped, and counted.

    Args:
        history: the history.
        events: the texts of the events that follow its last.
        payloads: True if events keep payloads, so that the size of the outbox counts, too.
    """
    if not events:
        return history
    kept = (*history.events, *events)
    changes: dict[str, object] = {"events": kept, "last": history.last + len(events)}
    if surplus := _surplus(kept, payloads=payloads):
        changes |= {"events": kept[surplus:], "lost": history.lost + surplus}
    return history.model_copy(update=changes)


def _in_new_series(history: HistoryHeader, series: str) -> HistoryHeader:
    older = (*history.older, Series(history.series, history.first - 1))[-SERIES_KEPT:]
    return history.model_copy(update={"series": series, "older": older})


def _surplus(events: Sequence[str], *, payloads: bool) -> int:
    """Return the number of events at the beginning of the outbox for which it has no room."""
    surplus = max(0, len(events) - MOST_EVENTS)
    if payloads:
        size = sum(map(len, events[surplus:]))
        while size > MOST_BYTES and surplus < len(events) - 1:
            size -= len(events[surplus])
            surplus += 1
    return surplus


def trimmed(history: HistoryHeader, moved: Moved, new_id: Callable[[], str]) -> HistoryHeader:
    """Return the history without the events that are in an object.

    If the object has other events under the same numbers, or numbers that the blob has not used, a backup of the blob
    was restored. Then nothing is dropped, and the outbox will be moved to a new series.
    """
    events = history.events
    if moved.series != history.series or not events or not moved.events:
        return history
    skipped = history.first - number_of(moved.events[0])
    if not 0 <= skipped < len(moved.events):
        return history
    there = moved.events[skipped : skipped + len(events)]
    again = number_of(moved.events[-1]) > history.last
    if again or any(ours != theirs and not _is_same(ours, theirs) for ours, theirs in zip(events, there, strict=False)):
        return _in_new_series(history, new_id())
    return history.model_copy(update={"events": events[len(there) :]})


def _is_same(one: str, other: str) -> bool:
    """Return True if two texts are the same event. A person may have changed the layout of one."""
    try:
        return bool(json.loads(one) == json.loads(other))
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
    events = history.events
    if not events:
        return False
    if len(events) > most or settings.history is None:
        return True
    if settings.history_payloads and sum(map(len, events)) > OUTBOX_BYTES:
        return True
    oldest: float = json.loads(events[0])[8]
    return now - oldest > OUTBOX_SECONDS


def time_text(now: datetime) -> str:
    """Return a time as an event has it, in seconds since 1970."""
    return repr(round(now.timestamp(), 6))
