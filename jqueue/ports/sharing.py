"""How processes that use one queue reach each other. All of it is optional, and only makes the queue faster."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from jqueue.domain.errors import JQueueError, StorageError

LARGEST_MESSAGE = 64 << 20
"""Bytes of the largest message, and of the largest answer."""

SMALL_MESSAGE = 64 << 10
"""Bytes of the largest small message. Small ones have room of their own, so that no large one holds them up."""

SMALL_BYTES = 64 << 20
"""Bytes of all small messages that a broker reads and works on."""

LARGE_BYTES = 96 << 20
"""Bytes of all others."""

Handle = Callable[[bytes], Awaitable[bytes]]
"""Takes the message of a client, and returns the answer. It raises no errors but those of a cancellation."""


class LinkError(StorageError):
    """A broker did not answer: it refused, is gone, or was silent for too long.

    Attributes:
        sent: True if the message may have reached it.
        pause: seconds for which it asks to be left alone; 0 if it did not say.
    """

    def __init__(self, message: str, *, sent: bool, pause: float = 0.0) -> None:
        super().__init__(message)
        self.sent = sent
        self.pause = pause


class LinkRefusedError(LinkError):
    """A broker has refused a message, and did nothing. It would refuse the message again.

    Attributes:
        error: the reason, for the caller of an operation in the message.
        everything: True if it would refuse any message of this process, and not just this one.
    """

    def __init__(self, error: JQueueError, *, everything: bool = False) -> None:
        super().__init__(str(error), sent=False)
        self.error = error
        self.everything = everything


class NoBrokerError(LinkRefusedError):
    """What answers at the URL of a broker is another program."""


def client_name(drawn: str, token_hash: str) -> str:
    """Return the name of a client: a random text and a keyed digest of it. No client with another token can have it.

    Args:
        drawn: the random text. A digest behind it is replaced.
        token_hash: SHA-256 of the client's token in hexadecimal; empty if it has none. Then the name is the text alone.
    """
    drawn = drawn.partition("~")[0]
    return f"{drawn}~{hmac.digest(token_hash.encode(), drawn.encode(), 'sha256').hex()[:16]}" if token_hash else drawn


class Link(Protocol):
    """A client's connection to the broker of its queue."""

    @property
    def token_hash(self) -> str:
        """SHA-256 of the token that it sends, in hexadecimal; empty for none."""

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

    def is_held(self) -> bool:
        """Return False if the place is lost: then it must be left, and may be taken anew."""

    async def leave(self) -> None:
        """Free the place for another process, once the answers under way are sent. Clients' connections end."""

    def abandon(self) -> None:
        """Free the place at once, as the event loop ends. A forked child leaves the place to its parent."""


DialURL = Callable[[str], Awaitable[Link | None]]
"""Returns a connection to the broker with a URL; None if this process may not send anything there.

A store that several machines use may have one as its attribute `dial_url`. Then its clients find the broker by the seat
in the queue's header.
"""


@runtime_checkable
class SupportsDialing(Protocol):
    """A store that knows the broker of its queue.

    If it is not a `SupportsSharing`, its clients reach the queue only through that broker: nothing is written here.
    """

    async def dial(self) -> Link | None:
        """Return a connection to the broker that serves the queue; None if there is none."""

    def broker_epoch(self) -> object:
        """Return a value that changes when a broker begins to serve, or is back. No request is made for it."""


@runtime_checkable
class SupportsSharing(SupportsDialing, Protocol):
    """A store whose clients can find the broker of its queue without being told where it is."""

    async def take_seat(self, handle: Handle) -> Seat | None:
        """Begin to serve the queue for other processes; return None if another process serves it.

        Args:
            handle: answers the messages of clients. It is cancelled if its client is gone.
        """
