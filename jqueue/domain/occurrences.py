"""Records which occurrences of a cron entry are done, so that no clock blocks an entry and none fires one twice.

It is impossible to tell which of two clocks is right, so all are treated alike. An entry keeps spans of time. All
occurrences in a span were fired, or had passed when the entry was set. A clock goes by the last span that begins before
its time. An occurrence fired by a clock that is an hour ahead is a span of its own, so the hour before it still belongs
to the other clocks.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime, timedelta

from jqueue.domain.cron import next_after
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.rules import Schedule, Span

SPANS_KEPT = 8
"""Largest number of spans that an entry keeps. If there are more, the two earliest become one.

Occurrences between these two are given up.
"""

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
A_SECOND = timedelta(seconds=1)


def passed_by(now: datetime) -> Span:
    """Return the span for a clock that sees an entry for the first time: no occurrence until `now` will be fired."""
    second = now.replace(microsecond=0)
    return Span(second, second)


def next_time(schedule: Schedule, now: datetime) -> datetime:
    """Return the next occurrence by a clock that shows `now`; if the entry is due by that clock, the first one missed.

    Raises:
        InvalidJobError: this machine cannot read the entry's expression or time zone.
    """
    spans = schedule.fired
    if not spans or spans[-1].last <= now:
        done = spans[-1].last if spans else LONG_AGO
        return schedule.next_at if schedule.next_at > done else _after(schedule, done)
    place = _place(spans, now)
    return _after(schedule, now if place < 0 else spans[place].last)


def is_behind(schedule: Schedule, now: datetime) -> bool:
    """Return True if `now` is before all spans of an entry, with an occurrence after `now` and not after their begin.

    Raises:
        InvalidJobError: this machine cannot read the entry's expression or time zone.
    """
    spans = schedule.fired
    return bool(spans) and now < spans[0].first and _after(schedule, now) <= spans[0].first


def is_pending(schedule: Schedule, now: datetime) -> bool:
    """Return True if a dequeue at `now` must change an entry.

    It computes no times in the common case: everything before `now` was fired, and the entry is not due.
    """
    if schedule.fired and schedule.fired[-1].last <= now < schedule.next_at:
        return False
    try:
        return next_time(schedule, now) <= now or is_behind(schedule, now)
    except InvalidJobError:
        return False


def with_clock(schedule: Schedule, now: datetime) -> Schedule:
    """Return the entry with a span for a clock behind all its spans: occurrences until `now` count as passed."""
    return schedule.evolve(fired=_merged([passed_by(now), *schedule.fired]))


def with_fired(schedule: Schedule, occurrence: datetime, now: datetime) -> Schedule:
    """Return the entry after an occurrence was fired by a clock that shows `now`.

    Raises:
        InvalidJobError: this machine cannot read the entry's expression or time zone.
    """
    spans = list(schedule.fired) or [Span(LONG_AGO, schedule.next_at - A_SECOND)]
    place = max(0, _place(spans, now))
    span, is_last = spans[place], place == len(spans) - 1
    if is_last and schedule.next_at > _after(schedule, span.last):  # an older version has fired the occurrences between
        spans[place] = span = Span(span.first, schedule.next_at - A_SECOND)
    following = _after(schedule, occurrence)
    if _after(schedule, span.last) == occurrence or not schedule.fired:
        spans[place] = Span(span.first, occurrence)
    else:
        place += 1
        spans.insert(place, Span(occurrence, occurrence))
    if not is_last and spans[place + 1].first <= following:
        spans[place : place + 2] = [Span(spans[place].first, spans[place + 1].last)]
    next_at = following if is_last else schedule.next_at
    return schedule.evolve(fired=_merged(spans), next_at=next_at)


def time_shown(schedule: Schedule, now: datetime) -> datetime:
    """Return `next_time`; if this machine cannot read the entry, the time that another writer has stored."""
    try:
        return next_time(schedule, now)
    except InvalidJobError:
        return schedule.next_at


def as_shown(schedule: Schedule, now: datetime) -> Schedule:
    """Return the entry as callers see it: its next time by a clock that shows `now`, and no spans."""
    return schedule.evolve(next_at=time_shown(schedule, now), fired=())


def _place(spans: tuple[Span, ...] | list[Span], now: datetime) -> int:
    """Return the index of the last span that begins at `now` or before; -1 if there is none."""
    return bisect_right(spans, now, key=lambda span: span.first) - 1


def _after(schedule: Schedule, moment: datetime) -> datetime:
    return next_after(schedule.cron, schedule.timezone, moment)


def _merged(spans: list[Span]) -> tuple[Span, ...]:
    while len(spans) > SPANS_KEPT:
        spans[:2] = [Span(spans[0].first, spans[1].last)]
    return tuple(spans)
