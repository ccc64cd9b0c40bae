"""The folder of one queue of dirq on the disk: how names and tokens are made, folders and files, and notes."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from jqueue.domain.errors import StorageError
from jqueue.formats.dirq.folders import Stamp
from jqueue.formats.dirq.names import HIDDEN, Place, element_name
from jqueue.formats.files.folders import flush
from jqueue.formats.files.notes import LARGEST, MORE, encoded, read_note, set_attribute, write_note
from jqueue.formats.times import microseconds

AHEAD = 3_600 * 1_000_000
"""Microseconds: a name that lies farther ahead is a mistake of some clock, and no reason to be ahead, too."""

NOTES = "note-"

READ_AT_ONCE = 1 << 16

_KINDS: dict[str, type] = {
    **dict.fromkeys(("id", "entrypoint", "error", "from", "to"), str),
    **dict.fromkeys(("attempt", "failures", "max_attempts", "token", "next", "dead_at", "created"), int),
}


def _checked(note: dict[str, Any]) -> dict[str, Any]:
    """A note that may have been written by anybody, without what is not of its type."""
    found = {name: value for name, value in note.items() if value.__class__ is _KINDS.get(name)}
    timeout, headers = note.get("timeout"), note.get("headers")
    if isinstance(timeout, (int, float)):
        found["timeout"] = float(timeout)
    if isinstance(headers, dict) and all(isinstance(text, str) for text in headers.values()):
        found["headers"] = headers
    return found


class Disk:
    """One queue's folder.

    Args:
        root: its path.
        umask: of what is made; None means that of the process.
        fsync: whether what is added is on the disk when `flush` returns.
        attributes: whether notes are extended attributes, where the file system has them.

    Attributes:
        known: whether the folder was there at some time.
        newest: the number in the largest name that was seen.
        notes_beside: whether notes may be in files of their own.
    """

    def __init__(self, root: Path, umask: int | None, fsync: bool, attributes: bool) -> None:
        self.root = str(root)
        self.attributes = attributes
        self.notes_beside = not attributes
        self.known = False
        self.newest = 0
        self._umask = umask
        self._fsync = fsync
        self._last = self._last_token = 0
        self._touched: set[str] = set()
        self._unsynced: list[int] = []

    def path(self, name: str) -> str:
        """The path of a name below the queue's."""
        return f"{self.root}/{name}"

    # Names and tokens

    def new_name(self, now: datetime) -> str:
        """The name of a new element: behind all that are known, however the clocks differ."""
        number = microseconds(now)
        for taken in (self._last, self.newest):
            if number <= taken < number + AHEAD:
                number = taken + 1
        self._last = number
        return element_name(number, os.getpid() & 15)

    def new_token(self, now: datetime, after: int = 0) -> int:
        """Nanoseconds at which a lock is taken or confirmed, and nobody else confirms one."""
        token = microseconds(now) * 1000 + os.getpid() % 1000
        last = max(self._last_token, after)
        if token <= last < token + AHEAD * 1000:
            token = last + 1000
        self._last_token = token
        return token

    # Folders and files

    def make_folder(self, name: str) -> None:
        """Make a folder of the queue, if it is not there, and the queue's own, if it never was.

        Raises:
            StorageError: the queue's folder was there, and is gone.
        """
        try:
            self.mkdir(self.path(name))
        except FileExistsError:
            pass
        except FileNotFoundError:
            if self.known:
                raise StorageError(f"the folder {self.root!r} was there, and is gone") from None
            missing = [Path(self.root), *Path(self.root).parents]
            for folder in reversed([folder for folder in missing if not folder.exists()]):
                with suppress(FileExistsError):
                    self.mkdir(str(folder))
            with suppress(FileExistsError):
                self.mkdir(self.path(name))
        self.known = True
        self._touched.add(self.root)

    def mkdir(self, path: str) -> None:
        """Make a folder.

        Raises:
            FileExistsError: it is there.
            FileNotFoundError: that which it shall be in is not.
        """
        os.mkdir(path, 0o777)
        if self._umask is not None:
            os.chmod(path, 0o777 & ~self._umask)

    def create(self, path: str, content: bytes) -> None:
        """Make a file with this content, which `sync` gets to the disk.

        Raises:
            FileExistsError: it is there.
            FileNotFoundError: its folder is not.
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
        """See to it that what was made since is on the disk, if that was asked for.

        Raises:
            OSError: it is not known which of it is.
        """
        made, self._unsynced = self._unsynced, []
        try:
            if len(made) > 1 and hasattr(os, "posix_fadvise"):
                for descriptor in made:  # the disk begins to write them all, or it would do so one by one
                    with suppress(OSError):
                        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            for descriptor in made:
                os.fsync(descriptor)
        finally:
            for descriptor in made:
                os.close(descriptor)

    def read(self, path: str) -> bytes:
        """The content of a file.

        Raises:
            FileNotFoundError: it is not there.
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
        """What tells whether what could not be done with an element is worth another try.

        Args:
            name: of the element.
            files: those in it that it consists of.
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

    def touched(self, folder: str) -> None:
        """Something was added to this folder of the queue."""
        self._touched.add(self.path(folder))

    def made_in(self, path: str) -> None:
        """All is in a folder that shall be there: `sync` gets its names to the disk."""
        if self._fsync:
            self._unsynced.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))

    def flush(self) -> None:
        """See to it that what was added stays there when the power fails, if that was asked for."""
        if self._fsync:
            for folder in self._touched:
                flush(folder)
        self._touched.clear()

    # Notes

    def note(self, name: str) -> dict[str, Any]:
        """What is noted with an element; empty, if nothing is.

        Raises:
            FileNotFoundError: it is not there.
        """
        path = self.path(name)
        found = read_note(path, attributes=self.attributes)
        if self.notes_beside and (not found or MORE in found):
            found = read_note(path, self._beside(name), attributes=self.attributes)
        return _checked(found) if found else found

    def write_note(self, name: str, note: dict[str, Any]) -> None:
        """Note something with an element, instead of what was noted before.

        Raises:
            FileNotFoundError: it is not there.
        """
        if not self.notes_beside:
            content = encoded(note)
            if len(content) <= LARGEST and set_attribute(self.path(name), content):
                return
            self.notes_beside = True
        write_note(self.path(name), note, self._beside(name), attributes=self.attributes)

    def carry_note(self, name: str, new: str) -> None:
        """Have an element's note be that of another name of it, too.

        Raises:
            FileExistsError: that name has a note.
        """
        if self.notes_beside:
            with suppress(FileNotFoundError):
                os.link(self._beside(name), self._beside(new))

    def rename(self, name: str, new: str) -> None:
        """Give an element another name, and its note with it.

        Raises:
            FileExistsError: that name has a note.
            OSError: it is taken, or there is no such element, or no such folder.
        """
        self.carry_note(name, new)
        try:
            os.rename(self.path(name), self.path(new))
        except OSError:
            self.drop_note(new)
            raise
        self.drop_note(name)

    def drop_note(self, name: str) -> None:
        """Remove an element's note, where it does not go with it."""
        if self.notes_beside:
            with suppress(FileNotFoundError):
                os.unlink(self._beside(name))

    def _beside(self, name: str) -> str:
        element = Place(name).element.partition(".")[0]
        return self.path(f"{HIDDEN}/{NOTES}{element.replace('/', '-')}")
