"""The file adapter, and adapters broken on purpose, which show that the proof finds such faults."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from jqueue import CASConflictError, LocalFileSystemStorage
from jqueue.adapters.storage._queue_folder import QueueFolder


class Truncating(LocalFileSystemStorage):
    """An adapter that writes into the file itself: a process killed in between leaves half of it."""

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (await self.read())[1] != if_match:
                raise CASConflictError("somebody was first")
            await asyncio.to_thread(self.path.write_bytes, content)
            etag = (await self.read())[1]
            assert etag is not None
            return etag
        finally:
            os.close(lock)


class Hasty(LocalFileSystemStorage):
    """An adapter that answers a write and carries it out a little later."""

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        self._later = asyncio.create_task(self._write_later(content, if_match))
        return "not there yet"

    async def _write_later(self, content: bytes, if_match: str | None) -> None:
        await asyncio.sleep(0.01)
        with suppress(CASConflictError):
            await super().write(content, if_match)


class Untidy(LocalFileSystemStorage):
    """An adapter that does not remove the temporary files of killed processes."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._folder = UntidyFolder(self._file)


class UntidyFolder(QueueFolder):
    def remove_leftovers(self) -> None:
        pass


Adapter = Callable[[Path], LocalFileSystemStorage]

REAL = "real"
ADAPTERS: dict[str, Adapter] = {
    REAL: LocalFileSystemStorage,
    "truncating": Truncating,
    "hasty": Hasty,
    "untidy": Untidy,
}
