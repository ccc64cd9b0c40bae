"""How processes that use one queue reach each other. All of it is optional, and only makes the queue faster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from jqueue.domain.errors import StorageError

Handle = Callable[[bytes], Awaitable[bytes]]
"""Takes the message of a client, and returns the answer. It raises no errors but those of a cancellation."""


class LinkError(StorageError):
    """A broker did not answer: it refused, is gone, or was silent for too long.

    Attributes:
        sent: True if the message may have reached it.
    """

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Link(Protocol):
    """A client's connection to the broker of its queue."""

    @property
    def closed(self) -> bool:
        """True if the connection has ended, from either side."""

    async def exchange(self, message: bytes) -> bytes:
        """Send a message and return the answer. Several exchanges may be under way. A cancelled one is forgotten.

        Raises:
            LinkError: there is no answer, and none will come.
        """

    def close(self) -> None:
        """End the connection. Exchanges under way raise LinkError."""


class Seat(Protocol):
    """The place of a queue's broker, while this process has it."""

    async def leave(self) -> None:
        """Free the place for another process, once the answers under way are sent. Clients' connections end."""


@runtime_checkable
class SupportsSharing(Protocol):
    """A store whose clients can find the broker of its queue without being told where it is."""

    async def dial(self) -> Link | None:
        """Return a connection to the broker that serves the queue; None if there is none."""

    async def take_seat(self, handle: Handle) -> Seat | None:
        """Begin to serve the queue for other processes; return None if another process serves it.

        Args:
            handle: answers the messages of clients. It is cancelled if its client is gone.
        """
