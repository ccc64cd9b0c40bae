"""Durations: callers give a `timedelta` or seconds; inside, all are seconds."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from jqueue.domain.errors import InvalidJobError, shown

Duration = timedelta | float | int
"""A length of time as callers give it: a timedelta, or a number of seconds."""

LONGEST = 100 * 366 * 86400.0
"""The longest duration, in seconds: a century, so that a date with a duration added is still a date."""


def to_seconds(what: str, value: object) -> float:
    """Return a duration in seconds.

    Raises:
        InvalidJobError: the value is negative, longer than a century, or not a duration.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) <= LONGEST else math.inf
    else:
        raise InvalidJobError(f"{what} must be a timedelta or a number of seconds, got {type(value).__name__}")
    if not 0 <= seconds <= LONGEST:
        raise InvalidJobError(f"{what} must be from 0 seconds to 100 years, got {shown(value)}")
    return seconds


def check_time(what: str, value: object) -> datetime:
    """Return a time that has a time zone.

    Raises:
        InvalidJobError: the value is not a datetime, has no time zone, or is out of range.
    """
    if not isinstance(value, datetime):
        raise InvalidJobError(f"{what} must be a datetime, got {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidJobError(f"{what} must have a time zone, as in datetime.now(timezone.utc); got {shown(value)}")
    try:
        value.astimezone(UTC)
    except OverflowError:
        raise InvalidJobError(f"{what} is out of range: {shown(value)}") from None
    return value
