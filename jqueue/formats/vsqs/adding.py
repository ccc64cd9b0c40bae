"""Messages of vsqs as they come to be: reserved, written, brought to the disk, and only then given their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from jqueue.domain.errors import QueueFullError
from jqueue.domain.models import Job
from jqueue.formats.port import Change
from jqueue.formats.vsqs.exclusive import rename_exclusively
from jqueue.formats.vsqs.numbers import Numbers

OPEN_AT_ONCE = 100
"""So many files are open at a time."""

THREADS = 8
"""So many files are brought to the disk at a time, which takes hardly longer than one."""

Name = Callable[[Job, int, str], str]
"""Makes the note of a job with a number, whose file has a path for now, and says what its name shall be."""


def add_all(
    numbers: Numbers, changes: Sequence[Change], now: datetime, name: Name, *, fsync: bool
) -> list[str | Exception]:
    """Add jobs, each for itself; where there is not room for all, who comes first gets it.

    Args:
        numbers: of the folder, which must be there.
        changes: the jobs.
        now: the time.
        name: makes the note of each.
        fsync: whether their contents are on the disk before they have their names.

    Returns:
        For each its name, or why it was not added: QueueFullError, OSError.
    """
    full = QueueFullError("the queue has no room: it holds as many jobs as it may")
    outcomes: list[str | Exception] = [full] * len(changes)
    try:
        if not numbers.has_room(now):
            return outcomes
        reserved = numbers.reserve(len(changes), now)
    except OSError as error:
        return [error for _ in changes]
    room = len(changes) if reserved.free is None else reserved.free
    chosen = list(zip(reserved.numbers, changes, strict=True))[:room]
    try:
        for begin in range(0, len(chosen), OPEN_AT_ONCE):
            some = chosen[begin : begin + OPEN_AT_ONCE]
            failures = _write(numbers, some, fsync)
            for place, ((number, change), failure) in enumerate(zip(some, failures, strict=True), begin):
                outcomes[place] = failure or _publish(numbers, number, change, name)
    finally:
        unused = [isinstance(outcome, Exception) for outcome in outcomes]
        numbers.free([number for number, free in zip(reserved.numbers, unused, strict=True) if free])
    return outcomes


def _write(numbers: Numbers, chosen: list[tuple[int, Change]], fsync: bool) -> list[Exception | None]:
    """Write files. Returns what went wrong with each."""
    failures: list[Exception | None] = [None] * len(chosen)
    written: dict[int, int] = {}
    try:
        for place, (number, change) in enumerate(chosen):
            try:
                written[place] = os.open(numbers.path(number), os.O_WRONLY | os.O_CLOEXEC)
                _write_whole(written[place], change)
            except OSError as error:
                failures[place] = error
        if fsync and written:
            for place, failure in zip(written, _synced(list(written.values())), strict=True):
                failures[place] = failures[place] or failure
    finally:
        for descriptor in written.values():
            os.close(descriptor)
    return failures


def _write_whole(descriptor: int, change: Change) -> None:
    assert change.after is not None
    rest = memoryview(change.after.payload)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _synced(descriptors: list[int]) -> list[OSError | None]:
    """Bring files to the disk. Returns what went wrong with each."""
    if len(descriptors) == 1:
        return [_sync(descriptors[0])]
    with ThreadPoolExecutor(min(THREADS, len(descriptors)), "jqueue-fsync") as threads:
        return list(threads.map(_sync, descriptors))


def _sync(descriptor: int) -> OSError | None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        return error
    return None


def _publish(numbers: Numbers, number: int, change: Change, name: Name) -> str | Exception:
    assert change.after is not None
    path = numbers.path(number)
    try:
        place = name(change.after, number, path)
        rename_exclusively(path, os.path.join(os.path.dirname(path), place))
    except OSError as error:
        return error
    return place
