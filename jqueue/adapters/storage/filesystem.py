"""A queue in a file, for all processes of one machine: durable when a write returns, complete whenever it is read.

A write goes into a temporary file in the same folder and is flushed to the disk. The file then replaces the old one in
one step, and the folder is flushed. A process that dies at any instruction leaves either the old content or the new.

The etag is a token with the inode, size and times of the file, so that an edit by hand changes the etag too. The token
is new at every write and kept in the sidecar `<name>.lock`. No etag can name two contents, for these reasons. The token
is set before the file is renamed into place, under the lock. So while the token is T, the file is either the one before
T's write or T's own. Both exist at the rename, so their inodes differ. Once another token follows T, T never returns.

It needs POSIX file locks and a local file system: over a network, neither locks nor times are reliable.
"""

from __future__ import annotations

import errno
import os
import pathlib
import re
from contextlib import suppress
from datetime import datetime

import msgspec

from jqueue.adapters.storage._object_files import ObjectFiles
from jqueue.adapters.storage._unix_socket import SocketLink, SocketSeat, dial, take_seat
from jqueue.domain.durations import Duration, to_seconds
from jqueue.domain.errors import CASConflictError, StorageError, StorageFatalError
from jqueue.ports.clock import Entropy
from jqueue.ports.sharing import Handle
from jqueue.runtime.file_lock import FileLock, HeldLock, need_posix_files
from jqueue.runtime.posix_files import (
    PRIVATE,
    closing,
    create_file,
    create_folder,
    file_status,
    flush,
    flush_folder,
    mount_of,
    open_file,
    open_folder,
    read_all,
    readers_and_writers,
    storage_errors,
    write_all,
)
from jqueue.runtime.system import SystemClock, SystemEntropy
from jqueue.runtime.threads import in_a_thread

_READS_WITHOUT_LOCK = 8

_NOT_IN_A_NAME = re.compile(r"[^\w-]")

_TAKEN = re.compile(r"(?P<queue>.+)\.broker(\.lock)?|\.(?P<written>.+)\.[^.]+\.tmp", re.DOTALL | re.IGNORECASE)
"""Names of files that the broker or a write of another queue makes, and removes unseen."""


class LocalFileSystemStorage(ObjectFiles):
    """One object in a local file. Threads, event loops and forks may share it, and it may be pickled.

    A new file and its sidecar `<name>.lock` have mode 0600, or the mode given. A write keeps the mode and the group of
    the file, and its owner if the process may give files away (root). The folder is created at the first write.
    Cancelling a write does not stop it: it may still land.

    Args:
        path: path of the file. A symbolic link there is not followed. A relative path keeps its meaning if the process
            changes its working directory.
        lock_timeout: time that a write may wait for other writers: a timedelta or seconds, 10 by default.
        entropy: makes the tokens; the system's by default.
        mode: permissions of a new file, for example 0o660 for the users of one group; the umask is ignored. An existing
            file keeps its own.

    Raises:
        InvalidJobError: lock_timeout is not a duration.
        ValueError: the path names no file; or the mode denies the owner to read or write, or has bits other than
            permissions to read and write.
        StorageFatalError: this system has no POSIX file locks (Windows); or the name is one of a file that jqueue makes
            beside another queue, such as `jobs.broker`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lock_timeout: Duration = 10.0,
        entropy: Entropy | None = None,
        mode: int = PRIVATE,
    ) -> None:
        need_posix_files("a queue in a file")
        self._path = pathlib.Path(path)
        if self._path.name in ("", "..") or "\0" in str(self._path):
            raise ValueError(f"LocalFileSystemStorage needs the path of a file, got {str(path)!r}")
        if taken := _TAKEN.fullmatch(self._path.name):
            raise StorageFatalError(
                f"{str(path)!r} is the name of a file that jqueue makes, and removes, beside the queue "
                f"{taken['queue'] or taken['written']!r}: give this queue another name. If it exists, rename its file "
                "and the files beside it whose names begin like it, while no program uses it"
            )
        if mode & ~0o666 or mode & PRIVATE != PRIVATE:
            raise ValueError(f"mode must be from 0o600 to 0o666, with bits to read and write only, got {mode:#o}")
        super().__init__(str(self._path.absolute()), mode, SystemEntropy() if entropy is None else entropy)
        self._lock_timeout = to_seconds("lock_timeout", lock_timeout)
        self._sidecar = f"{self._file}.lock"
        self._socket = f"{self._file}.broker"
        self._lock = FileLock(self._sidecar, self._lock_timeout, self._entropy)

    @property
    def path(self) -> pathlib.Path:
        """The path of the file, as it was given."""
        return self._path

    @property
    def name(self) -> str:
        """The name of the object, as users know it."""
        return self._file

    def __repr__(self) -> str:
        return f"{type(self).__name__}(path={self._path!r})"

    async def read(self) -> tuple[bytes, str | None]:
        """Return (content, etag), or (b"", None) when there is no file.

        Raises:
            StorageFatalError: permission is refused, or there is a link, a folder or a pipe instead of a file.
            StorageError: the system failed.
        """
        return await in_a_thread(self._read)

    async def read_if_changed(self, etag: str) -> tuple[bytes, str | None] | None:
        """Return None while the file's etag is still `etag`, and otherwise the same as `read`.

        Raises:
            StorageFatalError: as for `read`.
            StorageError: the system failed.
        """
        return await in_a_thread(self._read_if_changed, etag)

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        """Write the file if its etag is still `if_match`, and return its new etag.

        Args:
            content: the whole new content.
            if_match: the etag that the file must have now; None means that the file must not exist yet.

        Raises:
            CASConflictError: the condition did not hold. Nothing was written.
            StorageFatalError: as for `read`. Nothing was written.
            StorageError: the disk is full, the lock was not free in time, or the system failed. `nothing_written` of
                the error is True unless the failure came with the rename or after it.
        """
        attempt = _WriteAttempt()
        return await in_a_thread(self._write, bytes(content), if_match, attempt, close_last=attempt.replaced)

    def store_time(self) -> datetime:
        """Return the time of the machine's clock, UTC: all users of the file share it."""
        return SystemClock().now()

    def watched(self) -> list[pathlib.Path]:
        """Return the folder of the file: see `SupportsWatching`."""
        return [pathlib.Path(self._base)]

    async def dial(self) -> SocketLink | None:
        """Return a connection to the broker of the queue: see `SupportsSharing`."""
        return await dial(self._socket, file_status(self._file))

    def broker_epoch(self) -> object:
        """Return what tells the socket of one broker from that of another: see `SupportsSharing`."""
        with suppress(OSError):
            about = os.stat(self._socket, follow_symlinks=False)
            return about.st_ino, about.st_mtime_ns
        return None

    async def take_seat(self, handle: Handle) -> SocketSeat | None:
        """Serve the queue for other processes of this machine: see `SupportsSharing`."""
        with storage_errors("make the broker's socket", self._socket):
            return await take_seat(self._socket, file_status(self._file), self._mode, handle)

    async def remove(self) -> None:
        """Delete the file and its sidecar. They need not exist. Links are neither followed nor removed.

        Never called by a queue: without its file, a queue is lost.

        Raises:
            StorageFatalError: as for `read`; or the sidecar is not ours.
            StorageError: the lock was not free in time, or the system failed.
        """
        await in_a_thread(self._remove)

    def beside(self, suffix: str) -> LocalFileSystemStorage:
        """Return the file in the same folder whose name is this file's with the suffix.

        Raises:
            ValueError: the suffix leads to another folder.
        """
        if os.path.basename(suffix) != suffix:
            raise self._elsewhere(suffix)
        return LocalFileSystemStorage(
            f"{self._file}{suffix}", lock_timeout=self._lock_timeout, entropy=self._entropy, mode=self._mode
        )

    async def check_writable(self) -> None:
        """Return if this process may write or create the file now. Nothing is left behind, and no lock is taken.

        Raises:
            StorageFatalError: permission is refused, the file system is read-only, the file is mounted by itself, ...
            StorageError: the disk is full, or the system failed.
        """
        await in_a_thread(self._check_writable)

    def _read(self) -> tuple[bytes, str | None]:
        with storage_errors("read the queue file", self._file):
            for _ in range(_READS_WITHOUT_LOCK):
                if (snapshot := self._read_once()) is not None:
                    return snapshot
            with self._lock.acquire():
                snapshot = self._read_once()
        if snapshot is None:
            raise StorageError(
                f"{self._file!r} keeps changing while it is read: another program writes it without taking its lock. "
                "Stop that program"
            )
        return snapshot

    def _read_once(self) -> tuple[bytes, str | None] | None:
        """Read without the lock. Return None if the file was replaced or edited meanwhile.

        If the file is the same before and after the token is read, both were current at that moment. If the write of
        that token has yet to land, the etag fits the old file, and no longer fits once the new one is there.
        """
        try:
            descriptor, before = open_file(self._file, os.O_RDONLY)
        except FileNotFoundError:
            return b"", None
        with closing(descriptor):
            content = read_all(descriptor, before.st_size)
            token = self._lock.token()
            status = file_status(self._file)  # while the file is open, no other one can have its inode
        if status is None or not _same(status, before):
            return None
        return content, _etag(token, status)

    def _read_if_changed(self, etag: str) -> tuple[bytes, str | None] | None:
        with storage_errors("look at the queue file", self._file):
            # The token is read last: if it is still the etag's, the file that was seen before it was not replaced.
            status = file_status(self._file)
            if status is not None and _etag(self._lock.token(), status) == etag:
                return None
        return self._read()

    def _write(self, content: bytes, if_match: str | None, attempt: _WriteAttempt) -> str:
        try:
            with storage_errors("write the queue file", self._file):
                return self._write_on_condition(content, if_match, attempt)
        except StorageError as error:
            error.nothing_written = not attempt.may_be_in_place
            raise

    def _write_on_condition(self, content: bytes, if_match: str | None, attempt: _WriteAttempt) -> str:
        # Before the lock, which would create a sidecar although there is no file, or a folder or link in its place.
        first_status = file_status(self._file)
        if (first_status is None) != (if_match is None):
            raise CASConflictError(self._describe_conflict(if_match))
        if if_match is None:
            create_folder(self._base)
        with closing(open_folder(self._base)) as folder:
            with self._lock.acquire(self._mode if first_status is None else readers_and_writers(first_status)) as lock:
                self._remove_leftovers()
                status: os.stat_result | None = None
                with suppress(FileNotFoundError):
                    # For writing: a process that may not write the file must not replace it either.
                    descriptor, status = open_file(self._file, os.O_RDWR)
                if status is not None:
                    attempt.replaced.append(descriptor)
                    lock.share_alike(status)
                    self._share_objects(status)
                current = None if status is None else _etag(lock.token, status)
                if current != if_match:
                    raise CASConflictError(self._describe_conflict(if_match))
                etag = self._replace(content, status, lock, folder, attempt)
            try:
                flush_folder(folder)
            except OSError as error:
                raise StorageError(
                    f"The new content of {self._file!r} is in place, but its folder could not be flushed to the disk: "
                    "a power failure may still undo the write. Check the disk",
                    error,
                ) from error
        return etag

    def _remove_leftovers(self) -> None:
        """Remove, once in each process, the temporary files of writers that were killed.

        The caller holds the lock, so no other writer has a temporary file now. The token has no dots, so the temporary
        files of a queue whose name only begins like ours are left alone.
        """
        if self._file in self._cleaned:
            return
        leftover = re.compile(rf"\.{re.escape(self._name)}\.[^.]+\.tmp", re.DOTALL)
        with suppress(OSError):  # a file that cannot be removed does no harm
            for name in filter(leftover.fullmatch, os.listdir(self._base)):
                with suppress(OSError):
                    os.unlink(os.path.join(self._base, name))
        self._cleaned.add(self._file)

    def _temporary(self, folder: str, token: str) -> str:
        return os.path.join(folder, f".{self._name}.{_NOT_IN_A_NAME.sub('_', token)}.tmp")

    def _check_writable(self) -> None:
        with storage_errors("write the queue file", self._file):
            if file_status(self._file) is not None:
                with (
                    closing(open_file(self._file, os.O_RDWR)[0]) as descriptor,
                    closing(open_folder(self._base)) as folder,
                ):
                    if mount_of(descriptor) != mount_of(folder):  # nothing can be renamed onto a mount point
                        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), self._file)
            self._lock.check()
            nearest = self._base
            while not os.path.isdir(nearest) and nearest != os.path.dirname(nearest):
                nearest = os.path.dirname(nearest)
            temporary = self._temporary(nearest, self._entropy.new_id())
            os.close(create_file(temporary))
            with suppress(FileNotFoundError):  # another writer took it for a leftover
                os.unlink(temporary)

    def _remove(self) -> None:
        with storage_errors("remove the queue file", self._file):
            # Before the lock, which would create a sidecar although there is no file.
            if file_status(self._file) is None and file_status(self._sidecar) is None:
                return
            with closing(open_folder(self._base)) as folder:
                with self._lock.acquire() as lock:
                    self._remove_leftovers()
                    with self._lock.folder(folder):
                        if file_status(self._file) is not None:
                            os.unlink(self._file)
                        if lock.is_in_place():  # the last step under this lock: the next writer makes a new sidecar
                            os.unlink(self._sidecar)
                flush_folder(folder)

    def _replace(
        self, content: bytes, replaced: os.stat_result | None, lock: HeldLock, folder: int, attempt: _WriteAttempt
    ) -> str:
        """Replace the file that has the status `replaced` by one with the content, and return the new etag."""
        token = self._entropy.new_id()
        temporary = self._temporary(self._base, token)
        descriptor = create_file(temporary)
        try:
            self._share(descriptor, replaced)
            write_all(descriptor, content)
            flush(descriptor)
            lock.set_token(token)
            with self._lock.folder(folder):  # a rename checks nothing, so the checks and it must be one step
                if not lock.is_in_place():
                    what = f"The lock file of {self._file!r} was removed during a write"
                    raise CASConflictError(f"{what}: nothing was written")
                status = file_status(self._file)  # an edit by hand, or a write under another lock file than ours?
                if status is not replaced and (status is None or replaced is None or not _same(status, replaced)):
                    what = f"{self._file!r} was changed without its lock during a write"
                    raise CASConflictError(f"{what}: nothing was written")
                attempt.rename(temporary, self._file)
            return _etag(token, os.fstat(descriptor))  # only now: a rename changes the time of the last change
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)

    def _describe_conflict(self, expected: str | None) -> str:
        if expected is None:
            return f"{self._file!r} exists already, and a write without an etag can only create it: read it first"
        return f"{self._file!r} no longer has the etag {expected!r}: another program changed it; read it again"


class _WriteAttempt(msgspec.Struct):
    """One write on its way.

    Attributes:
        replaced: descriptors of the replaced file. While it is open, the system keeps its blocks, and no other file can
            have its inode. Freeing the blocks takes a large part of a rename, and can wait until the answer is on its
            way.
        may_be_in_place: True if the new content is at the path of the queue, or if that is unknown.
    """

    replaced: list[int] = []
    may_be_in_place: bool = False

    def rename(self, temporary: str, file: str) -> None:
        """Put the new content in place."""
        self.may_be_in_place = True
        try:
            os.rename(temporary, file)
        except OSError as error:
            self.may_be_in_place = error.errno == errno.EIO  # after another error POSIX leaves both files as they were
            raise


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    """True if both are the same unchanged file, so that a token makes the same etag with both."""
    return _etag("", one) == _etag("", other)


def _etag(token: str, status: os.stat_result) -> str:
    return f"{token}:{status.st_ino:x}:{status.st_size:x}:{status.st_mtime_ns:x}:{status.st_ctime_ns:x}"
