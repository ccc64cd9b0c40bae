"""`Simple` and `Elements`: how an element of each kind of dirq queue lies on the disk, and how it is locked.

| | `Simple`: an element is a file | `Elements`: an element is a folder |
| --- | --- | --- |
| element | `5fb8a3c0/5fb8a3c91e2403`, the payload | `00000000/5fb8a3c91e2403/`, a file for each piece of data |
| its lock | `5fb8a3c0/5fb8a3c91e2403.lck`, a second link to it | `00000000/5fb8a3c91e2403/locked/` |
| being added | `5fb8a3c0/5fb8a3c91e2403.tmp` | a folder in `temporary/` |
| being removed | | a folder in `obsolete/` |

The last two rows are the original programs': jqueue adds and removes in its own folder, where no program looks. The
name of an element is the time at which it was added: seconds, microseconds and a digit, in hexadecimal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from jqueue.domain.job import JobRecord
from jqueue.formats.dirq.schema import Schema
from jqueue.formats.files import rename_exclusively

FOLDER = re.compile(r"[0-9a-f]{8}")
ELEMENT = re.compile(r"[0-9a-f]{14}")

TEMPORARY, OBSOLETE = "temporary", "obsolete"


@dataclass(frozen=True)
class Simple:
    """The layout of `QueueSimple` and `Directory::Queue::Simple`. Headers are in the journal.

    Attributes:
        granularity: length in seconds of the period whose elements share a folder.
    """

    granularity: int = 60
    folders: ClassVar[tuple[str, ...]] = ()
    has_headers = True
    headers_in_journal = True

    def wrong_kind(self, names: Iterable[str]) -> str | None:
        """Return the name of the other kind if these names show that a folder is of that kind."""
        return "queue" if {TEMPORARY, OBSOLETE} & set(names) else None

    def folder(self, root: str, element: str) -> str:
        """Return the name of the folder for a new element."""
        seconds = int(element[:8], 16)
        return f"{seconds - seconds % max(1, self.granularity):08x}"

    def elements(self, path: str) -> Iterator[tuple[str, bool, int]]:
        """Yield the elements in a folder in order. With each name come True if it is locked, and then its time."""
        files = {entry.name: entry for entry in os.scandir(path) if entry.is_file(follow_symlinks=False)}
        for name in sorted(filter(ELEMENT.fullmatch, files)):
            with suppress(FileNotFoundError):
                status = files[name].stat(follow_symlinks=False)
                is_locked = f"{name}.lck" in files
                if not is_locked and status.st_nlink > 1:  # the time may be that of a lock taken since the listing
                    is_locked = os.path.lexists(f"{path}/{name}.lck")
                yield name, is_locked, status.st_mtime_ns

    def contents(self, job: JobRecord) -> dict[str, bytes]:
        """Return the files of a new element: the ends of their paths, and their contents."""
        return {"": job.payload}

    def read(self, path: str) -> dict[str, Any]:
        """Return the fields of a job that an element holds."""
        return {"payload": Path(path).read_bytes()}

    def lock_path(self, path: str) -> str:
        """Return the path of the lock of an element."""
        return f"{path}.lck"

    def lock(self, path: str) -> None:
        """Lock an element.

        Raises:
            FileExistsError: it is locked.
        """
        os.link(path, f"{path}.lck")

    def unlock(self, path: str) -> None:
        """Remove the lock of an element, or what is left of it under the old name of a renamed element."""
        with suppress(FileNotFoundError):
            os.unlink(f"{path}.lck")

    def rename(self, path: str, new: str) -> None:
        """Rename a locked element, which is locked under its new name from the start.

        Raises:
            FileExistsError: another element has that name.
            FileNotFoundError: the element is gone, or there is no folder for the new name.
        """
        os.link(path, f"{new}.lck")
        try:
            rename_exclusively(path, new)
        except OSError:
            os.unlink(f"{new}.lck")
            raise

    def leftovers(self, root: str, folders: Iterable[str]) -> Iterator[tuple[str, bool]]:
        """Yield the paths that only programs that died have left, each with True if it is a lock."""
        for folder in folders:
            names = set(os.listdir(f"{root}/{folder}"))
            for name in names:
                element, _, kind = name.partition(".")
                if ELEMENT.fullmatch(element) and (kind == "tmp" or (kind == "lck" and element not in names)):
                    yield f"{root}/{folder}/{name}", kind == "lck"


@dataclass(frozen=True)
class Elements:
    """The layout of `Queue` and `Directory::Queue::Normal`.

    Attributes:
        schema: pieces of data in the elements. The schema is not on the disk.
        maxelts: number of elements in a folder from which the next folder is used.
    """

    schema: Schema = field(default_factory=Schema)
    maxelts: int = 16_000
    folders: ClassVar[tuple[str, ...]] = (TEMPORARY, OBSOLETE)
    headers_in_journal = False

    @property
    def has_headers(self) -> bool:
        """True if a job can have headers."""
        return self.schema.headers is not None

    def wrong_kind(self, names: Iterable[str]) -> str | None:
        """Return the name of the other kind if these names show that a folder is of that kind."""
        return "simple" if any(map(FOLDER.fullmatch, names)) and not {TEMPORARY, OBSOLETE} & set(names) else None

    def folder(self, root: str, element: str) -> str:
        """Return the name of the last folder, or of the next one if that is full."""
        last = max(filter(FOLDER.fullmatch, os.listdir(root)), default="00000000")
        with suppress(FileNotFoundError):
            links = os.stat(f"{root}/{last}").st_nlink  # a file system that counts no links says 1
            if (links - 2 if links > 1 else len(os.listdir(f"{root}/{last}"))) >= max(1, self.maxelts):
                return f"{int(last, 16) + 1:08x}"
        return last

    def elements(self, path: str) -> Iterator[tuple[str, bool, int]]:
        """Yield the elements in a folder, as `Simple` does. Only a look into each tells if it is locked."""
        folders = {entry.name: entry for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)}
        for name in sorted(filter(ELEMENT.fullmatch, folders)):
            with suppress(FileNotFoundError):
                is_locked = os.path.lexists(f"{path}/{name}/locked")
                yield name, is_locked, folders[name].stat(follow_symlinks=False).st_mtime_ns

    def contents(self, job: JobRecord) -> dict[str, bytes]:
        """Return the files of a new element: the ends of their paths, and their contents."""
        return {f"/{name}": content for name, content in self.schema.files(job).items()}

    def read(self, path: str) -> dict[str, Any]:
        """Return the fields of a job that an element holds."""
        return self.schema.read(path)

    def lock_path(self, path: str) -> str:
        """Return the path of the lock of an element."""
        return f"{path}/locked"

    def lock(self, path: str) -> None:
        """Lock an element, as `Simple` does."""
        os.mkdir(f"{path}/locked")

    def unlock(self, path: str) -> None:
        """Remove the lock of an element."""
        with suppress(FileNotFoundError):
            os.rmdir(f"{path}/locked")

    def rename(self, path: str, new: str) -> None:
        """Rename an element, in which its lock stays."""
        rename_exclusively(path, new)

    def leftovers(self, root: str, folders: Iterable[str]) -> Iterator[tuple[str, bool]]:
        """Yield the paths that only programs that died have left, and False: a lock goes with its element."""
        for folder in self.folders:
            for name in os.listdir(f"{root}/{folder}"):
                if ELEMENT.fullmatch(name):
                    yield f"{root}/{folder}/{name}", False


Layout = Simple | Elements
