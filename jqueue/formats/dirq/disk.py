"""Access to the folder of one dirq queue: new names and tokens, folders, files and notes."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from jqueue.domain.errors import StorageError
from jqueue.formats.dirq.folders import Stamp
from jqueue.formats.dirq.names import Place, element_name
from jqueue.formats.notes import Notes, flush
from jqueue.formats.times import microseconds

AHEAD = 3_600 * 1_000_000
"""Microseconds by which a known name may lie in the future, so that new names still go behind it.

A name farther ahead comes from a wrong clock, and is not followed.
"""

NOTES = ".jqueue-notes"
"""Folder of the notes. It has none within it, which programs of dirq would count as elements."""

READ_AT_ONCE = 1 << 16


class Disk:
    """The folder of one queue.

    Args:
        root: path of the folder.
        umask: umask of new files and folders; None means that of the process.
        fsync: True if `sync` and `flush` bring new files and names to the disk; if False, they do nothing.

    Attributes:
        known: True if the folder was there at the last look.
        newest: number in the largest name that was seen.
    """

    def __init__(self, root: Path, umask: int | None, fsync: bool) -> None:
        self.root = str(root)
        self.notes = Notes(self.path(NOTES), umask)
        self.known = False
        self.newest = 0
        self._umask = umask
        self._fsync = fsync
        self._last = self._last_token = 0
        self._changed_folders: set[str] = set()
        self._unsynced: list[int] = []

    def path(self, name: str) -> str:
        """Return the path of a name in the queue's folder."""
        return f"{self.root}/{name}"

    # Names and tokens

    def new_name(self, now: datetime) -> str:
        """Return the name of a new element, behind all known ones even if another clock is ahead by up to `AHEAD`."""
        number = microseconds(now)
        for taken in (self._last, self.newest):
            if number <= taken < number + AHEAD:
                number = taken + 1
        self._last = number
        return element_name(number, os.getpid() & 15)

    def new_token(self, now: datetime, after: int = 0) -> int:
        """Return a time in nanoseconds to take or confirm a lock with, which no other lock has."""
        token = microseconds(now) * 1000 + os.getpid() % 1000
        last = max(self._last_token, after)
        if token <= last < token + AHEAD * 1000:
            token = last + 1000
        self._last_token = token
        return token

    # Folders and files

    def disappeared(self) -> StorageError:
        """Return the error that the queue's folder was there before and is gone."""
        return StorageError(
            f"the folder {self.root!r} has disappeared: restore it, or create it to start an empty queue"
        )

    def make_folder(self, name: str) -> None:
        """Make a folder in the queue if it is missing. Make the queue's own folder, too, if it was never there.

        Raises:
            StorageError: the queue's folder was there, and is gone.
        """
        try:
            self.mkdir(self.path(name))
        except FileExistsError:
            pass
        except FileNotFoundError:
            if self.known:
                raise self.disappeared() from None
            missing = [Path(self.root), *Path(self.root).parents]
            for folder in reversed([folder for folder in missing if not folder.exists()]):
                with suppress(FileExistsError):
                    self.mkdir(str(folder))
            with suppress(FileExistsError):
                self.mkdir(self.path(name))
        self.known = True
        self._changed_folders.add(self.root)

    def mkdir(self, path: str) -> None:
        """Make a folder.

        Raises:
            FileExistsError: the folder exists.
            FileNotFoundError: its parent folder does not exist.
        """
        os.mkdir(path, 0o777)
        if self._umask is not None:
            os.chmod(path, 0o777 & ~self._umask)

    def create(self, path: str, content: bytes) -> None:
        """Make a file with this content. `sync` brings it to the disk.

        Raises:
            FileExistsError: the file exists.
            FileNotFoundError: its folder does not exist.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            if self._umask is not None:
                os.fchmod(descriptor, 0o666 & ~self._umask)
            written = os.write(descriptor, content)
            while written < len(content):
                written += os.write(descriptor, memoryview(content)[written:])
        except BaseException:
            os.close(descriptor)
            raise
        if self._fsync:
            self._unsynced.append(descriptor)
        else:
            os.close(descriptor)

    def sync(self) -> None:
        """Bring everything made since the last `sync` to the disk, if `fsync` is True.

        Raises:
            OSError: the disk failed, and it is not known which files are on it.
        """
        made, self._unsynced = self._unsynced, []
        try:
            if len(made) > 1 and hasattr(os, "posix_fadvise"):
                for descriptor in made:  # starts writing all of them; otherwise they go one by one
                    with suppress(OSError):
                        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            for descriptor in made:
                os.fsync(descriptor)
        finally:
            for descriptor in made:
                os.close(descriptor)

    def read(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        descriptor = os.open(path, os.O_RDONLY)
        try:
            content = os.read(descriptor, READ_AT_ONCE)
            if len(content) < READ_AT_ONCE:
                return content
            pieces = [content]
            while piece := os.read(descriptor, 16 * READ_AT_ONCE):
                pieces.append(piece)
            return b"".join(pieces)
        finally:
            os.close(descriptor)

    def condition(self, name: str, *files: str) -> Stamp:
        """Return a value that changes when a failed claim of an element is worth another try.

        Args:
            name: name of the element.
            files: names of the files in the element that belong to its job.
        """
        found: list[int] = []
        for path in (name, *(f"{name}/{file}" for file in files)):
            try:
                status = os.lstat(self.path(path))
            except (FileNotFoundError, NotADirectoryError, PermissionError):
                found.append(0)
                continue
            found += (status.st_mode, status.st_uid, status.st_gid)
            found += () if path == name else (status.st_ino, status.st_size, status.st_mtime_ns)
        return tuple(found)

    def note_added(self, folder: str) -> None:
        """Take note that an element was added to this folder: `flush` syncs it."""
        self._changed_folders.add(self.path(folder))

    def note_new_folder(self, path: str) -> None:
        """Take note that all files of a new folder are made: `sync` brings their names to the disk."""
        if self._fsync:
            self._unsynced.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))

    def flush(self) -> None:
        """Sync the folders where elements were added, if `fsync` is True, so that they survive a power failure."""
        if self._fsync:
            for folder in self._changed_folders:
                flush(folder)
        self._changed_folders.clear()

    # Notes

    def note(self, name: str) -> dict[str, Any]:
        """Return the note of an element; empty if it has none.

        Raises:
            FileNotFoundError: the element is gone.
        """
        os.stat(self.path(name))
        return self.notes.read(_key(name))

    def write_note(self, name: str, note: dict[str, Any]) -> None:
        """Replace the note of an element.

        Raises:
            FileNotFoundError: the element is gone.
        """
        self.notes.write(_key(name), note, self.path(name))

    def carry_note(self, name: str, new: str) -> None:
        """Make the note of an element that of its new name, too.

        Raises:
            FileExistsError: the new name has a note.
        """
        with suppress(FileNotFoundError):
            os.link(self.notes.path(_key(name)), self.notes.path(_key(new)))

    def rename(self, name: str, new: str) -> None:
        """Rename an element, and its note with it.

        Raises:
            FileExistsError: the new name has a note.
            OSError: the new name is taken, or the element or the new folder does not exist.
        """
        self.carry_note(name, new)
        try:
            os.rename(self.path(name), self.path(new))
        except OSError:
            self.drop_note(new)
            raise
        self.drop_note(name)

    def drop_note(self, name: str) -> None:
        """Remove the note of an element."""
        self.notes.remove(_key(name))


def _key(name: str) -> str:
    """Return the key of an element's note."""
    return Place(name).element.partition(".")[0].replace("/", "-")
