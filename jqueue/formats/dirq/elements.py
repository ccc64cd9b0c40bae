"""`DirqElements`: a queue of dirq whose elements are folders, with a file for each piece of data.

    00000000/5fb8a3c91e2403/body       the payload, by the schema that all programs are told
    00000000/5fb8a3c91e2403/header     a table of headers
    00000000/5fb8a3c91e2403/locked/    a program has locked it
    temporary/, obsolete/              being added, being removed

The token of a claim is the time of its `locked/`, which no other program sets. To finish an element, to bury it or to
put it to the back, jqueue renames it with the lock in it. Under the new name no other program can lock it, so the lock
is checked there. If the lock is another program's, the element is renamed back.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from jqueue.domain.errors import StorageFatalError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.formats.dirq.folders import Folder, Stamp
from jqueue.formats.dirq.names import (
    DEAD,
    ELEMENT,
    FOLDER,
    HIDDEN,
    Place,
    Schema,
    decode_table,
    hidden,
    number_of,
)
from jqueue.formats.dirq.store import ABANDONED, CAPABILITIES, TRIES, DirqStore
from jqueue.formats.port import Change, JobChangedError, StoredJob
from jqueue.formats.times import microseconds, moment

MAXELTS = 16_000
"""Number of elements in a folder from which the next folder is used."""

TEMPORARY, OBSOLETE, LOCKED = "temporary", "obsolete", "locked"
JQUEUE_SUFFIX = ".jq"
"""Suffix of jqueue's folders in `temporary` and `obsolete`, which dirq does not take for elements.

Without it, Python's purge would remove young ones too early.
"""


class DirqElements(DirqStore):
    """A queue of dirq whose elements are folders (`Queue`, `Directory::Queue::Normal`) as a store of jobs.

    Args:
        path: path of the folder, which the first job creates.
        schema: pieces of data in the elements. The schema is not on the disk; None means the default `Schema()`.
        maxelts: number of elements in a folder from which the next folder is used.
        settings: see `DirqStore`: entrypoint, umask, maxtemp, maxlock, fsync.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, schema: Schema | None = None, maxelts: int = MAXELTS, **settings: Any
    ) -> None:
        super().__init__(path, **settings)
        self._schema = Schema() if schema is None else schema
        self._maxelts = max(1, maxelts)
        self._settings |= {"schema": schema, "maxelts": maxelts}
        self._last: tuple[datetime, str, int] | None = None
        self.capabilities = replace(CAPABILITIES, headers=self._schema.headers is not None)

    def payloads(self, jobs: Sequence[StoredJob]) -> list[JobRecord]:
        """Return these jobs with their payloads and headers. Jobs that are gone or unreadable are left out."""
        found = []
        for job, place in jobs:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError, ValueError):
                found.append(self._with_content(job, Place.parse(place).name))
        return found

    def _check_kind(self, names: frozenset[str]) -> None:
        if any(map(FOLDER.fullmatch, names)) and not names & {TEMPORARY, OBSOLETE}:
            raise StorageFatalError(f"{self._root!r} is a dirq queue of the simple kind: open it with kind=simple")

    # Reading

    def _stamp(self, name: str) -> tuple[Stamp, bool]:
        found = os.lstat(self._disk.path(name))
        if not stat.S_ISDIR(found.st_mode):  # nor may it be a link to a folder, which is not the queue's to empty
            raise NotADirectoryError
        stamp = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_nlink)
        return stamp, found.st_nlink != 2 and os.path.lexists(self._lock_path(name))  # some file systems count no links

    def _lock_of(self, name: str) -> tuple[int, int]:
        try:
            token = os.stat(self._lock_path(name)).st_mtime_ns
        except FileNotFoundError:
            return 0, 0
        return token, os.stat(self._disk.path(name)).st_mtime_ns

    def _condition(self, place: str) -> Stamp:
        return self._disk.condition(place, self._schema.payload, self._schema.headers or self._schema.payload)

    def _lock_path(self, name: str) -> str:
        return f"{self._disk.path(name)}/{LOCKED}"

    def _to_check(self, folder: Folder) -> Iterable[str]:
        return tuple(folder.elements)

    def _with_content(self, job: JobRecord, name: str) -> JobRecord:
        """Return the job with its payload and headers.

        Raises:
            FileNotFoundError: there is no payload.
            ValueError: the headers cannot be read.
        """
        path, schema = self._disk.path(name), self._schema
        payload, legal = b"", schema.may_be_missing and os.path.exists(f"{path}/{schema.mandatory}")
        with suppress(*((FileNotFoundError,) if legal else ())):
            payload = self._disk.read(f"{path}/{schema.payload}")
        headers: dict[str, str] = {}
        if schema.headers is not None:
            for text in schema.strings:
                with suppress(FileNotFoundError):
                    headers[text] = self._disk.read(f"{path}/{text}").decode("utf-8")
            with suppress(FileNotFoundError):
                headers |= decode_table(self._disk.read(f"{path}/{schema.headers}"))
        return job.evolve(payload=payload, headers=headers or None)

    def _leftovers(self, now: datetime) -> Iterator[str]:
        if not self._maxtemp:
            return
        for folder, age in ((TEMPORARY, self._maxtemp), (OBSOLETE, max(self._maxtemp, ABANDONED))):
            try:
                names = os.listdir(self._disk.path(folder))
            except FileNotFoundError:
                continue
            for name in names:
                if name.endswith(JQUEUE_SUFFIX) or ELEMENT.fullmatch(name):
                    with suppress(FileNotFoundError):
                        found = os.stat(self._disk.path(f"{folder}/{name}"))
                        if now.timestamp() - max(found.st_mtime, found.st_ctime) > age:
                            yield f"{folder}/{name}"

    def _discard(self, name: str, now: datetime) -> None:
        """Remove a leftover, or put it back where it was.

        An element that jqueue began to remove, and that still has its lock and its payload, goes back: another program
        may have locked it.
        """
        folder, _, element = name.removesuffix(JQUEUE_SUFFIX).partition("/")
        path = self._disk.path(name)
        whole = os.path.exists(self._lock_path(name)) and os.path.exists(f"{path}/{self._schema.mandatory}")
        if folder == OBSOLETE and name.endswith(JQUEUE_SUFFIX) and whole:
            place = element.replace("-", "/", 1)
            self._disk.make_folder(place[:8])
            os.rename(path, self._disk.path(place))
        else:
            shutil.rmtree(path, ignore_errors=True)

    # Adding

    def _write_part(self, change: Change, now: datetime) -> str:
        """Write a new element into `temporary`. Returns its name there."""
        files = self._schema.files(change.new)
        note = self._note_of_new(change, headers=False)
        element = self._disk.new_name(now)
        for _ in range(TRIES):
            part = f"{TEMPORARY}/{element}{JQUEUE_SUFFIX}"
            path = self._disk.path(part)
            try:
                self._disk.mkdir(path)
                for file, content in files.items():
                    self._disk.create(f"{path}/{file}", content)
                if note:
                    self._disk.write_note(part, note)
                self._disk.note_new_folder(path)
            except FileExistsError:
                element = self._disk.new_name(now)
            except FileNotFoundError:  # the folder does not exist yet, or was purged
                self._disk.make_folder(TEMPORARY)
                self._disk.make_folder(OBSOLETE)
            except OSError:
                self._drop_part(part)
                raise
            else:
                return part
        raise self._too_many_tries("no element could be added to {}")

    def _publish(self, part: str, change: Change, now: datetime) -> tuple[str, str]:
        element = part.removeprefix(f"{TEMPORARY}/").removesuffix(JQUEUE_SUFFIX)
        if change.new.status is JobStatus.DEAD:
            name = self._rename_to_the_dead(part, f"{self._last_folder(now)}/{element}")
        else:
            name = self._rename_to_the_back(part, now, element)
        return name, name

    def _drop_part(self, part: str) -> None:
        shutil.rmtree(self._disk.path(part), ignore_errors=True)

    def _rename_to_the_dead(self, source: str, place: str) -> str:
        self._disk.make_folder(HIDDEN)
        name = hidden(DEAD, place)
        self._disk.rename(source, name)
        self._disk.note_added(HIDDEN)
        return name

    def _rename_to_the_back(self, source: str, now: datetime, element: str = "") -> str:
        """Give an element a name behind all others: in the last folder, or in the next one if that is full.

        Args:
            source: current name of the element.
            now: the time.
            element: name to try first in that folder; empty for a new one.

        Raises:
            FileNotFoundError: the element is gone.
        """
        folder = self._last_folder(now)
        for _ in range(TRIES):
            element = element or self._disk.new_name(now)
            name = f"{folder}/{element}"
            try:
                self._disk.rename(source, name)
            except FileNotFoundError:
                os.stat(self._disk.path(source))
                self._disk.make_folder(folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                element = ""
            else:
                self._disk.note_added(folder)
                return name
        raise self._too_many_tries("an element of {} could not be moved")

    def _last_folder(self, now: datetime) -> str:
        """Return the folder for the next element. The folders are read once for all changes with the same `now`."""
        if self._last is None or self._last[0] is not now:
            self._refresh_top(now.timestamp())
            name = max(self._folders, default="00000000")
            with suppress(FileNotFoundError):
                links = os.stat(self._disk.path(name)).st_nlink
                self._last = now, name, links - 2 if links > 1 else len(os.listdir(self._disk.path(name)))
            if self._last is None or self._last[1] != name:
                self._last = now, name, 0
        _, name, count = self._last
        if count >= self._maxelts:
            name, count = f"{int(name, 16) + 1:08x}", 0
        self._last = now, name, count + 1
        return name

    # Claims

    def _claim(self, change: Change, now: datetime) -> StoredJob:
        job, name = change.new, change.place
        self._lock(name)
        path, token = self._disk.path(name), self._disk.new_token(now)
        os.utime(f"{path}/{LOCKED}", ns=(token, token))
        os.utime(path, ns=(token, token))
        note = self._disk.note(name)
        note = self._note_of_claim(change, note, token)
        self._disk.write_note(name, note)
        place = Place(name, token, token)
        values = {"heartbeat_at": moment(token // 1000), "claim_timeout": job.claim_timeout}
        try:
            claimed = self._with_content(self._job(place, note, status=JobStatus.IN_PROGRESS, **values), name)
        except (FileNotFoundError, ValueError):
            os.rmdir(f"{path}/{LOCKED}")
            raise self._ignore_unreadable(name) from None
        self._check(place)
        return StoredJob(claimed, str(place))

    def _lock(self, name: str) -> None:
        try:
            self._disk.mkdir(self._lock_path(name))
        except FileExistsError:
            raise JobChangedError from None
        except PermissionError:
            raise self._ignore_unreadable(name) from None

    def _unlock(self, name: str) -> None:
        os.rmdir(self._lock_path(name))

    def _check(self, place: Place, name: str | None = None) -> None:
        """Raise JobChangedError if the lock has changed since it was last seen.

        Args:
            place: the element with its lock, as last seen.
            name: current name of the element, if it was renamed.
        """
        if os.stat(self._lock_path(name or place.name)).st_mtime_ns != place.token:
            raise JobChangedError

    def _prolong(self, change: Change, now: datetime) -> StoredJob:
        job, place = change.new, Place.parse(change.place)
        if not place.is_claim:
            raise JobChangedError
        self._check(place)
        beat = self._disk.new_token(now, after=place.beat)
        os.utime(self._disk.path(place.name), ns=(beat, beat))
        return StoredJob(job.evolve(heartbeat_at=moment(beat // 1000)), str(place._replace(beat=beat)))

    # Ends of claims

    def _release(self, change: Change, now: datetime) -> StoredJob:
        old, job, place = change.old, change.new, Place.parse(change.place)
        self._check_beat(place)
        name = place.name
        if job.sequence != old.sequence:
            name = self._rename_to_the_back(name, now)
            self._put_back_if_lost(name, place)
            job = job.evolve(sequence=number_of(name[-14:]))
        self._disk.write_note(name, self._note_after_claim(name, job) | {"id": job.id})
        os.rmdir(self._lock_path(name))
        return StoredJob(job, name)

    def _bury(self, change: Change, now: datetime) -> StoredJob:
        job, place = change.new, Place.parse(change.place)
        if place.token:
            self._check_beat(place)
        else:
            self._lock(place.name)
        self._disk.make_folder(HIDDEN)
        name = hidden(DEAD, place.name)
        os.rename(self._disk.path(place.name), self._disk.path(name))
        self._put_back_if_lost(name, place)
        note = self._note_after_claim(name, job) | {"id": job.id, "dead_at": microseconds(job.dead_at or now)}
        self._disk.write_note(name, note)
        with suppress(FileNotFoundError):
            os.rmdir(self._lock_path(name))
        return StoredJob(job, name)

    def _revive(self, change: Change, now: datetime) -> StoredJob:
        job, name = change.new, change.place
        with suppress(FileNotFoundError):
            os.rmdir(self._lock_path(name))  # left by a program that died while it buried the job
        self._disk.write_note(name, self._note_after_claim(name, job) | {"id": job.id})
        name = self._rename_to_the_back(name, now)
        return StoredJob(job.evolve(sequence=number_of(name[-14:])), name)

    def _remove(self, change: Change, now: datetime) -> StoredJob:
        job, place = change.old, Place.parse(change.place)
        if not place.is_claim:
            raise JobChangedError
        if place.token:
            self._check(place)
        elif not place.is_hidden:
            self._lock(place.name)
        if not place.token:
            with suppress(FileNotFoundError, ValueError):
                job = self._with_content(job, place.name)
        name = f"{OBSOLETE}/{place.element.replace('/', '-')}{JQUEUE_SUFFIX}"
        for _ in range(TRIES):
            try:
                os.rename(self._disk.path(place.name), self._disk.path(name))
                break
            except FileNotFoundError:
                os.stat(self._disk.path(place.name))
                self._disk.make_folder(OBSOLETE)
        self._put_back_if_lost(name, place)
        self._remove_all(self._disk.path(name), locked=not place.is_hidden)
        self._disk.drop_note(place.name)  # last: if we die before, the element may be put back
        return StoredJob(job, "")

    def _check_beat(self, place: Place) -> None:
        """Raise JobChangedError if the claim was lost or confirmed since it was last seen.

        The caller may take it for stale.
        """
        self._check(place)
        if os.stat(self._disk.path(place.name)).st_mtime_ns != place.beat:
            raise JobChangedError

    def _put_back_if_lost(self, name: str, place: Place) -> None:
        """Check the lock of a renamed element. If it has changed since it was last seen, undo the rename.

        Raises:
            JobChangedError: the lock has changed, and the element is back under its old name.
        """
        try:
            if place.token:
                self._check(place, name)
        except (FileNotFoundError, JobChangedError):
            os.rename(self._disk.path(name), self._disk.path(place.name))
            raise JobChangedError from None

    def _remove_all(self, path: str, *, locked: bool) -> None:
        try:
            for piece in (self._schema.payload, self._schema.headers or self._schema.payload):
                with suppress(FileNotFoundError):
                    os.unlink(f"{path}/{piece}")
            if locked:
                os.rmdir(f"{path}/{LOCKED}")
            os.rmdir(path)
        except OSError:  # the element has more files than a job
            shutil.rmtree(path, ignore_errors=True)
