"""View of a TextQueue: combines the file and its journal to jobs, and says when a message is complete."""

from __future__ import annotations

import os
from datetime import datetime

from msgspec.structs import replace

from jqueue.domain.draft import LARGEST_SEQUENCE
from jqueue.domain.errors import BlobMissingError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.formats.port import StoredJob
from jqueue.formats.textqueue.journal import NO_STATE, Journal, MessageState, OpenFile
from jqueue.formats.textqueue.records import (
    COMMENT,
    FAILED,
    PROCESSED,
    QUEUED,
    Record,
    Records,
    created_at,
    plain_values,
)
from jqueue.formats.times import microseconds, moment
from jqueue.runtime.posix_files import file_status

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
