"""What both kinds of dirq's queues have in common: a folder of folders of elements, looked at and changed one by one.

Who holds a lock is nowhere on the disk. So each claim of ours gives its lock a time that no other lock has, its token,
and says it in the element's note. A lock whose time is not in the note is that of another program.
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

from jqueue.domain.errors import InvalidJobError, StorageError, StorageFatalError
from jqueue.domain.fields import FrozenHeaders
from jqueue.domain.models import Job, JobStatus, trusted_job
from jqueue.domain.places import PLACES
from jqueue.formats.capabilities import OF_ALL
from jqueue.formats.dirq.disk import NOTES, Disk
from jqueue.formats.dirq.folders import Folder, Listing, Seen, Stamp
from jqueue.formats.dirq.names import DEAD, ELEMENT, FOLDER, HIDDEN, MOVING, Place, number_of
from jqueue.formats.files.folders import AckedJobs
from jqueue.formats.files.notes import HAS_ATTRIBUTES
from jqueue.formats.port import Change, Kept, Lost, Outcome, Step
from jqueue.formats.times import microseconds, moment
from jqueue.ports.queue import Capabilities
from jqueue.runtime.system import forks

CAPABILITIES = OF_ALL

MAXTEMP, MAXLOCK = 300.0, 600.0
"""Seconds after which dirq takes what is being added, and locks, for left behind."""

NEVER = 100 * 365 * 86_400.0

SETTLED = 2_000_000_000
"""Nanoseconds after which a file that has not moved since is taken for the one that was seen."""

ABANDONED = 10.0
"""Seconds after which somebody who was moving an element has not come to the end of it."""

TIDY_SECONDS, EMPTY_FOLDERS = 60.0, 100

AT_ONCE = 32
"""So many new elements are open at a time."""

TRIES = 100

Result = TypeVar("Result")

NOTED = ("entrypoint", "attempt", "failures", "max_attempts", "error")
"""The fields of a job that its note says as they are."""

_PLAIN = dict(Job(id="-", entrypoint="-", payload=b"", created_at=moment(0)).__dict__)


class DirqStore(ABC):
    """A folder of dirq as a store of jobs.

    Args:
        path: of the folder; it is made with the first job. A relative path stays what it is now.
        entrypoint: of elements that programs of dirq have added; the name of the folder by default.
        umask: of what is made here; None means that of the process.
        maxtemp: seconds after which what was being added is removed; 0 means never.
        maxlock: seconds after which the lock of another program is removed; 0 means never.
        fsync: whether a job is on the disk before its enqueue returns; programs of dirq do not see to it.
        attributes: whether what the format has no place for is kept in extended attributes, where there are any.
    """

    capabilities: Capabilities = CAPABILITIES
    knows_expiry = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        entrypoint: str | None = None,
        umask: int | None = None,
        maxtemp: float = MAXTEMP,
        maxlock: float = MAXLOCK,
        fsync: bool = True,
        attributes: bool = HAS_ATTRIBUTES,
    ) -> None:
        self._settings: dict[str, Any] = {
            "entrypoint": entrypoint,
            "umask": umask,
            "maxtemp": maxtemp,
            "maxlock": maxlock,
            "fsync": fsync,
            "attributes": attributes,
        }
        self._guard, self._forks = Lock(), forks()
        self.path = Path(path).absolute()
        self.entrypoint = entrypoint or self.path.name
        self._disk = Disk(self.path, umask, fsync, attributes)
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
        """The path of the folder."""
        return str(self.path)

    def exists(self) -> bool:
        """Whether there is a folder."""
        return self.path.exists()

    def watched(self) -> list[Path]:
        """The folders that change when a job is added: that of the queue, and the last of its folders."""
        root = self.path
        return [root, *(root / name for name in sorted(self._folders)[-2:])]

    def finished(self) -> dict[str, int]:
        """Jobs that jqueue has acked of late, by any process."""
        return self._acked.read()

    def _alone(self) -> Lock:
        """What keeps other threads away: somebody may look while a change is carried out."""
        if self._forks != forks():  # whichever thread had it, it is not in this process
            self._guard, self._forks = Lock(), forks()
        return self._guard

    # What is there

    def has_moved(self) -> bool:
        """Whether anything may have changed since the last scan."""
        with self._alone():
            folders = (self._hidden, *self._folders.values())
            return (
                self._top.has_moved()
                or self._acked.has_moved()
                or any(folder.listing.has_moved() for folder in folders)
                or any(self._has_moved(folder) for folder in folders)
            )

    def scan(self, now: datetime) -> list[Kept]:
        """Every element, and every dead job."""
        with self._alone():
            return self._scan(now)

    def _scan(self, now: datetime) -> list[Kept]:
        self._look(now)
        found: dict[str, Kept] = {}
        last = 0
        for folder in (*(self._folders[name] for name in sorted(self._folders)), self._hidden):
            for element in folder.elements:
                seen = folder.seen.get(element)
                if seen is None or seen.kept is None or seen.kept.job.id in found:
                    continue
                kept = seen.kept
                if kept.job.sequence <= last and folder is not self._hidden:  # a clock was put back
                    kept = Kept(kept.job.evolve(sequence=last + 1), kept.place)
                last = max(last, kept.job.sequence)
                found[kept.job.id] = kept
        return list(found.values())

    def _look(self, now: datetime) -> None:
        seconds = now.timestamp()
        self._look_at_top(seconds)
        if self._hidden.listing.read(seconds):
            names = [name for name in self._hidden.listing.names if name.startswith((DEAD, MOVING))]
            self._disk.notes_beside |= any(name.startswith(NOTES) for name in self._hidden.listing.names)
            self._hidden.elements = sorted(name for name in names if ELEMENT.fullmatch(name.rpartition("-")[2]))
            self._see(HIDDEN, self._hidden, self._hidden.elements, now)
        for name, folder in self._folders.items():
            if folder.listing.read(seconds):
                folder.elements = sorted(filter(ELEMENT.fullmatch, folder.listing.names))
                self._see(name, folder, folder.elements, now)
            else:
                self._see(name, folder, self._to_look_at(folder), now)
            if folder.elements:
                self._disk.newest = max(self._disk.newest, number_of(folder.elements[-1]))

    def _look_at_top(self, seconds: float) -> None:
        try:
            if not self._top.read(seconds):
                return
        except NotADirectoryError:
            raise StorageFatalError(f"{self._root!r} is no folder: a queue of dirq is a folder of folders") from None
        if self._top.missing and self._disk.known:
            raise StorageError(f"the folder {self._root!r} was there, and is gone")
        self._disk.known = not self._top.missing
        self._check_kind(frozenset(self._top.names))
        names = filter(FOLDER.fullmatch, self._top.names)
        self._folders = {name: self._folders.get(name) or Folder(f"{self._root}/{name}") for name in names}

    def _see(self, name: str, folder: Folder, elements: Iterable[str], now: datetime) -> None:
        before, settled = folder.seen, microseconds(now) * 1000 - SETTLED
        found = {} if elements is folder.elements else dict(before)
        for element in elements:
            place = f"{name}/{element}"
            try:
                stamp, locked = self._stamp(place)
                known = before.get(element)
                if known is None or known.stamp != stamp or known.locked != locked or max(stamp) > settled:
                    known = Seen.of(stamp, self._found(place), locked)
                found[element] = known
            except (FileNotFoundError, NotADirectoryError):
                found.pop(element, None)
        folder.seen = found

    def _found(self, place: str) -> Kept | None:
        if place in self._unreadable:
            if self._unreadable[place] == self._condition(place):
                return None
            del self._unreadable[place]
        return self._kept(place)

    def _has_moved(self, folder: Folder) -> bool:
        name = os.path.basename(folder.listing.path)
        for element in self._to_look_at(folder):
            try:
                stamp, locked = self._stamp(f"{name}/{element}")
            except (FileNotFoundError, NotADirectoryError):
                return True
            seen = folder.seen.get(element)
            if seen is None or (stamp, locked) != (seen.stamp, seen.locked):
                return True
        return False

    def _kept(self, name: str) -> Kept | None:
        """The job at a place as it is now; None if there is none for us to show.

        Raises:
            FileNotFoundError: it has left.
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
                "attempt": max(1, attempt) if place.ours else attempt + 1,
                "claim_timeout": note.get("timeout") if place.ours else self._maxlock or NEVER,
                "heartbeat_at": moment(place.beat // 1000),
            }
        return Kept(self._job(place, note, **status), str(place))

    def _job(self, place: Place, note: dict[str, Any], **values: Any) -> Job:
        """The job that an element is: what its note says, then these values, which its place says."""
        job_id, number = note.get("id", place.element), min(number_of(place.element[-14:]), PLACES)
        created = note.get("created")
        if created is None:
            created = number_of(job_id[-14:]) if ELEMENT.fullmatch(job_id[-14:]) else number
        job = {**_PLAIN, "id": job_id, "created_at": moment(created), "sequence": number, "entrypoint": self.entrypoint}
        if note:
            job |= {name: note[name] for name in NOTED if name in note}
            if note.get("headers"):
                job["headers"] = FrozenHeaders(note["headers"])
        return trusted_job({**job, **values})

    def _note_of_new(self, change: Change, *, headers: bool) -> dict[str, Any]:
        """The note of a new job; empty if it is like those that programs of dirq add.

        Args:
            change: its arrival. A job from another queue keeps its id, and what has become of it.
            headers: True if the note keeps the headers, as the elements have no place for them.
        """
        job = change.new
        said: dict[str, Any] = {
            "entrypoint": None if job.entrypoint == self.entrypoint else job.entrypoint,
            "headers": dict(job.headers) if headers and job.headers else None,
            "max_attempts": job.max_attempts,
        }
        if change.arrives:
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
        """The note of a job that is claimed by a lock with this token."""
        old, job = change.old, change.new
        attempt = max(job.attempt, note.get("attempt", 0) + 1)
        failures = note.get("failures", 0) + job.failures - old.failures
        return note | {"attempt": attempt, "failures": failures, "token": token, "timeout": job.claim_timeout}

    def _ended(self, name: str, job: Job) -> dict[str, Any]:
        """The note of a job whose claim has ended."""
        note = self._disk.note(name) | {"failures": job.failures, "error": job.error}
        return without(note, "token", "next", "timeout", "dead_at")

    # What is done: a method for each step, called after it

    def carry_out(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Do each change by itself."""
        with self._alone():
            return self._carry_out(changes, now)

    def _carry_out(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for adds, run in groupby(changes, lambda change: change.step is Step.ADD):
            together = list(run)
            if adds:
                outcomes += self._add(together, now)
            else:
                outcomes += [self._done(change, now) for change in together]
        acked = [
            change.old.claim
            for change, outcome in zip(changes, outcomes, strict=True)
            if change.acked and not isinstance(outcome, Exception)
        ]
        with suppress(OSError):  # what is done is done
            self._acked.remember(acked)
        try:
            self._disk.flush()
        except OSError as error:
            outcomes = [
                self._taken_back(change, outcome, error, now) for change, outcome in zip(changes, outcomes, strict=True)
            ]
        if self._tidied is None or not 0 <= now.timestamp() - self._tidied < TIDY_SECONDS:
            self._tidied = now.timestamp()
            with suppress(OSError, StorageError, Lost):
                self._tidy(now, EMPTY_FOLDERS)
        return outcomes

    def _add(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Add new elements, in order: all are written, all get to the disk, and then each gets its name.

        A disk that is asked for one file after the other writes its journal each time. Asked for many that it has
        begun to write, it does so about once.
        """
        outcomes: list[Outcome] = []
        for first in range(0, len(changes), AT_ONCE):
            lot = changes[first : first + AT_ONCE]
            parts = [_attempt(self._write_part, change, now) for change in lot]
            try:
                self._disk.sync()
            except OSError as error:
                for part in parts:
                    if isinstance(part, str):
                        with suppress(OSError):
                            self._drop_part(part)
                parts = [error if isinstance(part, str) else part for part in parts]
            outcomes += [
                _attempt(self._published, part, change, now) if isinstance(part, str) else part
                for part, change in zip(parts, lot, strict=True)
            ]
        return outcomes

    def _published(self, part: str, change: Change, now: datetime) -> Kept:
        """A new job as it stands: known by its name from now on, unless it came from elsewhere."""
        name, place = self._name(part, change, now)
        job, number = change.new, number_of(name[-14:])
        if not change.arrives:
            job = job.evolve(id=name, created_at=moment(number))
        return Kept(job.evolve(sequence=number), place)

    def _name(self, part: str, change: Change, now: datetime) -> tuple[str, str]:
        """Give a part its name, or another one if it must be written again. Returns its name, and where it is."""
        for _ in range(TRIES):
            try:
                return self._publish(part, change, now)
            except (FileExistsError, FileNotFoundError):  # somebody has the name, or has tidied up
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
        return OSError(f"{what.format(repr(self._root))}: whatever is made there goes at once")

    def _done(self, change: Change, now: datetime) -> Outcome:
        outcome: Outcome = _attempt(getattr(self, f"_{change.step}"), change, now)
        if isinstance(outcome, PermissionError) and change.step is Step.CLAIM:  # behind the lock
            with suppress(OSError):
                self._unlock(change.place)
            return self._set_aside(change.place)
        return outcome

    def _set_aside(self, place: str) -> Lost:
        """An element cannot be claimed: it is none, until something of it is another that others do not change."""
        self._unreadable[place] = self._condition(place)
        with suppress(KeyError):
            self._folders[place[:8]].seen.pop(place[9:], None)
        return Lost()

    def _condition(self, place: str) -> Stamp:
        return self._disk.condition(place)

    def _taken_back(self, change: Change, outcome: Outcome, error: OSError, now: datetime) -> Outcome:
        """What a change came to whose folder did not get to the disk: what is new goes, if nobody has it by now."""
        if change.step is not Step.ADD or not isinstance(outcome, Kept):
            return outcome
        try:
            self._remove(Change(outcome.job, None, outcome.place), now)
        except (OSError, Lost):
            return outcome
        return error

    def purge(self, now: datetime) -> None:
        """Remove what programs left behind when they ended, and all empty folders but the last two."""
        with self._alone():
            self._look(now)
            self._tidy(now, 0)

    def _tidy(self, now: datetime, empty: int) -> None:
        folders = sorted(self._folders)[:-2]
        unused = [name for name in folders if not self._folders[name].listing.names]
        for name in unused if len(unused) > empty else ():
            with suppress(OSError):
                os.rmdir(f"{self._root}/{name}")
        for name in self._leftovers(now):
            with suppress(OSError, Lost):
                self._discard(name, now)

    def _change(self, change: Change, now: datetime) -> Kept:
        raise Lost

    # What differs between the kinds

    @abstractmethod
    def payloads(self, jobs: Sequence[Kept]) -> list[Job]:
        """The jobs with their payloads."""

    @abstractmethod
    def _check_kind(self, names: frozenset[str]) -> None:
        """Refuse a folder of the other kind, by what is in it."""

    @abstractmethod
    def _stamp(self, name: str) -> tuple[Stamp, bool]:
        """What moves when an element is changed, and whether it is locked."""

    @abstractmethod
    def _lock_of(self, name: str) -> tuple[int, int]:
        """The token and the beat of an element's lock; zeros if it has none."""

    @abstractmethod
    def _to_look_at(self, folder: Folder) -> Iterable[str]:
        """The elements that may change without their folder."""

    @abstractmethod
    def _leftovers(self, now: datetime) -> Iterable[str]:
        """The names of what somebody left behind."""

    @abstractmethod
    def _discard(self, name: str, now: datetime) -> None:
        """Remove such a thing."""

    @abstractmethod
    def _unlock(self, name: str) -> None:
        """Remove our lock."""

    @abstractmethod
    def _write_part(self, change: Change, now: datetime) -> str:
        """Write a new element where nobody looks; `Disk.sync` gets it to the disk. Returns its name there."""

    @abstractmethod
    def _publish(self, part: str, change: Change, now: datetime) -> tuple[str, str]:
        """Give it the name by which all find it. Returns that, and where it is: a dead job is elsewhere.

        Raises:
            FileExistsError: somebody has that name.
            FileNotFoundError: it is gone.
        """

    @abstractmethod
    def _drop_part(self, part: str) -> None:
        """Remove it: it does not get to the disk."""

    @abstractmethod
    def _claim(self, change: Change, now: datetime) -> Kept: ...

    @abstractmethod
    def _prolong(self, change: Change, now: datetime) -> Kept: ...

    @abstractmethod
    def _release(self, change: Change, now: datetime) -> Kept: ...

    @abstractmethod
    def _bury(self, change: Change, now: datetime) -> Kept: ...

    @abstractmethod
    def _revive(self, change: Change, now: datetime) -> Kept: ...

    @abstractmethod
    def _remove(self, change: Change, now: datetime) -> Kept: ...


def without(note: dict[str, Any], *names: str) -> dict[str, Any]:
    """A note that does not say these."""
    return {name: value for name, value in note.items() if name not in names}


def _attempt(work: Callable[..., Result], *arguments: Any) -> Result | Exception:
    """What a step comes to, if it is not done its error."""
    try:
        return work(*arguments)
    except (FileNotFoundError, NotADirectoryError, Lost):
        return Lost()
    except (OSError, InvalidJobError, StorageError) as error:
        return error
