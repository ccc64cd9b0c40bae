"""Notes: fields of a job that its format cannot hold (id, entrypoint, headers, attempts), in files beside the jobs.

A note is a small JSON file in a folder that the original programs do not look into. Its name is a key of the job that
no rename of the job's file changes. So a note outlives the renames of any program. A note whose job another program has
removed is a leftover, which `tidy` removes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from jqueue.domain.durations import LONGEST
from jqueue.runtime.posix_files import closing, flush_folder, open_folder, write_all

ABANDONED = timedelta(hours=1)
"""Age from which a file that belongs to no job counts as a leftover, and time between two searches for leftovers."""

LISTINGS = 3
"""Number of times that a key must be missing in a listing of the jobs: a listing may miss a file that is renamed."""

ACKED_KEPT, ACKED_BYTES = 1_000, 200_000
"""Number of acks to remember, and size in bytes above which their file is cut down to them."""

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Note(TypedDict, total=False):
    id: str
    entrypoint: str
    headers: dict[str, str]
    max_attempts: _Count
    attempt: _Count
    failures: _Count
    error: str
    created: _Count
    run_at: _Count
    dead_at: _Count
    timeout: Annotated[float, msgspec.Meta(ge=0, le=LONGEST)]
    until: _Count
    next: _Count
    due: _Count
    token: _Count


"""Fields of a note, which its format explains. Other fields are ignored; a wrong type makes the whole note invalid."""

_decode = msgspec.json.Decoder(_Note).decode

_NO_NOTE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


class Notes:
    """The notes of one queue.

    Args:
        folder: path of the folder for the notes, which the first note creates.
        umask: umask of that folder and of the notes; None means that of the process.
    """

    def __init__(self, folder: str, umask: int | None = None) -> None:
        self._folder = folder
        self._umask = umask
        self._next_tidy: datetime | None = None

    def path(self, key: str) -> str:
        """Return the path of a job's note."""
        return f"{self._folder}/{key}"

    def read(self, key: str) -> dict[str, Any]:
        """Return the note of a job; empty if there is none, or if jqueue has not written it.

        Raises:
            OSError: the disk failed, or too many files are open. A change made without the note would lose its fields.
        """
        try:
            with open(self.path(key), "rb", buffering=0) as file:
                return dict(_decode(file.readall()))
        except (*_NO_NOTE, msgspec.MsgspecError, UnicodeDecodeError):
            return {}

    def write(self, key: str, note: Mapping[str, Any], job: str, *, sync: bool = False) -> None:
        """Replace the note of a job. If this process dies, the job has either the old note or the new one.

        Args:
            key: key of the job.
            note: the new note. Fields that are None or 0 are left out.
            job: path of the job's file or folder.
            sync: True if the note must be on the disk when this returns. Its name is so after a `flush` of the folder.

        Raises:
            FileNotFoundError: the job is not there. Another program has renamed it, and may have written another note.
        """
        content = msgspec.json.encode({name: value for name, value in note.items() if value})
        part = f"{self.path(key)}.{os.getpid()}-{threading.get_ident()}.part"  # no other writer uses this name
        try:
            if not os.path.isdir(self._folder):
                with suppress(FileExistsError):
                    os.mkdir(self._folder)  # not the folder of a queue that has disappeared
                if self._umask is not None:
                    os.chmod(self._folder, 0o777 & ~self._umask)
            with closing(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)) as descriptor:
                if self._umask is not None:
                    os.fchmod(descriptor, 0o666 & ~self._umask)
                write_all(descriptor, content)
                if sync:
                    os.fsync(descriptor)
            os.stat(job)
            os.rename(part, self.path(key))
        except OSError:
            with suppress(OSError):
                os.unlink(part)
            raise

    def remove(self, key: str) -> None:
        """Remove the note of a job, if it has one."""
        with suppress(OSError):  # it is tidied later
            os.unlink(self.path(key))

    def tidy(self, keys: Callable[[], Set[str]], now: datetime) -> None:
        """Remove old notes of jobs that are gone, unless this was done within the last hour.

        Args:
            keys: lists the keys of all jobs, and of those being written.
            now: the time.
        """
        if self._next_tidy is not None and now < self._next_tidy:
            return
        self._next_tidy = now + ABANDONED
        with suppress(OSError):
            leftovers = {name: name.partition(".")[0] for name in os.listdir(self._folder) if self._is_old(name, now)}
            for _ in range(LISTINGS if leftovers else 0):
                present = keys()
                leftovers = {name: key for name, key in leftovers.items() if key not in present or name != key}
            for name in leftovers:
                if self._is_old(name, now):
                    self.remove(name)

    def _is_old(self, name: str, now: datetime) -> bool:
        try:
            return os.stat(self.path(name)).st_mtime < (now - ABANDONED).timestamp()
        except FileNotFoundError:
            return False


class AckedJobs:
    """Jobs that any process of jqueue has acked recently: a file beside the queue, with a line for each.

    Args:
        path: path of that file, in a folder that is there once a job was acked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, int] = {}
        self._read: tuple[int, int] = (0, 0)

    def may_have_changed(self) -> bool:
        """Return True if the file has changed since it was last read."""
        return self._state() != self._read

    def remember(self, acked: Iterable[tuple[str, int]]) -> None:
        """Add jobs, each with the attempt that acked it. One write, so that lines of several processes do not mix."""
        lines = "".join(f"{job_id} {attempt}\n" for job_id, attempt in acked)
        if not lines:
            return
        with open(self._path, "ab", buffering=0) as file:
            file.write(lines.encode("utf-8", "replace"))
            size = file.tell()
        if size > ACKED_BYTES:
            part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")  # another process may do the same now
            kept = (f"{job_id} {attempt}\n" for job_id, attempt in self.read().items())
            part.write_text("".join(kept), encoding="utf-8", errors="replace")
            part.replace(self._path)

    def read(self) -> dict[str, int]:
        """Return the last `ACKED_KEPT` acks: job ids, each with the attempt that acked it."""
        state = self._state()
        if state != self._read:
            try:
                lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
            except FileNotFoundError:
                lines = []
            pairs = (line.rpartition(" ") for line in lines[-ACKED_KEPT:])
            self._known = {job_id: int(attempt) for job_id, _, attempt in pairs if attempt.isdecimal()}
            self._read = state
        return self._known

    def _state(self) -> tuple[int, int]:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return 0, 0
        return status.st_ino, status.st_size


def flush(folder: str) -> None:
    """Sync the names in a folder to the disk. A folder that no longer exists needs no sync."""
    with suppress(FileNotFoundError), closing(open_folder(folder)) as descriptor:
        flush_folder(descriptor)


_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None


def rename_exclusively(old: str, new: str) -> None:
    """Rename a file, unless another file has the new name.

    On Linux this is one step of the file system. Where there is no such step, the new name is checked first. A file
    that gets the new name right after the check is replaced, so callers must reserve new names.

    Raises:
        FileNotFoundError: the file was renamed or removed meanwhile.
        FileExistsError: another file has the new name.
        OSError: the rename failed.
    """
    if _renameat2 is not None:
        here, no_replace = -100, 1
        if _renameat2(here, os.fsencode(old), here, os.fsencode(new), ctypes.c_uint(no_replace)) == 0:
            return
        number = ctypes.get_errno()
        if number not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):  # this system or disk has no such step
            raise OSError(number, os.strerror(number), old, None, new)
    if os.path.lexists(new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), old, None, new)
    os.rename(old, new)
