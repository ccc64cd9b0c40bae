"""`TextQueueFile`: a queue in a text file that people may edit by hand; docs/reference/formats.md describes the format.

    -queued
    =processed
    !failed for good
    # a comment

Programs that know only the format can read, mark and append while jqueue works. jqueue appends whole messages, several
of them in one write. It changes the first byte of a message in place, and never moves a message. Processes of jqueue
exclude each other by a lock on a file beside. Fields that the format cannot hold are in a journal beside, or in a
comment before the message.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from jqueue.domain.errors import StorageError, StorageFatalError
from jqueue.domain.job import JobRecord
from jqueue.formats.capabilities import OF_ALL
from jqueue.formats.port import Change, JobChangedError, Outcome, Step, StoredJob
from jqueue.formats.textqueue.changes import Batch
from jqueue.formats.textqueue.journal import OpenFile
from jqueue.formats.textqueue.view import TextView
from jqueue.runtime.file_lock import FileLock, has_file_locks
from jqueue.runtime.posix_files import as_storage_error, create_folder, file_status, flush
from jqueue.runtime.system import SystemClock, SystemEntropy, forks

CAPABILITIES = replace(OF_ALL, job_ids=True)

LOCK_TIMEOUT = 10.0
"""Seconds that a change waits for the lock, while other processes hold it."""


class TextQueueFile:
    """A TextQueue as a store of jobs.

    Args:
        path: path of the file, which the first job creates. A relative path is resolved now.
        entrypoint: entrypoint of messages that name none; by default the name of the file without its suffix.

    Raises:
        StorageFatalError: this system has no POSIX file locks (Windows).
    """

    capabilities = CAPABILITIES
    claims_expire_by_clock = False

    def __init__(self, path: str | os.PathLike[str], *, entrypoint: str | None = None) -> None:
        if not has_file_locks():
            raise StorageFatalError(
                "a TextQueue needs POSIX file locks, which this system (Windows?) does not have: use WSL"
            )
        self.path = Path(path)
        self.entrypoint = entrypoint or self.path.stem
        self._file = str(self.path.absolute())
        self._folder, name = os.path.split(self._file)
        journal = os.path.join(self._folder, f".{name}.jq")
        self._view = TextView(self._file, journal, self.entrypoint)
        self._lock = FileLock(f"{journal}.lock", LOCK_TIMEOUT, SystemEntropy())
        self._read_after = forks()
        self._unflushed = False

    def __repr__(self) -> str:
        return f"TextQueueFile({str(self.path)!r})"

    @property
    def name(self) -> str:
        """Absolute path of the file."""
        return self._file

    def watched(self) -> tuple[Path, ...]:
        """Return the folder of the file, where changes of the file and of its journal are seen."""
        return (Path(self._folder),)

    def store_time(self) -> datetime:
        """Return the time of this machine's clock, in UTC, which all users of the file share."""
        return SystemClock().now()

    def exists(self) -> bool:
        """Return True if the file exists."""
        return os.path.exists(self._file)

    def may_have_changed(self) -> bool:
        """Return True if the file or the journal may have changed since the last scan."""
        return self._read_after != forks() or self._view.may_have_changed()

    def scan(self, now: datetime) -> list[StoredJob]:
        """Return every message that is queued, claimed or dead."""
        self._reset_after_fork()
        try:
            if self._unflushed:
                self._flush_again()
            self._view.read(now)
            if self._view.ended_claims():
                self._write_ended_claims(now)
        except OSError as error:
            raise as_storage_error(error, "read the queue file", self._file) from error
        return self._view.jobs()

    def _write_ended_claims(self, now: datetime) -> None:
        """Write into the journal which claims other programs have ended: their marks may be gone at the next scan."""
        with suppress(StorageError):  # if that fails, this process still knows the marks that it has seen
            self._change((), now)
        self._view.read(now)

    def payloads(self, jobs: Sequence[StoredJob]) -> list[JobRecord]:
        """Return these jobs with their payloads, without the jobs that are no longer in the file."""
        records = self._view.records
        found = [(job, records.by_id.get(job.id)) for job, _ in jobs]
        return [job.evolve(payload=records.payload(record)) for job, record in found if record is not None]

    def finished(self) -> dict[str, int]:
        """Return processed messages with their attempts: all that carry an id, and the recent ones of the others."""
        return self._view.finished()

    def carry_out(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Make each change by itself, with common writes for all of them."""
        if not changes:
            return []
        self._reset_after_fork()
        return self._change(changes, now)

    def _change(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        try:
            if any(change.step is Step.ADD for change in changes):
                create_folder(self._folder)
            elif not self._view.existed and not self.exists():
                return [JobChangedError() for _ in changes]
            with self._lock.acquire() as lock:
                if (status := file_status(self._file)) is not None:
                    lock.give_to_owner_of(status)
                return Batch(self._view, now).carry_out(changes)
        except OSError as error:
            self.close_files()
            self._unflushed = True
            raise as_storage_error(error, "change the queue file", self._file) from error
        except StorageError:
            self._view.forget()
            raise

    def _flush_again(self) -> None:
        """Sync the files after a failed change: what it wrote must be on the disk before it is read as done."""
        for path in (self._file, self._view.journal.path):
            with suppress(FileNotFoundError):
                file = OpenFile(path, os.O_RDONLY)
                flush(file.number)
        self._unflushed = False

    def close_files(self) -> None:
        """Close the file and the journal, and forget their content."""
        self._view.forget()
        self._view.journal.forget()

    def _reset_after_fork(self) -> None:
        """Forget everything after a fork, as the parent may have been in the middle of a read."""
        if self._read_after != forks():
            self._read_after = forks()
            self.close_files()
