"""What the queue asks of a store: read one object, and write it on a condition.

`ObjectStoragePort` is all that an adapter must have. The other protocols are optional, and detected method by
method: an adapter that has them makes the queue cheaper or its timing better, never more correct.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple, Protocol, runtime_checkable


@runtime_checkable
class ObjectStoragePort(Protocol):
    """One object in a store with conditional writes. Any object with these two methods will do."""

    async def read(self) -> tuple[bytes, str | None]:
        """Return (content, etag), or (b"", None) when there is no such object.

        Raises:
            StorageError: the store failed; `StorageThrottledError` and `StorageFatalError` say how.
        """

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Write the object if it is still the one that `if_match` names, and return its new etag.

        Args:
            content: the whole new content.
            if_match: the etag that the object must have now; None means that there must be no object yet.

        Raises:
            CASConflictError: the condition did not hold. Nothing was written.
            StorageError: the store failed. The write may have landed, or may land later, unless the adapter says that
                it cannot, by setting `nothing_written` of the error.
        """


@runtime_checkable
class SupportsReadIfChanged(Protocol):
    """A store that can say "unchanged" without sending the object again."""

    async def read_if_changed(self, etag: str) -> tuple[bytes, str | None] | None:
        """Return None while the object's etag is still `etag`, and otherwise what `read` returns."""


@runtime_checkable
class SupportsStoreTime(Protocol):
    """A store that tells the time by a clock that all its clients share."""

    def store_time(self) -> datetime | None:
        """The store's own time now, UTC, as estimated from its last answer; None before the first."""


@runtime_checkable
class SupportsWriteCheck(Protocol):
    """A store that can find out whether a write would be allowed, without writing the object."""

    async def check_writable(self) -> None:
        """Return if this process may write the object, or create it if there is none.

        Nothing is left behind, and no other writer is held up. A write can still be refused afterwards.

        Raises:
            StorageError: a write would fail now, for the reason that the message tells; `StorageFatalError` if it
                would go on failing.
        """


@runtime_checkable
class SupportsRelease(Protocol):
    """A store that holds something while it is used: a client, a connection. Queues that are left release it."""

    async def release(self) -> None:
        """Let go of what is held. The next call takes it up again, so that queues may share the object."""


@runtime_checkable
class SupportsScratch(ObjectStoragePort, Protocol):
    """A store in which a tool can try things out on another object beside the queue's. No queue calls these two."""

    def beside(self, suffix: str) -> SupportsScratch:
        """Another object of the same store, whose name ends in this suffix. It shares the client."""

    async def remove(self) -> None:
        """Delete this object, whatever it is; no object is fine.

        Raises:
            StorageError: the store failed; `StorageFatalError` if it refused.
        """


class Listed(NamedTuple):
    """One object of a listing.

    Attributes:
        suffix: what its name has behind the name of the object that was asked: `beside(suffix)` opens it.
        modified: when it was last written, UTC, by the store's clock.
        size: of its content, in bytes.
    """

    suffix: str
    modified: datetime
    size: int


@runtime_checkable
class SupportsListing(SupportsScratch, Protocol):
    """A store that tells which objects a tool has put beside this one. No queue asks."""

    async def list_beside(self, prefix: str) -> list[Listed]:
        """The objects whose name is this object's with a suffix that begins with `prefix`, in the order of suffixes.

        Those that are written or removed meanwhile may be among them or not. What an adapter keeps for itself, such as
        lock files, is left out.

        Raises:
            ValueError: the prefix is empty.
            StorageError: the store failed; `StorageFatalError` if it refused.
        """
