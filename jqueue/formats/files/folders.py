"""What the formats that keep a file or a folder for each job have in common: times, notes as jobs, listings, acks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from jqueue.domain.fields import NO_HEADERS, FrozenHeaders
from jqueue.domain.models import Job, trusted_job

ACKED_KEPT, ACKED_BYTES = 1_000, 200_000
"""So many acks are remembered, in a file that is rewritten when it is so large."""

SURE = 0.05
"""Seconds after which a time that has not moved says that nothing has changed: file systems count time in ticks."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PLAIN = dict(Job(id="-", entrypoint="-", payload=b"", created_at=_EPOCH).__dict__)


def microseconds(moment: datetime) -> int:
    """A moment as microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(number: int) -> datetime:
    """The moment so many microseconds after 1970; the last one that there is, if that is too late."""
    try:
        return _EPOCH + number * _MICROSECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def job_of(note: Mapping[str, Any], **values: Any) -> Job:
    """A job: what the note of its file says, then what its place says. Both are known to have the right types.

    Args:
        note: entrypoint, attempt, failures, max_attempts, headers, error, as far as there are any.
        values: the fields that the place decides, `id` and `entrypoint` (the default) among them.
    """
    job = {**_PLAIN, **values}
    if note:
        job["entrypoint"] = note.get("entrypoint", job["entrypoint"])
        for name in ("attempt", "failures", "max_attempts", "error"):
            if name in note and name not in values:
                job[name] = note[name]
        if note.get("headers"):
            job["headers"] = FrozenHeaders(note["headers"])
    return trusted_job(job)


def note_of(job: Job, entrypoint: str, *, headers: bool) -> dict[str, Any]:
    """What a note has to say of a new job; nothing, if it is like those that the format's own programs add.

    Args:
        job: the job.
        entrypoint: that of jobs without a note.
        headers: whether the note keeps them, as the format has no place for them.
    """
    if job.entrypoint == entrypoint and job.max_attempts is None and not (headers and job.headers):
        return {}
    said = {
        "entrypoint": None if job.entrypoint == entrypoint else job.entrypoint,
        "headers": dict(job.headers) if headers and job.headers else None,
        "max_attempts": job.max_attempts,
    }
    return {name: value for name, value in said.items() if value is not None}


def arrived(job: Job) -> dict[str, Any]:
    """What the note of a job says that comes from another queue: by what it is known, and what has become of it."""
    said = {
        "id": job.id,
        "created": microseconds(job.created_at),
        "attempt": job.attempt,
        "failures": job.failures,
        "error": job.error,
        "dead_at": None if job.dead_at is None else microseconds(job.dead_at),
    }
    return {name: value for name, value in said.items() if value}


_KINDS: dict[str, type] = {
    **dict.fromkeys(("id", "entrypoint", "error", "from", "to"), str),
    **dict.fromkeys(("attempt", "failures", "max_attempts", "token", "next", "dead_at", "created"), int),
}


def checked(note: dict[str, Any]) -> dict[str, Any]:
    """A note that may have been written by anybody, without what is not of its type."""
    found = {name: value for name, value in note.items() if value.__class__ is _KINDS.get(name)}
    timeout, headers = note.get("timeout"), note.get("headers")
    if isinstance(timeout, (int, float)):
        found["timeout"] = float(timeout)
    if isinstance(headers, dict) and all(isinstance(text, str) for text in headers.values()):
        found["headers"] = headers
    return found


class Listing:
    """The names in a folder, read again only when they may have changed.

    A list is trusted if the folder had the same time a moment before the list was made as after it, so that no change
    can hide in the same tick. No clock is compared with that of the file system.

    Attributes:
        names: as they were found.
        missing: whether there is no such folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.names: tuple[str, ...] = ()
        self.missing = True
        self._time: int | None = None
        self._since = 0.0
        self._sure = False

    def has_moved(self) -> bool:
        """Whether it may have changed since it was read."""
        return not self._sure or self._modified() != self._time

    def read(self, now: float) -> bool:
        """Read it if it may have changed. Returns whether it was read.

        Args:
            now: seconds, of which only differences count.
        """
        modified = self._modified()
        if modified != self._time or self._time is None:
            self._time, self._since, self._sure = modified, now, False
        elif self._sure:
            return False
        else:
            self._sure = not 0 <= now - self._since < SURE
        try:
            self.names, self.missing = tuple(os.listdir(self.path)), False
        except FileNotFoundError:
            self.names, self.missing = (), True
        return True

    def _modified(self) -> int:
        try:
            return os.stat(self.path).st_mtime_ns
        except FileNotFoundError:
            return 0


class AckedJobs:
    """The jobs that jqueue has acked of late, by any process: a line for each, in a file beside the queue.

    Args:
        path: of that file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, int] = {}
        self._read: tuple[int, int] = (0, 0)

    def has_moved(self) -> bool:
        """Whether there are others than those that were read last."""
        return self._state() != self._read

    def remember(self, acked: Iterable[tuple[str, int]]) -> None:
        """Add jobs, each with the attempt that finished it. One write: lines of several processes do not mix."""
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
        """The last of them."""
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
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")  # another process may be at it, too
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
    """See to it that the names in a folder are on the disk. One that has been removed needs no more of it."""
    with suppress(FileNotFoundError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


__all__ = [
    "NO_HEADERS",
    "AckedJobs",
    "FrozenHeaders",
    "Listing",
    "checked",
    "flush",
    "job_of",
    "microseconds",
    "moment",
    "note_of",
]
