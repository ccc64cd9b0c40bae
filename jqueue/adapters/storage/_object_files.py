"""Objects in files beside a queue file: each appears whole under a new name, and never changes.

The content goes into a temporary file `.<name>.<token>.object.tmp` in the same folder, and is flushed to the disk. A
hard link gives it its name, which the system refuses if the name is taken. Then the folder is flushed. A process that
dies at any instruction leaves a whole object or none, and perhaps a temporary file, which is removed after a day.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress
from typing import Any

from jqueue.adapters.storage._shared import check_range, check_suffix
from jqueue.domain.errors import CASConflictError, ObjectMissingError, StorageError, StorageFatalError
from jqueue.ports.clock import Entropy
from jqueue.runtime.posix_files import (
    PRIVATE,
    as_storage_error,
    check_folders,
    create_file,
    create_folder,
    file_status,
    flush,
    flush_folder,
    open_file,
    open_folder,
    read_range,
    readers_and_writers,
    set_mode,
    share_alike,
    write_all,
)

TEMPORARY = ".object.tmp"
"""End of the name of a temporary file."""

PART_BYTES = 1024 * 1024
"""Bytes of a stream that are written at once."""

LEFTOVER_SECONDS = 86400.0
"""Seconds after the last write to a temporary file until it is taken for the leftover of a process that has died."""

FOLDERS = (".segments", ".payloads", ".results", ".history")
"""Ends of the names of the folders beside a queue file that have its owner, group and mode."""

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems that have no hard links."""


class ObjectFiles:
    """The objects beside one queue file. It may be shared, copied and pickled.

    Args:
        file: the absolute path of the queue file. If it exists, objects have its owner, group and mode.
        mode: permissions of an object if the queue file does not exist yet.
        entropy: makes the names of temporary files.
    """

    def __init__(self, file: str, mode: int, entropy: Entropy) -> None:
        self._file = file
        self._base = os.path.dirname(file)
        self._mode = mode
        self._entropy = entropy
        self._flushed: set[str] = set()
        self._cleaned: set[str] = set()
        self._users: tuple[int, ...] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_flushed": set(), "_cleaned": set(), "_users": None}

    def follow(self, queue: os.stat_result) -> None:
        """Give the folders beside the queue file to its users, with all objects in them, as far as this process may.

        It looks once in each process, and again when the owner, the group or the mode of the queue file has changed.

        Args:
            queue: status of the queue file.
        """
        users = (queue.st_uid, queue.st_gid, readers_and_writers(queue))
        if users == self._users:
            return
        self._users = users
        for end in FOLDERS:
            with suppress(OSError):  # there is none, or it belongs to another user, whose next write does this
                self._share_folder(self._file + end, queue)

    def _share_folder(self, folder: str, queue: os.stat_result) -> None:
        status = os.stat(folder, follow_symlinks=False)
        fits = (status.st_gid, readers_and_writers(status)) == (queue.st_gid, readers_and_writers(queue))
        if fits or not stat.S_ISDIR(status.st_mode):
            return
        for path, _, names in os.walk(folder, topdown=False):  # the folder itself last: after a kill, all is done again
            for name in names:
                with suppress(OSError, StorageError):
                    self._share_opened(open_file(os.path.join(path, name), os.O_RDONLY)[0], queue)
            self._share_opened(open_folder(path), queue)

    def _share_opened(self, descriptor: int, queue: os.stat_result) -> None:
        try:
            share_alike(queue, descriptor)
        finally:
            os.close(descriptor)

    def new(self, suffix: str) -> NewObject:
        """Return an object to be written, which exists once it is published."""
        return NewObject(self, self._path(suffix), self._entropy.new_id())

    def create(self, suffix: str, content: bytes) -> None:
        """Create an object from its content."""
        new = self.new(suffix)
        try:
            new.write(content)
            new.publish()
        finally:
            new.discard()

    def read(self, suffix: str, start: int, stop: int | None) -> bytes:
        """Return a range of an object."""
        path = self._path(suffix)
        check_range(start, stop)
        try:
            self._check_folders(path)
            descriptor, status = open_file(path, os.O_RDONLY)
            try:
                end = status.st_size if stop is None else min(stop, status.st_size)
                return read_range(descriptor, start, end - start)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            raise ObjectMissingError(path) from None
        except OSError as error:
            raise as_storage_error(error, "read the object", path) from error

    def remove(self, suffix: str) -> None:
        """Delete an object, if it exists. Its folder stays."""
        path = self._path(suffix)
        try:
            self._check_folders(path)
            if file_status(path) is not None:
                os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise as_storage_error(error, "remove the object", path) from error

    def open_temporary(self, path: str) -> int:
        """Create a temporary file, and the missing folders above it. They are for the users of the queue file."""
        create_folder(self._base)
        folder = self._base
        for name in os.path.relpath(path, self._base).split("/")[:-1]:
            above, folder = folder, os.path.join(folder, name)
            self._make_folder(above, folder)
        descriptor = create_file(path)
        try:
            self._share(descriptor)
            self._remove_leftovers(folder, os.fstat(descriptor).st_mtime)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _remove_leftovers(self, folder: str, now: float) -> None:
        """Remove the old temporary files of our objects from a folder, once in each process."""
        if folder in self._cleaned:
            return
        self._cleaned.add(folder)
        begin = f".{os.path.basename(self._file)}" if folder == self._base else "."
        with suppress(OSError), os.scandir(folder) as entries:  # a file that cannot be removed does no harm
            for entry in entries:
                if entry.name.startswith(begin) and entry.name.endswith(TEMPORARY):
                    with suppress(OSError):
                        if entry.stat(follow_symlinks=False).st_mtime < now - LEFTOVER_SECONDS:
                            os.unlink(entry.path)

    def _make_folder(self, above: str, folder: str) -> None:
        """Make a folder unless it exists, and flush its name, once in each process, whoever made it."""
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            check_folders(above, os.path.basename(folder))
            if folder in self._flushed:
                return
            if (queue := file_status(self._file)) is not None:
                self.follow(queue)  # before the folder is shared below: a folder that fits is not looked into
        descriptor = open_folder(folder)
        try:
            self._share(descriptor)  # also a folder of a process that was killed before this
        finally:
            os.close(descriptor)
        descriptor = open_folder(above)
        try:
            flush_folder(descriptor)
        finally:
            os.close(descriptor)
        self._flushed.add(folder)

    def _share(self, descriptor: int) -> None:
        """Give a new file or folder to the users of the queue file."""
        queue = file_status(self._file)
        if queue is not None:
            share_alike(queue, descriptor)
        elif self._mode != PRIVATE:
            set_mode(descriptor, self._mode)

    def _check_folders(self, path: str) -> None:
        check_folders(self._base, os.path.dirname(os.path.relpath(path, self._base)))

    def _path(self, suffix: str) -> str:
        check_suffix(suffix)
        return self._file + suffix


class NewObject:
    """One object that is being written, by one call after another, each in any thread.

    A caller that is cancelled leaves its call to a thread. `discard` waits for that call, and ends all later ones.
    """

    def __init__(self, files: ObjectFiles, path: str, token: str) -> None:
        folder, name = os.path.split(path)
        self._files = files
        self._path = path
        self._temporary = os.path.join(folder, f".{name}.{token}{TEMPORARY}")
        self._descriptor: int | None = None
        self._over = self._published = False
        self._guard = threading.Lock()

    def write(self, part: bytes | bytearray | memoryview) -> None:
        """Append these bytes."""
        with self._guard:
            if self._over:
                return
            try:
                if self._descriptor is None:
                    self._descriptor = self._files.open_temporary(self._temporary)
                write_all(self._descriptor, part)
            except OSError as error:
                raise as_storage_error(error, "write the object", self._path) from error

    def publish(self) -> None:
        """Give the written file its name, durably.

        Raises:
            CASConflictError: the name is taken, by an object that is durable.
        """
        with self._guard:
            if self._over:
                return
            assert self._descriptor is not None, "an object is written before it is published"
            try:
                flush(self._descriptor)
                folder = open_folder(os.path.dirname(self._path))
                try:
                    self._link(folder)
                finally:
                    os.close(folder)
            except OSError as error:
                raise as_storage_error(error, "create the object", self._path) from error

    def _link(self, folder: int) -> None:
        try:
            os.link(self._temporary, self._path, follow_symlinks=False)
        except FileExistsError:
            file_status(self._path)  # refuses a link or a folder
            flush_folder(folder)  # the other creator may not have come to that yet
            raise CASConflictError(f"{self._path!r} exists already: an object is created only once") from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            what = f"the file system of {self._path!r} has no hard links, which objects need: keep the queue on another"
            raise StorageFatalError(f"Could not create the object: {what}", error) from error
        self._published = True
        os.unlink(self._temporary)
        flush_folder(folder)

    def discard(self) -> None:
        """End the writing. Unless the object was published, nothing of it is left."""
        with self._guard:
            self._over = True
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
            if not self._published:
                with suppress(OSError):
                    os.unlink(self._temporary)
