"""`DirqStore`: the common parts of both kinds of dirq queues, which are folders of folders of elements.

dirq does not record the holder of a lock. So each claim of jqueue gives its lock a time that no other lock has, the
token, and writes the token into the element's note. A lock whose time is not in the note belongs to another program.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from jqueue.domain.draft import LARGEST_SEQUENCE
from jqueue.domain.errors import InvalidJobError, StorageError, StorageFatalError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.formats.capabilities import OF_ALL
from jqueue.formats.dirq.disk import Disk
from jqueue.formats.dirq.folders import Folder, KnownElement, Listing, Stamp
from jqueue.formats.dirq.names import DEAD, ELEMENT, FOLDER, HIDDEN, MOVING, Place, number_of
from jqueue.formats.notes import AckedJobs
from jqueue.formats.port import Change, JobChangedError, Outcome, Step, StoredJob
from jqueue.formats.times import microseconds, moment
from jqueue.ports.queue import Capabilities
from jqueue.runtime.system import forks

CAPABILITIES = OF_ALL

MAXTEMP, MAXLOCK = 300.0, 600.0
"""Seconds after which dirq takes an unfinished element, and a lock, for left behind."""

NEVER = 100 * 365 * 86_400.0

TRUST_AGE = 2_000_000_000
"""Age in nanoseconds from which the stamp of an element is trusted: a younger element is read at each scan."""

ABANDONED = 10.0
"""Seconds after which an unfinished move or removal of an element is taken for abandoned."""

TIDY_SECONDS, EMPTY_FOLDERS = 60.0, 100

WRITE_BATCH = 32
"""Number of new elements to keep open at a time."""

TRIES = 100

Result = TypeVar("Result")

NOTED = ("entrypoint", "attempt", "failures", "max_attempts", "error")
"""Fields of a job that its note stores unchanged."""


class DirqStore(ABC):
    """A folder of dirq as a store of jobs.

    Args:
        path: path of the folder, which the first job creates. A relative path is resolved now.
        entrypoint: entrypoint of elements that programs of dirq have added; by default the name of the folder.
        umask: umask of new files and folders; None means that of the process.
        maxtemp: seconds after which an unfinished element is removed; 0 means never.
        maxlock: seconds after which the lock of another program is removed; 0 means never.
        fsync: True to bring a job to the disk before its enqueue returns. Programs of dirq do not do that.
    """

    capabilities: Capabilities = CAPABILITIES
    claims_expire_by_clock = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        entrypoint: str | None = None,
        umask: int | None = None,
        maxtemp: float = MAXTEMP,
        maxlock: float = MAXLOCK,
        fsync: bool = True,
    ) -> None:
        self._settings: dict[str, Any] = {
            "entrypoint": entrypoint,
            "umask": umask,
            "maxtemp": maxtemp,
            "maxlock": maxlock,
            "fsync": fsync,
        }
        self._guard, self._forks = Lock(), forks()
        self.path = Path(path).absolute()
        self.entrypoint = entrypoint or self.path.name
        self._disk = Disk(self.path, umask, fsync)
        self._maxtemp, self._maxlock = maxtemp, maxlock
        self._root = str(self.path)
        self._top = Listing(self._root)
        self._hidden = Folder(self._disk.path(HIDDEN))
        self._folders: dict[str, Folder] = {}
        self._acked = AckedJobs(self.path / HIDDEN / "acked")
        self._tidied: float | None = None
        self._unreadable: dict[str, Stamp] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._settings), (self.path,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._root!r})"

    @property
    def name(self) -> str:
        """Path of the folder."""
        return str(self.path)

    def exists(self) -> bool:
        """Return True if the folder exists."""
        return self.path.exists()

    def watched(self) -> list[Path]:
        """Return the folders that change when a job is added: the queue's folder, and the last two folders in it."""
        root = self.path
        return [root, *(root / name for name in sorted(self._folders)[-2:])]

    def finished(self) -> dict[str, int]:
        """Return the jobs that any process of jqueue has acked recently, each with its attempt."""
        return self._acked.read()

    def _thread_lock(self) -> Lock:
        """Return the lock that lets one thread at a time use the store: a reader may come while a change is made."""
        if self._forks != forks():  # a thread that held it is not in this process
            self._guard, self._forks = Lock(), forks()
        return self._guard

    # Reading

    def may_have_changed(self) -> bool:
        """Return True if anything may have changed since the last scan."""
        with self._thread_lock():
            folders = (self._hidden, *self._folders.values())
            return (
                self._top.may_have_changed()
                or self._acked.may_have_changed()
                or any(folder.listing.may_have_changed() for folder in folders)
                or any(self._may_have_changed(folder) for folder in folders)
            )

    def scan(self, now: datetime) -> list[StoredJob]:
        """Return every element and every dead job."""
        with self._thread_lock():
            return self._scan(now)

    def _scan(self, now: datetime) -> list[StoredJob]:
        self._refresh(now)
        found: dict[str, StoredJob] = {}
        last = 0
        for folder in (*(self._folders[name] for name in sorted(self._folders)), self._hidden):
            for element in folder.elements:
                seen = folder.seen.get(element)
                if seen is None or seen.kept is None or seen.kept.job.id in found:
                    continue
                kept = seen.kept
                if kept.job.sequence <= last and folder is not self._hidden:  # a clock was put back
                    kept = StoredJob(kept.job.evolve(sequence=last + 1), kept.place)
                last = max(last, kept.job.sequence)
                found[kept.job.id] = kept
        return list(found.values())

    def _refresh(self, now: datetime) -> None:
        seconds = now.timestamp()
        self._refresh_top(seconds)
        if self._hidden.listing.read(seconds):
            names = [name for name in self._hidden.listing.names if name.startswith((DEAD, MOVING))]
            self._hidden.elements = sorted(name for name in names if ELEMENT.fullmatch(name.rpartition("-")[2]))
            self._read_elements(HIDDEN, self._hidden, self._hidden.elements, now)
        for name, folder in self._folders.items():
            if folder.listing.read(seconds):
                folder.elements = sorted(filter(ELEMENT.fullmatch, folder.listing.names))
                self._read_elements(name, folder, folder.elements, now)
            else:
                self._read_elements(name, folder, self._to_check(folder), now)
            if folder.elements:
                self._disk.newest = max(self._disk.newest, number_of(folder.elements[-1]))

    def _refresh_top(self, seconds: float) -> None:
        try:
            if not self._top.read(seconds):
                return
        except NotADirectoryError:
            raise StorageFatalError(f"{self._root!r} is not a folder: a dirq queue is a folder of folders") from None
        if self._top.missing and self._disk.known:
            raise self._disk.disappeared()
        self._disk.known = not self._top.missing
        self._check_kind(frozenset(self._top.names))
        names = filter(FOLDER.fullmatch, self._top.names)
        self._folders = {name: self._folders.get(name) or Folder(f"{self._root}/{name}") for name in names}

    def _read_elements(self, name: str, folder: Folder, elements: Iterable[str], now: datetime) -> None:
        before, settled = folder.seen, microseconds(now) * 1000 - TRUST_AGE
        found = {} if elements is folder.elements else dict(before)
        for element in elements:
            place = f"{name}/{element}"
            try:
                stamp, locked = self._stamp(place)
                known = before.get(element)
                if known is None or known.stamp != stamp or known.locked != locked or max(stamp) > settled:
                    known = KnownElement.of(stamp, self._readable_job(place), locked)
                found[element] = known
            except (FileNotFoundError, NotADirectoryError):
                found.pop(element, None)
        folder.seen = found

    def _readable_job(self, place: str) -> StoredJob | None:
        if place in self._unreadable:
            if self._unreadable[place] == self._condition(place):
                return None
            del self._unreadable[place]
        return self._stored_job(place)

    def _may_have_changed(self, folder: Folder) -> bool:
        name = os.path.basename(folder.listing.path)
        for element in self._to_check(folder):
            try:
                stamp, locked = self._stamp(f"{name}/{element}")
            except (FileNotFoundError, NotADirectoryError):
                return True
            seen = folder.seen.get(element)
            if seen is None or (stamp, locked) != (seen.stamp, seen.locked):
                return True
        return False

    def _stored_job(self, name: str) -> StoredJob | None:
        """Return the job at a place as it is now.

        Raises:
            FileNotFoundError: the element is gone.
        """
        place, note = Place(name), self._disk.note(name)
        status: dict[str, Any] = {}
        if name.startswith(f"{HIDDEN}/{DEAD}"):
            status = {"status": JobStatus.DEAD, "dead_at": moment(note.get("dead_at", number_of(name[-14:])))}
        elif not place.is_hidden:
            token, beat = self._lock_of(name)
            place = Place(name, token, beat, token in (note.get("token"), note.get("next")))
        if place.token:
            attempt = note.get("attempt", 0)
            status = {
                "status": JobStatus.IN_PROGRESS,
                "attempt": max(1, attempt) if place.is_claim else attempt + 1,
                "claim_timeout": note.get("timeout") if place.is_claim else self._maxlock or NEVER,
                "heartbeat_at": moment(place.beat // 1000),
            }
        return StoredJob(self._job(place, note, **status), str(place))

    def _job(self, place: Place, note: dict[str, Any], **values: Any) -> JobRecord:
        """Return the job of an element: first the fields of its note, then these values, which come from its place."""
        job_id, number = note.get("id", place.element), min(number_of(place.element[-14:]), LARGEST_SEQUENCE)
        created = note.get("created")
        if created is None:
            created = number_of(job_id[-14:]) if ELEMENT.fullmatch(job_id[-14:]) else number
        job: dict[str, Any] = {
            "id": job_id,
            "payload": b"",
            "status": JobStatus.QUEUED,
            "created_at": moment(created),
            "sequence": number,
            "entrypoint": self.entrypoint,
        }
        if note:
            job |= {name: note[name] for name in NOTED if name in note}
            if note.get("headers"):
                job["headers"] = dict(note["headers"])
        return JobRecord(**{**job, **values})

    def _note_of_new(self, change: Change, *, headers: bool) -> dict[str, Any]:
        """Return the note of a new job; empty if a program of dirq could have added the same job.

        Args:
            change: the addition of the job. A job from another queue keeps its id and its history.
            headers: True to keep the headers in the note, as the elements of the simple kind cannot hold them.
        """
        job = change.new
        said: dict[str, Any] = {
            "entrypoint": None if job.entrypoint == self.entrypoint else job.entrypoint,
            "headers": dict(job.headers) if headers and job.headers else None,
            "max_attempts": job.max_attempts,
        }
        if change.is_transfer:
            said |= {
                "id": job.id,
                "created": microseconds(job.created_at),
                "attempt": job.attempt,
                "failures": job.failures,
                "error": job.error,
                "dead_at": None if job.dead_at is None else microseconds(job.dead_at),
            }
        return {name: value for name, value in said.items() if value}

    def _note_of_claim(self, change: Change, note: dict[str, Any], token: int) -> dict[str, Any]:
        """Return the note of a job that is claimed by a lock with this token."""
        old, job = change.old, change.new
        attempt = max(job.attempt, note.get("attempt", 0) + 1)
        failures = note.get("failures", 0) + job.failures - old.failures
        return note | {"attempt": attempt, "failures": failures, "token": token, "timeout": job.claim_timeout}

    def _note_after_claim(self, name: str, job: JobRecord) -> dict[str, Any]:
        """Return the note of a job whose claim has ended."""
        note = self._disk.note(name) | {"failures": job.failures, "error": job.error}
        return without(note, "token", "next", "timeout", "dead_at")

    # Steps: one method for each, named after it

    def carry_out(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Make each change by itself."""
        with self._thread_lock():
            return self._carry_out(changes, now)

    def _carry_out(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for adds, run in groupby(changes, lambda change: change.step is Step.ADD):
            together = list(run)
            if adds:
                outcomes += self._add(together, now)
            else:
                outcomes += [self._do_step(change, now) for change in together]
        acked = [
            change.old.claim
            for change, outcome in zip(changes, outcomes, strict=True)
            if change.acked and not isinstance(outcome, Exception)
        ]
        with suppress(OSError):  # the jobs are acked all the same
            self._acked.remember(acked)
        try:
            self._disk.flush()
        except OSError as error:
            outcomes = [
                self._undo_add(change, outcome, error, now) for change, outcome in zip(changes, outcomes, strict=True)
            ]
        if self._tidied is None or not 0 <= now.timestamp() - self._tidied < TIDY_SECONDS:
            self._tidied = now.timestamp()
            with suppress(OSError, StorageError, JobChangedError):
                self._tidy(now, EMPTY_FOLDERS)
        return outcomes

    def _add(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Add new elements in order: write all, sync all to the disk, then give each its name.

        If files are written and synced one by one, the file system writes its journal each time. If many are synced
        whose writing has already begun, it writes its journal about once.
        """
        outcomes: list[Outcome] = []
        for first in range(0, len(changes), WRITE_BATCH):
            batch = changes[first : first + WRITE_BATCH]
            parts = [_result_or_error(self._write_part, change, now) for change in batch]
            try:
                self._disk.sync()
            except OSError as error:
                for part in parts:
                    if isinstance(part, str):
                        with suppress(OSError):
                            self._drop_part(part)
                parts = [error if isinstance(part, str) else part for part in parts]
            outcomes += [
                _result_or_error(self._publish_new, part, change, now) if isinstance(part, str) else part
                for part, change in zip(parts, batch, strict=True)
            ]
        return outcomes

    def _publish_new(self, part: str, change: Change, now: datetime) -> StoredJob:
        """Publish a new element. Its name becomes the job's id, unless the job comes from another queue."""
        name, place = self._publish_with_retries(part, change, now)
        job, number = change.new, number_of(name[-14:])
        if not change.is_transfer:
            job = job.evolve(id=name, created_at=moment(number))
        return StoredJob(job.evolve(sequence=number), place)

    def _publish_with_retries(self, part: str, change: Change, now: datetime) -> tuple[str, str]:
        """Publish a part. If that fails, write it again under another name. Returns the element's name and place."""
        for _ in range(TRIES):
            try:
                return self._publish(part, change, now)
            except (FileExistsError, FileNotFoundError):  # the name is taken, or the part was purged
                self._drop_part(part)
                part = self._write_part(change, now)
                try:
                    self._disk.sync()
                except OSError:
                    self._drop_part(part)
                    raise
            except OSError:
                self._drop_part(part)
                raise
        raise self._too_many_tries("no element could be added to {}")

    def _too_many_tries(self, what: str) -> OSError:
        return OSError(f"{what.format(repr(self._root))}: another program removes new files there at once")

    def _do_step(self, change: Change, now: datetime) -> Outcome:
        outcome: Outcome = _result_or_error(getattr(self, f"_{change.step}"), change, now)
        if isinstance(outcome, PermissionError) and change.step is Step.CLAIM:  # after the lock was taken
            with suppress(OSError):
                self._unlock(change.place)
            return self._ignore_unreadable(change.place)
        return outcome

    def _ignore_unreadable(self, place: str) -> JobChangedError:
        """Ignore an element that cannot be claimed, until its `condition` changes (owner, mode, content)."""
        self._unreadable[place] = self._condition(place)
        with suppress(KeyError):
            self._folders[place[:8]].seen.pop(place[9:], None)
        return JobChangedError()

    def _condition(self, place: str) -> Stamp:
        return self._disk.condition(place)

    def _undo_add(self, change: Change, outcome: Outcome, error: OSError, now: datetime) -> Outcome:
        """Remove an added job whose folder could not be synced, unless another program has taken it by now.

        Returns:
            The error if the job was removed, else the outcome of the change.
        """
        if change.step is not Step.ADD or not isinstance(outcome, StoredJob):
            return outcome
        try:
            self._remove(Change(outcome.job, None, outcome.place), now)
        except (OSError, JobChangedError):
            return outcome
        return error

    def purge(self, now: datetime) -> None:
        """Remove the leftovers of programs that died, and all empty folders except the last two."""
        with self._thread_lock():
            self._refresh(now)
            self._tidy(now, 0)

    def _tidy(self, now: datetime, empty: int) -> None:
        folders = sorted(self._folders)[:-2]
        unused = [name for name in folders if not self._folders[name].listing.names]
        for name in unused if len(unused) > empty else ():
            with suppress(OSError):
                os.rmdir(f"{self._root}/{name}")
        for name in self._leftovers(now):
            with suppress(OSError, JobChangedError):
                self._discard(name, now)

    def _change(self, change: Change, now: datetime) -> StoredJob:
        raise JobChangedError

    # Differences between the two kinds

    @abstractmethod
    def payloads(self, jobs: Sequence[StoredJob]) -> list[JobRecord]:
        """Return these jobs with their payloads."""

    @abstractmethod
    def _check_kind(self, names: frozenset[str]) -> None:
        """Raise StorageFatalError if these names show that the folder is a queue of the other kind."""

    @abstractmethod
    def _stamp(self, name: str) -> tuple[Stamp, bool]:
        """Return the stamp of an element, which changes with it, and True if it is locked."""

    @abstractmethod
    def _lock_of(self, name: str) -> tuple[int, int]:
        """Return the token and the beat of an element's lock; zeros if it has none."""

    @abstractmethod
    def _to_check(self, folder: Folder) -> Iterable[str]:
        """Return the elements that can change although the time of their folder stays the same."""

    @abstractmethod
    def _leftovers(self, now: datetime) -> Iterable[str]:
        """Return the names of the leftovers of programs that died."""

    @abstractmethod
    def _discard(self, name: str, now: datetime) -> None:
        """Remove a leftover, or bring to an end what its program began."""

    @abstractmethod
    def _unlock(self, name: str) -> None:
        """Remove our lock from an element."""

    @abstractmethod
    def _write_part(self, change: Change, now: datetime) -> str:
        """Write a new element, a part, where no program looks for elements. Returns the name of the part.

        `Disk.sync` brings it to the disk.
        """

    @abstractmethod
    def _publish(self, part: str, change: Change, now: datetime) -> tuple[str, str]:
        """Give a part its final name. Returns the element's name and its place, which differ for some dead jobs.

        Raises:
            FileExistsError: another element has that name.
            FileNotFoundError: the part is gone, or the folder for the element.
        """

    @abstractmethod
    def _drop_part(self, part: str) -> None:
        """Remove a part that will not be published."""

    @abstractmethod
    def _claim(self, change: Change, now: datetime) -> StoredJob: ...

    @abstractmethod
    def _prolong(self, change: Change, now: datetime) -> StoredJob: ...

    @abstractmethod
    def _release(self, change: Change, now: datetime) -> StoredJob: ...

    @abstractmethod
    def _bury(self, change: Change, now: datetime) -> StoredJob: ...

    @abstractmethod
    def _revive(self, change: Change, now: datetime) -> StoredJob: ...

    @abstractmethod
    def _remove(self, change: Change, now: datetime) -> StoredJob: ...


def without(note: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the note without these fields."""
    return {name: value for name, value in note.items() if name not in names}


def _result_or_error(work: Callable[..., Result], *arguments: Any) -> Result | Exception:
    """Return the result of a step, or its error: `JobChangedError` if the element is gone."""
    try:
        return work(*arguments)
    except (FileNotFoundError, NotADirectoryError, JobChangedError):
        return JobChangedError()
    except (OSError, InvalidJobError, StorageError) as error:
        return error
