"""What the file of a TextQueue and the journal beside it say together: every message as a job, and when it is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from functools import partial

from jqueue.domain.errors import BlobMissingError
from jqueue.domain.models import JobStatus, trusted_job
from jqueue.domain.places import PLACES
from jqueue.formats.port import Kept
from jqueue.formats.textqueue.journal import NOTHING, Journal, Told
from jqueue.formats.textqueue.open_file import OpenFile
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

UNENDED = 1_000_000
"""Microseconds after which a last line without an end is taken for whole: until then its writer may be at it."""

PLACES_PER_BYTE = 1 << 12
"""A message has the place of its first byte; so many places are there for those that are put behind it later."""

_SURE = 50_000
"""Microseconds after which a file whose time has not moved has not changed: file systems count time in ticks."""

_SKEW = 60_000_000
"""A time that lies so many microseconds ahead was not given by this machine's clock, and says nothing."""


def place_of(record: Record) -> int:
    """The place of a message among those that nobody has put behind others."""
    return min((record.offset + 1) * PLACES_PER_BYTE - 1, PLACES)


class TextView:
    """A TextQueue, as far as it has been read.

    Args:
        path: of the file.
        journal: the path of the journal.
        entrypoint: of messages that do not say theirs.
        settle: seconds that the last message of another program waits for more lines.

    Attributes:
        records: what is in the file.
        journal: what is beside it.
        open: the file, to be read and changed; None before it was read.
        existed: whether there ever was one.
        changing: whether it changed so shortly ago that another change may not have moved its time.
        unseen: whether something was read that whoever asks for the jobs was not told yet.
    """

    def __init__(self, path: str, journal: str, *, entrypoint: str, settle: float) -> None:
        self.path = path
        self.journal = Journal(journal)
        self.entrypoint = entrypoint
        self._settle = round(settle * 1e6)
        self.existed = False
        self.forget()

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(TextView, entrypoint=self.entrypoint, settle=self._settle / 1e6)
        return make, (self.path, self.journal.path), {"existed": self.existed}

    def forget(self) -> None:
        """Read the file anew. The journal is kept: should it be gone, that is all there is of it."""
        self.records = Records()
        self.open: OpenFile | None = None
        self._signature: tuple[int, ...] | None = None
        self.changing = self.unseen = True

    def has_moved(self) -> bool:
        """Whether the file or the journal may have changed since they were read."""
        try:
            status = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return self.existed or self.unseen
        return self.unseen or self.changing or _signature(status) != self._signature or self.journal.has_moved()

    def read(self, now: datetime, *, locked: bool = False) -> None:
        """Read what may have changed.

        Args:
            now: the time.
            locked: whether we hold the lock, and look at each message again before it is changed.

        Raises:
            BlobMissingError: there was a file.
            OSError: the system refused.
        """
        for _ in range(3):
            news = self.journal.refresh(locked=locked)  # first: what was finished meanwhile is not taken for unclaimed
            news |= self._read_file(now, sure=not locked)
            self.unseen = self.unseen or news
            if locked or not self.journal.has_moved():
                return

    def _read_file(self, now: datetime, *, sure: bool) -> bool:
        """Read the file if it may have changed; whether it was read."""
        status = file_status(self.path)
        if status is None:
            if self.existed:
                raise BlobMissingError(
                    f"{self.path!r} was there, and is gone: it is not taken for an empty queue. Put it back; or, if it "
                    "was meant to go, make an empty file in its place"
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
        """Take over that we have changed the file, and the records with it: somebody else may have done so, too."""
        assert self.open is not None
        status = os.fstat(self.open.number)
        self._signature = _signature(status) if status.st_size == len(self.records.data) else None
        self.changing = True

    def distrust(self) -> None:
        """Have the file read again."""
        self._signature = None

    # As jobs

    def jobs(self) -> list[Kept]:
        """Every message that is queued, claimed or dead; what others have written is without its payload."""
        self.unseen, last = False, self.records.last
        return [self.kept(record) for record in self._present() if record is not last or not self._is_torn(record)]

    def _present(self) -> Iterator[Record]:
        yield from self.records.alive.values()
        for job_id, told in self.journal.told.items():
            if told.hidden:
                record = self.records.by_id.get(job_id)
                if record is not None and record.control == PROCESSED:
                    yield record

    def _is_torn(self, record: Record) -> bool:
        return record.control == QUEUED and self.records.is_torn(record)

    def settles_at(self, record: Record) -> int | None:
        """From when on a message is taken for whole, in microseconds since 1970; None if it certainly is.

        What its writer may still be writing belongs to the last one, if it is none of ours.
        """
        records = self.records
        if record is not records.last or records.ended or (record.note is not None and records.ends_a_line):
            return None
        return record.seen_at + (self._settle if records.ends_a_line else UNENDED)

    def is_settled(self, record: Record, now: datetime) -> bool:
        """Whether a message is whole."""
        if record is self.records.last and self._is_torn(record):
            return False
        settles_at = self.settles_at(record)
        return settles_at is None or settles_at <= microseconds(now)

    def told(self, record: Record) -> Told:
        """What holds of a message: what the journal says, unless the first byte has ended the claim."""
        return _believed(self.journal.told.get(record.id, NOTHING), record.control)

    def ended_claims(self) -> dict[str, Told]:
        """What holds of messages, by id, that other programs have marked while the journal says they are claimed."""
        found = {}
        for job_id in self.journal.claimed:
            told, control = self.journal.told[job_id], self._control(job_id)
            if (believed := _believed(told, control)) is not told:
                found[job_id] = believed
        return found

    def _control(self, job_id: str) -> int:
        """The first byte of a message. One that is not in the file may come back: an editor may be writing it."""
        if (record := self.records.by_id.get(job_id)) is not None:
            return record.control
        return COMMENT if job_id in self.records.commented else QUEUED

    def status(self, record: Record) -> JobStatus | None:
        """Where a message stands as a job; None if it is none any more."""
        told = self.told(record)
        if record.control == FAILED:
            return JobStatus.DEAD
        if record.control == QUEUED or (record.control == PROCESSED and told.hidden):
            return JobStatus.QUEUED if told.heartbeat is None else JobStatus.IN_PROGRESS
        return None

    def kept(self, record: Record) -> Kept:
        """A message as a job: with its payload if it has an id, by which it may be asked for."""
        told, settles_at = self.told(record), self.settles_at(record)
        why = record.control, told, settles_at
        if record.kept is not None and record.kept[0] == why:
            known: Kept = record.kept[1]
            return known
        values, status = plain_values(record, self.entrypoint), self.status(record)
        place = place_of(record)
        if told.order is not None and told.order <= (len(self.records.data) + 1) * PLACES_PER_BYTE:
            place = told.order  # a larger one is from before the file was cut
        if record.note is not None:
            values["payload"] = self.records.payload(record)
        values |= {
            "status": status,
            "created_at": moment(created_at(record)),
            "sequence": place,
            "attempt": told.attempt,
            "failures": told.failures,
            "error": told.error,
        }
        if status is JobStatus.DEAD:
            values["dead_at"] = moment(told.dead_at or created_at(record))
        elif settles_at is not None and status is JobStatus.QUEUED:
            values["run_at"] = moment(settles_at)
        if status is JobStatus.IN_PROGRESS:
            values["heartbeat_at"], values["claim_timeout"] = moment(told.heartbeat or 0), told.timeout
            values["attempt"] = max(1, told.attempt)
        if status is not JobStatus.DEAD and told.dead_at is not None:
            values["failures"] = 0  # somebody has queued it again by hand
        extra = {"variables": [line.decode("utf-8", "backslashreplace") for line in record.variables]}
        kept = Kept(trusted_job(values, extra if record.variables else None), record.id)
        record.kept = why, kept
        return kept

    def finished(self) -> dict[str, int]:
        """Messages marked as processed, with their attempts: those that carry an id, and others of late."""
        by_id = self.records.by_id
        found = dict.fromkeys(self.records.finished, 0)
        for job_id, told in self.journal.told.items():
            record = by_id.get(job_id)
            if told.hidden:
                found.pop(job_id, None)
            elif told.finished or (record is not None and record.control == PROCESSED):
                found[job_id] = told.attempt
        return found


def _believed(told: Told, control: int) -> Told:
    """What holds of a message with this first byte: one that ends a claim says as much as the verb that writes it."""
    if told.heartbeat is None or control == QUEUED or (control == PROCESSED and told.hidden):
        return told
    if control == PROCESSED:
        return Told(attempt=told.attempt, finished=True)
    dead_at = told.heartbeat if control == FAILED else None
    return told._replace(heartbeat=None, timeout=None, hidden=False, dead_at=dead_at)


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
