"""Queues broken on purpose in the workers, which show that the soak finds such faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jqueue.adapters.storage import _remote
from jqueue.core.blob import engine
from jqueue.domain.commits import Verdict


def forgetful() -> None:
    """Treat a commit whose answer was lost as not done."""
    setattr(engine, "recognise", lambda *_: Verdict.NOT_DONE)  # noqa: B010 - the name is imported there, not exported


def unconditional() -> None:
    """Let each write overwrite the object without its condition."""
    write = _remote.RemoteStorage.write

    async def overwrite(storage: Any, content: bytes, if_match: str | None = None) -> str:
        if if_match is not None:
            _, if_match = await storage.read()
        return await write(storage, content, if_match)

    _remote.RemoteStorage.write = overwrite  # type: ignore[method-assign, assignment]


BROKEN: dict[str, Callable[[], None]] = {"forgetful": forgetful, "unconditional": unconditional}
