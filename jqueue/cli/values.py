"""Values of options as people write them: durations, times, sizes, headers.

An error names the option and a right value. It does not repeat what was typed, which may be a URL with a secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from jqueue.domain.durations import LONGEST, parse_duration

_SIZE = re.compile(r"([0-9]+) ?(?:(|k|m|g)(?:i?b)?)", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}


def duration(option: str, text: str) -> float:
    """Return a duration in seconds: a number of seconds, or a number with a unit.

    Raises:
        ValueError: the text is not a duration.
    """
    seconds = parse_duration(text)
    if seconds is None:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
    if not 0 <= seconds <= LONGEST:
        raise ValueError(f"{option} takes seconds, or a number with a unit: 60, 90s, 15m, 12h, 30d or 2w")
    return seconds


def time(option: str, text: str) -> datetime:
    """Return a time. A text without a zone is in UTC, as all times that commands print.

    Raises:
        ValueError: the text is not a time.
    """
    try:
        found = datetime.fromisoformat(text.strip())
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{option} takes a time such as 2026-11-23T08:00 (in UTC) or 2026-11-23T08:00+01:00") from None


def past(option: str, text: str, now: datetime) -> datetime:
    """Return a time that a person gave as such, or as the time that has passed since: 2h, "2h ago".

    Args:
        option: name of the option, for the error.
        text: the text.
        now: the present time.

    Raises:
        ValueError: the text is not a time, or the time lies ahead.
    """
    seconds = parse_duration(text.strip().removesuffix("ago"))
    try:
        found = time(option, text) if seconds is None else now - timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        found = None
    if found is None or found > now:
        raise ValueError(f"{option} takes a time that is over: 2h, 30d, 2026-11-23T08:00 (in UTC) or with +01:00")
    return found


def size(option: str, text: str) -> int:
    """Return a number of bytes.

    Raises:
        ValueError: the text is not a size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{option} takes a number of bytes, or one with a unit: 1048576, 512KiB, 64MiB or 2GiB")
    return int(found[1]) << 10 * _POWERS[found[2].lower()]


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Return names and texts that were given as NAME=TEXT.

    Raises:
        ValueError: one of them has no name or no "=".
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"{option} takes NAME=TEXT, and may be repeated")
        found[name] = value
    return found
