"""File names of vsqs: the time when a message was published and, if the message is hidden, the time until then.

    1795313466137003                     ready
    1795313466137003.new                 being written
    1795313466137003.1795313467140262    claimed, or put off, until that time

vsqs 0.3 writes microseconds since 1970; its documentation says milliseconds. Both are read: the size of a number tells
its unit.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from jqueue.domain.draft import LARGEST_SEQUENCE
from jqueue.formats.times import microseconds
from jqueue.formats.times import moment as from_microseconds

MILLISECONDS_BELOW = 10**14
"""Smaller numbers are milliseconds (until the year 5138), others microseconds (from 1973 on)."""

LARGEST_TIME = LARGEST_SEQUENCE
"""Largest number that is a time (the year 2112). Larger numbers are served last, and new ones do not go behind them."""

WRITING = ".new"

_NAME = re.compile(r"(0|[1-9][0-9]*)(?:\.([0-9]+)(?:\.[0-9]+)?)?", re.ASCII)
_WRITTEN = re.compile(r"(0|[1-9][0-9]*)\.new", re.ASCII)


class Unit(StrEnum):
    """Unit of the numbers that jqueue writes."""

    MICROSECONDS = "us"
    MILLISECONDS = "ms"

    def number(self, moment: datetime) -> int:
        """Return a moment as a number, rounded up, so that no claim ends early."""
        count = microseconds(moment)
        return count if self is Unit.MICROSECONDS else -(-count // 1000)


class Name(NamedTuple):
    """Name of a message.

    Attributes:
        number: time when the message was published. It identifies the message and gives its order.
        until: time until which the message is hidden; None if it is ready.
    """

    number: int
    until: int | None = None

    def __str__(self) -> str:
        return str(self.number) if self.until is None else f"{self.number}.{self.until}"


def parse(name: str) -> Name | None:
    """Parse a file name; None if it is not the name of a message.

    vsqs 0.3 may write the end of a claim with a fraction (`5.123.0`), which is ignored. Other names that its `int`
    accepts, such as `+7` and `007`, are not messages: vsqs counts them, but cannot deliver them.
    """
    found = _NAME.fullmatch(name)
    return None if found is None else Name(int(found[1]), None if found[2] is None else int(found[2]))


def parse_written(name: str) -> int | None:
    """Return the number of a message that is being written; None for any other name."""
    found = _WRITTEN.fullmatch(name)
    return None if found is None else int(found[1])


def moment(number: int) -> datetime:
    """Return the time of a number, whose size tells its unit."""
    return from_microseconds(number * 1000 if number < MILLISECONDS_BELOW else number)
