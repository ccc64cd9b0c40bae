"""The rules of a queue, which hold for many jobs: limits and rates of entrypoints, settings, cron entries.

Limits are exact since they stand in the blob: the write that claims is refused if another writer claimed meanwhile. A
rate keeps its claims as spans, as a token bucket or fixed windows let twice the rate pass within one window.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple

from msgspec import Meta
from msgspec.structs import force_setattr

from jqueue.domain.cron import next_after
from jqueue.domain.errors import InvalidJobError
from jqueue.domain.fields import (
    COUNT_MAX,
    NO_HEADERS,
    Count,
    Entry,
    FrozenHeaders,
    JobId,
    Positive,
    Priority32,
    Seconds,
    Weight,
    to_utc,
)
from jqueue.domain.job import Encoding

LIMITS = "limits"
"""The critical feature of a blob with limits. A program that does not know it would claim beyond the limits."""

CRON_PAUSE = "cron_pause"
"""The critical feature of a blob with a paused cron entry. A program that does not know it would enqueue its jobs."""
KEY_RATES = "key_rates"
"""The critical feature of a blob with a rate for each key. A program that does not know it would claim beyond it."""

HISTORY = "history"
"""The critical feature of a blob with a history. A program that does not know it would leave gaps."""


class EntrypointRules(Entry, frozen=True):
    """The limits and the pause of one entrypoint.

    Attributes:
        paused: True if none of its jobs may be claimed.
        max_running: number of its jobs that may be in progress at once; None means any number.
        rate: number of its jobs that may be claimed within any `per` seconds; None means any number.
        per: the window of `rate`, in seconds.
        key_rate: number of its jobs with the same key that may be claimed within any `key_per` seconds: with the same
            `concurrency_key`, or if they have none, `fair_key`. None means any number.
        key_per: the window of `key_rate`, in seconds.
        declared: the limits that the program's workers declare, while those of an operator hold in their place; None
            if no operator has set any.
    """

    paused: bool = False
    max_running: Positive | None = None
    rate: Positive | None = None
    per: Annotated[float, Meta(gt=0)] | None = None
    key_rate: Positive | None = None
    key_per: Annotated[float, Meta(gt=0)] | None = None
    declared: EntrypointRules | None = None

    def __post_init__(self) -> None:
        if (self.rate is None) != (self.per is None) or (self.key_rate is None) != (self.key_per is None):
            raise ValueError("rate and per belong together")


RatedKey = tuple[str, str]
"""An entrypoint with a rate for each key, and a key."""


class Usage(NamedTuple):
    """Claims made between two moments, both in seconds since 1970."""

    first: float
    last: float
    claims: Count


class QueueSettings(Entry, frozen=True):
    """The settings of a queue as a whole.

    Attributes:
        dead_retention: seconds for which dead jobs are kept; None: until they are purged.
        blob_bytes: the size limit of the blob, for every writer; None: each writer uses its own `Limits`.
        history: seconds for which the events of jobs are kept; None: no history is kept.
        history_payloads: True if the history keeps the payloads of enqueued jobs.
    """

    dead_retention: Seconds | None = None
    blob_bytes: Positive | None = None
    history: Annotated[float, Meta(gt=0, le=COUNT_MAX)] | None = None
    history_payloads: bool = False


SETTINGS = tuple(name for name in QueueSettings.__struct_fields__ if name != "extra")
"""The names of the settings."""


class Fired(NamedTuple):
    """A span of time, both ends included, in which every occurrence of a cron entry is done: fired, or passed."""

    first: datetime
    last: datetime


class Schedule(Entry, frozen=True):
    """A cron entry: a job to enqueue at regular times. Frozen; times are aware and in UTC.

    Attributes:
        name: unique in its queue.
        cron: the expression, of five fields (or six, the first for seconds), as in cron.
        timezone: IANA name of the time zone of the expression.
        entrypoint, payload, priority, max_attempts, headers, unique_key, concurrency_key, concurrency_limit,
            fair_key, fair_weight, keep_result, encoding: as in the jobs that it enqueues. See `Job`.
        next_at: the first occurrence after all that were fired. A clock that is not behind them fires it next.
        fired: the spans whose occurrences are done, in order: see `jqueue.domain.rules`. If it is empty, nothing before
            `next_at` will be fired.
        paused: True if it enqueues no jobs. Occurrences until it is resumed are passed.
        declared: the entry as the program declares it, while an operator's holds in its place; None if no operator has
            set it.
    """

    name: JobId
    cron: str
    entrypoint: str
    next_at: datetime
    timezone: str = "UTC"
    payload: bytes = b""
    priority: Priority32 = 0
    max_attempts: Positive | None = None
    headers: Mapping[str, str] = NO_HEADERS
    unique_key: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: Positive | None = None
    fair_key: str | None = None
    fair_weight: Weight | None = None
    keep_result: Seconds | None = None
    encoding: Encoding | None = None
    fired: tuple[Fired, ...] = ()
    paused: bool = False
    declared: Schedule | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "headers", FrozenHeaders(self.headers) if self.headers else NO_HEADERS)
        force_setattr(self, "next_at", to_utc(self.next_at))
        force_setattr(self, "fired", tuple(sorted(Fired(to_utc(first), to_utc(last)) for first, last in self.fired)))

    def __repr__(self) -> str:
        return f"<Schedule {self.name!r}: {self.cron!r} ({self.timezone}), {self.entrypoint!r}, next {self.next_at}>"


SPANS = 64
"""Number of spans in a window. A claim may count longer than it must by one span: the window divided by this number."""

MOST_SPANS = 3 * SPANS
"""Number of spans above which old ones are merged. They no longer count here, but may where a clock is behind."""

OLD_SPANS = 16
"""About how many spans are left of those after the merge."""

FAR_AHEAD = 86400.0
"""Seconds by which one clock may be ahead of another, at the most. Spans further ahead are dropped."""

CLOCKS_DIFFER = 2.0
"""Seconds by which writers' clocks may differ, however short the window: stores tell the time in whole seconds."""


def counting(usage: Sequence[Usage], now: float, per: float) -> list[Usage]:
    """Return the spans that count now.

    Args:
        usage: claims made before.
        now: seconds since 1970.
        per: the length of the window, in seconds.
    """
    return [span for span in usage if span.first - per < now < span.last + per]


def claims_left(usage: Sequence[Usage], now: float, rate: int, per: float) -> int:
    """Return the number of claims that may be made now; the arguments are as in `counting`."""
    return max(0, rate - sum(span.claims for span in counting(usage, now, per)))


def with_claim(
    usage: Sequence[Usage], now: float, per: float, claims: int = 1, parts: int = SPANS
) -> tuple[Usage, ...]:
    """Return the spans with some more claims, without spans that no longer count by any writer's clock.

    Spans are kept for longer than they count here, because a writer whose clock is behind still has to count them. Each
    is as long as one of so many parts of the window, at most.
    """
    spans = still_needed(usage, now, per)
    width = per / parts
    for place in range(len(spans) - 1, -1, -1):
        first, last, before = spans[place]
        if last - width <= now <= first + width:
            spans[place] = Usage(min(first, now), max(last, now), before + claims)
            return tuple(spans)
    return (*spans, Usage(now, now, claims))


def still_needed(usage: Sequence[Usage], now: float, per: float) -> list[Usage]:
    """Return the spans that may still count by some writer's clock; the arguments are as in `counting`.

    If there are many, spans that are over by this clock are merged into few, which can only make other writers wait
    longer. Spans that are ahead of this clock are kept for the writers whose clocks are ahead.
    """
    keep = per + max(per, CLOCKS_DIFFER)
    spans = [span for span in usage if span.last + keep > now and span.first - now <= FAR_AHEAD]
    if len(spans) <= MOST_SPANS:
        return spans
    merged_spans: list[Usage] = []
    for span in sorted(spans):
        if merged_spans and span.last + per <= now and span.last - merged_spans[-1].first <= keep / OLD_SPANS:
            first, last, claims = merged_spans.pop()
            merged_spans.append(Usage(first, max(last, span.last), claims + span.claims))
        else:
            merged_spans.append(span)
    return merged_spans


def is_long_over(usage: Sequence[Usage], now: float, per: float, ahead: float = FAR_AHEAD) -> bool:
    """Return True if no span counts any longer by any writer's clock, as these differ by so many seconds at most."""
    return all(span.last + per + ahead <= now for span in usage)


KEYS_COUNTED = 1000
"""Maximum number of keys whose claims are counted. At this number, a job of another key waits until one is over."""

KEY_SPANS = 16
"""Number of spans in the window of a key: see `SPANS`."""

KEY_AHEAD = 4 * 3600.0
"""Seconds by which writers' clocks may differ, as far as the claims of a key are kept."""

KeyUsage = Mapping[str, Mapping[str, tuple[Usage, ...]]]
"""Claims by entrypoint and key."""


def key_opens_at(usage: KeyUsage, rules: Mapping[str, EntrypointRules], rated: RatedKey, now: float) -> float | None:
    """Return the time of the next allowed claim of a key, as `opens_at` does.

    Args:
        usage: claims made before.
        rules: those of all entrypoints. That of the key has a rate for each key.
        rated: the entrypoint and the key.
        now: seconds since 1970.
    """
    (entrypoint, key), per = rated, rules[rated[0]].key_per or 0.0
    spans_by_key = usage.get(entrypoint, {})
    if key not in spans_by_key and are_full(usage):
        return now + per / KEY_SPANS
    return opens_at(spans_by_key.get(key, ()), now, rules[entrypoint].key_rate or 0, per)


def are_full(usage: KeyUsage) -> bool:
    """Return True if the claims of no other key can be counted."""
    return sum(map(len, usage.values())) >= KEYS_COUNTED


def keys_over(
    usage: KeyUsage, rules: Mapping[str, EntrypointRules], now: float, ahead: float | None = None
) -> list[RatedKey]:
    """Return the keys whose claims no longer count by any clock that differs by so many seconds; None: by a few."""
    over = []
    for entrypoint, spans_by_key in usage.items():
        per = (rules.get(entrypoint) or EntrypointRules()).key_per or 0.0
        apart = max(per, CLOCKS_DIFFER) if ahead is None else ahead
        over += [(entrypoint, key) for key, spans in spans_by_key.items() if is_long_over(spans, now, per, apart)]
    return over


def opens_at(usage: Sequence[Usage], now: float, rate: int, per: float) -> float | None:
    """Return the time of the next allowed claim, in seconds since 1970; None if a claim is allowed now."""
    left = claims_left(usage, now, rate, per)
    if left:
        return None
    missing = 1 - (rate - sum(span.claims for span in counting(usage, now, per)))
    for span in sorted(counting(usage, now, per), key=lambda span: span.last):
        missing -= span.claims
        if missing <= 0:
            return span.last + per
    return now + per


SPANS_KEPT = 8
"""Largest number of spans that an entry keeps. If there are more, the two earliest become one.

Occurrences between these two are given up.
"""

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
A_SECOND = timedelta(seconds=1)


def passed_by(now: datetime) -> Fired:
    """Return the span for a clock that sees an entry for the first time: no occurrence until `now` will be fired."""
    second = now.replace(microsecond=0)
    return Fired(second, second)


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
    if schedule.paused or (schedule.fired and schedule.fired[-1].last <= now < schedule.next_at):
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
    spans = list(schedule.fired) or [Fired(LONG_AGO, schedule.next_at - A_SECOND)]
    place = max(0, _place(spans, now))
    span, is_last = spans[place], place == len(spans) - 1
    if is_last and schedule.next_at > _after(schedule, span.last):  # an older version has fired the occurrences between
        spans[place] = span = Fired(span.first, schedule.next_at - A_SECOND)
    following = _after(schedule, occurrence)
    if _after(schedule, span.last) == occurrence or not schedule.fired:
        spans[place] = Fired(span.first, occurrence)
    else:
        place += 1
        spans.insert(place, Fired(occurrence, occurrence))
    if not is_last and spans[place + 1].first <= following:
        spans[place : place + 2] = [Fired(spans[place].first, spans[place + 1].last)]
    next_at = following if is_last else schedule.next_at
    return schedule.evolve(fired=_merged(spans), next_at=next_at)


def without_missed(schedule: Schedule, now: datetime) -> Schedule:
    """Return an entry whose occurrences until `now` are passed.

    Raises:
        InvalidJobError: this machine cannot read the entry's expression or time zone.
    """
    *before, last = schedule.fired or (passed_by(now),)
    if now < last.last:  # another clock is ahead, and has passed them
        return schedule
    return schedule.evolve(fired=(*before, Fired(last.first, passed_by(now).last)), next_at=_after(schedule, now))


def time_shown(schedule: Schedule, now: datetime) -> datetime:
    """Return `next_time`; if this machine cannot read the entry, the time that another writer has stored."""
    try:
        return next_time(schedule, now)
    except InvalidJobError:
        return schedule.next_at


def as_shown(schedule: Schedule, now: datetime) -> Schedule:
    """Return the entry as callers see it: its next time by a clock that shows `now`, and no spans."""
    return schedule.evolve(next_at=time_shown(schedule, now), fired=())


def given(rule: EntrypointRules | Schedule) -> dict[str, Any]:
    """Return the values of a rule that its setter gives: neither its pause nor what is computed."""
    others = ("next_at", "fired", "paused", "declared", "extra")
    return {name: getattr(rule, name) for name in rule.__struct_fields__ if name not in others}


def is_overridden(rule: EntrypointRules | Schedule) -> bool:
    """Return True if an operator's values hold in place of others that the program declares."""
    return rule.declared is not None and given(rule) != given(rule.declared)


def _place(spans: tuple[Fired, ...] | list[Fired], now: datetime) -> int:
    """Return the index of the last span that begins at `now` or before; -1 if there is none."""
    return bisect_right(spans, now, key=lambda span: span.first) - 1


def _after(schedule: Schedule, moment: datetime) -> datetime:
    return next_after(schedule.cron, schedule.timezone, moment)


def _merged(spans: list[Fired]) -> tuple[Fired, ...]:
    while len(spans) > SPANS_KEPT:
        spans[:2] = [Fired(spans[0].first, spans[1].last)]
    return tuple(spans)
