"""Reads a folder of vsqs: each message as a job.

A file is not read again while its name is the same. It may have had another name in between, as a claimed message. Then
its note counts more attempts, which the next claim reads.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from jqueue.domain.errors import BlobMissingError, StorageFatalError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.domain.models import Job, record_of
from jqueue.formats.notes import Notes
from jqueue.formats.port import StoredJob
from jqueue.formats.times import microseconds
from jqueue.formats.times import moment as from_microseconds
from jqueue.formats.vsqs.names import LARGEST_TIME, Name, moment, parse

DEAD = ".jqueue-dead"
NOTES = ".jqueue-notes"

VISIBILITY_TIMEOUT = 10.0
"""Seconds for which vsqs hides a claimed message by default; assumed for claims whose length is not known."""

TICK = timedelta(seconds=0.05)
"""Seconds after which an unchanged folder time is trusted: file systems count time in ticks, which hide changes."""

LISTINGS = 3
"""Number of times that a folder is listed at most, while its time changes: a listing may miss a renamed file."""

MOST_LISTINGS = 20
"""Number of times that a folder is listed at most, while a listed file has another name before it is read."""


def job_of(name: Name, note: dict[str, Any], entrypoint: str, *, dead: bool = False) -> JobRecord:
    """Return the job of a message, without its payload.

    Args:
        name: name of the message's file.
        note: note of the message; may be empty.
        entrypoint: entrypoint of the job if the note has none.
        dead: True if the message is among the dead jobs.

    Raises:
        ValueError, TypeError: the note was not written by jqueue.
    """
    number, until = name
    values: dict[str, Any] = {
        "id": str(number),
        "entrypoint": entrypoint,
        "created_at": moment(number),
        "sequence": min(number, LARGEST_TIME),
    }
    if note:
        known = ("id", "entrypoint", "attempt", "failures", "max_attempts", "headers", "error")
        values |= {field: note[field] for field in known if field in note}
        times = {"created_at": "created", "run_at": "run_at", "dead_at": "dead_at"}
        values |= {field: from_microseconds(note[entry]) for field, entry in times.items() if entry in note}
    if dead:
        values |= {"status": JobStatus.DEAD, "dead_at": values.get("dead_at", values["created_at"])}
    elif until is not None and note.get("due") == until:
        values.setdefault("run_at", moment(until))  # the name may be rounded
    elif until is not None:
        ours = is_noted(name, note)
        timeout = float(note.get("timeout", VISIBILITY_TIMEOUT)) if ours else VISIBILITY_TIMEOUT
        attempt = values.get("attempt", 0)
        values |= {
            "status": JobStatus.IN_PROGRESS,
            "attempt": max(1, attempt) if ours else attempt + 1,
            "heartbeat_at": moment(until) - timedelta(seconds=timeout),
            "claim_timeout": timeout,
        }
    if not dead:
        values["dead_at"] = None
    values["payload"] = b""
    if note:  # people may have edited it
        return record_of(Job(**values))
    return JobRecord(status=values.pop("status", JobStatus.QUEUED), **values)


def is_noted(name: Name, note: dict[str, Any]) -> bool:
    """Return True if the note describes the claim or delay that the name shows, or if the name shows none.

    If it does not, the claim is one of vsqs, or one of jqueue whose note is about to be written.
    """
    return name.until is None or name.until in (note.get("until"), note.get("next"), note.get("due"))


class FolderReader:
    """The messages of one folder, as far as they have been read.

    Args:
        folder: path of the folder.
        entrypoint: entrypoint of messages without a note.
    """

    def __init__(self, folder: str, entrypoint: str) -> None:
        self._folder = folder
        self._entrypoint = entrypoint
        self.notes = Notes(f"{folder}/{NOTES}")
        self._was_there = False
        self._times: tuple[tuple[int, int], ...] = ()
        self._since: datetime | None = None
        self._times_are_final = False
        self._seen: dict[str, StoredJob] = {}
        self._ids: dict[str, str] = {}
        self._places: dict[str, set[str]] = {"": set(), f"{DEAD}/": set()}
        self._others: dict[str, set[str]] = {"": set(), f"{DEAD}/": set()}  # names that are not messages
        self._to_read_again: dict[str, set[str]] = {"": set(), f"{DEAD}/": set()}
        self._unreadable: dict[str, tuple[int, int, int]] = {}
        self._listing_missed = False
        self._has_dead = True

    def unread_copy(self) -> FolderReader:
        """Return a copy that has read nothing, and only remembers whether the folder was there."""
        other = FolderReader(self._folder, self._entrypoint)
        other._was_there = self._was_there
        return other

    def may_have_changed(self) -> bool:
        """Return True if the folder may have changed since the last scan."""
        return (
            not self._times_are_final
            or self._folder_times() != self._times
            or any(map(self._rights_changed, self._unreadable))
        )

    def note_exists(self) -> None:
        """Remember that the folder exists: from now on it must not vanish."""
        self._was_there = True

    def check_not_gone(self) -> None:
        """Raise BlobMissingError if the missing folder was there before.

        Raises:
            BlobMissingError: the folder was there, and is gone with its jobs.
        """
        if self._was_there:
            raise BlobMissingError(
                f"the folder {self._folder!r} has disappeared: restore it, or restart the program (make a new queue "
                "object) to start an empty queue"
            )

    def scan(self, now: datetime) -> list[StoredJob]:
        """Return every message and every dead job. An unchanged entry is the same object as in the last scan.

        Raises:
            BlobMissingError: the folder was there, and is gone.
            StorageFatalError: the path is not a folder.
        """
        for listings in range(1, MOST_LISTINGS + 1):
            times, self._listing_missed = self._folder_times(), False
            self._read_listing()
            if not self._listing_missed and (listings >= LISTINGS or times == self._folder_times()):
                break
        if times != self._times or self._since is None:
            self._times, self._since = times, now
        self._times_are_final = now - self._since >= TICK
        return list(self._seen.values())

    def note(self, place: str) -> dict[str, Any]:
        """Return the current note of a message.

        Raises:
            FileNotFoundError: the message is no longer there.
        """
        os.stat(f"{self._folder}/{place}")
        return self.notes.read(key_of(place))

    def job(self, place: str, note: dict[str, Any]) -> JobRecord:
        """Return the job of a message with this note. A note that jqueue did not write is ignored."""
        dead = place.startswith(f"{DEAD}/")
        name = parse(place.removeprefix(f"{DEAD}/"))
        assert name is not None
        try:
            return job_of(name, note, self._entrypoint, dead=dead)
        except (ValueError, TypeError, OverflowError):
            return job_of(name, {}, self._entrypoint, dead=dead)

    def _folder_times(self) -> tuple[tuple[int, int], ...]:
        """Return a value that changes when a file in the folder is added, renamed or removed."""
        found = []
        for folder in (self._folder, f"{self._folder}/{DEAD}"):
            try:
                status = os.stat(folder)
                found.append((status.st_ino, status.st_mtime_ns))
            except (FileNotFoundError, NotADirectoryError):
                found.append((0, 0))
        return tuple(found)

    def ignore_unreadable(self, place: str) -> None:
        """Ignore a message that this user may not read, until its owner or its mode changes."""
        with suppress(FileNotFoundError):
            self._unreadable[place] = self._rights(place)
            self._others[""].add(place)

    def _rights(self, place: str) -> tuple[int, int, int]:
        status = os.lstat(f"{self._folder}/{place}")
        return status.st_mode, status.st_uid, status.st_gid

    def _rights_changed(self, place: str) -> bool:
        try:
            return self._unreadable[place] != self._rights(place)
        except FileNotFoundError:
            return True

    def forget(self, place: str) -> None:
        """Forget a message that is about to change: a file that gets this name again must be read again."""
        dead = place.startswith(f"{DEAD}/")
        self._forget(f"{DEAD}/" if dead else "", place.removeprefix(f"{DEAD}/"))

    def _read_listing(self) -> None:
        """List the folder and the folder of dead jobs, forget the names that are gone, and read the new ones.

        A message that could be another one under the same name is forgotten first, and read again.
        """
        new = []
        for place in [place for place in self._unreadable if self._rights_changed(place)]:
            del self._unreadable[place]
            self._others[""].discard(place)
        for prefix, known in self._places.items():
            names, others = self._names_in(prefix), self._others[prefix]
            for name in ((known | others) - names) | self._to_read_again[prefix]:
                others.discard(name)
                self._forget(prefix, name)
            self._to_read_again[prefix] = set()
            new += [(prefix, name) for name in names - known - others]
        for prefix, name in sorted(new):
            self._add(prefix, name)

    def _add(self, prefix: str, text: str) -> None:
        place, name = prefix + text, parse(text)
        try:
            if name is None or not stat.S_ISREG(os.lstat(f"{self._folder}/{place}").st_mode):
                self._others[prefix].add(text)
                return
            note = self.note(place)
        except FileNotFoundError:
            self._listing_missed = True  # it was renamed after the listing
            return
        job = self.job(place, note)
        if self._ids.setdefault(job.id, place) != place:
            job = job.evolve(id=f"{place}~")  # another message has the same number, or a copy of the same note
            self._ids[job.id] = place
        self._seen[place] = StoredJob(job, place)
        self._places[prefix].add(text)
        if prefix or self._ids.get(str(note.get("id", name.number))) != place or not is_noted(name, note):
            self._to_read_again[prefix].add(text)

    def _forget(self, prefix: str, text: str) -> None:
        entry = self._seen.pop(prefix + text, None)
        if entry is not None:
            self._places[prefix].discard(text)
            self._ids.pop(entry.job.id, None)

    def _names_in(self, prefix: str) -> set[str]:
        if prefix and not self._has_dead:
            return set()
        try:
            names = set(os.listdir(f"{self._folder}/{prefix}"))
        except FileNotFoundError:
            if not prefix:
                self.check_not_gone()
                self._has_dead = True  # look for dead jobs as soon as the folder exists
            return set()
        except NotADirectoryError:
            raise StorageFatalError(
                f"{self._folder!r} is not a folder: a vsqs queue is a folder with a file for each job"
            ) from None
        if not prefix:
            self.note_exists()
            self._has_dead = DEAD in names or bool(self._places[f"{DEAD}/"])
        return names


def key_of(place: str) -> str:
    """Return the key of a message's note."""
    return place.removeprefix(f"{DEAD}/").partition(".")[0]


def note_of(job: JobRecord, before: dict[str, Any], **values: Any) -> dict[str, Any]:
    """Return the note of a job: the fields that the format cannot hold.

    Other fields of the note before are kept: a later version of jqueue may have written them.
    """
    return {
        **before,
        "id": job.id,
        "entrypoint": job.entrypoint,
        "created": microseconds(job.created_at),
        "headers": job.headers,
        "max_attempts": job.max_attempts,
        "attempt": job.attempt or None,
        "failures": job.failures or None,
        "error": job.error,
        "run_at": None if job.run_at is None else microseconds(job.run_at),
        "dead_at": None if job.dead_at is None else microseconds(job.dead_at),
        **values,
    }
