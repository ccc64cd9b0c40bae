"""The sidecar of a data file: it holds the lock of the writers, and a token that distinguishes one write from the next.

The lock is never on the data file itself: every write replaces that file, and a lock on a replaced file excludes no
writer. The kernel releases the lock when its holder dies. Each lock has its own open file, so it excludes threads of
the same process too. A forked child closes its copies of the files that are locked, or would keep the locks of a parent
that is killed. Nothing else is held between calls, so fork and pickle need no care.

The sidecar can be removed by hand at any moment, and then excludes no writer. So the last check of the sidecar, the
check of the data file and the rename are one step under a second lock, on the folder. Only one writer at a time is in
that step.

The token needs no flush: it only distinguishes writes that running processes have seen, and no process outlives a power
cut.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from jqueue.domain.errors import StorageError, StorageFatalError
from jqueue.ports.clock import Entropy
from jqueue.runtime.posix_files import PRIVATE, closing, file_status, open_file, share_alike
from jqueue.runtime.system import SystemClock, at_fork, process_id

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Lock = TypeVar("Lock")

_MARK = b"jqueue lock, keep while in use: "
_WIDTH = 64  # maximum length of a token; shorter ones are padded, so that each overwrites the last one completely

_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.005  # a writer needs milliseconds: longer pauses would miss the moments between two writers


_open: dict[object, int] = {}
"""The open file of each lock of this process."""


def _close_in_child() -> None:
    """Close the copies of the parent's files, and forget them: the copies of its locks do nothing when they end."""
    while _open:
        with suppress(OSError):
            os.close(_open.popitem()[1])


at_fork(_close_in_child)


def _unlock(lock: object) -> None:
    """Release a lock, unless that is done. Closing is not enough: a process forked meanwhile may still have a copy."""
    process_id()  # a fork would release the lock of its parent
    if (descriptor := _open.pop(lock, None)) is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)


def need_posix_files(what: str) -> None:
    """Refuse what cannot work on Windows.

    Raises:
        StorageFatalError: this system lacks POSIX file locks.
    """
    if fcntl is None:
        raise StorageFatalError(
            f"{what} needs POSIX file locks, which Windows does not have: keep the queue in a bucket, such as "
            "s3://my-bucket/queue.json, or run the program in WSL"
        )


class FileLock:
    """The sidecar of one file. This object holds only settings, so it can be shared, copied and pickled.

    Args:
        path: of the sidecar; created when the lock is first taken.
        timeout: seconds to wait for another holder.
        entropy: spreads the tries of waiting writers.
    """

    def __init__(self, path: str, timeout: float, entropy: Entropy) -> None:
        self._path = path
        self._timeout = timeout
        self._entropy = entropy

    def token(self) -> str:
        """Return the current token, read without the lock; "" if there is none."""
        try:
            descriptor, _ = open_file(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return ""
        with closing(descriptor):
            return _parse(_first_line(descriptor))

    def check(self) -> None:
        """Return if this process could take the lock once it is free.

        Raises:
            StorageFatalError: the sidecar is another program's file, or not a regular file.
            OSError: the system refused.
        """
        try:
            descriptor, status = open_file(self._path, os.O_RDWR)
        except FileNotFoundError:
            return
        with HeldLock(self._path, descriptor, status) as lock:
            lock.read_token()

    def acquire(self, mode: int = PRIVATE) -> HeldLock:
        """Take the lock. The end of the `with` block releases it.

        Args:
            mode: of the sidecar, if this creates it.

        Raises:
            StorageError: another process or thread held it until the timeout.
            StorageFatalError: the sidecar is another program's file, or not a regular file.
            OSError: the system refused.
        """
        return self._retry_until_timeout(
            lambda: self._try_to_acquire(mode),
            f"{self._path!r} within {self._timeout:g} s: another process or thread holds it. A writer holds it for "
            "milliseconds, so look for one that hangs or is stopped (`fuser` or `lsof` on that file names it)",
        )

    @contextmanager
    def folder(self, descriptor: int) -> Iterator[None]:
        """Exclude every other writer of the folder, also the holders of other sidecars, for the last step of a write.

        Args:
            descriptor: of the folder, opened for this write only.

        Raises:
            StorageError: another process or thread held the lock until the timeout.
            OSError: the system refused.
        """
        self._retry_until_timeout(
            lambda: _lock_folder(descriptor),
            f"the folder {os.path.dirname(self._path)!r} within {self._timeout:g} s: another process or thread holds a "
            "lock on it. A writer holds it for less than a millisecond, so look for a program that hangs or locks "
            "folders (`lsof` names it)",
        )
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _retry_until_timeout(self, try_once: Callable[[], Lock | None], what: str) -> Lock:
        """Call `try_once` until it returns something other than None, and return that.

        Raises:
            StorageError: the timeout has passed.
        """
        if (held := try_once()) is not None:
            return held
        clock, pause = SystemClock(), _FIRST_PAUSE
        deadline = clock.monotonic() + self._timeout
        while held is None:
            left = deadline - clock.monotonic()
            if left <= 0:
                raise StorageError(f"Could not lock {what}, or raise lock_timeout. Nothing was written")
            time.sleep(min(left, pause / 2 + self._entropy.jitter(pause / 2)))
            pause = min(pause * 2, _LONGEST_PAUSE)
            held = try_once()
        return held

    def _try_to_acquire(self, mode: int) -> HeldLock | None:
        try:
            descriptor, status = open_file(self._path, os.O_RDWR | os.O_CREAT)
        except PermissionError:
            there = file_status(self._path)
            if there is None or there.st_size:
                raise
            return None  # it is empty: its creator is about to open it to the users of the data file
        held = HeldLock(self._path, descriptor, status)
        try:
            if not status.st_size and stat.S_IMODE(status.st_mode) != mode:
                with suppress(PermissionError):  # another user has just created it, and sets the mode too
                    os.fchmod(descriptor, mode)
            if _is_locked(descriptor) and held.is_in_place():
                held.read_token()
                return held
        except BaseException:
            _unlock(held)
            raise
        _unlock(held)
        return None


def _is_locked(descriptor: int) -> bool:
    """Return True if this call has locked a file; False if another writer holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class HeldLock:
    """The lock while it is held, with the actions that only its holder may do. Created by `FileLock.acquire`.

    Attributes:
        token: that of the last write that began.
    """

    def __init__(self, path: str, descriptor: int, status: os.stat_result) -> None:
        process_id()  # a fork closes the files of its parent first
        _open[self] = self._descriptor = descriptor
        self._path = path
        self._status = status  # while the file is open, no other file can have its inode
        self.token: str = ""

    def __enter__(self) -> HeldLock:
        return self

    def __exit__(self, *_: object) -> None:
        _unlock(self)

    def is_in_place(self) -> bool:
        """True if the path still leads to the locked file. If the file was removed, the lock excludes no writer."""
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(status, self._status)

    def read_token(self) -> None:
        """Read the token. Raise StorageFatalError if the file holds something else."""
        line = _first_line(self._descriptor)
        if line.startswith(_MARK):
            self.token = _parse(line)
        elif line.strip(b"\0") and not _MARK.startswith(line):  # a power cut may leave a part of the line, or zeros
            raise StorageFatalError(
                f"{self._path!r} is needed as a lock file, but belongs to another program. Move it away, or give the "
                "queue another path"
            )

    def set_token(self, token: str) -> None:
        """Write the token of a write, before its content can be seen.

        Raises:
            OSError: the system refused.
        """
        line = _MARK + token.encode().ljust(_WIDTH) + b"\n"
        if os.pwrite(self._descriptor, line, 0) != len(line):
            raise StorageError(
                f"Could not write the token into {self._path!r}: only a part was written. Check the space on the disk"
            )

    def share_alike(self, status: os.stat_result) -> None:
        """Make the sidecar usable for all users who may use the data file."""
        share_alike(status, self._descriptor, self._status)


def _lock_folder(descriptor: int) -> bool | None:
    """Lock a folder and return True. Return None if another process or thread holds the lock."""
    try:
        return _is_locked(descriptor) or None
    except OSError as error:
        if error.errno == errno.EBADF:  # NFS locks only files that are open for writing, which no folder is
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP)) from error
        raise


def _first_line(descriptor: int) -> bytes:
    return os.pread(descriptor, 4096, 0).partition(b"\n")[0]


def _parse(line: bytes) -> str:
    if not line.startswith(_MARK):
        return ""
    return line.removeprefix(_MARK).decode("utf-8", "backslashreplace").strip()
