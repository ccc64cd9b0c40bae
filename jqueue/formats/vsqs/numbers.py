"""The numbers of new messages of vsqs: each is used once, lies behind all that were there, and counts as a place.

A number is reserved by a file `<number>.new`, which only one program can make. Then the folder is listed: what is
there by then, whoever published it, is before, and has another number. Of two of us who reserve at once, at least one
sees the other; where there are only so many places, the one with the smaller number takes a larger one, and looks
again. So those who use this never exceed the capacity, whereas vsqs looks first and publishes then.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from jqueue.formats.times import microseconds
from jqueue.formats.vsqs.names import LARGEST_TIME, WRITING, Unit, parse, parse_written

ABANDONED = 3600.0
"""Seconds after which a message that is still being written never will be: its writer has died."""


class Reserved(NamedTuple):
    """Numbers that nobody else will use.

    Attributes:
        numbers: in order; there is a file `<number>.new` for each.
        free: so many more messages the queue takes; None if there is no limit.
    """

    numbers: list[int]
    free: int | None


class Numbers:
    """Reserves numbers in one folder.

    Args:
        folder: its path.
        unit: of the numbers.
        capacity: the most messages, ready and hidden; None if there is no limit.
    """

    def __init__(self, folder: str, unit: Unit, capacity: int | None) -> None:
        self._folder = folder
        self._unit = unit
        self._capacity = capacity
        self._last = 0

    def path(self, number: int) -> str:
        """The path of the file that reserves a number."""
        return f"{self._folder}/{number}{WRITING}"

    def has_room(self, now: datetime) -> bool:
        """Whether the queue takes one more message, by a look that changes nothing: changes wake those who wait.

        Raises:
            FileNotFoundError: there is no folder.
        """
        if self._capacity is None:
            return True
        _, there, written = self._others(set(), now)
        return there + len(written) < self._capacity

    def reserve(self, count: int, now: datetime) -> Reserved:
        """Numbers behind those of all messages that were there before this call.

        Raises:
            FileNotFoundError: there is no folder.
        """
        first, behind = max(self._unit.number(now), self._last + 1), False
        while True:
            numbers = self._make(first, count)
            try:
                published, there, written = self._others(set(numbers), now)
            except BaseException:
                self.free(numbers)
                raise
            before = max((number for number in published if number <= LARGEST_TIME), default=0)
            clash = not published.isdisjoint(numbers)
            if self._capacity is not None:
                before = max([before, *(number for number in written if number <= LARGEST_TIME)])
                behind = False
            if not clash and (behind or before < numbers[0]):
                break
            self.free(numbers)
            first, behind = max(before, numbers[-1]) + 1, True
        self._last = numbers[-1]
        if self._capacity is None:
            return Reserved(numbers, None)
        return Reserved(numbers, max(0, self._capacity - there - len(written)))

    def free(self, numbers: list[int]) -> None:
        """Give numbers back that were not used."""
        for number in numbers:
            with suppress(FileNotFoundError):
                os.unlink(self.path(number))

    def _make(self, first: int, count: int) -> list[int]:
        numbers: list[int] = []
        number = first
        try:
            while len(numbers) < count:
                with suppress(FileExistsError):
                    os.close(os.open(self.path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
                    numbers.append(number)
                number += 1
        except BaseException:
            self.free(numbers)
            raise
        return numbers

    def _others(self, own: set[int], now: datetime) -> tuple[set[int], int, set[int]]:
        """The numbers of messages that are there, how many these are, and the numbers that others are writing."""
        published, there, written = set(), 0, set()
        for entry in os.listdir(self._folder):
            name = parse(entry)
            if name is not None:
                published.add(name.number)
                there += 1
            elif (number := parse_written(entry)) is not None and number not in own:
                if self._is_abandoned(entry, now):
                    self.free([number])
                else:
                    written.add(number)
        return published, there, written

    def _is_abandoned(self, entry: str, now: datetime) -> bool:
        try:
            modified = os.stat(f"{self._folder}/{entry}", follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return False
        return modified + ABANDONED < microseconds(now) / 1e6
