"""The storage interface: read one object, and write it on a condition.

An adapter needs only the methods of `ObjectStoragePort`. The other protocols are optional, and detected method by
method. They make the queue cheaper or its timing better, never more correct.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jqueue.domain.printable import printable
from jqueue.ports.clock import Clock


@runtime_checkable
class ObjectStoragePort(Protocol):
    """One object in a store with conditional writes. Any Python object with these two methods is a storage."""

    async def read(self) -> tuple[bytes, str | None]:
        """Return (content, etag), or (b"", None) when there is no such object.

        Raises:
            StorageError: the store failed; `StorageThrottledError` and `StorageFatalError` say how.
        """

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Write the object if its etag is still `if_match`, and return its new etag.

        Args:
            content: the whole new content.
            if_match: the etag that the object must have now; None means that the object must not exist yet.

        Raises:
            CASConflictError: the condition did not hold. Nothing was written.
            StorageError: the store failed. The write may have landed, or may land later, unless the adapter sets
                `nothing_written` of the error, which rules out both.
        """


@runtime_checkable
class SupportsReadIfChanged(Protocol):
    """A store that can say "unchanged" without sending the object again."""

    async def read_if_changed(self, etag: str) -> tuple[bytes, str | None] | None:
        """Return None while the object's etag is still `etag`, and otherwise the same as `read`."""


@runtime_checkable
class SupportsStoreTime(Protocol):
    """A store that tells the time by a clock shared by all its clients."""

    def store_time(self) -> datetime | None:
        """Return the store's current time, UTC, as estimated from its last answer; None before the first answer."""


@runtime_checkable
class SupportsWatching(Protocol):
    """A store in the file system: a change of its folders wakes the callers that wait for jobs."""

    def watched(self) -> Sequence[Path]:
        """Return the absolute paths of the folders where a file is added, removed or renamed when jobs change.

        They need not exist yet. This is called again after one of them appears or vanishes.
        """


@runtime_checkable
class SupportsWriteCheck(Protocol):
    """A store that can check, without writing the object, whether a write would be allowed."""

    async def check_writable(self) -> None:
        """Return if this process may write the object, or create it if there is none.

        Nothing is left behind, and no other writer is held up. A write can still be refused afterwards.

        Raises:
            StorageError: a write would fail now, for the reason in the message; `StorageFatalError` if retrying would
                not help.
        """


@runtime_checkable
class SupportsRelease(Protocol):
    """A store that holds a resource while it is used, such as a connection. A queue that closes releases it."""

    async def release(self) -> None:
        """Release the resource. The next call acquires it again, so that several queues can share this storage."""


@runtime_checkable
class SupportsScratch(ObjectStoragePort, Protocol):
    """A store in which a tool can use another object beside the queue's. No queue calls these two methods."""

    def beside(self, suffix: str) -> SupportsScratch:
        """Return the object of the same store whose name is this object's with the suffix. It shares the client."""

    async def remove(self) -> None:
        """Delete this object, whatever its content. It need not exist.

        Raises:
            StorageError: the store failed; `StorageFatalError` if it refused.
        """


class Listed(NamedTuple):
    """One object of a listing.

    Attributes:
        suffix: the end of its name, after the name of the listed object: `beside(suffix)` opens it.
        modified: time of its last write, UTC, by the store's clock.
        size: of its content, in bytes.
    """

    suffix: str
    modified: datetime
    size: int


@runtime_checkable
class SupportsListing(SupportsScratch, Protocol):
    """A store that can list the objects which a tool has put beside this one. No queue calls it."""

    async def list_beside(self, prefix: str) -> list[Listed]:
        """Return the objects whose name is this object's plus a suffix that begins with `prefix`, sorted by suffix.

        Objects written or removed meanwhile may be listed or not. An adapter's own files, such as lock files, are left
        out.

        Raises:
            ValueError: the prefix is empty.
            StorageError: the store failed; `StorageFatalError` if it refused.
        """


@runtime_checkable
class SupportsObjects(Protocol):
    """A store that keeps other objects beside the queue's. Each is created once, and never changed.

    A suffix names an object: its full name is that of the queue's object with the suffix. A suffix is words of ASCII
    letters, digits, "-" and "_", with a dot before the first and a dot or a slash between: ".history/000000000001". It
    does not end in ".lock" or ".tmp". Another suffix is a ValueError. On a file, a slash makes a folder, so ".history"
    and ".history/1" cannot both be objects.
    """

    async def create_object(self, suffix: str, content: bytes) -> None:
        """Create an object. It appears whole, and is durable when this returns.

        If several callers create the same object at once, exactly one succeeds.

        Raises:
            CASConflictError: the object exists already, and is as durable as if this had succeeded. It may be the
                caller's own, if the answer to its first try was lost: the caller reads it and compares.
            StorageError: the store failed. The object may exist, or may appear later.
        """

    async def create_object_from(self, suffix: str, pieces: AsyncIterable[bytes]) -> int:
        """Create an object of any size from pieces of any size, and return its number of bytes.

        It appears whole after the last piece, and is durable when this returns. At most 16 MiB of it are held in
        memory, besides the current piece. If `pieces` raises an error or the caller is cancelled, no object appears,
        and the bytes sent so far are removed, as far as the store can do that. If the caller is cancelled after the
        last piece, the object may appear.

        The name must be fresh: a store may keep a name whose creation has failed, and it may check less strictly than
        in `create_object` that there is no such object. The adapter says so.

        Raises:
            CASConflictError: as for `create_object`.
            StorageError: as for `create_object`.
        """

    async def read_object(self, suffix: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes of an object from `start` up to, but not including, `stop`; None is its end.

        A range that ends after the object is cut, down to b"". An empty range may be answered without the store.

        Raises:
            ObjectMissingError: the object does not exist. The error names it.
            StorageError: the store failed.
            ValueError: start is negative, or stop comes before start.
        """

    async def remove_object(self, suffix: str) -> None:
        """Delete an object. It need not exist. A power failure may bring it back.

        Raises:
            StorageError: the store failed.
        """

    async def list_beside(self, prefix: str) -> list[Listed]:
        """Return the objects whose suffix begins with `prefix`, sorted by suffix, as `SupportsListing` does.

        An object is listed once it has been created. Parts of an object are never listed.
        """


def describe(storage: object) -> str:
    """Return the name of the object behind a storage, as users know it, without secrets and safe to print."""
    name = getattr(storage, "name", None)
    return printable(name if isinstance(name, str) else repr(storage))


def storage_of(queue: object) -> Any:
    """Return the storage of a queue, or the store of jobs of an older format; None if it has neither."""
    return getattr(queue, "store", None) or getattr(queue, "storage", None)


def time_of(queue: object, clock: Clock) -> datetime:
    """Return the time by the clock of a queue's store, or by another clock if the store has none."""
    storage = storage_of(queue)
    shared_time = storage.store_time() if isinstance(storage, SupportsStoreTime) else None
    return shared_time or clock.now()
