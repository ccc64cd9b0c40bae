"""When cron entries are due. The library cronsim reads the expressions; what is missed and what clocks skip is ours.

Daylight saving time is dealt with as in Debian's cron: an entry for a certain time of the day that the clocks skip is
due at the moment of the change, and one for an hour that comes twice is due once. An entry with `*` for its hour or
minute goes by the time that passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from jqueue.domain.errors import InvalidJobError, shown


def check_cron(expression: object, timezone: object) -> None:
    """Refuse what no clock will ever meet.

    Raises:
        InvalidJobError: the expression or the name of the time zone is wrong.
    """
    if not isinstance(expression, str) or not isinstance(timezone, str):
        raise InvalidJobError("a cron expression and the name of its time zone must be str")
    try:
        _zone(timezone)
    except (OSError, ValueError, LookupError):
        raise InvalidJobError(_no_such_zone(timezone)) from None
    try:
        next(CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration, OverflowError, ValueError):
        right = '"*/5 * * * *" or "30 2 * * MON-FRI": minute, hour, day of the month, month, day of the week'
        raise InvalidJobError(f"{shown(expression)} is no cron expression: it should look like {right}") from None


@lru_cache(maxsize=4096)
def next_after(expression: str, timezone: str, moment: datetime) -> datetime:
    """The first time after a moment at which an entry is due, in UTC. Cheap if it was asked before.

    Raises:
        InvalidJobError: the entry cannot be understood here.
    """
    check_cron(expression, timezone)
    for found in _times_after(expression, timezone, moment):
        return found
    raise InvalidJobError(f"the cron expression {shown(expression)} is never due")


def last_until(expression: str, timezone: str, due: datetime, moment: datetime) -> datetime:
    """The last time until a moment at which an entry was due, in UTC.

    Args:
        expression: of the entry.
        timezone: in which it is meant.
        due: a time at which it was due, not after the moment.
        moment: until when.

    Raises:
        InvalidJobError: the entry cannot be understood here.
    """
    check_cron(expression, timezone)
    last, until = due, moment  # it is not after `until`
    while until - last > timedelta(seconds=1):
        middle = last + (until - last) / 2
        found = next(_times_after(expression, timezone, middle), None)
        if found is not None and found <= moment:
            last = found
        else:
            until = middle
    times = _times_after(expression, timezone, last)
    return max(itertools.chain([last], itertools.takewhile(lambda found: found <= moment, times)))


def _times_after(expression: str, timezone: str, moment: datetime) -> Iterator[datetime]:
    """The times after a moment at which an entry is due, in UTC.

    In the hour that comes twice, the library may answer with times of the first one while it is the second.
    """
    last = moment
    try:
        for found in CronSim(expression, moment.astimezone(_zone(timezone))):
            found = found.astimezone(UTC)
            if found > last:
                last = found
                yield found
    except (CronSimError, OverflowError, ValueError):
        return


def _no_such_zone(name: str) -> str:
    try:
        _zone("UTC")
    except LookupError:
        return "there are no time zones here, neither of the system nor in the package tzdata: pip install tzdata"
    return f"no time zone is called {shown(name)}: write one such as Europe/Berlin or UTC"


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
