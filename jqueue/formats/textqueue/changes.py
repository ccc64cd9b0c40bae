"""Changes of a TextQueue, made together under its lock: one append, a byte for each message, one write of the journal.

Each change takes effect by one write: the append of a message, its first byte, or its line in the journal. If both a
byte and a line change, the byte is written first: if the process dies in between, it overrules the journal's old line.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from msgspec.structs import replace

from jqueue.domain.errors import StorageError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.formats.port import Change, JobChangedError, Outcome, Step, StoredJob
from jqueue.formats.textqueue.journal import KEPT_FINISHED, JournalWriteError, MessageState, OpenFile
from jqueue.formats.textqueue.records import COMMENT, FAILED, PROCESSED, QUEUED, Record, plain_values, written
from jqueue.formats.textqueue.view import PLACES_PER_BYTE, TextView, place_of
from jqueue.formats.times import microseconds
from jqueue.runtime.posix_files import closing, file_status, flush, flush_folder, open_folder, write_all

_NEW_FILE = 0o666


class Batch:
    """Changes that are made together. The caller holds the lock.

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
        OpenFile(view.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _NEW_FILE)
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
                self._flip(last, COMMENT)  # its writer died before it told the caller
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
