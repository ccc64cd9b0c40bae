"""The file beside a file: the lock that its writers take, and the token that tells one write from the next.

The lock is never on the data file itself: that one is replaced at every write, and a lock on a file that has been
replaced excludes nobody. The kernel gives the lock back when its holder dies. Each lock is a file of its own opening,
so that it excludes threads of one process too, and nothing is held between calls: fork and pickle need no care.

The sidecar can be removed by hand at any moment, and then excludes nobody. So the last look at it, the look at the data
file and the rename are one step under a second lock, on the folder: of all writers, one at a time is in that step.

The token needs no flush: it only has to tell apart what running processes have seen, and none outlives a power cut.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TypeVar

from jqueue.domain.errors import StorageError, StorageFatalError
from jqueue.ports.clock import Entropy
from jqueue.runtime.posix_files import PRIVATE, file_status, give_to_owner_of, open_file, share_alike
from jqueue.runtime.system import SystemClock

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Lock = TypeVar("Lock")

_MARK = b"jqueue lock, keep while in use: "
_WIDTH = 64  # a token is at most so long, so that a shorter one overwrites it whole

_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.005  # a writer needs milliseconds: who looks more seldom misses the moments between two writers


def has_file_locks() -> bool:
    """Whether this system has the locks that are needed here."""
    return fcntl is not None


class FileLock:
    """The sidecar of one file. It holds nothing but settings, and may be shared, copied and pickled.

    Args:
        path: of the sidecar; created when the lock is first taken.
        timeout: how many seconds to wait for another holder.
        entropy: spreads the looks of those who wait.
    """

    def __init__(self, path: str, timeout: float, entropy: Entropy) -> None:
        self._path = path
        self._timeout = timeout
        self._entropy = entropy

    def token(self) -> str:
        """The token as it is now, without the lock; "" when there is none."""
        try:
            descriptor, _ = open_file(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return ""
        try:
            return _parse(_first_line(descriptor))
        finally:
            os.close(descriptor)

    def check(self) -> None:
        """Return if this process could take the lock, were it free.

        Raises:
            StorageFatalError: the sidecar is not ours, or nothing that can be locked.
            OSError: the system refused.
        """
        try:
            descriptor, status = open_file(self._path, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            HeldLock(self._path, descriptor, status).read_token()
        finally:
            os.close(descriptor)

    def acquire(self, mode: int = PRIVATE) -> HeldLock:
        """Take the lock, to be given back by `with`.

        Args:
            mode: of the sidecar, if this creates it.

        Raises:
            StorageError: somebody else held it for too long.
            StorageFatalError: the sidecar is not ours, or nothing that can be locked.
            OSError: the system refused.
        """
        held = self._patiently(lambda: self._try_to_acquire(mode))
        if held is None:
            raise StorageError(
                f"Could not lock {self._path!r} within {self._timeout:g} s: another process or thread holds it. "
                "A writer holds it for milliseconds, so look for one that hangs or is stopped (`fuser` or `lsof` "
                "on that file names it), or raise lock_timeout. Nothing was written"
            )
        return held

    @contextmanager
    def folder(self, descriptor: int) -> Iterator[None]:
        """Exclude every writer of the folder, those who hold another sidecar too, for the last step of a write.

        Args:
            descriptor: of the folder, opened for this write only.

        Raises:
            StorageError: another process or thread held the lock for too long.
            OSError: the system refused.
        """
        if self._patiently(lambda: _lock_folder(descriptor)) is None:
            raise StorageError(
                f"Could not lock the folder {os.path.dirname(self._path)!r} within {self._timeout:g} s: another "
                "process or thread holds a lock on it. A writer holds it for less than a millisecond, so look for a "
                "program that hangs or locks folders (`lsof` names it), or raise lock_timeout. Nothing was written"
            )
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _patiently(self, try_once: Callable[[], Lock | None]) -> Lock | None:
        """What `try_once` returns as soon as that is something; None when the timeout has passed."""
        if (held := try_once()) is not None:
            return held
        clock = SystemClock()
        deadline = clock.monotonic() + self._timeout
        pause = _FIRST_PAUSE
        while (left := deadline - clock.monotonic()) > 0:
            time.sleep(min(left, pause / 2 + self._entropy.jitter(pause / 2)))
            pause = min(pause * 2, _LONGEST_PAUSE)
            if (held := try_once()) is not None:
                return held
        return None

    def _try_to_acquire(self, mode: int) -> HeldLock | None:
        try:
            descriptor, status = open_file(self._path, os.O_RDWR | os.O_CREAT)
        except PermissionError:
            if self._is_being_made():
                return None
            raise
        try:
            if not status.st_size and stat.S_IMODE(status.st_mode) != mode:
                with suppress(PermissionError):  # another user has just made it, and does the same
                    os.fchmod(descriptor, mode)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = HeldLock(self._path, descriptor, status)
            if held.is_in_place():
                held.read_token()
                return held
        except BlockingIOError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def _is_being_made(self) -> bool:
        """True if the sidecar is still empty: in the next moment its maker opens it to the users of the data file."""
        status = file_status(self._path)
        return status is not None and not status.st_size


class HeldLock:
    """What only the holder of the lock may do. Made by `FileLock.acquire`.

    Attributes:
        token: that of the last write that began.
    """

    def __init__(self, path: str, descriptor: int, status: os.stat_result) -> None:
        self._path = path
        self._descriptor = descriptor
        self._status = status  # while the file is open, no other one can have its inode
        self.token = ""

    def __enter__(self) -> HeldLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # Closing is not enough: a process forked meanwhile has a copy of the descriptor, and the lock with it.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            os.close(self._descriptor)

    def is_in_place(self) -> bool:
        """Whether the path still leads to the file that is locked: if somebody removed it, we exclude nobody."""
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, self._status)

    def read_token(self) -> None:
        """Learn the token, and refuse, with a StorageFatalError, a file that holds something else."""
        line = _first_line(self._descriptor)
        if line.startswith(_MARK):
            self.token = _parse(line)
        elif line.strip(b"\0") and not _MARK.startswith(line):  # a power cut may have left less than a line, or zeros
            raise StorageFatalError(
                f"{self._path!r} is needed for a lock, but is somebody else's file: it would be overwritten. "
                "Move it away, or give the queue another path"
            )

    def set_token(self, token: str) -> None:
        """Announce a write, before what it writes can be seen.

        Raises:
            OSError: the system refused.
        """
        line = _MARK + token.encode().ljust(_WIDTH) + b"\n"
        if os.pwrite(self._descriptor, line, 0) != len(line):
            raise StorageError(f"Could not write the token into {self._path!r}: the system took only a part of it")

    def share_alike(self, status: os.stat_result) -> None:
        """Have the sidecar be for all who may use the data file."""
        share_alike(status, self._descriptor, self._status)

    def give_to_owner_of(self, status: os.stat_result) -> None:
        """Have the sidecar belong to whom the data file belongs."""
        give_to_owner_of(status, self._descriptor)


def _lock_folder(descriptor: int) -> bool | None:
    """Lock a folder, and return True; None when another process or thread holds the lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno == errno.EBADF:  # NFS locks only files that are open for writing, which no folder is
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP)) from error
        raise
    return True


def _first_line(descriptor: int) -> bytes:
    return os.pread(descriptor, 4096, 0).partition(b"\n")[0]


def _parse(line: bytes) -> str:
    if not line.startswith(_MARK):
        return ""
    return line.removeprefix(_MARK).decode("utf-8", "backslashreplace").strip()
