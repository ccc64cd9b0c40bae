"""The times of cron entries. The library cronsim reads expressions; this module handles missed and repeated times.

Daylight saving time is handled as in Debian's cron. If the clocks skip an entry's time of day, it is due at the moment
of the change. If its hour comes twice, it is due once. An entry with `*` for its hour or minute follows elapsed time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from jqueue.domain.errors import InvalidJobError, shown

NICKNAMES = {
    **dict.fromkeys(("@yearly", "@annually"), "0 0 1 1 *"),
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    **dict.fromkeys(("@daily", "@midnight"), "0 0 * * *"),
    "@hourly": "0 * * * *",
}
"""Names that other programs take for cron expressions, and the expressions."""


def check_cron(expression: object, timezone: object) -> None:
    """Check a cron expression and its time zone.

    Raises:
        InvalidJobError: the expression or the name of the time zone is wrong, or no time matches the expression.
    """
    if not isinstance(expression, str) or not isinstance(timezone, str):
        raise InvalidJobError("a cron expression and the name of its time zone must be str")
    try:
        _zone(timezone)
    except (OSError, ValueError, LookupError):
        raise InvalidJobError(_no_such_zone(timezone)) from None
    fault = _fault(expression)
    if fault:
        raise InvalidJobError(f"{shown(expression)} {fault}")


def _fault(expression: str) -> str:
    """Return what is wrong with a cron expression, as the end of a sentence; empty if nothing is."""
    try:
        next(CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration, OverflowError, ValueError) as error:
        reason = str(error).lower() or "never due"
    else:
        return ""
    if expression in NICKNAMES:
        return f'is not a cron expression, as names are not understood: write "{NICKNAMES[expression]}"'
    fields = expression.split()
    in_any_month = " ".join([*fields[:-2], "*", *fields[-1:]])
    if reason == "bad day-of-month" and in_any_month != expression and not _fault(in_any_month):
        return (
            "is a cron expression that is never due, as none of its months has such a day: change the day or the month"
        )
    right = '"*/5 * * * *" or "30 2 * * MON-FRI": minute, hour, day of the month, month, day of the week'
    return f"is not a cron expression ({reason}): write one such as {right}"


@lru_cache(maxsize=4096)
def next_after(expression: str, timezone: str, moment: datetime) -> datetime:
    """Return the first time after `moment` at which an entry is due, in UTC. Repeated calls are answered from a cache.

    Raises:
        InvalidJobError: this machine cannot read the expression or the time zone, or the entry is never due.
    """
    check_cron(expression, timezone)
    for due_time in _times_after(expression, timezone, moment):
        return due_time
    raise InvalidJobError(f"the cron expression {shown(expression)} is never due")


def last_until(expression: str, timezone: str, due: datetime, moment: datetime) -> datetime:
    """Return the last time, not after `moment`, at which an entry was due, in UTC.

    Args:
        expression: the cron expression of the entry.
        timezone: IANA name of the expression's time zone.
        due: a time at which the entry was due, not after `moment`.
        moment: the latest time to return.

    Raises:
        InvalidJobError: this machine cannot read the expression or the time zone.
    """
    check_cron(expression, timezone)
    last, until = due, moment  # the result is in [last, until]
    while until - last > timedelta(seconds=1):
        middle = last + (until - last) / 2
        due_time = next(_times_after(expression, timezone, middle), None)
        if due_time is not None and due_time <= moment:
            last = due_time
        else:
            until = middle
    times = _times_after(expression, timezone, last)
    return max(itertools.chain([last], itertools.takewhile(lambda found: found <= moment, times)))


def _times_after(expression: str, timezone: str, moment: datetime) -> Iterator[datetime]:
    """Yield the times after `moment` at which an entry is due, in UTC.

    In an hour that comes twice, the library may return times of the first pass during the second. They are left out.
    """
    last = moment
    try:
        for due_time in CronSim(expression, moment.astimezone(_zone(timezone))):
            due_time = due_time.astimezone(UTC)
            if due_time > last:
                last = due_time
                yield due_time
    except (CronSimError, OverflowError, ValueError):
        return


def _no_such_zone(name: str) -> str:
    try:
        _zone("UTC")
    except LookupError:
        return "this machine has no time zone data: pip install tzdata"
    return f"there is no time zone {shown(name)}: give an IANA name such as Europe/Berlin or UTC"


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
