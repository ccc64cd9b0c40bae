"""The names of vsqs: a number that is a time, and for a message that is hidden, until when.

    1795313466137003                     ready
    1795313466137003.new                 being written
    1795313466137003.1795313467140262    claimed, or put off, until that time

vsqs 0.3 writes microseconds since 1970, its documentation says milliseconds. Both are read, each number by its size.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from jqueue.domain.places import PLACES
from jqueue.formats.times import microseconds
from jqueue.formats.times import moment as from_microseconds

MILLISECONDS_BELOW = 10**14
"""Smaller numbers are milliseconds (until the year 5138), others microseconds (from 1973 on)."""

LARGEST_TIME = PLACES
"""Larger numbers are no times (it is the year 2112): they come last, and nothing is placed behind them."""

WRITING = ".new"

_NAME = re.compile(r"(0|[1-9][0-9]*)(?:\.([0-9]+)(?:\.[0-9]+)?)?", re.ASCII)
_WRITTEN = re.compile(r"(0|[1-9][0-9]*)\.new", re.ASCII)


class Unit(StrEnum):
    """What the numbers are counted in that we write."""

    MICROSECONDS = "us"
    MILLISECONDS = "ms"

    def number(self, moment: datetime) -> int:
        """A moment as a number; one between two numbers is the later one, so that no claim ends early."""
        count = microseconds(moment)
        return count if self is Unit.MICROSECONDS else -(-count // 1000)


class Name(NamedTuple):
    """The name of a message.

    Attributes:
        number: when it was published; what it is known and served by.
        until: hidden until then; None if it is ready.
    """

    number: int
    until: int | None = None

    def __str__(self) -> str:
        return str(self.number) if self.until is None else f"{self.number}.{self.until}"


def parse(name: str) -> Name | None:
    """A name taken apart; None if it is none of a message.

    The end of a claim that vsqs 0.3 gave as a fraction (`5.123.0`) is read without it. Other names that its `int`
    takes, such as `+7` and `007`, are of no message: it counts them, but can deliver none.
    """
    found = _NAME.fullmatch(name)
    return None if found is None else Name(int(found[1]), None if found[2] is None else int(found[2]))


def parse_written(name: str) -> int | None:
    """The number of a message that is being written; None if the name is none of such."""
    found = _WRITTEN.fullmatch(name)
    return None if found is None else int(found[1])


def moment(number: int) -> datetime:
    """The time that a number is, by its size."""
    return from_microseconds(number * 1000 if number < MILLISECONDS_BELOW else number)
