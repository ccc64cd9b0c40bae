"""Queues that are broken on purpose, in the workers: the soak is worth as much as what it finds of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jqueue.adapters.storage import _remote
from jqueue.core.blob import engine
from jqueue.domain.commits import Verdict


def forgetful() -> None:
    """A commit whose answer was lost is taken for one that was not done."""
    setattr(engine, "recognise", lambda *_: Verdict.NOT_DONE)  # noqa: B010 - it is imported there, not exported


def unconditional() -> None:
    """A write takes the place of whatever is there."""
    write = _remote.RemoteStorage.write

    async def overwrite(storage: Any, content: bytes, if_match: str | None = None) -> str:
        if if_match is not None:
            _, if_match = await storage.read()
        return await write(storage, content, if_match)

    _remote.RemoteStorage.write = overwrite  # type: ignore[method-assign, assignment]


BROKEN: dict[str, Callable[[], None]] = {"forgetful": forgetful, "unconditional": unconditional}
