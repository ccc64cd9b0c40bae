"""A storage that fails on request, with each fault that a network or a client library can cause.

Faults are injected at the storage port, call by call. The storage underneath works correctly.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from jqueue.domain.errors import CASConflictError, StorageError
from jqueue.ports.storage import ObjectStoragePort, SupportsStoreTime


class Fault(Enum):
    """Fate of one call."""

    NONE = "answered as it should be"
    LOST_REQUEST = "never arrives; the caller gets an error"
    LOST_ANSWER = "is done, and its answer is lost; the caller gets an error"
    RESENT = "is done, its answer is lost, the client library sends it again and reports a conflict"
    LANDS_LATER = "gets an error at once, and is done some time after"
    HANGS = "never arrives, and is never answered"
    HANGS_AFTER = "is done, and is never answered"


@dataclass
class FaultyStorage:
    """A storage whose next calls fail as ordered.

    Attributes:
        storage: the working storage underneath.
        error: makes the error that callers get.
        delay: seconds after which a `LANDS_LATER` write is done.
        latency: seconds that every call takes.
        reads: number of reads requested.
        writes: number of writes requested.
        landed: number of writes that took effect.
    """

    storage: ObjectStoragePort
    error: Callable[[], Exception] = field(default=lambda: StorageError("the connection was reset"))
    delay: float = 1.0
    latency: float = 0.0
    reads: int = 0
    writes: int = 0
    landed: int = 0
    _read_faults: deque[Fault] = field(default_factory=deque)
    _write_faults: deque[Fault] = field(default_factory=deque)
    _later: set[asyncio.Task[None]] = field(default_factory=set)

    def on_read(self, *faults: Fault) -> None:
        """Set the faults of the next reads, in order."""
        self._read_faults.extend(faults)

    def on_write(self, *faults: Fault) -> None:
        """Set the faults of the next writes, in order."""
        self._write_faults.extend(faults)

    async def read(self) -> tuple[bytes, str | None]:
        """Read from the storage underneath, or fail as ordered."""
        self.reads += 1
        fault = self._read_faults.popleft() if self._read_faults else Fault.NONE
        await asyncio.sleep(self.latency)
        if fault in (Fault.HANGS, Fault.HANGS_AFTER):
            await asyncio.Event().wait()
        if fault is not Fault.NONE:
            raise self.error()
        return await self.storage.read()

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Write to the storage underneath, or fail as ordered."""
        self.writes += 1
        fault = self._write_faults.popleft() if self._write_faults else Fault.NONE
        await asyncio.sleep(self.latency)
        if fault is Fault.HANGS:
            await asyncio.Event().wait()
        if fault is Fault.LOST_REQUEST:
            raise self.error()
        if fault is Fault.LANDS_LATER:
            task = asyncio.create_task(self._land(content, if_match))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
            raise self.error()
        etag = await self.storage.write(content, if_match)
        self.landed += 1
        if fault is Fault.HANGS_AFTER:
            await asyncio.Event().wait()
        if fault is Fault.LOST_ANSWER:
            raise self.error()
        if fault is Fault.RESENT:
            raise CASConflictError("the precondition failed")
        return etag

    def store_time(self) -> datetime | None:
        """Return the time of the storage underneath, or None if it has none."""
        return self.storage.store_time() if isinstance(self.storage, SupportsStoreTime) else None

    async def _land(self, content: bytes, if_match: str | None) -> None:
        await asyncio.sleep(self.delay)
        try:
            await self.storage.write(content, if_match)
        except CASConflictError:
            return
        self.landed += 1
