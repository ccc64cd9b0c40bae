"""The faults that the fault proxy can apply to a request or to its answer, as values."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from tests.servers.fault_http import END_OF_HEAD


@dataclass(frozen=True)
class Late:
    """Read the whole request, and send it to the server after some seconds, even if the client has left."""

    seconds: float


@dataclass(frozen=True)
class Refuse:
    """Close the connection without asking the server.

    If the plan names no method, a new connection is closed before anything is read. Otherwise, and on a connection that
    was used before, the head is read first, to see if the request matches.
    """


@dataclass(frozen=True)
class BlackHole:
    """Read the request and never answer it, nor its `Expect: 100-continue`, until the client leaves."""


@dataclass(frozen=True)
class ResetRequest:
    """Pass on the head and a part of the body, then reset both connections.

    Args:
        body: share of the body to pass on.
    """

    body: float


@dataclass(frozen=True)
class DropAnswer:
    """Close or reset the client's connection after the server has answered, without passing on the answer."""

    reset: bool = False


@dataclass(frozen=True)
class HangAnswer:
    """Keep the answer of the server, and the connection open until the client leaves."""


@dataclass(frozen=True)
class TruncateAnswer:
    """Send the client the head and a part of the body of the server's answer.

    Args:
        body: share of the body to send.
        head: number of bytes of the head to send, without any of the body.
        then: what to do with the connection afterwards.
    """

    body: float = 0.5
    head: int | None = None
    then: Literal["close", "hang"] = "close"


@dataclass(frozen=True)
class ReplaceAnswer:
    """Send the client a different answer from the server's.

    Args:
        status: status of the answer.
        body: body of the answer.
        headers: further headers.
        ask: True if the request is sent to the server, which then carries it out.
    """

    status: int = 500
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    ask: bool = True

    def encode(self, method: str, close: bool) -> bytes:
        """The bytes to send to the client."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}", f"Content-Length: {len(self.body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if close:
            lines.append("Connection: close")
        return "\r\n".join(lines).encode() + END_OF_HEAD + (b"" if method == "HEAD" else self.body)


def s3_error(status: int, code: str, *, ask: bool = True) -> ReplaceAnswer:
    """An error in the format of S3, such as 500 InternalError or 503 SlowDown."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{code}</Message></Error>'
    return ReplaceAnswer(status, body.encode(), (("Content-Type", "application/xml"),), ask)


Fault = Late | Refuse | BlackHole | ResetRequest | DropAnswer | HangAnswer | TruncateAnswer | ReplaceAnswer
