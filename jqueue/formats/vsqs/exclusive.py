"""A rename that never replaces what has the new name already."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable

_AT_FDCWD = -100
_NO_REPLACE = 1
_UNKNOWN = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""What a kernel, or a file system, says that cannot do it in one step."""


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
    """Give a file another name, if no file has that.

    One step of the file system where it knows such a step, as those of Linux do. Elsewhere it is looked first, and
    a file that gets the name in that very moment is replaced: whoever makes names must reserve them.

    Args:
        old: its path.
        new: its path from then on, in the same file system.

    Raises:
        FileNotFoundError: it has another name by now, or none.
        FileExistsError: there is a file of the new name.
        OSError: it could not be done.
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
