"""A server and a client of HTTP/1.1 that see every byte, to test the proxy between them."""

import asyncio
from contextlib import asynccontextmanager

import pytest

SECONDS = 10
CLOSED, RESET = "closed", "reset"


class TinyServer:
    """A server that answers each request with its body. It records complete and incomplete requests.

    Attributes:
        done: method, path, headers and body of each complete request.
        cut: the bytes of each incomplete request.
        answer: the whole answer to give instead of the body.
        on_head: the whole answer to give before the body is read.
        closes: True if the connection ends with the answer.
    """

    def __init__(self):
        self.done = []
        self.cut = []
        self.answer = self.on_head = None
        self.closes = False
        self.port = 0
        self.connections = 0
        self.ended = asyncio.Event()

    async def serve(self, reader, writer):
        self.connections += 1
        coming = _Coming(reader)
        try:
            while True:
                await self._answer_one(coming, writer)
                if self.closes:
                    break
        except ConnectionError:
            if rest := coming.taken + coming.waiting:
                self.cut.append(rest)
        finally:
            self.ended.set()
            writer.close()

    async def _answer_one(self, coming, writer):
        coming.taken = b""
        first, *lines = (await coming.until(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        if self.on_head:
            writer.write(self.on_head)
        elif "expect" in headers:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding") == "chunked":
            body = await coming.until(b"0\r\n\r\n")
        else:
            body = await coming.exactly(int(headers.get("content-length", 0)))
        method, path, _ = first.split()
        self.done.append((method, path, headers, body))
        if not self.on_head:
            writer.write(self.answer or answer_with(b"" if method == "HEAD" else body, len(body)))


class _Coming:
    """The bytes from a client. A StreamReader would discard its buffer at a reset."""

    def __init__(self, reader):
        self._reader = reader
        self.taken = self.waiting = b""

    async def until(self, end):
        while end not in self.waiting:
            await self._more()
        return await self.exactly(self.waiting.index(end) + len(end))

    async def exactly(self, size):
        while len(self.waiting) < size:
            await self._more()
        part, self.waiting = self.waiting[:size], self.waiting[size:]
        self.taken += part
        return part

    async def _more(self):
        if not (piece := await self._reader.read(1 << 20)):
            raise ConnectionResetError
        self.waiting += piece


def answer_with(body, length=None, head="HTTP/1.1 200 OK"):
    return f"{head}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


class Client:
    """One connection, byte by byte."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    def send(self, data):
        self.writer.write(data)

    async def get(self, data, answer):
        """Send data, and assert that exactly this answer comes."""
        self.send(data)
        async with asyncio.timeout(SECONDS):
            assert answer == await self.reader.readexactly(len(answer))

    async def is_silent(self):
        """Assert that nothing comes for 50 ms."""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await self.reader.read(1)

    async def rest(self):
        """The remaining bytes, and CLOSED or RESET."""
        got = b""
        try:
            async with asyncio.timeout(SECONDS):
                while piece := await self.reader.read(1000):
                    got += piece
        except ConnectionResetError:
            return got, RESET
        return got, CLOSED


@asynccontextmanager
async def connected(proxy):
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
