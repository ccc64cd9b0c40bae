"""`VsqsFolder`: a queue of vsqs, which is a folder with a file for each message.

docs/reference/formats.md describes the format.

Each change of a message renames or removes its file under exactly the name that was last seen. The file system lets
only one program do that, and no rename replaces a file. So programs of vsqs and of jqueue can work on one folder at the
same time. Fields that the format cannot hold are in a note with each file (`jqueue.formats.notes`). Dead jobs are
in a folder that vsqs does not look into. A note is written before the rename that others see, or by the holder of the
claim.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from jqueue.domain.errors import InvalidJobError, QueueFullError, StorageError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.formats.capabilities import OF_ALL
from jqueue.formats.notes import AckedJobs, flush
from jqueue.formats.port import Change, JobChangedError, Outcome, Step, StoredJob, StoreFullError
from jqueue.formats.vsqs.exclusive import rename_exclusively
from jqueue.formats.vsqs.folder_reader import DEAD, NOTES, VISIBILITY_TIMEOUT, FolderReader, key_of, note_of
from jqueue.formats.vsqs.names import Name, Unit, parse
from jqueue.formats.vsqs.numbers import Numbers
from jqueue.runtime.posix_files import write_all
from jqueue.runtime.system import forks

CAPABILITIES = replace(OF_ALL, delay=True)

ACKED = ".jqueue-acked"

OPEN_AT_ONCE = 100
"""Number of files to keep open at a time."""

THREADS = 8
"""Number of files to sync at a time, which takes hardly longer than one."""


class VsqsFolder:
    """A queue of vsqs as a store of jobs.

    Args:
        path: path of the folder, which the first job creates. A relative path is resolved now.
        entrypoint: entrypoint of messages that vsqs itself has published; by default the name of the folder.
        unit: unit of the numbers to write: "us", as vsqs 0.3 writes them, or "ms", as its documentation says.
        capacity: largest number of messages, ready and hidden; None if there is no limit.
        when_full: effect of an enqueue to a full queue: "refuse" raises QueueFullError at once, "wait" waits for space
            until the deadline of the call.
        fsync: True to sync a job's file and the folder before its enqueue returns. vsqs syncs the file only.

    Raises:
        InvalidJobError: an argument is wrong.
    """

    capabilities = CAPABILITIES
    claims_expire_by_clock = True
    serves_in_order = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        entrypoint: str | None = None,
        unit: str = "us",
        capacity: int | None = None,
        when_full: str = "refuse",
        fsync: bool = True,
    ) -> None:
        if unit not in tuple(Unit):
            raise InvalidJobError("unit must be us or ms")
        if when_full not in ("refuse", "wait"):
            raise InvalidJobError("when_full must be refuse or wait")
        if capacity is not None and capacity < 1:
            raise InvalidJobError("capacity must be at least 1, or None")
        self.path = Path(path).absolute()
        self.unit = Unit(unit)
        self._waits_for_space = when_full == "wait"
        self.entrypoint = entrypoint or self.path.name
        self._folder = os.fspath(self.path)
        self._fsync = fsync
        self._current_reader, self._forks = FolderReader(self._folder, self.entrypoint), forks()
        self._acked = AckedJobs(self.path / ACKED)
        self._numbers = Numbers(self._folder, self.unit, capacity)

    def __repr__(self) -> str:
        return f"VsqsFolder({str(self.path)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_current_reader": self._reader.unread_copy()}

    @property
    def _reader(self) -> FolderReader:
        """The messages read so far. They are forgotten after a fork, as the parent may have been reading."""
        if self._forks != forks():
            self._current_reader, self._forks = self._current_reader.unread_copy(), forks()
        return self._current_reader

    @property
    def name(self) -> str:
        """Path of the folder."""
        return str(self.path)

    def watched(self) -> Sequence[Path]:
        """Return the folder: every change of a message shows in it."""
        return (self.path,)

    def exists(self) -> bool:
        """Return True if the folder exists."""
        return self.path.exists()

    def may_have_changed(self) -> bool:
        """Return True if the folder may have changed since the last scan."""
        return self._reader.may_have_changed()

    def scan(self, now: datetime) -> list[StoredJob]:
        """Return every message and every dead job."""
        return self._reader.scan(now)

    def payloads(self, jobs: Sequence[StoredJob]) -> list[JobRecord]:
        """Return these jobs as they are now, with their payloads. Jobs that are gone or unreadable are left out."""
        found = []
        for job, place in jobs:
            with suppress(FileNotFoundError, PermissionError):  # it was removed or renamed, or may not be read
                now_there = self._reader.job(place, self._reader.note(place))
                found.append(now_there.evolve(id=job.id, payload=self._read(place)))
        return found

    def finished(self) -> dict[str, int]:
        """Return the jobs that any process of jqueue has acked recently, each with its attempt."""
        return self._acked.read()

    def carry_out(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Make each change by itself, then add the new jobs together."""
        done = [None if change.step is Step.ADD else self._do_step(change, now) for change in changes]
        new = [change for change in changes if change.step is Step.ADD]  # after the changes that free space
        added = iter(self._add(new, now) if new else ())
        return [
            next(added) if change.step is Step.ADD else outcome for change, outcome in zip(changes, done, strict=True)
        ]

    def _do_step(self, change: Change, now: datetime) -> Outcome:
        self._reader.forget(change.place)
        try:
            kept: StoredJob = getattr(self, f"_{change.step}")(change, now)
            return kept
        except (FileNotFoundError, FileExistsError, JobChangedError):
            return JobChangedError()
        except OSError as error:
            return error

    # Steps: one method for each, named after it

    def _add(self, changes: list[Change], now: datetime) -> list[Outcome]:
        any_dead = any(change.new.status is JobStatus.DEAD for change in changes)
        try:
            self._make_folders(any_dead=any_dead)
        except (OSError, StorageError) as error:
            return [error for _ in changes]
        outcomes = self._add_within_capacity([change.new for change in changes], now)
        try:
            self._flush(any_dead=any_dead)
        except OSError as error:
            return [self._undo_add(outcome, error) for outcome in outcomes]
        return outcomes

    def _add_within_capacity(self, jobs: list[JobRecord], now: datetime) -> list[Outcome]:
        """Add jobs, each by itself: reserve their numbers, write their files, then rename the files.

        If there is not enough space for all, the first ones are added.
        """
        full = (StoreFullError if self._waits_for_space else QueueFullError)(
            f"the queue {self.name!r} has no room for more jobs: let workers catch up, or raise its capacity"
        )
        outcomes: list[Outcome] = [full] * len(jobs)
        try:
            if not self._numbers.has_room(now):
                return outcomes
            reserved = self._numbers.reserve(len(jobs), now)
        except OSError as error:
            return [error for _ in jobs]
        room = len(jobs) if reserved.free is None else reserved.free
        chosen = list(zip(reserved.numbers, jobs, strict=True))[:room]
        try:
            for begin in range(0, len(chosen), OPEN_AT_ONCE):
                some = chosen[begin : begin + OPEN_AT_ONCE]
                failures = self._write(some)
                for place, ((number, job), failure) in enumerate(zip(some, failures, strict=True), begin):
                    outcomes[place] = failure or self._publish(number, job)
        finally:
            unused = [isinstance(outcome, Exception) for outcome in outcomes]
            self._numbers.free([number for number, free in zip(reserved.numbers, unused, strict=True) if free])
        return outcomes

    def _write(self, chosen: list[tuple[int, JobRecord]]) -> list[OSError | None]:
        """Write the files of new jobs, and sync them. Returns the error of each, or None."""
        failures: list[OSError | None] = [None] * len(chosen)
        written: dict[int, int] = {}
        try:
            for place, (number, job) in enumerate(chosen):
                try:
                    written[place] = os.open(self._numbers.path(number), os.O_WRONLY | os.O_CLOEXEC)
                    if job.payload:
                        write_all(written[place], job.payload)
                except OSError as error:
                    failures[place] = error
            if self._fsync and written:
                for place, failure in zip(written, _sync_all(list(written.values())), strict=True):
                    failures[place] = failures[place] or failure
        finally:
            for descriptor in written.values():
                os.close(descriptor)
        return failures

    def _publish(self, number: int, job: JobRecord) -> StoredJob | OSError:
        """Write the note of a new file, then give the file its name."""
        path, due = self._numbers.path(number), None if job.run_at is None else self.unit.number(job.run_at)
        place = f"{DEAD}/{number}" if job.status is JobStatus.DEAD else str(Name(number, due))
        note = note_of(job, {}, due=due)
        try:
            self._reader.notes.write(str(number), note, path, sync=self._fsync)
            rename_exclusively(path, self._path(place))
        except OSError as error:
            return error
        return self._stored_job(place, note, job.payload)

    def _make_folders(self, *, any_dead: bool) -> None:
        if not self.path.is_dir():
            self._reader.check_not_gone()
            self.path.mkdir(parents=True, exist_ok=True)
            if self._fsync:
                flush(str(self.path.parent))
        self._reader.note_exists()
        if any_dead:
            os.makedirs(f"{self._folder}/{DEAD}", exist_ok=True)

    def _flush(self, *, any_dead: bool) -> None:
        if self._fsync:
            flush(self._folder)
            flush(f"{self._folder}/{NOTES}")
            if any_dead:
                flush(f"{self._folder}/{DEAD}")

    def _undo_add(self, outcome: Outcome, error: OSError) -> Outcome:
        """Remove an added job whose folder could not be synced, unless another program has taken it by now.

        Returns:
            The error if the job was removed, else the outcome.
        """
        if not isinstance(outcome, StoredJob):
            return outcome
        try:
            os.unlink(self._path(outcome.place))
        except OSError:
            return outcome
        self._reader.notes.remove(key_of(outcome.place))
        return error

    def _claim(self, change: Change, now: datetime) -> StoredJob:
        old, job = change.old, change.new
        timeout = job.claim_timeout or VISIBILITY_TIMEOUT
        number, until = _name(change.place).number, self.unit.number(now + timedelta(seconds=timeout))
        place = self._rename(change.place, str(Name(number, until)))
        try:
            note = self._reader.note(place)
            if note.get("until", 0) >= until:  # no two claims of a message have the same name
                until = note["until"] + 1
                place = self._rename(place, str(Name(number, until)))
            failures = note.get("failures", 0) + job.failures - old.failures
            job = job.evolve(attempt=max(job.attempt, note.get("attempt", 0) + 1), failures=failures)
            payload = self._read(place)
            note = self._annotate(place, note_of(job, note, until=until, next=None, due=None, timeout=timeout))
        except FileNotFoundError:
            raise
        except OSError as error:
            with suppress(OSError):
                self._rename(place, change.place)
            if isinstance(error, PermissionError):
                self._reader.ignore_unreadable(change.place)
                raise JobChangedError from None
            raise
        return self._stored_job(place, note, payload)

    def _prolong(self, change: Change, now: datetime) -> StoredJob:
        job, name = change.new, _name(change.place)
        assert name.until is not None
        until = max(self.unit.number(now + timedelta(seconds=job.claim_timeout or VISIBILITY_TIMEOUT)), name.until + 1)
        note = self._annotate(change.place, {**self._reader.note(change.place), "until": name.until, "next": until})
        return self._stored_job(self._rename(change.place, str(Name(name.number, until))), note, job.payload)

    def _release(self, change: Change, now: datetime) -> StoredJob:
        old, job = change.old, change.new
        place, note = change.place, self._checked_note(change)
        due = None if job.run_at is None else self.unit.number(job.run_at)
        note = note_of(job, note, due=due)
        if job.sequence == old.sequence:
            with suppress(FileExistsError):  # another message has that number: this one needs a new number
                self._annotate(place, note)
                return self._stored_job(self._rename(place, str(Name(_name(place).number, due))), note, job.payload)
        return self._to_the_back(place, note, now, due, job.payload)

    def _bury(self, change: Change, now: datetime) -> StoredJob:
        job = change.new
        place, note = change.place, self._checked_note(change)
        os.makedirs(f"{self._folder}/{DEAD}", exist_ok=True)
        note = self._annotate(place, note_of(job, note, due=None))
        dead = f"{DEAD}/{_name(place).number}"
        try:
            return self._stored_job(self._rename(place, dead), note, job.payload)
        except FileExistsError:
            return self._to_the_back(place, note, now, None, job.payload, f"{DEAD}/")

    def _revive(self, change: Change, now: datetime) -> StoredJob:
        job = change.new
        note = note_of(job, self._reader.note(change.place), due=None)
        return self._to_the_back(change.place, note, now, None, job.payload)

    def _remove(self, change: Change, now: datetime) -> StoredJob:
        job = change.old
        payload = job.payload if job.status is JobStatus.IN_PROGRESS else self._read(change.place)
        os.unlink(self._path(change.place))
        self._reader.notes.remove(key_of(change.place))
        if change.acked:
            with suppress(OSError):  # the job is acked all the same
                self._acked.remember([job.claim])
        return StoredJob(job.evolve(payload=payload), "")

    def _change(self, change: Change, now: datetime) -> StoredJob:
        raise JobChangedError

    # Parts of several steps

    def _checked_note(self, change: Change) -> dict[str, Any]:
        """Return the current note of a claim that is about to end.

        At the same time its holder may prolong the claim, or another program may give back an expired one. Then the
        rename that follows fails. The note written before that rename does no harm, as it changes no count.

        Raises:
            JobChangedError: attempt or failures are no longer as they were last seen.
        """
        note = self._reader.note(change.place)
        seen = self._reader.job(change.place, note)
        if (seen.attempt, seen.failures) != (change.old.attempt, change.old.failures):
            raise JobChangedError
        return note

    def _to_the_back(
        self, place: str, note: dict[str, Any], now: datetime, due: int | None, payload: bytes, folder: str = ""
    ) -> StoredJob:
        [number] = self._numbers.reserve(1, now).numbers
        try:
            new = f"{folder}{Name(number, due)}"
            self._reader.notes.write(key_of(new), note, self._path(place))
            self._rename(place, new)
            self._reader.notes.remove(key_of(place))
            return self._stored_job(new, note, payload)
        finally:
            self._numbers.free([number])

    def _rename(self, old: str, new: str) -> str:
        """Rename a file, if it still has the name that was last seen.

        Raises:
            FileNotFoundError: it no longer has that name.
            FileExistsError: another file has the new name.
        """
        rename_exclusively(self._path(old), self._path(new))
        return new

    def _annotate(self, place: str, note: dict[str, Any]) -> dict[str, Any]:
        self._reader.notes.write(key_of(place), note, self._path(place))
        return note

    def _stored_job(self, place: str, note: dict[str, Any], payload: bytes) -> StoredJob:
        """Return the job as a scan would now show it, with this payload."""
        said = {field: value for field, value in note.items() if value is not None}
        job = self._reader.job(place, said)
        return StoredJob(job.evolve(payload=payload), place)

    def _read(self, place: str) -> bytes:
        with open(self._path(place), "rb", buffering=0) as file:
            return file.readall()

    def _path(self, place: str) -> str:
        return f"{self._folder}/{place}"


def _name(place: str) -> Name:
    name = parse(place.removeprefix(f"{DEAD}/"))
    assert name is not None
    return name


def _sync_all(descriptors: list[int]) -> list[OSError | None]:
    """Sync files to the disk. Returns the error of each, or None."""
    if len(descriptors) == 1:
        return [_sync(descriptors[0])]
    with ThreadPoolExecutor(min(THREADS, len(descriptors)), "jqueue-fsync") as threads:
        return list(threads.map(_sync, descriptors))


def _sync(descriptor: int) -> OSError | None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        return error
    return None
