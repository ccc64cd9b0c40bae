"""The files of a lake, in a folder or in an object store. Each is created once, under a fresh name.

A file appears whole. The marker of the lake alone is changed, by compare-and-set.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Self, TypeVar

import msgspec

from jqueue.adapters.storage._object_files import ObjectFiles
from jqueue.adapters.storage.filesystem import LocalFileSystemStorage
from jqueue.adapters.storage.memory import InMemoryStorage
from jqueue.connect import connect_storage
from jqueue.core.tasks import retried, some_at_once
from jqueue.domain.errors import CASConflictError, InvalidURLError, ObjectMissingError, StorageFatalError
from jqueue.domain.printable import counted
from jqueue.ports.storage import Listed, ObjectStoragePort, SupportsListing, SupportsRelease, describe
from jqueue.runtime.posix_files import storage_errors
from jqueue.runtime.system import SystemEntropy
from jqueue.runtime.threads import in_a_thread
from jqueue.spark.lake.marker import DATA_FILE, Marker, decode

Answer = TypeVar("Answer")

MARKER = "_jqueue.json"
"""Name of the marker in the lake. Spark ignores files whose names begin with an underscore."""

DEADLINE = 60.0
"""Seconds to repeat a request to the store of the lake."""

_PATTERN = frozenset("*?[]{}\\,")


class FolderFile(ObjectFiles):
    """A file below the folder of a lake. It has the permissions of the marker.

    Args:
        marker: the marker.
        suffix: the path of the file below the folder, with a slash before it.
    """

    def __init__(self, marker: LocalFileSystemStorage, suffix: str = "") -> None:
        super().__init__(marker.name, marker._mode, SystemEntropy())
        self._marker, self._suffix = marker, suffix

    @property
    def name(self) -> str:
        """The path of the file."""
        return f"{self._base}{self._suffix}"

    def beside(self, suffix: str) -> FolderFile:
        """Return the file whose path is this one with the suffix."""
        return FolderFile(self._marker, f"{self._suffix}{suffix}")

    async def read(self) -> tuple[bytes, str | None]:
        """Return the content, and an etag that is None if there is no such file."""
        try:
            return await self.read_object(self._suffix), ""
        except ObjectMissingError:
            return b"", None

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Create the file."""
        await self.create_object(self._suffix, content)
        return ""

    async def remove(self) -> None:
        """Remove the file, if it exists."""
        await self.remove_object(self._suffix)

    async def list_beside(self, prefix: str) -> list[Listed]:
        """Return the files whose path below the folder begins with this prefix, which begins with a slash."""

        def listed() -> list[Listed]:
            with storage_errors("list the files of the lake", self._base):
                return [each._replace(suffix=f"/{each.suffix}") for each in self._listed_in("", prefix[1:])]

        return await in_a_thread(listed)

    def _object_path(self, suffix: str) -> str:
        return f"{self._base}{suffix}"


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
    storage = connect_storage(f"{place}{mark}{options}", create=True)
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
    return storage, storage.beside(f"/{MARKER}")


def lake_name(url: str) -> str:
    """Return the path or URL of a lake as users know it, without secrets."""
    return describe(open_lake(url)[0])


class LakeStore:
    """The files of one lake, for an `async with` block. Requests are repeated until a deadline.

    Args:
        url: of the lake.

    Attributes:
        name: path or URL of the lake, without secrets.
    """

    def __init__(self, url: str) -> None:
        self._folder, self._marker = open_lake(url)
        self.name = describe(self._folder)

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

        await _patiently(f"{name} could not be written to the lake", once)

    async def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            StorageFatalError: it does not exist.
        """
        file = self._folder.beside(f"/{name}")
        content, etag = await _patiently(f"{name} of the lake could not be read", file.read)
        if etag is None:
            raise self._lost([name])
        return content

    async def remove(self, names: Iterable[str]) -> None:
        """Remove files. They need not exist."""

        async def one(name: str) -> None:
            await _patiently(f"{name} could not be removed from the lake", self._folder.beside(f"/{name}").remove)

        await some_at_once(one, list(names))

    async def names(self) -> set[str]:
        """Return the names of all files of events."""
        listed = await _patiently("the lake could not be listed", lambda: self._folder.list_beside("/day="))
        return {each.suffix[1:] for each in listed if DATA_FILE.fullmatch(each.suffix[1:])}

    async def marker(self) -> tuple[Marker, str | None]:
        """Return the marker and its etag; without a lake, an empty marker and None.

        Raises:
            InvalidBlobError: the marker is damaged, or of a later version of jqueue.
            StorageFatalError: the lake has lost its marker.
        """
        data, etag = await _patiently("the marker of the lake could not be read", self._marker.read)
        if etag is not None:
            return decode(data, self.name), etag
        if names := await self.names():
            raise StorageFatalError(
                f"the lake {self.name} has {counted(len(names), 'file')} of events, but no marker {MARKER}: restore it "
                "from a copy, or archive into a new lake"
            )
        return Marker(), None

    async def check(self, marker: Marker) -> None:
        """Check that all files are there.

        Raises:
            StorageFatalError: the lake has lost some.
        """
        if lost := {each.name for each in marker.files} - await self.names():
            raise self._lost(sorted(lost))

    def _lost(self, names: list[str]) -> StorageFatalError:
        more = f" and {counted(len(names) - 1, 'more file', 'more files')}" if len(names) > 1 else ""
        return StorageFatalError(
            f"the lake {self.name} has lost {names[0]}{more}: restore {'them' if more else 'it'} from a copy, or "
            "archive into a new lake"
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


def awaited(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run to the end, even if a loop is running here already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
