"""A rename that never replaces a file that already has the new name."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable

_AT_FDCWD = -100
_NO_REPLACE = 1
_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of kernels and file systems that cannot rename exclusively in one step."""


def _renameat2() -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return call


_call = _renameat2()


def rename_exclusively(old: str, new: str) -> None:
    """Rename a file, unless another file has the new name.

    On Linux this is one step of the file system. Where there is no such step, the new name is checked first. A file
    that gets the new name right after the check is replaced, so callers must reserve new names.

    Args:
        old: current path of the file.
        new: new path, in the same file system.

    Raises:
        FileNotFoundError: the file was renamed or removed meanwhile.
        FileExistsError: another file has the new name.
        OSError: the rename failed.
    """
    if _call is not None:
        if _call(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), _NO_REPLACE) == 0:
            return
        number = ctypes.get_errno()
        if number not in _UNKNOWN:
            raise OSError(number, os.strerror(number), old, None, new)
    if os.path.lexists(new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), old, None, new)
    os.rename(old, new)
