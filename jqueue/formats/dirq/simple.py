"""`DirqSimple`: a queue of dirq (Directory::Queue) of the simple kind; docs/reference/formats.md describes both kinds.

    5fb8a3c0/5fb8a3c91e2403          an element: a file with nothing but the payload
    5fb8a3c0/5fb8a3c91e2403.lck      a second link to it: a program has locked it
    5fb8a3c0/5fb8a3c91e2403.tmp      being added

Programs of dirq and of jqueue can work on one folder at the same time. They take locks in the same way. An element is
renamed or removed in one step, which the file system lets only one program do. Fields that the format cannot hold are
in a note with each element (`jqueue.formats.notes`). Dead jobs are in a folder that dirq does not look into.

`DirqElements`, in a module of its own, is the other kind: its elements are folders.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from jqueue.domain.errors import StorageFatalError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.formats.dirq.folders import Folder, Stamp
from jqueue.formats.dirq.names import DEAD, ELEMENT, HIDDEN, MOVING, Place, hidden, number_of
from jqueue.formats.dirq.store import ABANDONED, TRIES, DirqStore, without
from jqueue.formats.port import Change, JobChangedError, StoredJob
from jqueue.formats.times import microseconds, moment

GRANULARITY = 60
"""Length in seconds of the period whose elements share a folder."""

LOCK, PART = ".lck", ".tmp"


class DirqSimple(DirqStore):
    """A queue of dirq's simple kind (`QueueSimple`, `Directory::Queue::Simple`) as a store of jobs.

    Args:
        path: path of the folder, which the first job creates.
        granularity: length in seconds of the period whose elements share a folder.
        settings: see `DirqStore`: entrypoint, umask, maxtemp, maxlock, fsync.
    """

    def __init__(self, path: str | os.PathLike[str], *, granularity: int = GRANULARITY, **settings: Any) -> None:
        super().__init__(path, **settings)
        self._granularity = max(1, granularity)
        self._settings["granularity"] = granularity

    def payloads(self, jobs: Sequence[StoredJob]) -> list[JobRecord]:
        """Return these jobs with their payloads. Jobs that are gone or unreadable are left out."""
        found = []
        for job, place in jobs:
            with suppress(FileNotFoundError, PermissionError):
                found.append(job.evolve(payload=self._disk.read(self._disk.path(Place.parse(place).name))))
        return found

    def _check_kind(self, names: frozenset[str]) -> None:
        if names & {"temporary", "obsolete"}:
            raise StorageFatalError(
                f"{self._root!r} is a dirq queue with a folder for each element: open it with kind=queue"
            )

    # Reading

    def _stamp(self, name: str) -> tuple[Stamp, bool]:
        path = self._disk.path(name)
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError
        locked = found.st_nlink > 1 and os.path.lexists(path + LOCK)
        return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns), locked

    def _lock_of(self, name: str) -> tuple[int, int]:
        try:
            token = os.stat(self._disk.path(name) + LOCK).st_mtime_ns
        except FileNotFoundError:
            return 0, 0
        return token, token

    def _to_check(self, folder: Folder) -> Iterable[str]:
        return [element for element, seen in folder.seen.items() if seen.locked or seen.kept is None]

    def _leftovers(self, now: datetime) -> Iterator[str]:
        seconds = now.timestamp()
        for folder_name, folder in self._folders.items():
            elements = set(folder.elements)
            for name in folder.listing.names:
                element, sign, kind = name.rpartition(".")
                age = {"tmp": self._maxtemp, "lck": self._maxlock}.get(kind, 0)
                if sign and age and ELEMENT.fullmatch(element) and not (kind == "lck" and element in elements):
                    with suppress(FileNotFoundError):
                        place = f"{folder_name}/{name}"
                        if seconds - os.lstat(self._disk.path(place)).st_mtime > age:
                            yield place
        for name in self._hidden.elements:
            if name.startswith(MOVING) and self._is_abandoned(f"{HIDDEN}/{name}", now):
                yield f"{HIDDEN}/{name}"

    def _discard(self, name: str, now: datetime) -> None:
        if name.startswith(HIDDEN):
            self._end_move(name, now)
        else:
            os.unlink(self._disk.path(name))

    # Adding

    def _write_part(self, change: Change, now: datetime) -> str:
        """Write a new element under a name that ends in .tmp. Returns that name without the ending."""
        note = self._note_of_new(change, headers=True)
        name = self._new_place(now)
        for _ in range(TRIES):
            try:
                self._disk.create(self._disk.path(name) + PART, change.new.payload)
                if note:
                    self._disk.write_note(name + PART, note)
            except FileExistsError:
                name = self._new_place(now)
            except FileNotFoundError:  # the folder does not exist yet, or was purged
                self._disk.make_folder(name[:8])
            except OSError:
                self._drop_part(name)
                raise
            else:
                return name
        raise self._too_many_tries("no element could be added to {}")

    def _publish(self, part: str, change: Change, now: datetime) -> tuple[str, str]:
        place = part
        if change.new.status is JobStatus.DEAD:
            self._disk.make_folder(HIDDEN)
            place = hidden(DEAD, part)
        os.link(self._disk.path(part) + PART, self._disk.path(place))
        self._drop_part(part)
        self._disk.note_added(os.path.dirname(place))
        return part, place

    def _drop_part(self, part: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._disk.path(part) + PART)

    def _new_place(self, now: datetime) -> str:
        element = self._disk.new_name(now)
        seconds = int(element[:8], 16)
        return f"{seconds - seconds % self._granularity:08x}/{element}"

    # Claims

    def _claim(self, change: Change, now: datetime) -> StoredJob:
        job, name = change.new, change.place
        if name.startswith(HIDDEN):
            name = self._end_move(name, now)
        path = self._disk.path(name)
        self._lock(path)
        token = self._disk.new_token(now)
        try:
            os.utime(path, ns=(token, token))
        except FileNotFoundError:  # another program has removed the element in spite of the lock
            os.unlink(path + LOCK)
            raise
        note = self._disk.note(name)
        is_new = not note and job.id == name
        if note.pop("to", None) == name:
            with suppress(FileNotFoundError):
                os.unlink(self._disk.path(hidden(MOVING, note.get("from", name))))
        note = self._note_of_claim(change, note, token)
        self._disk.write_note(name, without(note, "next", "from"))
        payload = self._disk.read(path + LOCK)
        if os.stat(path + LOCK).st_mtime_ns != token:
            raise JobChangedError  # another program took our lock for an old one, and has locked the element itself
        values = {"attempt": note["attempt"], "failures": note["failures"], "heartbeat_at": moment(token // 1000)}
        values["payload"] = payload
        place = Place(name, token, token)
        if is_new:
            return StoredJob(job.evolve(**values), str(place))
        values |= {"status": JobStatus.IN_PROGRESS, "claim_timeout": job.claim_timeout}
        return StoredJob(self._job(place, note, **values), str(place))

    def _lock(self, path: str) -> None:
        try:
            os.link(path, path + LOCK)
        except FileExistsError:
            raise JobChangedError from None
        except PermissionError:
            raise self._ignore_unreadable(path.removeprefix(f"{self._root}/")) from None

    def _unlock(self, name: str) -> None:
        os.unlink(self._disk.path(name) + LOCK)

    def _check(self, place: Place) -> None:
        """Raise JobChangedError if the lock has changed since it was last seen."""
        if os.stat(self._disk.path(place.name) + LOCK).st_mtime_ns != place.token:
            raise JobChangedError

    def _prolong(self, change: Change, now: datetime) -> StoredJob:
        job, place = change.new, Place.parse(change.place)
        self._check(place)
        note = self._disk.note(place.name)
        if place.token not in (note.get("token"), note.get("next")):
            raise JobChangedError
        token = self._disk.new_token(now, after=place.token)
        note |= {"token": place.token, "next": token, "timeout": job.claim_timeout}
        self._disk.write_note(place.name, note)
        os.utime(self._disk.path(place.name) + LOCK, ns=(token, token))
        return StoredJob(job.evolve(heartbeat_at=moment(token // 1000)), str(Place(place.name, token, token)))

    # Ends of claims

    def _release(self, change: Change, now: datetime) -> StoredJob:
        old, job, place = change.old, change.new, Place.parse(change.place)
        if job.sequence != old.sequence:
            return self._to_the_back(self._hide(place, MOVING), place, job, now)
        self._check(place)
        self._disk.write_note(place.name, self._note_after_claim(place.name, job))
        os.unlink(self._disk.path(place.name) + LOCK)
        return StoredJob(job, place.name)

    def _bury(self, change: Change, now: datetime) -> StoredJob:
        job, place = change.new, Place.parse(change.place)
        if not place.token:
            self._lock(self._disk.path(place.name))
        name = self._hide(place, DEAD)
        note = self._note_after_claim(name, job) | {"dead_at": microseconds(job.dead_at or now)}
        self._disk.write_note(name, note)
        with suppress(FileNotFoundError):
            os.unlink(self._disk.path(place.name) + LOCK)
        return StoredJob(job, name)

    def _revive(self, change: Change, now: datetime) -> StoredJob:
        job, place = change.new, Place.parse(change.place)
        name = hidden(MOVING, place.element)
        os.rename(self._disk.path(place.name), self._disk.path(name))
        return self._to_the_back(name, place, job, now)

    def _remove(self, change: Change, now: datetime) -> StoredJob:
        job, place = change.old, Place.parse(change.place)
        path, payload = self._disk.path(place.name), job.payload
        if place.name.startswith(f"{HIDDEN}/{MOVING}") or not place.is_claim:
            raise JobChangedError
        if place.token:
            self._check(place)
        else:
            if not place.is_hidden:
                self._lock(path)
            payload = self._disk.read(path)
        os.unlink(path)
        if not place.is_hidden:
            with suppress(FileNotFoundError):
                os.unlink(path + LOCK)
        self._disk.drop_note(place.name)
        return StoredJob(job.evolve(payload=payload), "")

    # Moving: an element is hidden until it has its new name, so that no other program can take it by the old one

    def _hide(self, place: Place, prefix: str) -> str:
        """Hide an element, unless its lock has changed since it was last seen. Returns its hidden name.

        Raises:
            JobChangedError: another program has locked the element.
        """
        name, path = hidden(prefix, place.element), self._disk.path(place.name)
        if place.token:
            self._check(place)
        self._disk.make_folder(HIDDEN)
        os.rename(path, self._disk.path(name))
        with suppress(FileNotFoundError):
            os.unlink(path)  # a rename from one link of a file to another leaves both
        if place.token and os.stat(self._disk.path(name)).st_mtime_ns != place.token:
            os.link(self._disk.path(name), path)  # another program has locked it in the meantime
            os.unlink(self._disk.path(name))
            raise JobChangedError
        return name

    def _to_the_back(self, source: str, place: Place, job: JobRecord, now: datetime) -> StoredJob:
        """Give a hidden element a new name behind all others."""
        note = self._note_after_claim(source, job) | {"id": job.id, "from": place.element}
        name = self._link_to_the_back(source, note, now)
        self._forget(source, place)
        return StoredJob(job.evolve(sequence=number_of(name[-14:])), name)

    def _link_to_the_back(self, source: str, note: dict[str, Any], now: datetime) -> str:
        for _ in range(TRIES):
            name = self._new_place(now)
            self._disk.write_note(source, note | {"to": name})
            with suppress(FileExistsError):
                self._disk.carry_note(source, name)
                try:
                    os.link(self._disk.path(source), self._disk.path(name))
                except OSError as error:
                    self._disk.drop_note(name)
                    if not isinstance(error, FileNotFoundError):
                        raise
                    self._disk.make_folder(name[:8])
                    continue
                return name
        raise self._too_many_tries("an element of {} could not be moved")

    def _is_abandoned(self, source: str, now: datetime) -> bool:
        try:
            return now.timestamp() - os.stat(self._disk.path(source)).st_ctime > ABANDONED
        except FileNotFoundError:
            return False

    def _end_move(self, source: str, now: datetime) -> str:
        """Finish a move that its program abandoned. Returns the element's new name.

        Raises:
            JobChangedError: the move is not abandoned yet.
        """
        if not self._is_abandoned(source, now):
            raise JobChangedError
        note, place = self._disk.note(source), Place(source)
        job_id, name = note.get("id", place.element), str(note.get("to", ""))
        path = self._disk.path(source)
        if not (name and os.path.exists(self._disk.path(name)) and os.path.samefile(path, self._disk.path(name))):
            note = without(note, "token", "next", "timeout") | {"id": job_id, "from": place.element}
            name = self._link_to_the_back(source, note, now)
        self._forget(source, place)
        return name

    def _forget(self, source: str, place: Place) -> None:
        """Remove what is left of a moved element: its old lock, its hidden name and the note of that."""
        for done in (self._disk.path(place.element) + LOCK, self._disk.path(source)):
            with suppress(FileNotFoundError):
                os.unlink(done)
        self._disk.drop_note(source)  # last: a program that finishes the move needs the note
