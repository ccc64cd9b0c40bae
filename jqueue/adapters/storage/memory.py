"""A store in this process's memory: for tests, trials, and queues that need not outlive their process.

It keeps the whole contract of the port, including conditional creation, so that a program that works on it works on a
real store. Threads and event loops may share it. Other processes cannot see it, and it is lost when the process ends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from datetime import datetime

from jqueue.adapters.storage._shared import NoQueue, check_prefix, check_range, check_suffix
from jqueue.domain.errors import CASConflictError, ObjectMissingError
from jqueue.ports.clock import Clock
from jqueue.ports.storage import Listed
from jqueue.runtime.system import SystemClock


@dataclass(eq=False)
class InMemoryStorage(NoQueue):
    """One object in memory. The etag is a counter of writes, as text.

    Attributes:
        name: the name of the object, as users know it.

    Args:
        initial_content: the first content of the object; b"" means that there is no object yet.
        clock: the clock that `store_time` reads; the machine's clock by default.
    """

    name = "memory"

    initial_content: bytes = field(default=b"", repr=False)  # payloads, which no repr or log may show
    clock: Clock = field(default_factory=SystemClock, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        self._content = bytes(self.initial_content) or None
        self._writes = 1 if self._content else 0
        self._modified = self.clock.now()
        self._name = ""
        self._all = {"": self}  # this object and the ones beside it, by name; they share this dict
        # A lock of threading, as asyncio's would bind the store to the first event loop that waits for it.
        self._guard = threading.Lock()

    async def read(self) -> tuple[bytes, str | None]:
        """Return (content, etag), or (b"", None) before the first write."""
        await asyncio.sleep(0)
        with self._guard:
            return self._content or b"", self._etag()

    async def read_if_changed(self, etag: str) -> tuple[bytes, str | None] | None:
        """Return None while the object's etag is still `etag`, and otherwise the same as `read`."""
        snapshot = await self.read()
        return None if snapshot[1] == etag else snapshot

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Write the object if its etag is still `if_match`, and return its new etag.

        Args:
            content: the whole new content; a copy is kept.
            if_match: the etag that the object must have now; None means that the object must not exist yet.

        Raises:
            CASConflictError: the condition did not hold. Nothing was written.
        """
        own_copy = bytes(content)
        # As with a real store, other tasks run meanwhile: a loop of commits must not keep the event loop to itself.
        await asyncio.sleep(0)
        with self._guard:
            current = self._etag()
            if current != if_match:
                what = f"The object in memory has etag {current!r} and not {if_match!r}"
                raise CASConflictError(f"{what}: another writer changed it; read it again")
            self._content = own_copy
            self._modified = self.clock.now()
            self._writes += 1
            return str(self._writes)

    def store_time(self) -> datetime:
        """Return the time of the clock, UTC."""
        return self.clock.now()

    async def remove(self) -> None:
        """Delete the object, which need not exist. Its etags never fit again. Never called by a queue."""
        await asyncio.sleep(0)
        with self._guard:
            self._content = None

    def beside(self, suffix: str) -> InMemoryStorage:
        """Return the object in memory whose name is this object's with the suffix: the same object each time."""
        name = self._name + suffix
        with self._guard:
            if name not in self._all:
                other = InMemoryStorage(clock=self.clock)
                other._name, other._all, other._guard = name, self._all, self._guard
                self._all[name] = other
            return self._all[name]

    async def list_beside(self, prefix: str) -> list[Listed]:
        """Return the objects made with `beside` whose suffix begins with `prefix`. Never called by a queue.

        Raises:
            ValueError: the prefix is empty.
        """
        check_prefix(prefix)
        await asyncio.sleep(0)
        with self._guard:
            return sorted(
                Listed(name.removeprefix(self._name), other._modified, len(other._content))
                for name, other in self._all.items()
                if other._content is not None and name.startswith(self._name + prefix)
            )

    async def create_object(self, suffix: str, content: bytes) -> None:
        """Create an object, as in `SupportsObjects`.

        Raises:
            CASConflictError: the object exists.
            ValueError: the suffix is not one of an object.
        """
        check_suffix(suffix)
        await self.beside(suffix).write(content)

    async def create_object_from(self, suffix: str, pieces: AsyncIterable[bytes]) -> int:
        """Create an object from pieces, as in `SupportsObjects`. All of it is in memory, as always in this store.

        Raises:
            CASConflictError: the object exists.
            ValueError: the suffix is not one of an object.
        """
        check_suffix(suffix)
        content = b"".join([piece async for piece in pieces])
        await self.create_object(suffix, content)
        return len(content)

    async def read_object(self, suffix: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return a range of an object, as in `SupportsObjects`.

        Raises:
            ObjectMissingError: the object does not exist.
            ValueError: the suffix is not one of an object, or the range is none.
        """
        check_suffix(suffix)
        check_range(start, stop)
        await asyncio.sleep(0)
        with self._guard:
            stored_object = self._all.get(self._name + suffix)
            if stored_object is None or stored_object._content is None:
                raise ObjectMissingError(f"memory:{self._name}{suffix}")
            return stored_object._content[start:stop]

    async def remove_object(self, suffix: str) -> None:
        """Delete an object, which need not exist.

        Raises:
            ValueError: the suffix is not one of an object.
        """
        check_suffix(suffix)
        await asyncio.sleep(0)
        with self._guard:
            self._all.pop(self._name + suffix, None)

    def _etag(self) -> str | None:
        return None if self._content is None else str(self._writes)
