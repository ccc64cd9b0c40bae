"""The files of a lake, in a folder or in an object store. Each is created once, under a fresh name.

A file appears whole. The marker of the lake alone is changed, by compare-and-set.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.connect import connect_storage
from jqueue.core.tasks import retried
from jqueue.domain.errors import (
    CASConflictError,
    InvalidURLError,
    StorageFatalError,
)
from jqueue.domain.printable import counted, printable
from jqueue.ports.clock import Entropy
from jqueue.ports.storage import Listed, ObjectStoragePort, SupportsListing, SupportsRelease, describe
from jqueue.runtime.posix_files import as_storage_error, create_folder, flush_folder, open_folder
from jqueue.runtime.system import SystemEntropy
from jqueue.runtime.threads import in_a_thread
from jqueue.spark.lake.marker import DATA_FILE

Answer = TypeVar("Answer")

MARKER = "/_jqueue.json"
"""Name of the marker in the lake. Spark ignores files whose names begin with an underscore."""

DAYS = "/day="
"""Beginning of the names of all other files."""

DEADLINE = 60.0
"""Seconds to repeat a request to the store of the lake."""

AT_ONCE = 16
"""Number of requests at a time."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PATTERN = frozenset("*?[]{}\\,")


def lost(lake: str, names: Sequence[str]) -> str:
    """Return the line of an error about files that the lake should have."""
    more = f" and {counted(len(names) - 1, 'more file', 'more files')}" if len(names) > 1 else ""
    them = "them" if more else "it"
    return f"the lake {lake} has lost {names[0]}{more}: restore {them} from a copy, or archive into a new lake"


def without_marker(lake: str, names: Iterable[str]) -> str | None:
    """Return the line of an error about a lake without a marker; None if it has no files either."""
    there = sum(DATA_FILE.fullmatch(name) is not None for name in names)
    if not there:
        return None
    return (
        f"the lake {lake} has {counted(there, 'file')} of events, but no marker _jqueue.json: restore it from a copy, "
        "or archive into a new lake"
    )


class FolderFile:
    """A file below a folder, as a storage that can be listed. Unlike the file of a queue, it has no lock.

    Args:
        path: of the folder or file.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r})"

    def beside(self, suffix: str) -> FolderFile:
        """Return the file whose path is this one with the suffix."""
        return FolderFile(f"{self.path}{suffix}")

    async def read(self) -> tuple[bytes, str | None]:
        """Return the content, and an etag that is None if there is no such file."""
        return await in_a_thread(self._read)

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Create the file.

        Raises:
            StorageFatalError: the disk is full, or the system refused.
            StorageError: the system failed.
        """
        await in_a_thread(self._write, content)
        return "created"

    async def remove(self) -> None:
        """Remove the file, if it exists."""
        with suppress(FileNotFoundError):
            await in_a_thread(os.unlink, self.path)

    async def list_beside(self, prefix: str) -> list[Listed]:
        """Return all files below this folder whose suffix begins with `prefix`. Hidden files are left out."""
        return await in_a_thread(self._list, prefix)

    def _read(self) -> tuple[bytes, str | None]:
        try:
            with open(self.path, "rb") as file:
                return file.read(), "created"
        except FileNotFoundError:
            return b"", None
        except OSError as error:
            raise as_storage_error(error, "read the file", self.path) from error

    def _write(self, content: bytes) -> None:
        folder, name = os.path.split(self.path)
        temporary = os.path.join(folder, f".{name}.tmp")
        try:
            create_folder(folder)
            try:
                with open(temporary, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.rename(temporary, self.path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
            descriptor = open_folder(folder)
            try:
                flush_folder(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            failed = as_storage_error(error, "write the file", self.path)
            raise StorageFatalError(f"{failed}") if error.errno in _FULL else failed from error

    def _list(self, prefix: str) -> list[Listed]:
        found = []
        for folder, _, names in os.walk(self.path):
            for name in names:
                path = os.path.join(folder, name)
                suffix = path[len(self.path) :]
                if name.startswith(".") or not suffix.startswith(prefix):
                    continue
                with suppress(FileNotFoundError):
                    status = os.stat(path)
                    found.append(Listed(suffix, datetime.fromtimestamp(status.st_mtime, UTC), status.st_size))
        return sorted(found)


def open_lake(url: str) -> tuple[SupportsListing, ObjectStoragePort]:
    """Return the folder of a lake and its marker.

    Args:
        url: path or URL of the folder.

    Raises:
        InvalidURLError: it cannot be a lake.
    """
    place, mark, options = url.partition("?") if "://" in url else (url, "", "")
    place = place.rstrip("/")
    if not url.strip() or not place:
        raise InvalidURLError("the lake has no name: give a folder, or a URL such as s3://bucket/lake")
    storage = connect_storage(f"{place}{mark}{options}", create=True)
    if isinstance(storage, LocalFileSystemStorage):
        folder = str(storage.path.absolute())
        if _PATTERN & set(folder):
            raise InvalidURLError("the path of a lake must not contain any of * ? [ ] { } , and backslash")
        if os.path.isfile(folder):
            raise InvalidURLError(f"{folder} is a file, and a lake is a folder: choose another name")
        return FolderFile(folder), LocalFileSystemStorage(f"{folder}{MARKER}")
    if isinstance(storage, InMemoryStorage) or not isinstance(storage, SupportsListing):
        raise InvalidURLError("a lake is a folder of files, or in an object store, such as s3://bucket/lake")
    return storage, storage.beside(MARKER)


def lake_name(url: str) -> str:
    """Return the path or URL of a lake as users know it, without secrets."""
    return _name_of(open_lake(url)[0])


def _name_of(folder: SupportsListing) -> str:
    return printable(folder.path) if isinstance(folder, FolderFile) else describe(folder)


class LakeStore:
    """The files of one lake, for an `async with` block. Requests are repeated until a deadline.

    Args:
        url: of the lake.
        entropy: draws pauses.
        opening: makes the folder and the marker from the URL.

    Attributes:
        name: path or URL of the lake, without secrets.
    """

    def __init__(
        self,
        url: str,
        entropy: Entropy | None = None,
        opening: Callable[[str], tuple[SupportsListing, ObjectStoragePort]] = open_lake,
    ) -> None:
        self._folder, self._marker = opening(url)
        self.name = _name_of(self._folder)
        self._entropy = entropy or SystemEntropy()
        self._room = asyncio.Semaphore(AT_ONCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for storage in (self._folder, self._marker):
            if isinstance(storage, SupportsRelease):
                await storage.release()

    async def create(self, name: str, content: bytes) -> None:
        """Create a file under a fresh name."""

        async def once() -> None:
            with suppress(CASConflictError):  # the name is ours alone: an earlier try has landed
                await self._folder.beside(f"/{name}").write(content)

        await self._patiently(f"{name} could not be written to the lake", once)

    async def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            StorageFatalError: it does not exist.
        """
        file = self._folder.beside(f"/{name}")
        content, etag = await self._patiently(f"{name} of the lake could not be read", file.read)
        if etag is None:
            raise StorageFatalError(lost(self.name, [name]))
        return content

    async def remove(self, names: Iterable[str]) -> None:
        """Remove files. They need not exist."""

        async def one(name: str) -> None:
            file = self._folder.beside(f"/{name}")
            async with self._room:
                await self._patiently(f"{name} could not be removed from the lake", file.remove)

        await asyncio.gather(*map(one, names))

    async def names(self) -> set[str]:
        """Return the names of all files but the marker."""
        listed = await self._patiently("the lake could not be listed", lambda: self._folder.list_beside(DAYS))
        return {each.suffix[1:] for each in listed}

    async def marker(self) -> tuple[bytes, str | None]:
        """Return the marker and its etag; None if there is no marker."""
        return await self._patiently("the marker of the lake could not be read", self._marker.read)

    async def swap(self, content: bytes, etag: str | None) -> str | None:
        """Replace the marker, if it has not changed. Return its new etag, or None if it has changed.

        Args:
            content: the new marker, which must differ from all markers of other writers.
            etag: of the marker that it replaces; None if it is the first.
        """
        if isinstance(self._folder, FolderFile):
            await in_a_thread(create_folder, self._folder.path)

        async def once() -> str | None:
            try:
                return await self._marker.write(content, etag)
            except CASConflictError:
                data, now = await self._marker.read()
                return now if data == content else None  # ours, if the answer to an earlier try was lost

        return await self._patiently("the marker of the lake could not be written", once)

    async def _patiently(self, what: str, request: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeat a request until it is answered. Errors are as for `retried`."""
        return await retried(DEADLINE, request, self._entropy, what)


def awaited(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run to the end, even if a loop is running here already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
