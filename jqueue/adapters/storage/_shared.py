"""Common parts of all storages: the names, ranges, parts and listings of objects, and the errors for misuse."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

RawListed = tuple[str, datetime, int]
"""One object in a store's list: its full name, the time of its last write, and its size in bytes."""

_SUFFIX = re.compile(r"\.[A-Za-z0-9_-]+([./][A-Za-z0-9_-]+)*")
_RESERVED = (".lock", ".tmp")
"""Endings of the files that a queue in a file makes for itself."""


def check_suffix(suffix: str) -> None:
    """Refuse a suffix that is not the same name on every store, or that could name the queue's own files."""
    if not _SUFFIX.fullmatch(suffix) or suffix.endswith(_RESERVED):
        raise ValueError(
            "the suffix of an object must be words of ASCII letters, digits, '-' and '_', with a dot before the first "
            f"and a dot or a slash between, such as '.history/000001', and not end in .lock or .tmp; got {suffix!r}"
        )


def check_range(start: int, stop: int | None) -> None:
    """Refuse a range that cannot be in an object."""
    if start < 0 or (stop is not None and stop < start):
        raise ValueError(f"a range of an object must have 0 <= start <= stop, got start={start}, stop={stop}")


def check_prefix(prefix: str) -> None:
    """Refuse an empty prefix, which fits every object, including this one."""
    if not prefix:
        raise ValueError(
            "list_beside needs a prefix, such as '.staged.': an empty prefix also matches the object itself"
        )


async def in_parts(pieces: AsyncIterable[bytes], size: int) -> AsyncGenerator[tuple[bytearray, bool], None]:
    """Join and cut pieces into parts of `size` bytes. The last one may be shorter, and is empty if there are no bytes.

    Yields:
        A part, and True if it is the last.
    """
    part = bytearray()
    async for piece in pieces:
        rest = memoryview(piece)
        while rest:
            if len(part) == size:
                yield part, False
                part = bytearray()
            taken = rest[: size - len(part)]
            part += taken
            rest = rest[len(taken) :]
    yield part, True


@cache
def _verbs() -> frozenset[str]:
    """Return the names of a queue's verbs. They are imported at the first mistake: a storage needs no queue."""
    from jqueue.ports.queue import JobQueue, SupportsPeek

    return frozenset(name for port in (JobQueue, SupportsPeek) for name in dir(port) if not name.startswith("_"))


def _refuse(storage: object, what: str = "be used with `async with`") -> NoReturn:
    raise AttributeError(
        f"{type(storage).__name__} is a storage, not a queue, and cannot {what}: write "
        "`connect(url)` or `BrokerQueue(storage)` for a queue"
    )


class _Entering:
    """Makes `async with` and an `AsyncExitStack` fail with the same text."""

    def __get__(self, storage: object, owner: type) -> Callable[[object], NoReturn]:
        return _refuse if storage is None else _refuse(storage)


class NoQueue:
    """Base of storages. Its errors for a storage that is used like a queue say how to make a queue.

    The mistake is easy, as `open_storage` is near `connect`. The verbs of a queue stay absent from a
    storage, so `hasattr` and the optional storage protocols do not see them.
    """

    if not TYPE_CHECKING:  # a type checker knows which attributes a storage has
        __aenter__ = __aexit__ = _Entering()

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_") and name in _verbs():
                _refuse(self, f"do {name!r}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
