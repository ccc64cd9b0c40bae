"""The broker of a queue in a file: a lock beside the file while it serves, and a socket with the rights of the file.

A frame is the length of its message, the number of the exchange, and the message. While it works on an exchange, a
broker sends an empty frame twice a second, so that its clients can tell a slow store from a broker that hangs.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import struct
import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial

from jqueue.ports.sharing import LARGEST_MESSAGE, Handle, LinkError
from jqueue.runtime.posix_files import set_mode, share_alike
from jqueue.runtime.system import at_fork

try:
    import fcntl
except ImportError:  # on Windows, which has no file locks
    fcntl = None  # type: ignore[assignment]

HEAD = struct.Struct(">IQ")
"""Length of the message in bytes, and number of the exchange. An empty frame with number 0 says: still at work."""

BEAT = 0.5
"""Seconds between the empty frames."""

SILENCE = 2.0
"""Seconds without any frame after which a client gives its broker up, and a broker a message that is not whole."""

MOST_BYTES = 128 << 20
"""Bytes of all messages that a broker works on. Further ones wait in their sockets, the first to come first."""

OWN_BYTES = 4096
"""About the bytes that an exchange takes besides its message, which may be short."""

MOST_CLIENTS = 4096
"""Largest number of connections of a broker. A further client commits its calls itself."""

PATH_BYTES = 100
"""Longest path of a socket; the limit of systems is between 103 and 107."""

DESCRIPTORS = "/proc/self/fd"
"""Folder in which a folder that is open has a short path. macOS has none: there, a link to the folder has."""


@contextmanager
def _short(path: str) -> Iterator[str]:
    """Return a path of the same file that is short enough for a socket."""
    if len(os.fsencode(path)) <= PATH_BYTES:
        yield path
        return
    folder, name = os.path.split(path)
    if not os.path.isdir(DESCRIPTORS):
        with tempfile.TemporaryDirectory(prefix="jq") as place:
            os.symlink(folder, os.path.join(place, "q"))
            yield os.path.join(place, "q", name)
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"{DESCRIPTORS}/{descriptor}/{name}"
    finally:
        os.close(descriptor)


async def dial(path: str) -> SocketLink | None:
    """Return a connection to the broker with this socket; None if there is none."""
    try:
        os.stat(path)
        with _short(path) as short:
            reader, writer = await asyncio.open_unix_connection(short)
    except OSError:
        return None
    return SocketLink(reader, writer)


class SocketLink:
    """A client's connection to a broker through a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._exchanges: dict[int, asyncio.Future[bytes]] = {}
        self._heard = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self.closed = False
        self._task = self._loop.create_task(self._read(), name="jqueue-link")

    async def exchange(self, message: bytes) -> bytes:
        """Send a message and return the answer: see `Link`."""
        if self.closed:
            raise LinkError("the connection to the broker has ended", sent=False)
        number, future = next(self._numbers), self._loop.create_future()
        if not self._exchanges:
            self._heard = self._loop.time()
            if self._watch is None:
                self._watch = self._loop.call_later(SILENCE, self._listen)
        self._exchanges[number] = future
        self._writer.write(HEAD.pack(len(message), number) + message)
        try:
            answer: bytes = await future
            return answer
        finally:
            self._exchanges.pop(number, None)

    def close(self) -> None:
        """End the connection: see `Link`."""
        self.closed = True
        self._writer.close()
        self._task.cancel()
        if self._watch is not None:
            self._watch.cancel()
        for future in self._exchanges.values():
            if not future.done():
                future.set_exception(LinkError("the broker is gone, or does not answer", sent=True))

    def _listen(self, before: float = 0.0) -> None:
        """Give the broker up if it has been silent for too long. If this process stood still itself, it looks again.

        Args:
            before: the time at which the broker was last heard, if that was too long ago at the last look.
        """
        self._watch = None
        if not self._exchanges:
            return
        left = self._heard + SILENCE - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._listen)
        elif before != self._heard:  # what came meanwhile may not be read yet
            self._watch = self._loop.call_later(BEAT / 5, self._listen, self._heard)
        else:
            self.close()

    async def _read(self) -> None:
        try:
            while True:
                size, number = HEAD.unpack(await self._reader.readexactly(HEAD.size))
                self._heard = self._loop.time()
                if size > LARGEST_MESSAGE:
                    return
                message = await self._reader.readexactly(size)
                future = self._exchanges.get(number)
                if future is not None and not future.done():
                    future.set_result(message)
        except (OSError, EOFError):
            pass
        finally:
            self.close()


async def take_seat(path: str, like: os.stat_result | None, mode: int, handle: Handle) -> SocketSeat | None:
    """Begin to serve the clients of a queue in a file; return None if another process serves them.

    Args:
        path: of the socket. The lock is beside it.
        like: status of the queue's file: who may write it may connect, and may serve later. None if there is none yet.
        mode: permissions that it will then have.
        handle: answers messages.

    Raises:
        OSError: the socket or its lock cannot be made here.
    """
    lock = _lock(f"{path}.lock", like, mode)
    if lock is None:
        return None
    seat = SocketSeat(path, lock, handle)
    try:
        await seat.open(like, mode)
    except BaseException:
        os.close(lock)
        raise
    return seat


def _lock(path: str, like: os.stat_result | None, mode: int) -> int | None:
    """Return the descriptor of the locked file; None if another process has the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
                    if like is not None:
                        share_alike(like, descriptor)
                    return descriptor  # and not a file that the last broker has removed meanwhile
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


class Room:
    """Bounds the bytes of the messages that are worked on. Those that wait for room get it in the order they came."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> None:
        """Take room for a message, as soon as there is some."""
        if not self._line and size <= self._left:
            self._left -= size
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.give(size)
            raise

    def give(self, size: int) -> None:
        """Free the room of a message."""
        self._left += size
        while self._line and (self._line[0][1].done() or self._line[0][0] <= self._left):
            wanted, future = self._line.popleft()
            if not future.done():
                self._left -= wanted
                future.set_result(None)


_seats: set[SocketSeat] = set()
"""The seats of this process."""


def _leave_seats_to_parent() -> None:
    while _seats:
        _seats.pop().leave_to_parent()


at_fork(_leave_seats_to_parent)


class SocketSeat:
    """The place of the broker of a queue in a file, with the connections of its clients."""

    def __init__(self, path: str, lock: int, handle: Handle) -> None:
        self._path, self._lock, self._handle = path, lock, handle
        self._room = Room(MOST_BYTES)
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._working: dict[asyncio.StreamWriter, set[asyncio.Task[None]]] = {}
        self._server: asyncio.Server
        self._beat: asyncio.TimerHandle | None = None

    async def open(self, like: os.stat_result | None, mode: int) -> None:
        """Make the socket, and begin to listen."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)  # of a broker that was killed
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            with _short(self._path) as short:
                listening.bind(short)
            set_mode(self._path, mode)  # before it listens
            if like is not None:
                share_alike(like, self._path)
            self._server = await asyncio.start_unix_server(self._connected, sock=listening, backlog=1024)
        except BaseException:
            listening.close()
            raise
        self._listening = listening
        _seats.add(self)
        self._tick()

    def renew(self) -> None:
        """Change the epoch: see `Seat`."""
        with suppress(OSError):
            os.utime(self._path)

    async def leave(self) -> None:
        """Stop to listen, send the answers under way, and free the place: see `Seat`."""
        if self._beat is not None:
            self._beat.cancel()
        self._server.close()
        working = [task for tasks in self._working.values() for task in tasks]
        if working:
            await asyncio.wait(working, timeout=SILENCE)
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections))
        for name in (self._path, f"{self._path}.lock"):
            with suppress(OSError):
                os.unlink(name)
        _seats.discard(self)
        os.close(self._lock)

    def leave_to_parent(self) -> None:
        """Close what a forked child got of the seat. Otherwise the child would hold it when the parent is killed."""
        os.close(self._lock)
        self._listening.close()

    def _tick(self) -> None:
        """Tell every client with an exchange under way that this process is at work."""
        self._beat = asyncio.get_running_loop().call_later(BEAT, self._tick)
        for writer, tasks in self._working.items():
            if tasks and not writer.is_closing():
                writer.write(HEAD.pack(0, 0))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MOST_CLIENTS:
            writer.close()
            return
        self._connections[task], self._working[writer] = writer, set()
        try:
            with closing(writer):
                await self._serve(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # the client is gone, or the seat is left
        finally:
            for work in self._working.pop(writer):
                work.cancel()
            del self._connections[task]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        working = self._working[writer]
        while True:
            size, number = HEAD.unpack(await reader.readexactly(HEAD.size))
            if size > LARGEST_MESSAGE:
                return
            await writer.drain()  # a client that does not read its answers gets no further ones
            await self._room.take(size + OWN_BYTES)
            try:
                async with asyncio.timeout(SILENCE):  # after which the client would have given this broker up
                    message = await reader.readexactly(size)
            except BaseException:
                self._room.give(size + OWN_BYTES)
                raise
            task = asyncio.get_running_loop().create_task(self._answer(writer, number, message))
            working.add(task)
            task.add_done_callback(partial(self._answered, working, size))

    async def _answer(self, writer: asyncio.StreamWriter, number: int, message: bytes) -> None:
        answer = await self._handle(message)
        if not writer.is_closing():
            writer.write(HEAD.pack(len(answer), number) + answer)

    def _answered(self, working: set[asyncio.Task[None]], size: int, task: asyncio.Task[None]) -> None:
        """Free the room of a message, even if its task was cancelled before it began."""
        working.discard(task)
        self._room.give(size + OWN_BYTES)
