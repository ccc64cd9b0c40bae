"""What the fault proxy can do to a request or to its answer: each a value."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from tests.servers.fault_http import END_OF_HEAD


@dataclass(frozen=True)
class Latency:
    """So many seconds pass before the head is passed on to the server, and before its answer is passed back."""

    there: float = 0.0
    back: float = 0.0


@dataclass(frozen=True)
class Late:
    """The whole request is taken in, and reaches the server after so many seconds, even if the client has left."""

    seconds: float


@dataclass(frozen=True)
class Refuse:
    """The connection is closed, and the server is not asked.

    If no method and no path is asked for, a new connection is closed before anything is read. Otherwise, and on a
    connection that was used before, the head is read first, to see whether this is the one.
    """


@dataclass(frozen=True)
class BlackHole:
    """The request is swallowed and never answered, nor is `Expect: 100-continue`, until the client leaves."""


@dataclass(frozen=True)
class ResetRequest:
    """The head and so much of the body are passed on, then both connections are reset.

    Args:
        body: so many bytes, or, a float, such a part of Content-Length.
        head: pass on only so many bytes of the head, and nothing of the body.
    """

    body: int | float = 0
    head: int | None = None


@dataclass(frozen=True)
class DropAnswer:
    """The server has answered, the client gets nothing: its connection is closed or reset."""

    reset: bool = False


@dataclass(frozen=True)
class HangAnswer:
    """The server has answered, the client gets nothing, and its connection stays open until it leaves."""


@dataclass(frozen=True)
class TruncateAnswer:
    """The server has answered, the client gets the head and so much of the body.

    Args:
        body: so many bytes, or, a float, such a part of it.
        head: send only so many bytes of the head, and nothing of the body.
        then: what becomes of the connection.
    """

    body: int | float = 0.5
    head: int | None = None
    then: Literal["close", "reset", "hang"] = "close"


@dataclass(frozen=True)
class ReplaceAnswer:
    """The client gets another answer than the server's.

    Args:
        status: the status of this one.
        body: its body.
        headers: further headers.
        ask: whether the server has been asked, and so has done what was asked for.
    """

    status: int = 500
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    ask: bool = True

    def encode(self, method: str, close: bool) -> bytes:
        """What is sent to the client."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if close:
            lines.append("Connection: close")
        return "\r\n".join(lines).encode() + END_OF_HEAD + (b"" if method == "HEAD" else self.body)


def s3_error(status: int, code: str, *, ask: bool = True) -> ReplaceAnswer:
    """An error as S3 gives it: 500 InternalError, 503 SlowDown."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{code}</Message></Error>'
    return ReplaceAnswer(status, body.encode(), (("Content-Type", "application/xml"),), ask)


Fault = Latency | Late | Refuse | BlackHole | ResetRequest | DropAnswer | HangAnswer | TruncateAnswer | ReplaceAnswer


def share(part: int | float, whole: int) -> int:
    """So many bytes of something: an integer says how many, a float which part of it."""
    return int(part * whole) if isinstance(part, float) else part
