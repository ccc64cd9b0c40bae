"""Errors for a storage that is used like a queue: they say how to make a queue.

The mistake is easy, as `connect(url)` without a class returns a storage. The verbs of a queue stay absent from a
storage, so `hasattr` and the optional storage protocols do not see them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn


@cache
def _verbs() -> frozenset[str]:
    """Return the names of a queue's verbs. They are imported at the first mistake: a storage needs no queue."""
    from jqueue.ports.queue import JobQueue, SupportsPeek

    return frozenset(name for port in (JobQueue, SupportsPeek) for name in dir(port) if not name.startswith("_"))


def _refusal(storage: object, what: str) -> AttributeError:
    return AttributeError(
        f"{type(storage).__name__} is a storage, not a queue, and cannot {what}: write `connect(url, BrokerQueue)` or "
        "`BrokerQueue(storage)` for a queue",
    )


def _enter(self: object) -> NoReturn:
    raise _refusal(self, "be used with `async with`")


class _Entering:
    """Descriptor that makes `async with` fail with the same text."""

    def __get__(self, storage: object, owner: type) -> Callable[[object], NoReturn]:
        return _enter if storage is None else _enter(storage)  # documentation tools read it from the class


class NoQueue:
    """Base of storages. Its AttributeError for the verb of a queue says how to make a queue."""

    if not TYPE_CHECKING:  # a type checker knows which attributes a storage has
        __aenter__ = __aexit__ = _Entering()

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_") and name in _verbs():
                raise _refusal(self, f"do {name!r}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
