"""Syncs that a program on an older queue must do itself for its jobs to survive a power failure."""

from __future__ import annotations

import os


def sync(*paths: str | os.PathLike[str]) -> None:
    """Flush files, or the names in folders, to the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
