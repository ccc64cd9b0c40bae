"""Numbers of new vsqs messages: each is used once, is larger than those of all older messages, and counts as a message.

A number is reserved by a file `<number>.new`, which only one program can create. Then the folder is listed. If a
message in it has the same or a larger number, larger numbers are reserved instead. Of two writers of jqueue that
reserve at once, at least one sees the other. If the queue has a capacity, the writer with the smaller number reserves a
larger one and lists the folder again. So writers of jqueue never exceed the capacity together. vsqs can exceed it: it
looks first and publishes then.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from jqueue.formats.times import microseconds
from jqueue.formats.vsqs.names import LARGEST_TIME, WRITING, Unit, parse, parse_written

ABANDONED = 3600.0
"""Seconds after which the writer of an unfinished message is taken for dead."""


class Reserved(NamedTuple):
    """Numbers that no other writer will use.

    Attributes:
        numbers: the numbers in ascending order, each with its file `<number>.new`.
        free: number of further messages that fit into the queue; None if there is no limit.
    """

    numbers: list[int]
    free: int | None


class Numbers:
    """Reserves numbers in one folder.

    Args:
        folder: path of the folder.
        unit: unit of the numbers.
        capacity: largest number of messages, ready and hidden; None if there is no limit.
    """

    def __init__(self, folder: str, unit: Unit, capacity: int | None) -> None:
        self._folder = folder
        self._unit = unit
        self._capacity = capacity
        self._last = 0

    def path(self, number: int) -> str:
        """Return the path of the file that reserves a number."""
        return f"{self._folder}/{number}{WRITING}"

    def has_room(self, now: datetime) -> bool:
        """Return True if one more message fits into the queue.

        The check creates no files: a change of the folder would wake the callers that wait for space.

        Raises:
            FileNotFoundError: there is no folder.
        """
        if self._capacity is None:
            return True
        _, there, written = self._others(set(), now)
        return there + len(written) < self._capacity

    def reserve(self, count: int, now: datetime) -> Reserved:
        """Reserve numbers larger than those of all messages that were there before this call.

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
        """Give back numbers that were not used."""
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
        """Return the numbers of the messages, the count of messages, and the numbers that other writers hold."""
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
