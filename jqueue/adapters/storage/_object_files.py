"""Objects in files beside a queue file: each appears whole under a new name, and never changes.

The content goes into a temporary file `.<name>.<token>.object.tmp` in the same folder, and is flushed to the disk. A
hard link gives it its name, which the system refuses if the name is taken. Then the folder is flushed. A process that
dies at any instruction leaves a whole object or none, and perhaps a temporary file, which is removed after a day.

The objects of a queue file are named `<name><suffix>`. A suffix with a slash leads to a folder.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import AsyncIterable, Iterator
from contextlib import aclosing, suppress
from datetime import UTC, datetime

from jqueue.adapters.storage._shared import NoQueue, check_prefix, check_range, check_suffix, in_parts
from jqueue.domain.errors import CASConflictError, ObjectMissingError, StorageError, StorageFatalError
from jqueue.ports.clock import Entropy
from jqueue.ports.storage import Listed
from jqueue.runtime.posix_files import (
    PRIVATE,
    check_folders,
    closing,
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
    storage_errors,
    write_all,
)
from jqueue.runtime.threads import in_a_thread

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


class ObjectFiles(NoQueue):
    """The objects beside one queue file: the methods of `SupportsObjects`. It may be shared, copied and pickled.

    Args:
        file: the absolute path of the queue file. If it exists, objects have its owner, group and mode.
        mode: permissions of an object if the queue file does not exist yet.
        entropy: makes the names of temporary files.
    """

    def __init__(self, file: str, mode: int, entropy: Entropy) -> None:
        self._file = file
        self._base, self._name = os.path.split(file)
        self._mode = mode
        self._entropy = entropy
        self._flushed: set[str] = set()
        self._cleaned: set[str] = set()
        self._users: tuple[int, ...] | None = None

    async def create_object(self, suffix: str, content: bytes) -> None:
        """Create an object, as in `SupportsObjects`: a file in the same folder, or in one beside this file.

        It has the owner, group and mode of this file, or the mode of a new one. Cancelling a creation does not stop it.

        Raises:
            CASConflictError: the object exists.
            StorageFatalError: as for `read`; or a link is in the way, or the file system has no hard links.
            StorageError: the disk is full, or the system failed.
            ValueError: the suffix is not one of an object.
        """
        new = _NewObject(self, suffix)

        def create() -> None:
            try:
                new.write(content)
                new.publish()
            finally:
                new.discard()

        content = bytes(content)
        await in_a_thread(create)

    async def create_object_from(self, suffix: str, pieces: AsyncIterable[bytes]) -> int:
        """Create an object from pieces, as in `SupportsObjects`. It is as strict as `create_object`.

        Raises:
            CASConflictError: the object exists.
            StorageError: as for `create_object`.
            ValueError: the suffix is not one of an object.
        """
        new, size = _NewObject(self, suffix), 0
        try:
            async with aclosing(in_parts(pieces, PART_BYTES)) as parts:
                async for part, _ in parts:
                    await in_a_thread(new.write, part)
                    size += len(part)
            await in_a_thread(new.publish)
        finally:
            await in_a_thread(new.discard)
        return size

    async def read_object(self, suffix: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return a range of an object, as in `SupportsObjects`.

        Raises:
            ObjectMissingError: the object does not exist.
            StorageFatalError: as for `read`.
            StorageError: the system failed.
            ValueError: the suffix is not one of an object, or the range is none.
        """
        path = self._object_path(suffix)
        check_range(start, stop)

        def read() -> bytes:
            try:
                with storage_errors("read the object", path, FileNotFoundError):
                    self._check_folders(path)
                    descriptor, status = open_file(path, os.O_RDONLY)
                    with closing(descriptor):
                        end = status.st_size if stop is None else min(stop, status.st_size)
                        return read_range(descriptor, start, end - start)
            except FileNotFoundError:
                raise ObjectMissingError(path) from None

        return await in_a_thread(read)

    async def remove_object(self, suffix: str) -> None:
        """Delete an object, which need not exist. Its folder stays. Links are neither followed nor removed.

        Raises:
            StorageFatalError: as for `read`.
            StorageError: the system failed.
            ValueError: the suffix is not one of an object.
        """
        path = self._object_path(suffix)

        def remove() -> None:
            with suppress(FileNotFoundError), storage_errors("remove the object", path, FileNotFoundError):
                self._check_folders(path)
                if file_status(path) is not None:
                    os.unlink(path)

        await in_a_thread(remove)

    async def list_beside(self, prefix: str) -> list[Listed]:
        """Return the files whose path is this file's plus a suffix that begins with `prefix`.

        A suffix with a slash is that of a file in a folder beside this file. Sidecars (names that end in `.lock`),
        temporary files and links are left out. Never called by a queue.

        Raises:
            ValueError: the prefix is empty, or leads to another folder than those beside this file.
            StorageFatalError: permission is refused, or the folder's path is not a folder.
            StorageError: the system failed.
        """
        check_prefix(prefix)
        inner, between, begins = (self._name + prefix).rpartition("/")
        if prefix.startswith("/") or (between and not {"", ".", ".."}.isdisjoint(inner.split("/"))):
            raise self._elsewhere(prefix)

        def listed() -> list[Listed]:
            with storage_errors("list the files beside the queue file", self._base):
                return sorted(self._listed_in(inner, begins))

        return await in_a_thread(listed)

    def _listed_in(self, inner: str, begins: str) -> Iterator[Listed]:
        """Yield the files in one of our folders, given its path from ours, and in the folders in it, at any depth."""
        try:
            check_folders(self._base, inner)
            entries = os.scandir(os.path.join(self._base, inner))
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                if not entry.name.startswith(begins):
                    continue
                path = os.path.join(inner, entry.name)
                is_own = entry.name.endswith(".lock") or (entry.name.startswith(".") and entry.name.endswith(".tmp"))
                if entry.is_dir(follow_symlinks=False):
                    yield from self._listed_in(path, "")
                elif not is_own and entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):  # removed just now
                        status = entry.stat(follow_symlinks=False)
                        modified = datetime.fromtimestamp(status.st_mtime, UTC)
                        yield Listed(path.removeprefix(self._name), modified, status.st_size)

    def _elsewhere(self, suffix: str) -> ValueError:
        return ValueError(f"the suffix of a file beside {self._name!r} must not lead to another folder, got {suffix!r}")

    def _object_path(self, suffix: str) -> str:
        check_suffix(suffix)
        return self._file + suffix

    def _check_folders(self, path: str) -> None:
        check_folders(self._base, os.path.dirname(os.path.relpath(path, self._base)))

    def _share_objects(self, queue: os.stat_result) -> None:
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
                folder = self._file + end
                status = os.stat(folder, follow_symlinks=False)
                fits = (status.st_gid, readers_and_writers(status)) == users[1:]
                if fits or not stat.S_ISDIR(status.st_mode):
                    continue
                # The folder itself comes last: after a kill, all is done again.
                for path, _, names in os.walk(folder, topdown=False):
                    for name in names:
                        with (
                            suppress(OSError, StorageError),
                            closing(open_file(os.path.join(path, name), os.O_RDONLY)[0]) as descriptor,
                        ):
                            share_alike(queue, descriptor)
                    with closing(open_folder(path)) as descriptor:
                        share_alike(queue, descriptor)

    def _share(self, descriptor: int, queue: os.stat_result | None) -> None:
        """Give a new file or folder to the users of the queue file, which has this status."""
        if queue is not None:
            share_alike(queue, descriptor)
        elif self._mode != PRIVATE:
            set_mode(descriptor, self._mode)

    def _make_folder(self, above: str, folder: str) -> None:
        """Make a folder unless it exists, and flush its name, once in each process, whoever made it."""
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            check_folders(above, os.path.basename(folder))
            if folder in self._flushed:
                return
            if (queue := file_status(self._file)) is not None:
                self._share_objects(queue)  # before the folder is shared below: a folder that fits is not looked into
        with closing(open_folder(folder)) as descriptor:
            self._share(descriptor, file_status(self._file))  # also a folder of a process that was killed before this
        with closing(open_folder(above)) as descriptor:
            flush_folder(descriptor)
        self._flushed.add(folder)

    def _remove_old_objects(self, folder: str, now: float) -> None:
        """Remove the old temporary files of our objects from a folder, once in each process."""
        if folder in self._cleaned:
            return
        self._cleaned.add(folder)
        begin = f".{self._name}" if folder == self._base else "."
        with suppress(OSError), os.scandir(folder) as entries:  # a file that cannot be removed does no harm
            for entry in entries:
                if entry.name.startswith(begin) and entry.name.endswith(TEMPORARY):
                    with suppress(OSError):
                        if entry.stat(follow_symlinks=False).st_mtime < now - LEFTOVER_SECONDS:
                            os.unlink(entry.path)


class _NewObject:
    """One object that is being written, by one call after another, each in any thread.

    A caller that is cancelled leaves its call to a thread. `discard` waits for that call, and ends all later ones.
    """

    def __init__(self, files: ObjectFiles, suffix: str) -> None:
        self._files = files
        self._path = files._object_path(suffix)
        self._folder, name = os.path.split(self._path)
        self._temporary = os.path.join(self._folder, f".{name}.{files._entropy.new_id()}{TEMPORARY}")
        self._descriptor: int | None = None
        self._over = self._published = False
        self._guard = threading.Lock()

    def write(self, part: bytes | bytearray) -> None:
        """Append these bytes."""
        with self._guard, storage_errors("write the object", self._path):
            if self._over:
                return
            if self._descriptor is None:  # create the file and the folders above it, for the users of the queue file
                files, folder = self._files, self._files._base
                create_folder(folder)
                for name in os.path.relpath(self._path, folder).split("/")[:-1]:
                    above, folder = folder, os.path.join(folder, name)
                    files._make_folder(above, folder)
                self._descriptor = create_file(self._temporary)
                files._share(self._descriptor, file_status(files._file))
                files._remove_old_objects(folder, os.fstat(self._descriptor).st_mtime)
            write_all(self._descriptor, part)

    def publish(self) -> None:
        """Give the written file its name, durably.

        Raises:
            CASConflictError: the name is taken, by an object that is durable.
        """
        with self._guard, storage_errors("create the object", self._path):
            if self._over:
                return
            assert self._descriptor is not None, "an object is written before it is published"
            flush(self._descriptor)
            with closing(open_folder(self._folder)) as folder:
                try:
                    os.link(self._temporary, self._path, follow_symlinks=False)
                except FileExistsError:
                    file_status(self._path)  # refuses a link or a folder
                    flush_folder(folder)  # the other creator may not have come to that yet
                    what = f"{self._path!r} exists already: an object is created only once"
                    raise CASConflictError(what) from None
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    what = f"the file system of {self._path!r} has no hard links, which objects need"
                    hint = "keep the queue on another"
                    raise StorageFatalError(f"Could not create the object: {what}: {hint}", error) from error
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
