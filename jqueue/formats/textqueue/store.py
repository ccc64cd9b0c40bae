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

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec.structs import replace

from jqueue.domain.draft import LARGEST_SEQUENCE
from jqueue.domain.errors import BlobMissingError, StorageError, StorageFatalError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.formats.port import OF_ALL, Change, JobChangedError, Outcome, Step, StoredJob, microseconds, moment
from jqueue.formats.textqueue.journal import (
    KEPT_FINISHED,
    NO_STATE,
    Journal,
    JournalWriteError,
    MessageState,
    OpenFile,
)
from jqueue.formats.textqueue.records import (
    COMMENT,
    FAILED,
    PROCESSED,
    QUEUED,
    Record,
    Records,
    created_at,
    plain_values,
    written,
)
from jqueue.runtime.file_lock import FileLock, has_file_locks
from jqueue.runtime.posix_files import (
    as_storage_error,
    closing,
    create_folder,
    file_status,
    flush,
    flush_folder,
    open_folder,
    write_all,
)
from jqueue.runtime.system import SystemClock, SystemEntropy, forks

CAPABILITIES = replace(OF_ALL, job_ids=True)

LOCK_TIMEOUT = 10.0
"""Seconds that a change waits for the lock, while other processes hold it."""

SETTLE = 200_000
"""Microseconds for which the last message of another program waits for more lines."""

UNENDED = 1_000_000
"""Microseconds after which a last line without a line break counts as complete: its writer may still be writing it."""

PLACES_PER_BYTE = 1 << 12
"""Number of places for each byte of the file.

The place of a message follows from the offset of its first byte. The places between two bytes are for messages that are
put to the back later.
"""

_SURE = 50_000
"""Microseconds after which an unchanged file time is trusted: two changes may fall into one tick of the file system."""

_SKEW = 60_000_000
"""Microseconds ahead of the clock from which the time of a file is ignored: it is not of this machine's clock."""


def place_of(record: Record) -> int:
    """Return the place of a message that was never put to the back."""
    return min((record.offset + 1) * PLACES_PER_BYTE - 1, LARGEST_SEQUENCE)


class TextView:
    """A TextQueue as it was last read.

    Args:
        path: path of the file.
        journal: path of the journal.
        entrypoint: entrypoint of messages that name none.

    Attributes:
        records: records of the file.
        journal: the journal beside the file.
        open: the open file, for reading and changing; None before the first read.
        existed: True if the file was there at any time.
        changing: True if the file changed so recently that another change may leave its time the same.
        unseen: True if something was read since `jobs` was last called.
    """

    def __init__(self, path: str, journal: str, entrypoint: str) -> None:
        self.path = path
        self.journal = Journal(journal)
        self.entrypoint = entrypoint
        self.existed = False
        self.forget()

    def __reduce__(self) -> tuple[object, ...]:
        return TextView, (self.path, self.journal.path, self.entrypoint), {"existed": self.existed}

    def forget(self) -> None:
        """Forget the file, so that it is read again. The journal stays: if its file is gone, this is the only copy."""
        self.records = Records()
        self.open: OpenFile | None = None
        self._signature: tuple[int, ...] | None = None
        self.changing = self.unseen = True

    def may_have_changed(self) -> bool:
        """Return True if the file or the journal may have changed since they were read."""
        try:
            status = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return self.existed or self.unseen
        return self.unseen or self.changing or _signature(status) != self._signature or self.journal.may_have_changed()

    def read(self, now: datetime, *, locked: bool = False) -> None:
        """Read the file and the journal if they may have changed.

        Args:
            now: the time.
            locked: True if the caller holds the lock, and checks each message again before it changes it.

        Raises:
            BlobMissingError: the file was there, and is gone.
            OSError: the system refused.
        """
        for _ in range(3):
            news = self.journal.refresh(locked=locked)  # first, or a message finished in between would look unclaimed
            news |= self._read_file(now, sure=not locked)
            self.unseen = self.unseen or news
            if locked or not self.journal.may_have_changed():
                return

    def _read_file(self, now: datetime, *, sure: bool) -> bool:
        """Read the file if it may have changed. Returns True if it was read."""
        status = file_status(self.path)
        if status is None:
            if self.existed:
                raise BlobMissingError(
                    f"{self.path!r} has disappeared: restore it, or create an empty file in its place to start an "
                    "empty queue"
                )
            self.changing = False
            return False
        self.existed = True
        if _signature(status) == self._signature and not (sure and self.changing):
            return False
        if self.open is None or not self.open.is_at(status):
            self.open = OpenFile(self.path, os.O_RDWR)
        status = os.fstat(self.open.number)
        modified, time = status.st_mtime_ns // 1000, microseconds(now)
        self.records.update(self.open.read_from(0), min(modified, time))
        self._signature = _signature(status)
        self.changing = -_SKEW < time - modified < _SURE
        return True

    def changed(self) -> None:
        """Take note that jqueue has changed the file and its records. Another program may have changed it, too."""
        assert self.open is not None
        status = os.fstat(self.open.number)
        self._signature = _signature(status) if status.st_size == len(self.records.data) else None
        self.changing = True

    def invalidate(self) -> None:
        """Have the next `read` read the file again."""
        self._signature = None

    # As jobs

    def jobs(self) -> list[StoredJob]:
        """Return every message that is queued, claimed or dead. Messages of other programs have no payload here."""
        self.unseen, last = False, self.records.last
        return [
            self.kept(record)
            for record in self.records.alive.values()
            if record is not last or not self._is_torn(record)
        ]

    def _is_torn(self, record: Record) -> bool:
        return record.control == QUEUED and self.records.is_torn(record)

    def settles_at(self, record: Record) -> int | None:
        """Return when a message counts as complete, in microseconds since 1970; None if it certainly is complete.

        Only the last message of the file can be incomplete: its writer may still be appending lines to it.
        """
        records = self.records
        if record is not records.last or records.ended or (record.note is not None and records.ends_a_line):
            return None
        return record.seen_at + (SETTLE if records.ends_a_line else UNENDED)

    def is_settled(self, record: Record, now: datetime) -> bool:
        """Return True if a message counts as complete."""
        if record is self.records.last and self._is_torn(record):
            return False
        settles_at = self.settles_at(record)
        return settles_at is None or settles_at <= microseconds(now)

    def state(self, record: Record) -> MessageState:
        """Return the state of a message: its journal entry, unless its first byte has ended the claim."""
        return _effective_state(self.journal.states.get(record.id, NO_STATE), record.control)

    def ended_claims(self) -> dict[str, MessageState]:
        """Return the new states, by id, of claimed messages whose claim another program has ended by its mark."""
        found = {}
        for job_id in self.journal.claimed:
            state, control = self.journal.states[job_id], self._control(job_id)
            if (effective := _effective_state(state, control)) is not state:
                found[job_id] = effective
        return found

    def _control(self, job_id: str) -> int:
        """Return the first byte of a message. A missing message counts as queued: an editor may be writing the file."""
        if (record := self.records.by_id.get(job_id)) is not None:
            return record.control
        return COMMENT if job_id in self.records.commented else QUEUED

    def status(self, record: Record) -> JobStatus | None:
        """Return the status of a message's job; None if it is no longer a job."""
        state = self.state(record)
        if record.control == FAILED:
            return JobStatus.DEAD
        if record.control == QUEUED:
            return JobStatus.QUEUED if state.heartbeat is None else JobStatus.IN_PROGRESS
        return None

    def kept(self, record: Record) -> StoredJob:
        """Return a message as a job. It has its payload only if the message carries an id."""
        state, settles_at = self.state(record), self.settles_at(record)
        why = record.control, state, settles_at
        if record.kept is not None and record.kept[0] == why:
            known: StoredJob = record.kept[1]
            return known
        values, status = plain_values(record, self.entrypoint), self.status(record)
        place = place_of(record)
        if state.order is not None and state.order <= (len(self.records.data) + 1) * PLACES_PER_BYTE:
            place = state.order  # a larger place is from before the file was truncated
        if record.note is not None:
            values["payload"] = self.records.payload(record)
        values |= {
            "status": status,
            "created_at": moment(created_at(record)),
            "sequence": place,
            "attempt": state.attempt,
            "failures": state.failures,
            "error": state.error,
        }
        if status is JobStatus.DEAD:
            values["dead_at"] = moment(state.dead_at or created_at(record))
        elif settles_at is not None and status is JobStatus.QUEUED:
            values["run_at"] = moment(settles_at)
        if status is JobStatus.IN_PROGRESS:
            values["heartbeat_at"], values["claim_timeout"] = moment(state.heartbeat or 0), state.timeout
            values["attempt"] = max(1, state.attempt)
        if status is not JobStatus.DEAD and state.dead_at is not None:
            values["failures"] = 0  # it was marked as queued again by hand
        extra = {"variables": [line.decode("utf-8", "backslashreplace") for line in record.variables]}
        kept = StoredJob(JobRecord(**values, extra=extra if record.variables else None), record.id)
        record.kept = why, kept
        return kept

    def finished(self) -> dict[str, int]:
        """Return processed messages with their attempts: all that carry an id, and the recent ones of the others."""
        by_id = self.records.by_id
        found = dict.fromkeys(self.records.finished, 0)
        for job_id, state in self.journal.states.items():
            record = by_id.get(job_id)
            if state.finished or (record is not None and record.control == PROCESSED):
                found[job_id] = state.attempt
        return found


def _effective_state(state: MessageState, control: int) -> MessageState:
    """Return the state of a message with this first byte. A byte that ends the claim has the effect of its verb."""
    if state.heartbeat is None or control == QUEUED:
        return state
    if control == PROCESSED:
        return MessageState(attempt=state.attempt, finished=True)
    dead_at = state.heartbeat if control == FAILED else None
    return replace(state, heartbeat=None, timeout=None, dead_at=dead_at)


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Batch:
    """Changes that are made together: one append, a byte for each message, one write of the journal.

    Each change takes effect by one write: the append of a message, its first byte, or its line in the journal. If both
    a byte and a line change, the byte is written first: if the process dies in between, it overrules the journal's old
    line. The caller holds the lock.

    Args:
        view: the queue as last read; the batch reads it again.
        now: the time.
    """

    def __init__(self, view: TextView, now: datetime) -> None:
        self._view = view
        self._now = now
        self._new_states: dict[str, MessageState] = {}
        self._new: set[str] = set()
        self._last_order = 0
        self._wrote = self._claims_moved = False

    def carry_out(self, changes: Sequence[Change]) -> list[Outcome]:
        """Make each change that can be made.

        Raises:
            OSError: the system refused. It is not known which changes were made, so everything must be read again.
            StorageError: the file is gone, or was replaced meanwhile.
        """
        view = self._view
        steps = [change.step for change in changes]
        new = [change for change, step in zip(changes, steps, strict=True) if step is Step.ADD]
        if new:
            self._create_file()
        view.read(self._now, locked=True)
        self._new_states |= view.ended_claims()  # otherwise a message that is marked as queued would still be claimed
        refusal = self._append(new) if new else None
        outcomes = [self._prepare(change, step, refusal) for change, step in zip(changes, steps, strict=True)]
        if self._wrote:
            self._check_in_place()
            self._flush()
        if self._new_states:
            owner = None if view.open is None else view.open.status
            try:
                view.journal.write(self._new_states, durable=self._claims_moved, owner=owner)
            except JournalWriteError as error:
                if self._wrote:
                    raise
                return [error] * len(changes)
        if self._wrote:
            view.changed()
        if view.journal.needs_compaction(len(view.records.alive)):
            with suppress(JournalWriteError):  # the long journal is still correct
                self._compact_journal()
        return outcomes

    def _prepare(self, change: Change, step: Step, refusal: Exception | None) -> Outcome:
        """Write the byte of a change, and collect its line for the journal. Returns the outcome of the change."""
        if step is Step.ADD:
            return refusal or self._added(change)
        record = self._view.records.by_id.get(change.job_id)
        if record is None:
            return JobChangedError()
        try:
            kept: StoredJob = getattr(self, f"_{step}")(change, record)
            return kept
        except JobChangedError as lost:
            return lost

    def _added(self, change: Change) -> Outcome:
        job = change.new
        record = self._view.records.by_id.get(job.id)
        if job.id not in self._new or record is None:
            return JobChangedError()  # the id was in the file already
        if change.is_transfer:
            dead_at = None if job.dead_at is None else microseconds(job.dead_at)
            state = MessageState(attempt=job.attempt, failures=job.failures, error=job.error, dead_at=dead_at)
            self._set_state(record, state)
        return StoredJob(job.evolve(sequence=place_of(record)), record.id)

    # New messages

    def _create_file(self) -> None:
        """Create the file, if there never was one, with the usual mode of a file that a program appends to."""
        view = self._view
        if view.existed or file_status(view.path) is not None:
            return
        OpenFile(view.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        with closing(open_folder(os.path.dirname(view.path))) as folder:
            flush_folder(folder)

    def _append(self, changes: Sequence[Change]) -> Exception | None:
        """Append new messages by one write. Returns an error if the append has to wait."""
        view, records = self._view, self._view.records
        jobs = [change.new for change in changes if change.new.id not in records.by_id]
        if not jobs:
            return None
        self._new = {job.id for job in jobs}
        last, before = records.last, b""
        if last is not None and records.is_torn(last):
            if last.control == QUEUED:
                try:
                    self._flip(last, COMMENT)  # its writer died before it told the caller
                except JobChangedError as changed:
                    return changed
                view.invalidate()
                view.read(self._now, locked=True)
                records = view.records
        elif not records.ends_a_line and last is not None and not view.is_settled(last, self._now):
            return BlockingIOError(errno.EAGAIN, "another program is writing a line at the end of the queue file")
        if not records.ends_a_line:
            before = b"\n"
        if records.open_note:
            before += b"\n"  # otherwise the note would be taken for that of the next message appended
        block = before + b"".join(map(written, jobs))
        file = OpenFile(view.path, os.O_WRONLY | os.O_APPEND)
        if view.open is None or not view.open.is_at(file.status):
            raise StorageError("the queue file was replaced just before an append: nothing was appended")
        self._wrote = True
        write_all(file.number, block)
        view.invalidate()  # another program may have appended as well
        view.read(self._now, locked=True)
        return None

    # Steps for messages in the file: one method for each, named after it

    def _check(self, change: Change, record: Record) -> MessageState:
        """Return the journal's entry of a message.

        Raises:
            JobChangedError: the message has changed since it was last seen.
        """
        before, state = change.old, self._view.state(record)
        if self._view.status(record) is not before.status or state.attempt != before.attempt:
            raise JobChangedError
        if before.status is JobStatus.IN_PROGRESS and state.heartbeat != microseconds(before.heartbeat_at or self._now):
            raise JobChangedError
        return state

    def _claim(self, change: Change, record: Record) -> StoredJob:
        state, job = self._check(change, record), change.new
        if job.run_at is not None:
            job = job.evolve(run_at=None)  # this was the time from which the message counts as complete
        if not self._view.is_settled(record, self._now):
            raise JobChangedError
        self._check_bytes(record)
        job = self._with_edits(record, job)
        self._set_state(
            record,
            MessageState(
                attempt=job.attempt,
                failures=job.failures,
                heartbeat=microseconds(job.heartbeat_at or self._now),
                timeout=job.claim_timeout,
                order=state.order,
                error=state.error,
            ),
        )
        return StoredJob(job, record.id)

    def _with_edits(self, record: Record, job: JobRecord) -> JobRecord:
        """Return the job with the edits that people have made since it was last seen.

        Raises:
            JobChangedError: the job has another entrypoint by now.
        """
        payload, said = self._view.records.payload(record), record.note
        if said is None:
            return job.evolve(payload=payload)
        seen = job.payload, job.entrypoint, job.headers or None, job.max_attempts
        if seen == (payload, said.get("ep"), said.get("h"), said.get("max")):
            return job
        values = plain_values(record, self._view.entrypoint)
        if values["entrypoint"] != job.entrypoint:
            raise JobChangedError
        return job.evolve(payload=payload, headers=values["headers"], max_attempts=values["max_attempts"])

    def _prolong(self, change: Change, record: Record) -> StoredJob:
        state, job = self._check(change, record), change.new
        self._set_state(record, replace(state, heartbeat=microseconds(job.heartbeat_at or self._now)))
        return StoredJob(job, record.id)

    def _release(self, change: Change, record: Record) -> StoredJob:
        state, job = self._check(change, record), change.new
        if record.control != QUEUED:
            self._flip(record, QUEUED)
        if job.sequence != change.old.sequence:
            state = replace(state, order=self._next_order())
        state = replace(state, failures=job.failures, heartbeat=None, timeout=None, error=job.error)
        self._set_state(record, state)
        return StoredJob(job.evolve(sequence=state.order or place_of(record)), record.id)

    def _bury(self, change: Change, record: Record) -> StoredJob:
        state, job = self._check(change, record), change.new
        self._flip(record, FAILED)
        state = replace(state, failures=job.failures, heartbeat=None, timeout=None, error=job.error)
        self._set_state(record, replace(state, dead_at=microseconds(job.dead_at or self._now)))
        return StoredJob(job, record.id)

    def _revive(self, change: Change, record: Record) -> StoredJob:
        state, job = self._check(change, record), change.new
        self._flip(record, QUEUED)
        order = self._next_order()
        self._set_state(record, replace(state, failures=job.failures, dead_at=None, order=order))
        return StoredJob(job.evolve(sequence=order), record.id)

    def _remove(self, change: Change, record: Record) -> StoredJob:
        before, state = change.old, self._check(change, record)
        if change.acked:
            self._flip(record, PROCESSED)
            self._set_state(record, MessageState(attempt=state.attempt, finished=True), durable=False)
            return StoredJob(before, "")
        # As a comment the message can still be read and restored. But a text like our notes would be taken for a note.
        like_a_note = self._view.records.text(record).startswith(b"jq {")
        found = StoredJob(before.evolve(payload=self._view.records.payload(record)), "")
        self._flip(record, PROCESSED if like_a_note else COMMENT)
        return found

    def _change(self, change: Change, record: Record) -> StoredJob:
        raise JobChangedError

    # Parts of several steps

    def _set_state(self, record: Record, state: MessageState, *, durable: bool = True) -> None:
        self._new_states[record.id] = state
        self._claims_moved = self._claims_moved or durable

    def _next_order(self) -> int:
        """Return a place behind every message in the file, and before every message appended later."""
        first = len(self._view.records.data) * PLACES_PER_BYTE
        following = max(self._view.journal.last_order, self._last_order) + 1
        self._last_order = first if following >= first + PLACES_PER_BYTE - 1 else max(first, following)
        return self._last_order

    def _check_bytes(self, record: Record) -> None:
        """Raise JobChangedError if the bytes of a message have changed in the file. The file is then read again."""
        view = self._view
        assert view.open is not None
        expected = view.records.data[record.offset : record.end]
        if os.pread(view.open.number, len(expected), record.offset) != expected:
            view.invalidate()
            raise JobChangedError

    def _flip(self, record: Record, control: int) -> None:
        self._check_bytes(record)
        view = self._view
        assert view.open is not None
        self._wrote = True
        os.pwrite(view.open.number, bytes((control,)), record.offset)
        if not view.records.flip(record, control):
            view.invalidate()

    def _check_in_place(self) -> None:
        """Raise StorageError if another file has replaced the file while it was changed."""
        view = self._view
        assert view.open is not None
        if not view.open.is_at(file_status(view.path)):
            raise StorageError(
                "the queue file was replaced during a change: the change must be repeated in the new file"
            )

    def _flush(self) -> None:
        if self._view.open is not None:
            flush(self._view.open.number)

    def _compact_journal(self) -> None:
        """Rewrite the journal with the entries of unfinished messages, and of the last finished ones."""
        view = self._view
        kept, finished = {}, {}
        for job_id, state in view.journal.states.items():
            record = view.records.by_id.get(job_id)
            if record is None or (record.control == COMMENT and not state.finished):
                continue
            if record.control == PROCESSED:
                finished[job_id] = MessageState(attempt=state.attempt, finished=True)
            else:
                kept[job_id] = state
        view.journal.rewrite({**dict(list(finished.items())[-KEPT_FINISHED:]), **kept})


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
