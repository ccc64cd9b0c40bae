"""`VsqsFolder`: a queue of vsqs, which is a folder with a file for each message.

docs/reference/formats.md describes the format.

Each change of a message renames or removes its file under exactly the name that was last seen. The file system lets
only one program do that, and no rename replaces a file. So programs of vsqs and of jqueue can work on one folder at the
same time. Fields that the format cannot hold are in a journal (`jqueue.formats.journal`), by the number of the message.
A state is written before the rename that others see, or by the holder of the claim. Dead jobs are in a folder that vsqs
does not look into.

A new number is larger than those of all older messages. It is reserved by a file `<number>.new`, which only one program
can create. Then the folder is listed. If a message in it has the same or a larger number, a larger one is reserved.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from jqueue.domain.errors import StorageError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.formats.files import flush_names, rename_exclusively
from jqueue.formats.job_files import JobFolder
from jqueue.formats.journal import ABANDONED, LISTINGS, NO_STATE, Journal, State, state_of
from jqueue.formats.port import OF_ALL, Change, Outcome, StoredJob, microseconds
from jqueue.formats.vsqs.messages import (
    DEAD,
    LARGEST_TIME,
    VISIBILITY_TIMEOUT,
    WRITING,
    Name,
    job_of,
    key_of,
    name_of,
    parse,
)
from jqueue.ports.queue import Capabilities
from jqueue.runtime.posix_files import flush, write_all
from jqueue.runtime.system import process_id

THREADS = 8
"""Number of files to sync at a time, which takes hardly longer than one."""

TICK = timedelta(seconds=0.05)
"""Time after which an unchanged folder time is trusted: file systems count time in ticks, which hide changes."""

MOST_LISTINGS = 20
"""Number of times that a folder is listed at most, while a listed file has another name before it is read."""


class VsqsFolder(JobFolder):
    """A queue of vsqs as a store of jobs.

    Args:
        path: path of the folder, which the first job creates. A relative path is resolved now.
        entrypoint: entrypoint of messages that vsqs itself has published; by default the name of the folder.
    """

    capabilities: Capabilities = replace(OF_ALL, delay=True)
    claims_expire_by_clock = True

    def __init__(self, path: str | os.PathLike[str], *, entrypoint: str | None = None) -> None:
        super().__init__(path, entrypoint)
        self._last_number = 0
        self._unflushed = False
        self._forget_all()

    def watched(self) -> Sequence[Path]:
        """Return the folder: every change of a message shows in it."""
        return (self.path,)

    # Reading

    def _forget_all(self) -> None:
        self._process = process_id()
        self._times: tuple[tuple[int, int], ...] = ()
        self._since = datetime.min.replace(tzinfo=UTC)
        self._times_are_final = False
        self._journal = Journal(self._path(".jqueue-journal"), self.name, self._present)
        self._known: dict[str, tuple[str, State, StoredJob | None]] = {}  # by place: key, state; None for other files
        self._ids: dict[str, str] = {}  # the place of each job

    def may_have_changed(self) -> bool:
        """Return True if the folder may have changed since the last scan."""
        is_unchanged = self._times_are_final and self._folder_times() == self._times
        return not is_unchanged or self._journal.may_have_changed()

    def scan(self, now: datetime) -> list[StoredJob]:
        """Return every message and every dead job. An unchanged entry is the same object as in the last scan.

        Raises:
            StorageFatalError: the path is not a folder, or the folder was there, and is gone (`BlobMissingError`).
        """
        unreadable = False
        if self._process != process_id():  # the parent may have been reading
            self._forget_all()
        if self._unflushed:  # what a failed enqueue wrote must be on the disk before it is read as done
            self._flush()
        for listings in range(1, MOST_LISTINGS + 1):
            times, missed, jobs = self._folder_times(), False, list[StoredJob]()
            places = self._places()
            self._journal.read()
            self._known = {place: entry for place, entry in self._known.items() if place in places}
            for place in sorted(places):
                try:
                    job = self._message(place, places)
                except FileNotFoundError:
                    missed = True  # it was renamed after the listing
                else:
                    jobs += () if job is None else (job,)
                    unreadable |= place not in self._known and job is None
            if not missed and (listings >= LISTINGS or times == self._folder_times()):
                break
        self._ids = {job.id: place for job, place in jobs}
        if times != self._times:
            self._times, self._since = times, now
        self._times_are_final = now - self._since >= TICK and not unreadable  # no time of the folder shows new rights
        return jobs

    def _places(self) -> set[str]:
        """List the folder and the folder of dead jobs."""
        places = set(self._names())
        if DEAD in places:
            places.update(f"{DEAD}/{name}" for name in os.listdir(self._path(DEAD)))
        return places

    def _message(self, place: str, places: set[str]) -> StoredJob | None:
        """Return a message. It is remembered, unless it could be another one under the same name at the next scan."""
        key, state, stored = self._known.get(place, ("", None, None))
        if state is not None and state == self._journal.known(key):
            return stored
        name, status = parse(place), os.lstat(self._path(place))
        if name is None or not stat.S_ISREG(status.st_mode):
            self._known[place] = "", NO_STATE, None
            return None
        if not os.access(self._path(place), os.R_OK):
            return None
        key = str(name.number)
        state = self._journal.known(key)
        job = job_of(place, state, self.entrypoint)
        is_copy = self._ids.get(job.id, place) != place and self._ids[job.id] in places
        if is_copy:
            job = job.evolve(id=f"{place}~")  # another message has the same number
        self._ids[job.id] = place
        stored = StoredJob(job, place)
        if not is_copy:
            self._known[place] = key, state, stored
        return stored

    def _folder_times(self) -> tuple[tuple[int, int], ...]:
        """Return a value that changes when a file in the folder is added, renamed or removed."""
        times = []
        for folder in (self.name, self._path(DEAD)):
            try:
                status = os.stat(folder)
                times.append((status.st_ino, status.st_mtime_ns))
            except (FileNotFoundError, NotADirectoryError):
                times.append((0, 0))
        return tuple(times)

    def payloads(self, jobs: Sequence[StoredJob]) -> list[JobRecord]:
        """Return these jobs as they are now, with their payloads. Jobs that are gone or unreadable are left out."""
        present = []
        for job, place in jobs:
            with suppress(FileNotFoundError, PermissionError):  # it was removed or renamed, or may not be read
                payload, state = (self.path / place).read_bytes(), self._journal.state(key_of(place))
                present.append(job_of(place, state, self.entrypoint).evolve(id=job.id, payload=payload))
        return present

    # Adding

    def carry_out(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Make each change by itself; new jobs that follow each other together."""
        for change in changes:
            self._known.pop(change.place, None)  # a file that gets this name again must be read again
        return super().carry_out(changes, now)

    def _add(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Add jobs: reserve their numbers, write their files at once and their states, then rename the files in order.

        If a rename or a flush fails, the jobs are removed again, unless another program has taken them by now.
        """
        jobs = [change.new for change in changes]
        added: list[StoredJob] = []
        reserved: list[int] = []
        try:
            self._tidy(now)
            if not self._was_there:
                self.path.mkdir(parents=True, exist_ok=True)
                flush_names(str(self.path.parent))
            if any(job.status is JobStatus.DEAD for job in jobs):
                os.makedirs(self._path(DEAD), exist_ok=True)
            reserved = self._reserve(len(jobs), now)
            with ThreadPoolExecutor(min(THREADS, len(jobs)), "jqueue-fsync") as threads:
                list(threads.map(self._write, reserved, jobs))
            states = {str(number): state_of(job, NO_STATE) for number, job in zip(reserved, jobs, strict=True)}
            self._journal.write(states, now, durable=True)
            self._unflushed = True
            for number, job, state in zip(reserved, jobs, states.values(), strict=True):
                place = f"{DEAD}/{number}" if job.status is JobStatus.DEAD else str(Name(number, state.due))
                added.append(self._stored_job(self._rename(f"{number}{WRITING}", place), state, job.payload))
            self._flush()
        except (OSError, StorageError) as error:
            self._free(reserved[len(added) :])
            return [self._withdraw(each, error) for each in added] + [error] * (len(jobs) - len(added))
        return list(added)

    def _withdraw(self, added: StoredJob, error: Exception) -> Outcome:
        """Remove an added job. Return the error; or the job if another program has taken it, and may finish it."""
        with suppress(OSError):  # else the next scan shows it
            try:
                os.unlink(self._path(added.place))
            except FileNotFoundError:
                return added
        return error

    def _flush(self) -> None:
        for folder in ("", DEAD):
            flush_names(self._path(folder))
        self._unflushed = False

    def _write(self, number: int, job: JobRecord) -> None:
        """Write the file of a new job, and sync it."""
        with open(self._path(f"{number}{WRITING}"), "wb", buffering=0) as file:
            write_all(file.fileno(), job.payload)
            flush(file.fileno())

    def _reserve(self, count: int, now: datetime) -> list[int]:
        """Reserve numbers larger than those of all messages that were there before this call.

        Raises:
            FileNotFoundError: there is no folder.
        """
        first, behind = max(microseconds(now), self._last_number + 1), False
        while True:
            numbers: list[int] = []
            try:
                number = first
                while len(numbers) < count:
                    with suppress(FileExistsError):
                        path = self._path(f"{number}{WRITING}")
                        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
                        numbers.append(number)
                    number += 1
                places = self._places()
            except BaseException:
                self._free(numbers)
                raise
            taken = {name.number for place in places if (name := parse(place)) is not None}
            before = max((number for number in taken if number <= LARGEST_TIME), default=0)
            if taken.isdisjoint(numbers) and (behind or before < numbers[0]):
                self._last_number = numbers[-1]
                return numbers
            self._free(numbers)
            first, behind = max(before, numbers[-1]) + 1, True

    def _free(self, numbers: Sequence[int]) -> None:
        """Give back the numbers that were not used."""
        for number in numbers:
            with suppress(OSError):
                os.unlink(self._path(f"{number}{WRITING}"))

    def _tidy(self, now: datetime) -> None:
        """Remove files of writers that have died."""
        oldest = (now - ABANDONED).timestamp()
        for place in self._places():
            number, path = place.removesuffix(WRITING), self._path(place)
            with suppress(OSError):
                if place != number and number.isdecimal() and os.lstat(path).st_mtime < oldest:
                    os.unlink(path)

    def _present(self) -> set[str]:
        return {place.removeprefix(f"{DEAD}/").partition(".")[0] for place in self._places()}

    # Steps: one method for each, named after it

    def _claim(self, change: Change, now: datetime) -> StoredJob:
        old, job = change.old, change.new
        timeout = job.claim_timeout or VISIBILITY_TIMEOUT
        number, until = name_of(change.place).number, microseconds(now + timedelta(seconds=timeout))
        place = self._rename(change.place, str(Name(number, until)))
        try:
            state = self._journal.state(key_of(place))
            last = max(state.token or 0, state.next or 0, state.due or 0)
            if last >= until:  # no two claims of a message have the same name
                until = last + 1
                place = self._rename(place, str(Name(number, until)))
            failures = state.failures + job.failures - old.failures
            job = job.evolve(attempt=max(job.attempt, state.attempt + 1), failures=failures)
            payload = (self.path / place).read_bytes()
            state = state_of(job, state, token=until, next=None, timeout=timeout)
            self._note(place, state, now)
        except (OSError, StorageError):
            with suppress(OSError):  # it may be another program's by now
                self._rename(place, change.place)
            raise
        return self._stored_job(place, state, payload)

    def _prolong(self, change: Change, now: datetime) -> StoredJob:
        job, name = change.new, name_of(change.place)
        assert name.until is not None
        until = max(microseconds(now + timedelta(seconds=job.claim_timeout or VISIBILITY_TIMEOUT)), name.until + 1)
        state = replace(self._journal.state(key_of(change.place)), token=name.until, next=until)
        self._note(change.place, state, now)
        return self._stored_job(self._rename(change.place, str(Name(name.number, until))), state, job.payload)

    def _release(self, change: Change, now: datetime) -> StoredJob:
        """Make a job ready or dead, at its place or behind all others.

        At the same time the holder of the claim may prolong it, or another program may give back an expired one. Then
        the rename fails. The state written before that rename does no harm, as it changes no count.
        """
        old, job, place, folder = change.old, change.new, change.place, ""
        state = state_of(job, self._journal.state(key_of(place)))
        due = state.due
        if job.status is JobStatus.DEAD:
            folder, due = f"{DEAD}/", None
            with suppress(FileExistsError):
                os.mkdir(self._path(DEAD))
        new = f"{folder}{Name(name_of(place).number, due)}"
        is_copy = job.sequence == old.sequence and os.path.lexists(self._path(new))  # of the number of another message
        if job.sequence == old.sequence and not is_copy:
            self._note(place, state, now)
            return self._stored_job(self._rename(place, new), state, job.payload)
        [number] = self._reserve(1, now)
        try:
            self._journal.write({str(number): state}, now, partial(os.lstat, self._path(place)))
            new = self._rename(place, f"{folder}{Name(number, due)}")
        finally:
            self._free([number])
        if not is_copy:  # else the state is that of the other message
            self._removed[key_of(place)] = NO_STATE
        return self._stored_job(new, state, job.payload)

    def _remove(self, change: Change, now: datetime) -> StoredJob:
        job = change.old
        is_claimed = job.status is JobStatus.IN_PROGRESS
        payload = job.payload if is_claimed else (self.path / change.place).read_bytes()
        os.unlink(self._path(change.place))
        acked = State(id=job.id, attempt=job.attempt, finished=True)
        self._removed[key_of(change.place)] = acked if change.acked else NO_STATE
        return StoredJob(job.evolve(payload=payload), "")

    def _rename(self, old: str, new: str) -> str:
        """Rename a file, if it still has the name that was last seen.

        Raises:
            FileNotFoundError: it no longer has that name.
            FileExistsError: another file has the new name.
        """
        rename_exclusively(self._path(old), self._path(new))
        return new

    def _note(self, place: str, state: State, now: datetime) -> None:
        """Write the new state of a job, if its file still has the name that was last seen."""
        self._journal.write({key_of(place): state}, now, partial(os.lstat, self._path(place)))

    def _stored_job(self, place: str, state: State, payload: bytes) -> StoredJob:
        """Return the job as a scan would now show it, with this payload."""
        return StoredJob(job_of(place, state, self.entrypoint).evolve(payload=payload), place)
