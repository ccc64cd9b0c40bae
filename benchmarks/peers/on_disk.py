"""What a program that uses an older queue does itself, if its jobs are to outlive a failure of the power."""

from __future__ import annotations

import os


def sync(*paths: str | os.PathLike[str]) -> None:
    """See to it that files, or the names in folders, are on the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
