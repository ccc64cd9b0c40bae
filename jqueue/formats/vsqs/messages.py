"""Messages of vsqs: the names of their files, and the jobs that they are.

    1795313466137003                     ready
    1795313466137003.new                 being written
    1795313466137003.1795313467140262    claimed, or put off, until that time

vsqs 0.3 writes microseconds since 1970; its documentation says milliseconds. Both are read: the size of a number tells
its unit.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import NamedTuple

from jqueue.domain.draft import LARGEST_SEQUENCE
from jqueue.domain.job import JobRecord
from jqueue.formats.journal import State
from jqueue.formats.port import moment

DEAD = ".jqueue-dead"
WRITING = ".new"

MILLISECONDS_BELOW = 10**14
"""Smaller numbers are milliseconds (until the year 5138), others microseconds (from 1973 on)."""

LARGEST_TIME = LARGEST_SEQUENCE
"""Largest number that is a time (the year 2112). Larger numbers are served last, and new ones do not go behind them."""

VISIBILITY_TIMEOUT = 10.0
"""Seconds for which vsqs hides a claimed message by default; assumed for claims whose length is not known."""

_NAME = re.compile(rf"(?:{DEAD}/)?(0|[1-9][0-9]*)(?:\.([0-9]+)(?:\.[0-9]+)?)?", re.ASCII)


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


def parse(place: str) -> Name | None:
    """Parse the name of a file in the folder, or in that of the dead jobs; None if it is not the name of a message.

    vsqs 0.3 may write the end of a claim with a fraction (`5.123.0`), which is ignored. Other names that its `int`
    accepts, such as `+7` and `007`, are not messages: vsqs counts them, but cannot deliver them.
    """
    match = _NAME.fullmatch(place)
    return None if match is None else Name(int(match[1]), None if match[2] is None else int(match[2]))


def name_of(place: str) -> Name:
    """Return the name of a message."""
    name = parse(place)
    assert name is not None
    return name


def key_of(place: str) -> str:
    """Return the key of a message in the journal."""
    return str(name_of(place).number)


def _microseconds(number: int) -> int:
    return number * 1000 if number < MILLISECONDS_BELOW else number


def job_of(place: str, state: State, entrypoint: str) -> JobRecord:
    """Return the job of a message, without its payload.

    Args:
        place: path of the message's file in the folder.
        state: state of the message in the journal.
        entrypoint: entrypoint of the job if the journal has none.
    """
    number, until = name_of(place)
    claim = None
    if until is not None and until != state.due:
        is_ours = state.is_claim(until)  # else one of vsqs, or one whose state is about to be written
        timeout = VISIBILITY_TIMEOUT if state.timeout is None or not is_ours else state.timeout
        claim = moment(_microseconds(until)) - timedelta(seconds=timeout), timeout, is_ours
    return state.job(str(number), entrypoint, _microseconds(number), number, place.startswith(DEAD), claim)
