"""Record the writes of a process to a queue: each version before it is sent, and a note when it has landed.

The log is one compressed stream, so that a version takes little more space than its new lines. It is flushed and
synced at each entry: the log of a killed process holds everything that the process had sent.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from jqueue import BrokerQueue
from jqueue.worker import Worker
from jqueue.worker.report import RunReport
from tests.worker_processes.journal import NAME

SUFFIX = ".versions"
_HEAD = struct.Struct(">BdI")


class Kind(IntEnum):
    """The kinds of entries."""

    SENT = 1
    LANDED = 2


class Entry(NamedTuple):
    """One entry of a log, with its time in seconds since 1970. An entry of the kind LANDED has no content."""

    kind: Kind
    at: float
    content: bytes


class Log:
    """The log of one process.

    Args:
        path: path of the log: the name of the process and `SUFFIX`.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._stream = zlib.compressobj(1)

    def note(self, kind: Kind, content: bytes = b"", at: float | None = None) -> None:
        """Add an entry and sync it to the disk."""
        packed = self._stream.compress(_HEAD.pack(kind, time.time() if at is None else at, len(content)) + content)
        packed += self._stream.flush(zlib.Z_SYNC_FLUSH)
        while packed:
            packed = packed[os.write(self._file, packed) :]
        os.fsync(self._file)


def entries(path: Path) -> Iterator[Entry]:
    """The entries of a log. The last entry of a killed process may be cut off; it is left out."""
    stream, rest = zlib.decompressobj(), b""
    with path.open("rb") as file:
        while chunk := file.read(1 << 16):
            rest += stream.decompress(chunk)
            place = 0
            while len(rest) >= place + _HEAD.size:
                kind, at, size = _HEAD.unpack_from(rest, place)
                end = place + _HEAD.size + size
                if len(rest) < end:
                    break
                yield Entry(Kind(kind), at, rest[place + _HEAD.size : end])
                place = end
            rest = rest[place:]


class RecordingStorage:
    """A storage that records each write.

    Args:
        storage: the storage that is written. Its other methods are available here, too.
        log: the log of the writes.
    """

    def __init__(self, storage: Any, log: Log) -> None:
        self._storage = storage
        self._log = log

    async def read(self) -> tuple[bytes, str | None]:
        """See `ObjectStoragePort`."""
        content: tuple[bytes, str | None] = await self._storage.read()
        return content

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """See `ObjectStoragePort`."""
        self._log.note(Kind.SENT, content)
        etag: str = await self._storage.write(content, if_match)
        self._log.note(Kind.LANDED)
        return etag

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


class RecordedWorker(Worker):
    """A worker that records its versions in the working directory of its process."""

    async def run(self, queue: Any, **options: Any) -> RunReport:
        """See `Worker`."""
        log = Log(Path(f"{NAME}{SUFFIX}"))
        return await super().run(BrokerQueue(RecordingStorage(queue.storage, log)), **options)
