"""A file that is kept open: while it is open, no other file can get its inode and be taken for it."""

from __future__ import annotations

import os
from contextlib import suppress

from jqueue.runtime.posix_files import open_file


class OpenFile:
    """An open file, closed when its last reference is gone.

    Args:
        path: path of a regular file.
        flags: flags of `os.open`.
        mode: mode of the file, if this call creates it.

    Attributes:
        number: file descriptor.
        status: result of `os.fstat` when the file was opened.

    Raises:
        StorageFatalError: the path is not a regular file.
        OSError: the system refused.
    """

    def __init__(self, path: str, flags: int, mode: int = 0o600) -> None:
        self.number, self.status = open_file(path, flags, mode)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self.number)

    def is_at(self, status: os.stat_result | None) -> bool:
        """Return True if this is the status of the open file, and not of another file or of none."""
        return status is not None and os.path.samestat(status, self.status)

    def read_from(self, begin: int) -> bytearray:
        """Return the content from an offset to the end."""
        content = bytearray(max(0, os.fstat(self.number).st_size - begin) + 1)  # one more, to see the end
        read = 0
        while count := os.preadv(self.number, [memoryview(content)[read:]], begin + read):
            read += count
            if read == len(content):
                content.extend(bytes(len(content)))
        del content[read:]
        return content
