"""A storage that fails on request, with each fault that a network or a client library can cause.

Faults are injected at the storage port, call by call. The storage underneath works correctly.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TypeVar

from jqueue.domain.errors import CASConflictError, JQueueError, StorageError
from jqueue.ports.storage import Listed, ObjectStoragePort, SupportsObjects, SupportsStoreTime

Answer = TypeVar("Answer")


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
        return await self._send(Fault.LOST_ANSWER if fault is Fault.RESENT else fault, self.storage.read)

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Write to the storage underneath, or fail as ordered."""
        self.writes += 1
        fault = self._write_faults.popleft() if self._write_faults else Fault.NONE
        return await self._send(fault, lambda: self._land(content, if_match))

    def store_time(self) -> datetime | None:
        """Return the time of the storage underneath, or None if it has none."""
        return self.storage.store_time() if isinstance(self.storage, SupportsStoreTime) else None

    async def _land(self, content: bytes, if_match: str | None) -> str:
        etag = await self.storage.write(content, if_match)
        self.landed += 1
        return etag

    async def _send(self, fault: Fault, request: Callable[[], Awaitable[Answer]]) -> Answer:
        """Make a request to the storage underneath, with a fault."""
        await asyncio.sleep(self.latency)
        if fault is Fault.HANGS:
            await asyncio.Event().wait()
        if fault is Fault.LANDS_LATER:
            task = asyncio.create_task(self._send_later(request))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
        if fault in (Fault.LOST_REQUEST, Fault.LANDS_LATER):
            raise self.error()
        answer = await request()
        if fault is Fault.HANGS_AFTER:
            await asyncio.Event().wait()
        if fault is Fault.LOST_ANSWER:
            raise self.error()
        if fault is Fault.RESENT:
            raise CASConflictError("the precondition failed")
        return answer

    async def _send_later(self, request: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(self.delay)
        with suppress(JQueueError):  # the caller has its error
            await request()


@dataclass
class FaultyObjects(FaultyStorage):
    """The same for a storage that supports objects beside the queue's. Their calls have faults of their own.

    Attributes:
        object_calls: name and suffix of each call, in order; the prefix of a listing in place of a suffix.
        unreadable: the error that answers every read of an object, by suffix; None for no answer.
    """

    object_calls: list[tuple[str, str]] = field(default_factory=list)
    unreadable: dict[str, Exception | None] = field(default_factory=dict)
    _object_faults: deque[Fault] = field(default_factory=deque)

    def __post_init__(self) -> None:
        if not isinstance(self.storage, SupportsObjects):
            raise TypeError(f"FaultyObjects needs a storage with SupportsObjects, got {self.storage!r}")
        self._objects: SupportsObjects = self.storage

    def on_object(self, *faults: Fault) -> None:
        """Set the faults of the next calls for objects, in order. A RESENT call that is no creation has none."""
        self._object_faults.extend(faults)

    async def create_object(self, suffix: str, content: bytes) -> None:
        """Create an object in the storage underneath, or fail as ordered."""
        await self._send(self._called("create_object", suffix), lambda: self._objects.create_object(suffix, content))

    async def create_object_from(self, suffix: str, pieces: AsyncIterable[bytes]) -> int:
        """Create an object from pieces, or fail as ordered. A creation that lands later takes its pieces later."""
        fault = self._called("create_object_from", suffix)
        return await self._send(fault, lambda: self._objects.create_object_from(suffix, pieces))

    async def read_object(self, suffix: str, start: int = 0, stop: int | None = None) -> bytes:
        """Read a range of an object, or fail as ordered."""
        fault = self._called("read_object", suffix, is_creation=False)
        if suffix in self.unreadable:
            error = self.unreadable[suffix]
            if error is None:
                await asyncio.Event().wait()
            else:
                raise error
        return await self._send(fault, lambda: self._objects.read_object(suffix, start, stop))

    async def remove_object(self, suffix: str) -> None:
        """Delete an object, or fail as ordered."""
        fault = self._called("remove_object", suffix, is_creation=False)
        await self._send(fault, lambda: self._objects.remove_object(suffix))

    async def list_beside(self, prefix: str) -> list[Listed]:
        """List objects, or fail as ordered."""
        fault = self._called("list_beside", prefix, is_creation=False)
        return await self._send(fault, lambda: self._objects.list_beside(prefix))

    def _called(self, name: str, suffix: str, *, is_creation: bool = True) -> Fault:
        """Note a call, and return its fault."""
        self.object_calls.append((name, suffix))
        fault = self._object_faults.popleft() if self._object_faults else Fault.NONE
        return Fault.NONE if fault is Fault.RESENT and not is_creation else fault
