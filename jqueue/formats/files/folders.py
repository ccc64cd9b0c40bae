"""Folder operations that vsqs and dirq share: remember the last acks, and sync a folder to the disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

ACKED_KEPT, ACKED_BYTES = 1_000, 200_000
"""Number of acks to remember, and size in bytes above which their file is cut down to them."""


class AckedJobs:
    """Jobs that any process of jqueue has acked recently: a file beside the queue, with a line for each.

    Args:
        path: path of that file.
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
        for _ in range(2):
            try:
                descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
                break
            except FileNotFoundError:
                self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.write(descriptor, lines.encode("utf-8", "replace"))
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        if size > ACKED_BYTES:
            self._shorten()

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

    def _shorten(self) -> None:
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")  # another process may do the same now
        lines = [f"{job_id} {attempt}\n" for job_id, attempt in self.read().items()]
        part.write_text("".join(lines), encoding="utf-8", errors="replace")
        part.replace(self._path)

    def _state(self) -> tuple[int, int]:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return 0, 0
        return found.st_ino, found.st_size


def flush(folder: str) -> None:
    """Sync the names in a folder to the disk. A folder that no longer exists needs no sync."""
    with suppress(FileNotFoundError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
