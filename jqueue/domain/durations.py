"""Durations: callers give a `timedelta` or seconds, people write "15m"; inside, all are seconds. Bounds of backoffs."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from jqueue.domain.errors import InvalidJobError, shown

Duration = timedelta | float | int
"""A length of time as callers give it. It is a `timedelta` or a number of seconds, from 0 to 100 years.

`timedelta(minutes=5)`, `300` and `300.0` are the same. Another value is refused with InvalidJobError.
"""

LONGEST = 100 * 366 * 86400.0
"""The longest duration, in seconds: a century, so that a date with a duration added is still a date."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

BEATS_PER_TIMEOUT = 3
LONGEST_BEAT, SHORTEST_BEAT = 60.0, 0.001
"""Most and least seconds between two heartbeats."""

_WRITTEN = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration that a person wrote: 90s, 15m, 12h, 30d, 2w. None if it is not like that."""
    match = _WRITTEN.fullmatch(text.strip())
    seconds = math.inf if match is None else float(match[1]) * _UNITS[match[2]]
    return seconds if seconds <= LONGEST else None


def in_words(seconds: float) -> str:
    """Return a rounded duration, in the largest unit of which it has at least two; in milliseconds below a second."""
    for name, unit in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * unit:
            return f"{int(seconds // unit)} {name}"
    if not 0 < seconds < 1:
        return f"{int(seconds)} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.2g} ms"


def to_seconds(what: str, value: object) -> float:
    """Return a duration in seconds.

    Raises:
        InvalidJobError: the value is negative, longer than a century, or not a duration.
    """
    if isinstance(value, timedelta):
        seconds = float(value.total_seconds())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) <= LONGEST else math.inf
    else:
        raise InvalidJobError(f"{what} must be a timedelta or a number of seconds, got {type(value).__name__}")
    if not 0 <= seconds <= LONGEST:
        raise InvalidJobError(f"{what} must be from 0 seconds to 100 years, got {shown(value)}")
    return seconds


def heartbeat_interval(timeout: float) -> float:
    """Return the seconds between two heartbeats of claims that last `timeout` seconds without one."""
    return max(SHORTEST_BEAT, min(LONGEST_BEAT, timeout / BEATS_PER_TIMEOUT))


def check_time(what: str, value: object) -> datetime:
    """Return a time that has a time zone, in UTC.

    Raises:
        InvalidJobError: the value is not a datetime, has no time zone, or is out of range.
    """
    if not isinstance(value, datetime):
        raise InvalidJobError(f"{what} must be a datetime, got {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidJobError(f"{what} must have a time zone, as in datetime.now(timezone.utc); got {shown(value)}")
    try:
        return exact_time(value)
    except OverflowError:
        raise InvalidJobError(f"{what} is out of range: {shown(value)}") from None


def exact_time(moment: datetime) -> datetime:
    """Return a time with a time zone as a `datetime` itself, in UTC.

    The encoder of the queue takes no object of a class derived from it, such as those of pendulum, pandas and
    freezegun. That one replaces the name `datetime` in all modules, so the class is taken from a value.
    """
    return moment.astimezone(UTC) if type(moment) is type(EPOCH) else EPOCH + (moment - EPOCH)


LARGEST_EXPONENT = 32


def exponential_bound(failures: int, base: float, cap: float) -> float:
    """Return the upper bound of a full-jitter backoff, in seconds.

    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

    Args:
        failures: number of failures so far, from 1.
        base: the bound after the first failure, in seconds.
        cap: the largest bound, in seconds.
    """
    return float(min(cap, base * 2 ** min(max(failures, 1) - 1, LARGEST_EXPONENT)))
