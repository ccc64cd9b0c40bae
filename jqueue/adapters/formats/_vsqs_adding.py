"""Messages of vsqs as they come to be: reserved, written, brought to the disk, and only then given their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from jqueue.adapters.formats._exclusive import rename_exclusively
from jqueue.adapters.formats._vsqs_numbers import Numbers
from jqueue.domain.errors import QueueFullError
from jqueue.domain.models import Job
from jqueue.ports.job_store import Change

OPEN_AT_ONCE = 100
"""So many files are open at a time."""

THREADS = 8
"""So many files are brought to the disk at a time, which takes hardly longer than one."""

Name = Callable[[Job, int, str], str]
"""Makes the note of a job with a number, whose file has a path for now, and says what its name shall be."""


def add_all(
    numbers: Numbers, changes: Sequence[Change], now: datetime, name: Name, *, fsync: bool
) -> list[str | Exception]:
    """Add jobs. Those of one group are added all, or none.

    Args:
        numbers: of the folder, which must be there.
        changes: the jobs.
        now: the time.
        name: makes the note of each.
        fsync: whether their contents are on the disk before they have their names.

    Returns:
        For each its name, or why it was not added: QueueFullError, OSError.
    """
    try:
        reserved = numbers.reserve(len(changes), now)
    except OSError as error:
        return [error for _ in changes]
    outcomes: dict[int, str | Exception] = {}
    try:
        refused = _refused(changes, reserved.free)
        chosen = [
            (number, change)
            for number, change in zip(reserved.numbers, changes, strict=True)
            if change.group not in refused
        ]
        for begin in range(0, len(chosen), OPEN_AT_ONCE):
            _write(numbers, chosen[begin : begin + OPEN_AT_ONCE], refused, fsync)
        for number, change in chosen:
            if change.group not in refused:
                outcomes[number] = _publish(numbers, number, change, name)
    finally:
        numbers.free([number for number in reserved.numbers if not isinstance(outcomes.get(number), str)])
    return [
        outcomes[number] if number in outcomes else refused[change.group]
        for number, change in zip(reserved.numbers, changes, strict=True)
    ]


def flush(folder: str | os.PathLike[str]) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refused(changes: Sequence[Change], free: int | None) -> dict[int, Exception]:
    """The groups that there is no room for: who comes first gets it."""
    sizes: dict[int, int] = {}
    for change in changes:
        sizes[change.group] = sizes.get(change.group, 0) + 1
    refused: dict[int, Exception] = {}
    for group, size in sizes.items():
        if free is not None and size > free:
            refused[group] = QueueFullError(f"the queue has no room for {size} more: it holds as many as it may")
        elif free is not None:
            free -= size
    return refused


def _write(numbers: Numbers, chosen: list[tuple[int, Change]], refused: dict[int, Exception], fsync: bool) -> None:
    """Write files; a group of which one cannot be written is refused."""
    written: list[tuple[int, int]] = []
    try:
        for number, change in chosen:
            try:
                descriptor = os.open(numbers.path(number), os.O_WRONLY | os.O_CLOEXEC)
                written.append((descriptor, change.group))
                _write_whole(descriptor, change)
            except OSError as error:
                refused[change.group] = error
        if fsync:
            for (_, group), failure in zip(written, _synced([descriptor for descriptor, _ in written]), strict=True):
                if failure is not None:
                    refused[group] = failure
    finally:
        for descriptor, _ in written:
            os.close(descriptor)


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
