"""Which occurrences of a cron entry are dealt with, so that no clock stops an entry and none fires one twice.

Nobody can tell which of two clocks is right, so all are treated alike. An entry keeps the stretches of time whose
occurrences were fired, or had passed when it was set. A clock goes by the last stretch that begins before it. So what a
clock an hour ahead has fired is a stretch of its own, and the hour before it still belongs to the other clocks.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime, timedelta

from jqueue.domain.cron import next_after
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.rules import Schedule, Span

SPANS_KEPT = 8
"""The most stretches that an entry keeps. Beyond that the two earliest become one: what lies between is given up."""

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
A_SECOND = timedelta(seconds=1)


def passed_by(now: datetime) -> Span:
    """The stretch for a clock that has not met an entry before: no occurrence until `now` is to be fired."""
    second = now.replace(microsecond=0)
    return Span(second, second)


def next_time(schedule: Schedule, now: datetime) -> datetime:
    """The next occurrence by a clock that shows `now`; if the entry is due by that clock, the first one missed.

    Raises:
        InvalidJobError: the entry cannot be understood here.
    """
    spans = schedule.fired
    if not spans or spans[-1].last <= now:
        done = spans[-1].last if spans else LONG_AGO
        return schedule.next_at if schedule.next_at > done else _after(schedule, done)
    place = _place(spans, now)
    return _after(schedule, now if place < 0 else spans[place].last)


def is_behind(schedule: Schedule, now: datetime) -> bool:
    """True if a clock shows a time before everything known of an entry, with an occurrence in between.

    Raises:
        InvalidJobError: the entry cannot be understood here.
    """
    spans = schedule.fired
    return bool(spans) and now < spans[0].first and _after(schedule, now) <= spans[0].first


def is_pending(schedule: Schedule, now: datetime) -> bool:
    """True if a dequeue at `now` must change an entry. It takes no computation while the clock has fired all before."""
    if schedule.fired and schedule.fired[-1].last <= now < schedule.next_at:
        return False
    try:
        return next_time(schedule, now) <= now or is_behind(schedule, now)
    except InvalidJobError:
        return False


def with_clock(schedule: Schedule, now: datetime) -> Schedule:
    """The entry for a clock that is behind all it knows: occurrences until `now` have passed, later ones have not."""
    return schedule.model_copy(update={"fired": _merged([passed_by(now), *schedule.fired])})


def with_fired(schedule: Schedule, occurrence: datetime, now: datetime) -> Schedule:
    """The entry after an occurrence was fired by a clock that shows `now`.

    Raises:
        InvalidJobError: the entry cannot be understood here.
    """
    spans = list(schedule.fired) or [Span(LONG_AGO, schedule.next_at - A_SECOND)]
    place = max(0, _place(spans, now))
    span, is_last = spans[place], place == len(spans) - 1
    if is_last and schedule.next_at > _after(schedule, span.last):  # an older version has fired what is between
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
    return schedule.model_copy(update={"fired": _merged(spans), "next_at": next_at})


def time_shown(schedule: Schedule, now: datetime) -> datetime:
    """`next_time`; where the entry cannot be understood, the time that others have written."""
    try:
        return next_time(schedule, now)
    except InvalidJobError:
        return schedule.next_at


def as_told(schedule: Schedule, now: datetime) -> Schedule:
    """The entry as callers see it: due as a clock that shows `now` has it, without what others have fired."""
    return schedule.model_copy(update={"next_at": time_shown(schedule, now), "fired": ()})


def _place(spans: tuple[Span, ...] | list[Span], now: datetime) -> int:
    """The place of the last stretch that begins before a moment, or at it; -1 if there is none."""
    return bisect_right(spans, now, key=lambda span: span.first) - 1


def _after(schedule: Schedule, moment: datetime) -> datetime:
    return next_after(schedule.cron, schedule.timezone, moment)


def _merged(spans: list[Span]) -> tuple[Span, ...]:
    while len(spans) > SPANS_KEPT:
        spans[:2] = [Span(spans[0].first, spans[1].last)]
    return tuple(spans)
