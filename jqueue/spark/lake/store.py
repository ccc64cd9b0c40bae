"""The files of a lake, in a folder or in an object store, and its marker, which says which files belong to it.

A run first writes its files, each once, whole, and under a fresh name. Then it names them in the marker, by
compare-and-set. Only files that the marker names belong to the lake. The name of a file contains the number of its
run. The marker has the number of the latest run, and how far the lake has the history of each queue. That run
alone can commit, until the next run writes the next number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeVar

import msgspec

from jqueue.adapters.storage._object_files import ObjectFiles
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.connect import open_storage
from jqueue.core.tasks import retried, some_at_once
from jqueue.domain.errors import (
    CASConflictError,
    InvalidBlobError,
    InvalidURLError,
    ObjectMissingError,
    StorageFatalError,
)
from jqueue.domain.printable import counted
from jqueue.ports.storage import ObjectStoragePort, SupportsListing, SupportsRelease, describe
from jqueue.runtime.system import SystemEntropy

Answer = TypeVar("Answer")

DATA_FILE = re.compile(r"day=[^/]+/entrypoint=[^/]+/jqueue-([0-9]+)-[0-9a-f-]+\.parquet")
"""Names of data files, with the number of the run. No other file is ever removed."""

MARKER = "_jqueue.json"
"""Name of the marker in the lake. Spark ignores files whose names begin with an underscore."""

ELSE = "from a copy, or archive into a new lake"
"""End of the hint for files that are lost or damaged."""

DEADLINE = 60.0
"""Seconds to repeat a request to the store of the lake."""

_PATTERN = frozenset("*?[]{}\\,")


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of a lake.

    Attributes:
        name: its path below the lake.
        rows: number of its events.
        size: in bytes.
        entrypoint: of its events. The name of the folder may be too short for it.
        tail: id of the queue whose latest events it has, which are not final yet; "" if its events are final.
    """

    name: str
    rows: int
    size: int
    entrypoint: str | None = None
    tail: str = ""

    @property
    def folder(self) -> str:
        """The folder of the file, which stands for a day and an entrypoint."""
        return self.name.rpartition("/")[0]

    @property
    def day(self) -> str:
        """The day of the events, as in 2026-11-28."""
        return self.name.partition("/")[0].removeprefix("day=")


class QueueMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Number of events that a lake has of one queue.

    Attributes:
        name: name of the queue.
        series: series of the history in which the last final event is.
        through: number of the last final event.
        tail: checksum of the events after it, which the queue's own object had; None if there were none.
    """

    name: str
    series: str
    through: int
    tail: int | None = None


class Marker(msgspec.Struct, frozen=True):
    """The content of a marker.

    Attributes:
        lake: number of the format.
        run: number of the latest run.
        writer: id of that run, so that no two runs write the same marker.
        is_running: True if that run has not ended. It may have been killed.
        queues: by their ids.
        files: all files.
    """

    lake: int = 1
    run: int = 0
    writer: str = ""
    is_running: bool = False
    queues: dict[str, QueueMark] = {}
    files: tuple[DataFile, ...] = ()

    @property
    def events(self) -> int:
        """Number of events in the lake."""
        return sum(each.rows for each in self.files)


class FolderFile(ObjectFiles):
    """A file in the folder of a lake. It has the permissions of the marker.

    Args:
        marker: the marker.
        path: the path of the file in the folder; "" for the folder itself.
    """

    def __init__(self, marker: LocalFileSystemStorage, path: str = "") -> None:
        super().__init__(marker.name, marker._mode, SystemEntropy())
        self._marker, self._path, self._name = marker, path, ""

    @property
    def name(self) -> str:
        """The path of the file."""
        return f"{self._base}/{self._path}"

    def beside(self, path: str) -> FolderFile:
        """Return another file in the folder."""
        return FolderFile(self._marker, path)

    async def read(self) -> tuple[bytes, str | None]:
        """Return the content, and an etag that is None if there is no such file."""
        try:
            return await self.read_object(self._path), ""
        except ObjectMissingError:
            return b"", None

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Create the file."""
        await self.create_object(self._path, content)
        return ""

    async def remove(self) -> None:
        """Remove the file, if it exists."""
        await self.remove_object(self._path)

    def _object_path(self, path: str) -> str:
        return f"{self._base}/{path}"


def open_lake(url: str) -> tuple[SupportsListing, ObjectStoragePort]:
    """Return the folder of a lake, and its marker.

    Args:
        url: path or URL of the folder.

    Raises:
        InvalidURLError: it cannot be a lake.
    """
    place, mark, options = url.partition("?") if "://" in url else (url, "", "")
    place = place.rstrip("/")
    if not place.strip():
        raise InvalidURLError("the lake has no name: give a folder, or a URL such as s3://bucket/lake")
    storage = open_storage(f"{place}{mark}{options}", create=True)
    if isinstance(storage, LocalFileSystemStorage):
        folder = storage.name
        if _PATTERN & set(folder):
            raise InvalidURLError("the path of a lake must not contain any of * ? [ ] { } , and backslash")
        if os.path.isfile(folder):
            raise InvalidURLError(f"{folder} is a file, and a lake is a folder: choose another name")
        marker = LocalFileSystemStorage(f"{folder}/{MARKER}", mode=storage._mode)
        return FolderFile(marker), marker
    if isinstance(storage, InMemoryStorage) or not isinstance(storage, SupportsListing):
        raise InvalidURLError("a lake is a folder of files, or in an object store, such as s3://bucket/lake")
    objects = storage.beside("/")
    assert isinstance(objects, SupportsListing), "it is of the same kind"
    return objects, objects.beside(MARKER)


def lake_name(url: str) -> str:
    """Return the path or URL of a lake as users know it, without secrets."""
    return describe(open_lake(url)[0]).rstrip("/")


class LakeStore(AbstractAsyncContextManager["LakeStore"]):
    """The files of one lake, for an `async with` block. Requests are repeated until a deadline.

    Args:
        url: of the lake.

    Attributes:
        name: path or URL of the lake, without secrets.
    """

    def __init__(self, url: str) -> None:
        self._folder, self._marker = open_lake(url)
        self.name: str = lake_name(url)

    async def __aexit__(self, *_: object) -> None:
        for storage in (self._folder, self._marker):
            if isinstance(storage, SupportsRelease):
                await storage.release()

    async def create(self, name: str, content: bytes) -> None:
        """Create a file under a fresh name."""

        async def once() -> None:
            with suppress(CASConflictError):  # the name is ours alone: an earlier try has landed
                await self._folder.beside(name).write(content)

        await _patiently(f"{name} could not be written to the lake", once)

    async def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            StorageFatalError: it does not exist.
        """
        file = self._folder.beside(name)
        content, etag = await _patiently(f"{name} of the lake could not be read", file.read)
        if etag is None:
            raise StorageFatalError(
                f"{name} of the lake {self.name} is gone: if a later run has replaced it, read the lake again; "
                f"otherwise restore it {ELSE}"
            )
        return content

    async def remove(self, names: Iterable[str]) -> None:
        """Remove files. They need not exist."""

        async def one(name: str) -> None:
            await _patiently(f"{name} could not be removed from the lake", self._folder.beside(name).remove)

        await some_at_once(one, list(names))

    async def names(self) -> dict[str, int]:
        """Return the names of all files of events, each with the number of the run that wrote it."""
        listed = await _patiently("the lake could not be listed", lambda: self._folder.list_beside("day="))
        matches = (DATA_FILE.fullmatch(each.suffix) for each in listed)
        return {match[0]: int(match[1]) for match in matches if match}

    async def marker(self) -> tuple[Marker, str | None]:
        """Return the marker and its etag; without a lake, an empty marker and None.

        Raises:
            InvalidBlobError: the marker is damaged, or of a later version of jqueue.
            StorageFatalError: the lake has lost its marker.
        """
        data, etag = await _patiently("the marker of the lake could not be read", self._marker.read)
        if etag is None:
            if names := await self.names():
                raise StorageFatalError(
                    f"the lake {self.name} has {counted(len(names), 'file')} of events, but no marker {MARKER}: "
                    f"restore it {ELSE}"
                )
            return Marker(), None
        try:
            if msgspec.json.decode(data)["lake"] == Marker().lake:
                return msgspec.json.decode(data, type=Marker), etag
        except (LookupError, TypeError, ValueError):
            raise InvalidBlobError(
                f"{self.name}/{MARKER} is damaged, or not the marker of a lake: restore it {ELSE}"
            ) from None
        raise InvalidBlobError(f"the lake {self.name} was written by a later version of jqueue: upgrade jqueue")

    async def check(self, marker: Marker) -> None:
        """Check that all files are there.

        Raises:
            StorageFatalError: the lake has lost some.
        """
        if lost := {each.name for each in marker.files} - (await self.names()).keys():
            raise self._lost(sorted(lost))

    def _lost(self, names: list[str]) -> StorageFatalError:
        more = f" and {counted(len(names) - 1, 'more file', 'more files')}" if len(names) > 1 else ""
        return StorageFatalError(
            f"the lake {self.name} has lost {names[0]}{more}: restore {'them' if more else 'it'} {ELSE}"
        )

    async def swap(self, marker: Marker, etag: str | None) -> str:
        """Replace the marker, and return its new etag.

        Args:
            marker: the new marker, which differs from those of all other runs.
            etag: of the marker that it replaces; None if it is the first.

        Raises:
            StorageFatalError: another run has changed the marker.
        """
        content = msgspec.json.encode(marker)

        async def once() -> str:
            try:
                return await self._marker.write(content, etag)
            except CASConflictError:
                data, now = await self._marker.read()
                if now is not None and data == content:  # the answer to an earlier try was lost
                    return now
            raise StorageFatalError(
                "another run archives into this lake, and has taken the place of this one: start a run when the one "
                "before has ended"
            )

        return await _patiently("the marker of the lake could not be written", once)


async def _patiently(what: str, request: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat a request until it is answered. Errors are as for `retried`."""
    return await retried(DEADLINE, request, SystemEntropy(), what)
