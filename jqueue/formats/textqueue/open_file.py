"""A file that is kept open: as long as it is, no other one can be taken for it."""

from __future__ import annotations

import os
from contextlib import suppress

from jqueue.runtime.posix_files import open_file


class OpenFile:
    """An open file, closed when nobody uses it any more.

    Args:
        path: of a regular file.
        flags: those of `os.open`.
        mode: that of the file, if this creates it.

    Attributes:
        number: the descriptor.
        status: what the system knew of it when it was opened.

    Raises:
        StorageFatalError: there is something else than a regular file.
        OSError: the system refused.
    """

    def __init__(self, path: str, flags: int, mode: int = 0o600) -> None:
        self.number, self.status = open_file(path, flags, mode)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self.number)

    def is_at(self, status: os.stat_result | None) -> bool:
        """Whether that is what the system says of this file, and not of another."""
        return status is not None and os.path.samestat(status, self.status)

    def read_from(self, begin: int) -> bytearray:
        """What there is, from an offset to the end."""
        content = bytearray(max(0, os.fstat(self.number).st_size - begin) + 1)  # one more: less than all of it is all
        read = 0
        while count := os.preadv(self.number, [memoryview(content)[read:]], begin + read):
            read += count
            if read == len(content):
                content.extend(bytes(len(content)))
        del content[read:]
        return content
