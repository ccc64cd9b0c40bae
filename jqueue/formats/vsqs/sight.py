"""What is in a folder of vsqs: every message as a job.

What is known by the same name is not read again. That name may have had another one between: then its note counts more
attempts, which whoever claims it reads with the claim.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from jqueue.domain.errors import BlobMissingError, StorageFatalError
from jqueue.domain.models import Job, JobStatus
from jqueue.formats.files.notes import read_note
from jqueue.formats.port import Kept
from jqueue.formats.times import microseconds
from jqueue.formats.times import moment as from_microseconds
from jqueue.formats.vsqs.names import LARGEST_TIME, Name, moment, parse

DEAD = ".jqueue-dead"
NOTES = ".jqueue-notes"

VISIBILITY_TIMEOUT = 10.0
"""Seconds that vsqs hides a message by default: taken for claims that do not say how long they are meant to last."""

SURE = timedelta(seconds=0.05)
"""What has not moved for so long was not changed by then: file systems count time in ticks."""

LISTINGS = 3
"""So often a folder is listed in which files get other names at that very time, and may be missed."""

COUNTED = ("attempt", "failures", "until", "next", "due")
"""The fields of a note that are counted with."""

_PLAIN = Job(entrypoint="plain", payload=b"")


def job_of(name: Name, note: dict[str, Any], entrypoint: str, *, dead: bool = False) -> Job:
    """The job that a message is.

    Args:
        name: of its file.
        note: what is known of it besides.
        entrypoint: if the note has none.
        dead: whether it is among the dead.

    Raises:
        ValueError, TypeError: the note is not one of ours.
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
        timeout = float(note.get("claim_timeout", VISIBILITY_TIMEOUT)) if ours else VISIBILITY_TIMEOUT
        attempt = values.get("attempt", 0)
        values |= {
            "status": JobStatus.IN_PROGRESS,
            "attempt": max(1, attempt) if ours else attempt + 1,
            "heartbeat_at": moment(until) - timedelta(seconds=timeout),
            "claim_timeout": timeout,
        }
    if not dead:
        values["dead_at"] = None
    return Job(payload=b"", **values) if note else _PLAIN.evolve(**values)


def is_noted(name: Name, note: dict[str, Any]) -> bool:
    """Whether what a note says of a claim is meant for the one that the name shows.

    If not, that is one of vsqs; or one of ours, and its note is about to be written.
    """
    return name.until is None or name.until in (note.get("until"), note.get("next"), note.get("due"))


class Sight:
    """What is known of one folder.

    Args:
        folder: its path.
        entrypoint: of messages that have no note.
        attributes: whether notes may be extended attributes.
    """

    def __init__(self, folder: str, entrypoint: str, attributes: bool) -> None:
        self._folder = folder
        self._entrypoint = entrypoint
        self._attributes = attributes
        self._was_there = False
        self._times: tuple[tuple[int, int], ...] = ()
        self._since: datetime | None = None
        self._sure = False
        self._seen: dict[str, Kept] = {}
        self._ids: dict[str, str] = {}
        self._places: dict[str, set[str]] = {"": set(), f"{DEAD}/": set()}
        self._others: dict[str, set[str]] = {"": set(), f"{DEAD}/": set()}  # names that are of no message
        self._unsure: dict[str, set[str]] = {"": set(), f"{DEAD}/": set()}
        self._closed: dict[str, tuple[int, int, int]] = {}
        self._missed = False
        self._has_dead = True

    def anew(self) -> Sight:
        """One that knows nothing but whether there was a folder."""
        other = Sight(self._folder, self._entrypoint, self._attributes)
        other._was_there = self._was_there
        return other

    def has_moved(self) -> bool:
        """Whether the folder may have changed since the last scan."""
        return not self._sure or self._folder_times() != self._times or any(map(self._may_be_open, self._closed))

    def found(self) -> None:
        """There is a folder: from now on it must not vanish."""
        self._was_there = True

    def check_gone(self) -> None:
        """There is no folder: was there one?

        Raises:
            BlobMissingError: there was, and its jobs are gone.
        """
        if self._was_there:
            raise BlobMissingError(
                f"the folder {self._folder!r} was there, and is gone: restore it, or make a new queue object to start "
                "with an empty queue"
            )

    def scan(self, now: datetime) -> list[Kept]:
        """Every message, and every dead job. What is known already is the very same object.

        Raises:
            BlobMissingError: the folder was there, and is gone.
            StorageFatalError: it is no folder.
        """
        for _ in range(LISTINGS):
            times, self._missed = self._folder_times(), False
            self._look()
            if not self._missed and times == self._folder_times():
                break
        if times != self._times or self._since is None:
            self._times, self._since = times, now
        self._sure = now - self._since >= SURE
        return list(self._seen.values())

    def note(self, place: str) -> dict[str, Any]:
        """The note of a message, as it is now.

        Raises:
            FileNotFoundError: it is not there any more.
        """
        return _checked(read_note(f"{self._folder}/{place}", self.beside(place), attributes=self._attributes))

    def beside(self, place: str) -> str:
        """The path of the file of a note that is no attribute."""
        number = place.removeprefix(f"{DEAD}/").partition(".")[0]
        return f"{self._folder}/{NOTES}/{number}"

    def job(self, place: str, note: dict[str, Any]) -> Job:
        """The job that a message with that note is. A note that is none of ours is as good as none."""
        dead = place.startswith(f"{DEAD}/")
        name = parse(place.removeprefix(f"{DEAD}/"))
        assert name is not None
        try:
            return job_of(name, note, self._entrypoint, dead=dead)
        except (ValueError, TypeError, OverflowError):
            return job_of(name, {}, self._entrypoint, dead=dead)

    def _folder_times(self) -> tuple[tuple[int, int], ...]:
        """What is another as soon as a file of the folder gets another name, comes or leaves."""
        found = []
        for folder in (self._folder, f"{self._folder}/{DEAD}"):
            try:
                status = os.stat(folder)
                found.append((status.st_ino, status.st_mtime_ns))
            except (FileNotFoundError, NotADirectoryError):
                found.append((0, 0))
        return tuple(found)

    def set_aside(self, place: str) -> None:
        """A message may not be read by this user: it is none, until its owner or its mode is another."""
        with suppress(FileNotFoundError):
            self._closed[place] = self._rights(place)
            self._others[""].add(place)

    def _rights(self, place: str) -> tuple[int, int, int]:
        status = os.lstat(f"{self._folder}/{place}")
        return status.st_mode, status.st_uid, status.st_gid

    def _may_be_open(self, place: str) -> bool:
        try:
            return self._closed[place] != self._rights(place)
        except FileNotFoundError:
            return True

    def touched(self, place: str) -> None:
        """A message of that name was changed: should it ever have that name again, it is another."""
        dead = place.startswith(f"{DEAD}/")
        self._forget(f"{DEAD}/" if dead else "", place.removeprefix(f"{DEAD}/"))

    def _look(self) -> None:
        """Bring what is known up to date with what is in the folder, and in that of the dead.

        What may be another next time, under the same name, is forgotten.
        """
        new = []
        for place in [place for place in self._closed if self._may_be_open(place)]:
            del self._closed[place]
            self._others[""].discard(place)
        for prefix, known in self._places.items():
            names, others = self._listed(prefix), self._others[prefix]
            for name in ((known | others) - names) | self._unsure[prefix]:
                others.discard(name)
                self._forget(prefix, name)
            self._unsure[prefix] = set()
            new += [(prefix, name) for name in names - known - others]
        for prefix, name in sorted(new):
            self._meet(prefix, name)

    def _meet(self, prefix: str, text: str) -> None:
        place, name = prefix + text, parse(text)
        try:
            if name is None or not stat.S_ISREG(os.lstat(f"{self._folder}/{place}").st_mode):
                self._others[prefix].add(text)
                return
            note = self.note(place)
        except FileNotFoundError:
            self._missed = True  # it is there by another name
            return
        job = self.job(place, note)
        if self._ids.setdefault(job.id, place) != place:
            job = job.evolve(id=f"{place}~")  # another one of that number, or with a copy of its note
            self._ids[job.id] = place
        self._seen[place] = Kept(job, place)
        self._places[prefix].add(text)
        if prefix or self._ids.get(str(note.get("id", name.number))) != place or not is_noted(name, note):
            self._unsure[prefix].add(text)

    def _forget(self, prefix: str, text: str) -> None:
        entry = self._seen.pop(prefix + text, None)
        if entry is not None:
            self._places[prefix].discard(text)
            self._ids.pop(entry.job.id, None)

    def _listed(self, prefix: str) -> set[str]:
        if prefix and not self._has_dead:
            return set()
        try:
            names = set(os.listdir(f"{self._folder}/{prefix}"))
        except FileNotFoundError:
            if not prefix:
                self.check_gone()
                self._has_dead = True  # whoever is there by then is looked for
            return set()
        except NotADirectoryError:
            raise StorageFatalError(
                f"{self._folder!r} is no folder: a queue of vsqs is a folder with a file for each job"
            ) from None
        if not prefix:
            self.found()
            self._has_dead = DEAD in names or bool(self._places[f"{DEAD}/"])
        return names


def _checked(note: dict[str, Any]) -> dict[str, Any]:
    """A note, if what is counted with is numbers; who else would write it?"""
    return note if all(type(note.get(field, 0)) is int for field in COUNTED) else {}


def note_of(job: Job, before: dict[str, Any], **values: Any) -> dict[str, Any]:
    """A note that says what the format has no place for; what a later version of jqueue has noted is kept."""
    return {
        **before,
        "id": job.id,
        "entrypoint": job.entrypoint,
        "created": microseconds(job.created_at),
        "headers": dict(job.headers) or None,
        "max_attempts": job.max_attempts,
        "attempt": job.attempt or None,
        "failures": job.failures or None,
        "error": job.error,
        "run_at": None if job.run_at is None else microseconds(job.run_at),
        "dead_at": None if job.dead_at is None else microseconds(job.dead_at),
        **values,
    }
