"""The folder of a queue: the file, its sidecar, and at moments a temporary file. Nothing else may be there or grow."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jqueue import JQueueError, QueueState
from jqueue.core.blob.codec import decode
from tests.kill.ledger import ViolationError

NAME = "queue.json"
LOCK = f"{NAME}.lock"
SEGMENTS = f"{NAME}.segments"
LARGEST_SIDECAR = 256
_TEMPORARY = re.compile(rf"\.{re.escape(NAME)}\.[\w-]+\.tmp")


class Folder:
    """One folder.

    Args:
        path: the folder. It need not exist yet.
        segments: True if the queue has segments, in a folder of their own.
    """

    def __init__(self, path: Path, *, segments: bool = False) -> None:
        self.path = path
        self._known = {NAME, LOCK, SEGMENTS} if segments else {NAME, LOCK}
        self.file = path / NAME

    def state(self) -> QueueState | None:
        """Return the state in the file as a new process reads it, or None if there is no file.

        Raises:
            ViolationError: the file cannot be read.
        """
        try:
            content = self.file.read_bytes()
        except FileNotFoundError:
            return None
        if not content:
            raise ViolationError("the file is empty")
        try:
            return decode(content)
        except JQueueError as error:
            raise ViolationError(f"the file cannot be read ({len(content)} bytes): {error}") from error

    def temporaries(self, most: int) -> set[str]:
        """Return the names of the temporary files, of which there may be `most`.

        Raises:
            ViolationError: there are more, there are other files, or the sidecar has grown.
        """
        names = set(os.listdir(self.path)) if self.path.exists() else set()
        found = {name for name in names if _TEMPORARY.fullmatch(name)}
        if unknown := names - found - self._known:
            raise ViolationError(f"something was left beside the file: {', '.join(sorted(unknown))}")
        if len(found) > most:
            raise ViolationError(f"{len(found)} temporary files lie beside the file; there may be {most}")
        if LOCK in names and (size := (self.path / LOCK).stat().st_size) > LARGEST_SIDECAR:
            raise ViolationError(f"the sidecar has grown to {size} bytes")
        return found

    @contextmanager
    def locked(self, wait: bool) -> Iterator[None]:
        """Hold the lock of the writers, so that no living process is writing in the folder.

        Args:
            wait: True if there are living writers to wait for.

        Raises:
            ViolationError: the lock is held although no writer is alive.
        """
        if not (self.path / LOCK).exists():
            yield
            return
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield
        except BlockingIOError:
            raise ViolationError("the lock is held, and nobody is alive to hold it") from None
        finally:
            os.close(descriptor)
