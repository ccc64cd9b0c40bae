"""The broker of a queue in a file: a lock beside the file while it serves, and a socket with the rights of the file.

A user who may not write the file is no broker. Such a user may still put something in the broker's place, in a folder
like /tmp. So a client checks the owner of the socket, and then the user at its other end, before it sends anything.

A frame is the length of its message, the number of the exchange, and the message. While it works on an exchange, a
broker sends an empty frame twice a second, so that its clients can tell a slow store from a broker that hangs.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from jqueue.ports.log import Logger, logger_of
from jqueue.ports.sharing import LARGE_BYTES, LARGEST_MESSAGE, SMALL_BYTES, SMALL_MESSAGE, Handle, LinkError
from jqueue.runtime.posix_files import closing, open_file, set_mode, share_alike, third_of_descriptors
from jqueue.runtime.system import at_fork

try:
    import fcntl
except ImportError:  # on Windows, which has no file locks
    fcntl = None  # type: ignore[assignment]

logger: Logger = logger_of("jqueue")

HEAD = struct.Struct(">IQ")
"""Length of the message in bytes, and number of the exchange. An empty frame with number 0 says: still at work."""

BEAT = 0.5
"""Seconds between the empty frames."""

SILENCE = 2.0
"""Seconds without any frame after which a client gives its broker up, and a broker a message that is not whole."""

OWN_BYTES = 4096
"""About the bytes that an exchange takes besides its message, which may be short."""

MOST_CLIENTS = 4096
"""Largest number of connections of the brokers of a process. A further client commits its calls itself.

They also take at most a third of the descriptors that the process may have, as it needs some for its commits.
"""

PATH_BYTES = 100
"""Longest path of a socket; the limit of systems is between 103 and 107."""

SO_PEERGROUPS, LOCAL_PEERCRED = 59, 1
"""Options of sockets that Python does not name: of Linux, and of macOS."""

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
    with closing(os.open(folder, os.O_RDONLY | os.O_DIRECTORY)) as descriptor:
        yield f"{DESCRIPTORS}/{descriptor}/{name}"


_refused: set[tuple[str, int]] = set()
"""The paths with something that is no broker, each with its user: this was logged."""


def _refuse(path: str, user: int) -> bool:
    """Log once that no broker is at a path. Return False."""
    if (path, user) not in _refused:
        _refused.add((path, user))
        logger.warning(
            "%r belongs to user id %d, and to no broker of a user who may write the queue's file: move it away. Until "
            "then, each process commits its calls itself",
            path,
            user,
        )
    return False


def _may_serve(like: os.stat_result | None, user: int, groups: Collection[int]) -> bool:
    """Return True if a user may write the queue's file, or is root or the user of this process.

    Args:
        like: status of the queue's file; None if there is none yet.
        user: the user.
        groups: those of the user.
    """
    if user in (0, os.geteuid()):
        return True
    return like is not None and (
        user == like.st_uid or like.st_mode & 0o002 > 0 or (like.st_mode & 0o020 > 0 and like.st_gid in groups)
    )


def _may_use(path: str, like: os.stat_result | None, kind: int, *, clear: bool = False) -> bool:
    """Return True if a path is free, or has what a broker has put there.

    Args:
        path: of the socket or its lock.
        like: status of the queue's file; None if there is none yet.
        kind: of the file that a broker puts there. A lock is empty.
        clear: True to remove, as root, such a file of a user who may not serve.
    """
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return True
    is_of_a_broker = stat.S_IFMT(status.st_mode) == kind and not status.st_size
    if is_of_a_broker and _may_serve(like, status.st_uid, (status.st_gid,)):
        return True
    if is_of_a_broker and clear and os.geteuid() == 0:
        os.unlink(path)
        return True
    return _refuse(path, status.st_uid)


def _peer(connection: socket.socket) -> tuple[int, Collection[int]]:
    """Return the user of the process at the other end of a connection, and the user's groups."""
    if not hasattr(socket, "SO_PEERCRED"):  # macOS: struct xucred
        _, user, count, *groups = struct.unpack("=IIh2x16I", connection.getsockopt(0, LOCAL_PEERCRED, 76))
        return user, groups[:count]
    _, user, group = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    others = b""
    with suppress(OSError):  # an old kernel, or more groups than fit
        others = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)
    return user, (group, *memoryview(others).cast("I"))


async def dial(path: str, like: os.stat_result | None) -> SocketLink | None:
    """Return a connection to the broker with this socket; None if there is none.

    Args:
        path: of the socket.
        like: status of the queue's file; None if there is none yet.
    """
    with suppress(OSError), ExitStack() as undo:
        connection = undo.enter_context(socket.socket(socket.AF_UNIX))
        connection.setblocking(False)
        if _may_use(path, like, stat.S_IFSOCK):
            with _short(path) as short:
                connection.connect(short)  # which never waits
            user, groups = _peer(connection)
            if _may_serve(like, user, groups) or _refuse(path, user):
                streams = await asyncio.open_unix_connection(sock=connection)
                undo.pop_all()
                return SocketLink(*streams)
    return None


class SocketLink:
    """A client's connection to a broker through a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._exchanges: dict[int, asyncio.Future[bytes]] = {}
        self._heard = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self.closed, self.token_hash = False, ""
        self._task = self._loop.create_task(self._read(), name="jqueue-link")

    async def exchange(self, message: bytes) -> bytes:
        """Send a message and return the answer: see `Link`."""
        if self.closed or self._writer.is_closing():
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
    places = (path, stat.S_IFSOCK), (f"{path}.lock", stat.S_IFREG)
    if not all(_may_use(place, like, kind, clear=True) for place, kind in places):
        return None
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
        with ExitStack() as undo:
            descriptor, status = open_file(path, os.O_RDWR | os.O_CREAT)
            undo.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            if _is_there(status, path):  # and not a file that the last broker has removed meanwhile
                if like is not None:
                    share_alike(like, descriptor)
                    mode = os.fstat(descriptor).st_mode
                with suppress(PermissionError):  # for writers only: a reader could hold it
                    set_mode(descriptor, mode & 0o222 | (mode & 0o222) << 1)
                undo.pop_all()
                return descriptor


def _is_there(made: os.stat_result, path: str) -> bool:
    """Return True if a path still leads to the file with this status."""
    with suppress(OSError):
        return os.path.samestat(made, os.stat(path, follow_symlinks=False))
    return False


class Room:
    """Bounds the bytes of messages that are worked on. Further ones wait in their sockets, the first to come first."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._turn, self._freed = asyncio.Lock(), asyncio.Event()

    async def take(self, size: int) -> None:
        """Take room for a message, as soon as there is some."""
        async with self._turn:
            while size > self._left:
                self._freed.clear()
                await self._freed.wait()
            self._left -= size

    def give(self, size: int) -> None:
        """Free the room of a message."""
        self._left += size
        self._freed.set()


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
        self._small, self._large = Room(SMALL_BYTES), Room(LARGE_BYTES)
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._working: dict[asyncio.StreamWriter, set[asyncio.Task[None]]] = {}
        self._beat: asyncio.TimerHandle | None = None

    async def open(self, like: os.stat_result | None, mode: int) -> None:
        """Make the socket, and begin to listen."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)  # of a broker that was killed
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listening.setblocking(False)
            with _short(self._path) as short:
                self._listening.bind(short)
            set_mode(self._path, mode)  # before it listens
            if like is not None:
                share_alike(like, self._path)
            self._made = os.stat(self._path, follow_symlinks=False)
            self._listening.listen(1024)
        except BaseException:
            self._listening.close()
            raise
        _seats.add(self)
        self._accepting = asyncio.get_running_loop().create_task(self._accept(), name="jqueue-seat")
        self._tick()

    def _own(self) -> list[str]:
        """Return the paths of the socket and the lock, as far as they are still those of this seat."""
        made = {self._path: self._made, f"{self._path}.lock": os.fstat(self._lock)}
        return [path for path, status in made.items() if _is_there(status, path)]

    def is_held(self) -> bool:
        """Return False if the socket or its lock was removed: see `Seat`."""
        return self in _seats and len(self._own()) == 2

    async def leave(self) -> None:
        """Stop to listen, send the answers under way, and free the place: see `Seat`."""
        if self not in _seats:
            return
        if self._beat is not None:
            self._beat.cancel()
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
        self._listening.close()
        working = [task for tasks in self._working.values() for task in tasks]
        if working:
            await asyncio.wait(working, timeout=SILENCE)
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(list(self._connections))
        self.abandon()

    def abandon(self) -> None:
        """Free the place at once: see `Seat`."""
        if self in _seats:
            for path in self._own():
                with suppress(OSError):
                    os.unlink(path)
            _seats.discard(self)
            self.leave_to_parent()

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

    async def _accept(self) -> None:
        """Accept connections. If there is no room for one, it ends at once, and its client commits by itself."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)  # a crowd that comes stops nothing else
            try:
                connection, _ = await loop.sock_accept(self._listening)
            except OSError:  # the process has no descriptor left
                await asyncio.sleep(BEAT)
                continue
            if sum(len(seat._connections) for seat in _seats) >= third_of_descriptors(MOST_CLIENTS):
                connection.close()
                continue
            reader, writer = await asyncio.open_unix_connection(sock=connection)
            self._working[writer] = set()
            task = loop.create_task(self._serve(reader, writer))
            self._connections[task] = writer
            task.add_done_callback(self._ended)

    def _ended(self, connection: asyncio.Task[None]) -> None:
        writer = self._connections.pop(connection)
        writer.close()
        for work in self._working.pop(writer):
            work.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        working = self._working[writer]
        with suppress(OSError, EOFError):  # the client is gone
            while True:
                size, number = HEAD.unpack(await reader.readexactly(HEAD.size))
                if size > LARGEST_MESSAGE:
                    return
                await writer.drain()  # a client that does not read its answers gets no further ones
                room = self._small if size <= SMALL_MESSAGE else self._large
                await room.take(size + OWN_BYTES)
                try:
                    async with asyncio.timeout(SILENCE):  # after which the client would have given this broker up
                        message = await reader.readexactly(size)
                except BaseException:
                    room.give(size + OWN_BYTES)
                    raise
                task = asyncio.get_running_loop().create_task(self._answer(writer, number, message))
                working.add(task)
                task.add_done_callback(partial(self._answered, working, room, size))

    async def _answer(self, writer: asyncio.StreamWriter, number: int, message: bytes) -> None:
        answer = await self._handle(message)
        if not writer.is_closing():
            writer.write(HEAD.pack(len(answer), number) + answer)

    def _answered(self, working: set[asyncio.Task[None]], room: Room, size: int, task: asyncio.Task[None]) -> None:
        """Free the room of a message, even if its task was cancelled before it began."""
        working.discard(task)
        room.give(size + OWN_BYTES)
