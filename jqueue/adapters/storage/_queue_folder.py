"""The folder of a queue file: the files in it besides the queue file and its lock.

Temporary files are named `.<name>.<token>.tmp`, and objects `<name><suffix>`. A suffix with a slash leads to a folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from jqueue.adapters.storage._shared import check_prefix
from jqueue.ports.storage import Listed
from jqueue.runtime.posix_files import as_storage_error, check_folders, create_file, regular_file

_NOT_IN_A_NAME = re.compile(r"[^\w-]")


class QueueFolder:
    """Operations in the folder of one queue file. It may be shared, copied and pickled.

    Args:
        file: the absolute path of the queue file.

    Attributes:
        path: path of the folder.
        name: name of the queue file in it.
    """

    def __init__(self, file: str) -> None:
        self.path, self.name = os.path.split(file)
        self._cleaned_in: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cleaned_in": None}

    def temporary(self, token: str) -> str:
        """Return the path of the temporary file for a token."""
        return self._temporary_in(self.path, token)

    def _temporary_in(self, folder: str, token: str) -> str:
        return os.path.join(folder, f".{self.name}.{_NOT_IN_A_NAME.sub('_', token)}.tmp")

    def check_suffix(self, suffix: str) -> None:
        """Raise ValueError for a suffix that would put the name into another folder."""
        if os.path.basename(suffix) != suffix:
            raise self._elsewhere(suffix)

    def _elsewhere(self, suffix: str) -> ValueError:
        return ValueError(f"the suffix of a file beside {self.name!r} must not lead to another folder, got {suffix!r}")

    def listed(self, prefix: str) -> list[Listed]:
        """Return the files whose name is the queue file's plus a suffix that begins with `prefix`.

        Raises:
            ValueError: the prefix is empty, or leads to another folder than those beside the queue file.
            StorageError: a folder cannot be read.
        """
        check_prefix(prefix)
        inner, between, begins = (self.name + prefix).rpartition("/")
        if prefix.startswith("/") or (between and not {"", ".", ".."}.isdisjoint(inner.split("/"))):
            raise self._elsewhere(prefix)
        try:
            return sorted(self._listed_in(inner, begins))
        except OSError as error:
            raise as_storage_error(error, "list the files beside the queue file", self.path) from error

    def _listed_in(self, inner: str, begins: str) -> Iterator[Listed]:
        """Yield the files in one of our folders, given its path from ours, and in the folders in it, at any depth."""
        try:
            check_folders(self.path, inner)
            entries = os.scandir(os.path.join(self.path, inner))
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                if not entry.name.startswith(begins) or _is_own(entry.name):
                    continue
                path = os.path.join(inner, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    yield from self._listed_in(path, "")
                elif (status := regular_file(entry)) is not None:
                    modified = datetime.fromtimestamp(status.st_mtime, UTC)
                    yield Listed(path.removeprefix(self.name), modified, status.st_size)

    def remove_leftovers(self) -> None:
        """Remove, once in each process, the temporary files of writers that were killed.

        The caller holds the lock, so no other writer has a temporary file now. The token has no dots, so the temporary
        files of a queue whose name only begins like ours are left alone.
        """
        if self._cleaned_in == os.getpid():
            return
        leftover = re.compile(rf"\.{re.escape(self.name)}\.[^.]+\.tmp", re.DOTALL)
        with suppress(OSError):  # a file that cannot be removed does no harm
            for name in filter(leftover.fullmatch, os.listdir(self.path)):
                with suppress(OSError):
                    os.unlink(os.path.join(self.path, name))
        self._cleaned_in = os.getpid()

    def check_room(self, token: str) -> None:
        """Create an empty temporary file and remove it. If the folder is missing, use the nearest one above it.

        Raises:
            OSError: the system refused.
        """
        folder = self.path
        while not os.path.isdir(folder) and folder != os.path.dirname(folder):
            folder = os.path.dirname(folder)
        temporary = self._temporary_in(folder, token)
        os.close(create_file(temporary))
        with suppress(FileNotFoundError):  # another writer took it for a leftover
            os.unlink(temporary)


def _is_own(name: str) -> bool:
    """True for the lock or a temporary file of any queue or object."""
    return name.endswith(".lock") or (name.startswith(".") and name.endswith(".tmp"))
