"""What only the older formats need: signatures of files, exclusive renames, flushes of names, outcomes of steps."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from jqueue.domain.errors import InvalidJobError, StorageError
from jqueue.formats.port import JobChangedError
from jqueue.runtime.posix_files import closing, flush_folder, open_folder

Result = TypeVar("Result")

_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None


def signature_of(status: os.stat_result) -> tuple[int, ...]:
    """Return a value that changes with the content of a file."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def flush_names(folder: str) -> None:
    """Sync the names in a folder to the disk. A folder that no longer exists needs no sync."""
    with suppress(FileNotFoundError), closing(open_folder(folder)) as descriptor:
        flush_folder(descriptor)


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


def result_or_error(work: Callable[..., Result], *arguments: Any) -> Result | Exception:
    """Return the result of a step, or its error: `JobChangedError` if the job's file is gone, or a name was taken."""
    try:
        return work(*arguments)
    except (FileNotFoundError, FileExistsError, NotADirectoryError, JobChangedError):
        return JobChangedError()
    except (OSError, InvalidJobError, StorageError) as error:
        return error
