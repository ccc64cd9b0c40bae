"""`TextQueueFile`: a queue in a text file that people may edit by hand; docs/reference/formats.md describes the format.

    -queued
    =processed
    !failed for good
    # a comment

Programs that know only the format can read, mark and append while jqueue works. jqueue appends whole messages, several
of them in one write. It changes the first byte of a message in place, and never moves a message. Processes of jqueue
exclude each other by a lock on a file beside. Fields that the format cannot hold are in a journal beside, or in a
comment before the message.

Each change takes effect by one write: the append of a message, its first byte, or its line in the journal. If both a
byte and a line change, the byte is written first: if the process dies in between, it overrules the journal's old line.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from jqueue.domain.draft import LARGEST_SEQUENCE
from jqueue.domain.errors import StorageError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.formats.files import flush_names, signature_of
from jqueue.formats.job_files import JobFiles
from jqueue.formats.journal import NO_STATE, Journal, State
from jqueue.formats.port import OF_ALL, Change, JobChangedError, Outcome, Step, StoredJob, microseconds, moment
from jqueue.formats.textqueue.records import COMMENT, FAILED, NOTE, PROCESSED, QUEUED, Note, Record, Records, written
from jqueue.ports.queue import Capabilities
from jqueue.runtime.posix_files import (
    as_storage_error,
    closing,
    create_folder,
    file_status,
    flush,
    open_file,
    read_all,
    write_all,
)
from jqueue.runtime.system import SystemClock, process_id

PLACES_PER_BYTE = 1 << 12
"""Number of places for each byte of the file.

The place of a message follows from the offset of its first byte. The places between two bytes are for messages that are
put to the back later.
"""

_SURE = 50_000
"""Microseconds after which an unchanged file time is trusted: two changes may fall into one tick of the file system."""

_SKEW = 60_000_000
"""Microseconds ahead of the clock from which the time of a file is ignored: it is not of this machine's clock."""

_ALIVE = (QUEUED, FAILED)
"""First bytes of messages that are jobs."""

_CHECKED = ("status", "attempt", "heartbeat_at", "entrypoint", "headers", "max_attempts")
"""Fields of a job that must still be as they were last seen when the job is changed."""


class TextQueueFile(JobFiles):
    """A TextQueue as a store of jobs.

    Args:
        path: path of the file, which the first job creates. A relative path is resolved now.
        entrypoint: entrypoint of messages that name none; by default the name of the file without its suffix.

    Raises:
        StorageFatalError: this system has no POSIX file locks (Windows).
    """

    capabilities: Capabilities = replace(OF_ALL, job_ids=True)

    def __init__(self, path: str | os.PathLike[str], *, entrypoint: str | None = None) -> None:
        super().__init__(path, entrypoint or Path(path).stem)
        self._folder, name = os.path.split(self.name)
        self._journal_path = os.path.join(self._folder, f".{name}.jq")
        self._unflushed = self._wrote = False
        self._forget()

    def watched(self) -> tuple[Path, ...]:
        """Return the folder of the file, where changes of the file and of its journal are seen."""
        return (self.path.parent,)

    def store_time(self) -> datetime:
        """Return the time of this machine's clock, in UTC, which all users of the file share."""
        return SystemClock().now()

    # Reading

    def _forget(self) -> None:
        self._process = process_id()
        self._records, self._journal = Records(), Journal(self._journal_path, self.name, self._present)
        self._read_at: tuple[Any, ...] | None = None  # signature of the files as they were read, if it is sure
        self._status: os.stat_result | None = None  # of the file as it was read

    def _present(self) -> set[str]:
        return {job_id for job_id, record in self._records.by_id.items() if record.control in _ALIVE}

    def _signature(self) -> tuple[Any, ...]:
        """Return a value that changes with the file and with the journal."""
        status = file_status(self.name)
        return status and signature_of(status), self._journal.signature()

    def may_have_changed(self) -> bool:
        """Return True if the file or the journal may have changed since the last scan."""
        return self._read_at is None or self._signature() != self._read_at

    def _read(self, now: datetime) -> None:
        """Read the file and the journal.

        Raises:
            BlobMissingError: the file was there, and is gone.
            OSError: the system refused.
        """
        signature = self._signature()
        if signature == self._read_at:
            return
        self._journal.read()  # before the file, or a message finished in between would look unclaimed
        try:
            descriptor, self._status = open_file(self.name, os.O_RDONLY)
        except FileNotFoundError:
            self._check_new()
            self._read_at = signature
            return
        with closing(descriptor):
            data = bytearray(read_all(descriptor, self._status.st_size))
        modified, time = self._status.st_mtime_ns // 1000, microseconds(now)
        self._records.update(data, min(modified, time))
        self._was_there = True
        self._read_at = None if -_SKEW < time - modified < _SURE else signature

    def scan(self, now: datetime) -> list[StoredJob]:
        """Return every message that is queued, claimed or dead. Messages of other programs have no payload here."""
        if self._process != process_id():  # the parent may have been reading
            self._forget()
        try:
            if self._unflushed:  # what a failed change wrote must be on the disk before it is read as done
                for path in (self.name, self._journal_path):
                    with suppress(FileNotFoundError), closing(open_file(path, os.O_RDONLY)[0]) as descriptor:
                        flush(descriptor)
                self._unflushed = False
            self._read(now)
            if self._ended_claims():  # the marks that ended them may be gone at the next scan
                with suppress(StorageError):
                    self.carry_out((), now)
                self._read(now)
        except OSError as error:
            raise as_storage_error(error, "read the queue file", self.name) from error
        records = self._records
        alive = [record for record in records.by_id.values() if record.control in _ALIVE]
        return [self._job(record) for record in alive if record is not records.last or not records.is_torn(record)]

    def _ended_claims(self) -> dict[str, State]:
        """Return the new states, by id, of claimed messages whose claim another program has ended by its mark.

        A claimed message that is missing stays claimed: an editor may be writing the file.
        """
        ended = {}
        for job_id, state in self._journal.states.items():
            record = None if state.heartbeat is None else self._records.by_id.get(job_id)
            if record is not None and record.control == PROCESSED:
                ended[job_id] = State(attempt=state.attempt, finished=True)
            elif record is not None and record.control != QUEUED:
                dead_at = state.heartbeat if record.control == FAILED else None
                ended[job_id] = replace(state, heartbeat=None, timeout=None, dead_at=dead_at)
        return ended

    def _job(self, record: Record) -> StoredJob:
        """Return a message as a job. It has its payload only if the message has a note."""
        state, settles_at = self._journal.states.get(record.id, NO_STATE), self._records.settles_at(record)
        key = record.control, state, settles_at
        last_key, stored = record.job
        if last_key == key:
            return stored  # type: ignore[no-any-return]
        note, place, is_dead = record.note or Note(""), state.order, record.control == FAILED
        if place is None or place > (len(self._records.data) + 1) * PLACES_PER_BYTE:  # it was truncated since
            place = _place_of(record)
        claim = None if is_dead or state.heartbeat is None else (moment(state.heartbeat), state.timeout, True)
        redone = state.dead_at is not None and not is_dead  # it was marked as queued again by hand
        state = replace(
            state,
            entrypoint=note.ep,
            headers=note.h,
            max_attempts=note.max,
            failures=0 if redone else state.failures,
            due=settles_at if claim is None and not is_dead else None,
            dead_at=state.dead_at or state.heartbeat,
        )
        created = record.seen_at if note.t is None else note.t
        job = state.job(record.id, self.entrypoint, created, place, is_dead, claim)
        if record.note is not None:
            job = job.evolve(payload=self._records.payload(record))
        if record.variables:
            lines = [line.decode("utf-8", "backslashreplace") for line in record.variables]
            job = job.evolve(extra={"variables": lines})
        record.job = key, StoredJob(job, record.id)
        return record.job[1]  # type: ignore[no-any-return]

    def payloads(self, jobs: Sequence[StoredJob]) -> list[JobRecord]:
        """Return these jobs with their payloads, without the jobs that are no longer in the file."""
        pairs = [(job, self._records.by_id.get(job.id)) for job, _ in jobs]
        return [job.evolve(payload=self._records.payload(record)) for job, record in pairs if record is not None]

    def finished(self) -> dict[str, int]:
        """Return processed messages with their attempts: all that have a note, and the recent ones of the others."""
        states, records = self._journal.states, self._records.by_id
        processed = {
            job_id: 0 for job_id, each in records.items() if each.control == PROCESSED and each.note is not None
        }
        return processed | {
            job_id: state.attempt
            for job_id, state in states.items()
            if state.finished or (job_id in records and records[job_id].control == PROCESSED)
        }

    # Changing

    def carry_out(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Make each change by itself: one append, a byte for each message, and one write of the journal."""
        new = [change.new for change in changes if change.step is Step.ADD]
        try:
            if not self._was_there and not self.exists():
                if not new:
                    return [JobChangedError() for _ in changes]
                create_folder(self._folder)
                os.close(open_file(self.name, os.O_WRONLY | os.O_CREAT, 0o666)[0])
                flush_names(self._folder)
                self._was_there = True
            with self._journal.locked():
                self._read_at, self._wrote = None, False
                self._read(now)
                assert self._status is not None
                with closing(self._opened(os.O_RDWR, self._status)) as file:
                    return self._write(changes, new, file, now)
        except OSError as error:
            self._unflushed = True
            raise as_storage_error(error, "change the queue file", self.name) from error

    def _opened(self, flags: int, expected: os.stat_result) -> int:
        """Open the file.

        Raises:
            StorageError: another file has taken its place.
        """
        file, status = open_file(self.name, flags)
        if not os.path.samestat(status, expected):
            os.close(file)
            raise StorageError(f"{self.name!r} was replaced during a change, which must be made in the new file")
        return file

    def _write(self, changes: Sequence[Change], new: Sequence[JobRecord], file: int, now: datetime) -> list[Outcome]:
        """Make changes under the lock.

        Raises:
            OSError: the system refused. It is not known which changes were made.
            StorageError: another file has taken the place of this one.
        """
        added, refusal = set[str](), None
        try:
            added = self._append(new, file, now) if new else added
        except (JobChangedError, BlockingIOError) as error:
            refusal = error
        states = self._ended_claims()  # otherwise a message that is marked as queued would still be claimed
        outcomes: list[Outcome] = []
        for change in changes:
            try:
                outcomes.append(self._make(change, added, states, file))
            except JobChangedError as changed:
                outcomes.append(changed if change.before is not None or refusal is None else refusal)
        if self._wrote:
            with closing(self._opened(os.O_RDWR, os.fstat(file))) as still_there:
                flush(still_there)
        self._journal.append(states, now, durable=not all(state.finished for state in states.values()))
        return outcomes

    def _append(self, jobs: Sequence[JobRecord], file: int, now: datetime) -> set[str]:
        """Append new messages by one write, and return their ids.

        Raises:
            JobChangedError: the last message has changed since it was read.
            BlockingIOError: another program is still writing the last message.
        """
        records, last = self._records, self._records.last
        if last is not None and last.control in _ALIVE and records.is_torn(last):
            self._flip(last, COMMENT, file)  # its writer died before it told the caller
        elif last is not None and not records.ends_a_line and (records.settles_at(last) or 0) > microseconds(now):
            raise BlockingIOError(errno.EAGAIN, "another program is writing a line at the end of the queue file")
        block = b"" if records.ends_a_line else b"\n"
        if records.ends_with_note:
            block += b"\n"  # otherwise the note would be taken for that of the next message
        added = {job.id: written(job) for job in jobs if not records.has_message(job.id)}
        if added:
            with closing(self._opened(os.O_WRONLY | os.O_APPEND, os.fstat(file))) as end:
                self._wrote = True
                write_all(end, block + b"".join(added.values()))
            self._read(now)  # another program may have appended as well
        return set(added)

    def _make(self, change: Change, added: set[str], states: dict[str, State], file: int) -> StoredJob:
        """Write the byte of a change, and add the new state of its message to `states`.

        Raises:
            JobChangedError: the message has changed since it was last seen, or was not appended.
        """
        record, job, state = self._records.by_id.get(change.job_id), change.after, NO_STATE
        if record is None or record.control not in _ALIVE or (change.before is None and record.id not in added):
            raise JobChangedError
        payload = self._records.payload(record)
        if change.before is not None:
            state, current = self._journal.states.get(record.id, NO_STATE), self._job(record).job
            if any(getattr(current, name) != getattr(change.before, name) for name in _CHECKED):
                raise JobChangedError
        if job is None:
            # As a comment the message can be restored by hand. But a text like a note would be taken for a note.
            is_processed = change.acked or self._records.text(record).startswith(NOTE)
            self._flip(record, PROCESSED if is_processed else COMMENT, file)
            if change.acked:
                states[record.id] = State(attempt=change.old.attempt, finished=True)
            return StoredJob(change.old.evolve(payload=payload), "")
        control = FAILED if job.status is JobStatus.DEAD else QUEUED
        if record.control != control:
            self._flip(record, control, file)
        order = state.order if change.before is None or job.sequence == change.before.sequence else self._next_order()
        states[record.id] = State(
            attempt=job.attempt,
            failures=job.failures,
            heartbeat=None if job.heartbeat_at is None else microseconds(job.heartbeat_at),
            timeout=job.claim_timeout,
            order=order,
            error=job.error,
            dead_at=None if job.dead_at is None else microseconds(job.dead_at),
        )
        return StoredJob(job.evolve(payload=payload, sequence=order or _place_of(record), run_at=None), record.id)

    def _next_order(self) -> int:
        """Return a place behind every message in the file, and before every message appended later."""
        first, following = len(self._records.data) * PLACES_PER_BYTE, self._journal.last_order + 1
        order = first if following >= first + PLACES_PER_BYTE - 1 else max(first, following)
        self._journal.last_order = order
        return order

    def _flip(self, record: Record, control: int, file: int) -> None:
        """Change the first byte of a message.

        Raises:
            JobChangedError: the bytes of the message have changed in the file.
        """
        data = self._records.data
        expected = data[record.offset : record.end]
        if os.pread(file, len(expected), record.offset) != expected:
            raise JobChangedError
        self._wrote = True
        os.pwrite(file, bytes((control,)), record.offset)
        record.control = control
        # The ids of other messages may follow from a comment: the next read finds a difference, and parses all.
        data[record.offset] = control if control != COMMENT else 0


def _place_of(record: Record) -> int:
    """Return the place of a message that was never put to the back."""
    return min((record.offset + 1) * PLACES_PER_BYTE - 1, LARGEST_SEQUENCE)
