"""New elements of dirq are made together: all are written, all get to the disk, and then each gets its name.

A disk that is asked for one file after the other writes its journal each time. Asked for many that it has begun to
write, it does so about once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol, TypeVar

from jqueue.domain.errors import InvalidJobError, StorageError
from jqueue.formats.dirq.disk import Disk
from jqueue.formats.dirq.names import number_of
from jqueue.formats.files.folders import moment
from jqueue.formats.port import Change, Kept, Lost, Outcome

AT_ONCE = 32
"""So many elements are open at a time."""

TRIES = 100

Result = TypeVar("Result")


class AddsInParts(Protocol):
    """What makes an element under a name that nobody looks at, and gives it its own."""

    @abstractmethod
    def write_part(self, change: Change, now: datetime) -> str:
        """Write a new element where nobody looks; `Disk.sync` gets it to the disk. Returns its name there."""

    @abstractmethod
    def publish(self, part: str, change: Change, now: datetime) -> Kept:
        """Give it the name by which all find it.

        Raises:
            FileExistsError: somebody has that name.
            FileNotFoundError: it is gone.
        """

    @abstractmethod
    def drop_part(self, part: str) -> None:
        """Remove it: it does not get to the disk."""


def added(change: Change, name: str, place: str) -> Kept:
    """A new job as it stands: known by its name from now on, unless it came from elsewhere."""
    job, number = change.after, number_of(name[-14:])
    assert job is not None
    if change.arrives:
        return Kept(job.evolve(sequence=number), place)
    return Kept(job.evolve(id=name, created_at=moment(number), sequence=number), place)


def attempt(work: Callable[..., Result], *arguments: Any) -> Result | Exception:
    """What a step comes to, if it is not done its error."""
    try:
        return work(*arguments)
    except (FileNotFoundError, NotADirectoryError, Lost):
        return Lost()
    except (OSError, InvalidJobError, StorageError) as error:
        return error


def add_together(store: AddsInParts, disk: Disk, changes: Sequence[Change], now: datetime) -> list[Outcome]:
    """Add new elements, in order. Returns what each came to."""
    outcomes: list[Outcome] = []
    for first in range(0, len(changes), AT_ONCE):
        lot = changes[first : first + AT_ONCE]
        parts = [attempt(store.write_part, change, now) for change in lot]
        try:
            disk.sync()
        except OSError as error:
            for part in parts:
                if isinstance(part, str):
                    with suppress(OSError):
                        store.drop_part(part)
            parts = [error if isinstance(part, str) else part for part in parts]
        outcomes += [
            attempt(_published, store, disk, part, change, now) if isinstance(part, str) else part
            for part, change in zip(parts, lot, strict=True)
        ]
    return outcomes


def _published(store: AddsInParts, disk: Disk, part: str, change: Change, now: datetime) -> Kept:
    for _ in range(TRIES):
        try:
            return store.publish(part, change, now)
        except (FileExistsError, FileNotFoundError):  # somebody has the name, or has tidied up
            store.drop_part(part)
            part = store.write_part(change, now)
            try:
                disk.sync()
            except OSError:
                store.drop_part(part)
                raise
        except OSError:
            store.drop_part(part)
            raise
    raise OSError(f"no element could be added to {disk.root!r}: whatever is made there goes at once")
