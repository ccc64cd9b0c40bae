"""The parts of HTTP/1.1 that a proxy needs: finding the end of a message, and closing or resetting a connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass

END_OF_HEAD = b"\r\n\r\n"
LONGEST_HEAD = 1 << 20
PIECE = 1 << 16
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Line:
    """A connection to one of the two sides."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer
        self._writer.transport.set_write_buffer_limits(0)  # `drain` waits until the whole buffer is sent

    @property
    def closed(self) -> bool:
        """True if the connection is known to be at its end."""
        return self.reader.at_eof() or self._writer.is_closing()

    async def send(self, data: bytes) -> None:
        """Send data, and return when the operating system has taken all of it."""
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        """End the sending direction of the connection."""
        with suppress(OSError):
            self._writer.write_eof()

    async def swallow(self) -> None:
        """Read until the other side leaves."""
        while await self.reader.read(PIECE):
            pass

    def reset(self) -> None:
        """Close with a reset, so that the other side gets an error instead of an end. It still gets the data sent."""
        with suppress(OSError):
            option = struct.pack("ii", 1, 0)
            self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection, and discard data that the other side has not taken."""
        if self._writer.transport.get_write_buffer_size():
            self._writer.transport.abort()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


@dataclass(frozen=True)
class Answer:
    """The bytes of an answer, with the framing of its body. `keeps` is True if the connection stays open."""

    status: int
    head: bytes
    body: bytes
    keeps: bool


def parse_head(head: bytes) -> tuple[str, dict[str, str]]:
    """The first line and the headers."""
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def pieces_of(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
    """The pieces of a body as they arrive, with the framing."""
    if not _is_chunked(headers):
        left = int(headers.get("content-length", 0))
        while left:
            if not (piece := await reader.read(min(left, PIECE))):
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(piece)
            yield piece
        return
    size = None
    while size != 0:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        yield line + (await reader.readexactly(size + 2) if size else b"")
    while line != b"\r\n":
        line = await reader.readuntil(b"\r\n")
        yield line


async def read_answer(reader: asyncio.StreamReader, method: str) -> Answer:
    """Read the whole answer to a request of this method. An interim answer (1xx) counts as one without a body."""
    head = await reader.readuntil(END_OF_HEAD)
    first, headers = parse_head(head)
    version, status = first.split()[0], int(first.split()[1])
    connection = headers.get("connection", "").lower()
    keeps = "keep-alive" in connection if version == "HTTP/1.0" else "close" not in connection
    if method == "HEAD" or status < 200 or status in (204, 304):
        return Answer(status, head, b"", keeps)
    if _is_chunked(headers) or "content-length" in headers:
        return Answer(status, head, b"".join([piece async for piece in pieces_of(reader, headers)]), keeps)
    return Answer(status, head, await reader.read(), False)


def _is_chunked(headers: dict[str, str]) -> bool:
    return "chunked" in headers.get("transfer-encoding", "").lower()
