"""`DirqStore`: a queue of dirq (Directory::Queue in Perl), a folder of folders of elements, as a store of jobs.

Programs of dirq and of jqueue can work on one folder at the same time. They take locks in the same way. Two promises:

- **No job is done by two programs.** dirq does not record the holder of a lock. So each claim of jqueue gives its
  element a time that no other lock has, the token, and writes the token into the journal. Each later step checks the
  lock and its token first. A lock whose token is not in the journal belongs to another program.
- **No job is lost or doubled if a program dies.** An element gets each of its names by one rename, which replaces
  nothing. An element that moves takes its lock along, and the state for its new name is written before. Under the new
  name no other program can lock it, so the token is checked again there. If another program has locked it by then, the
  element is renamed back.

Fields of a job that the format cannot hold are in a journal (`jqueue.formats.journal`), by the name of the element.
Dead jobs, and elements that are being added or removed, are in a folder that programs of dirq do not look into.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from jqueue.domain.errors import StorageError, StorageFatalError
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.formats.dirq.layout import ELEMENT, FOLDER, Layout, Simple
from jqueue.formats.files import flush_names, rename_exclusively, result_or_error
from jqueue.formats.job_files import JobFolder
from jqueue.formats.journal import NO_STATE, Journal, State, state_of
from jqueue.formats.port import OF_ALL, Change, JobChangedError, Outcome, StoredJob, microseconds, moment
from jqueue.ports.queue import Capabilities
from jqueue.runtime.posix_files import flush, write_all

MAXTEMP, MAXLOCK = 300.0, 600.0
"""Seconds after which dirq takes an unfinished element, and a lock, for left behind."""

NEVER = 100 * 365 * 86_400.0

HIDDEN = ".jqueue"
"""Name of jqueue's own folder in the queue, which programs of dirq do not look into."""

NEW, DEAD, GONE = f"{HIDDEN}/new-", f"{HIDDEN}/dead-", f"{HIDDEN}/gone-"
"""Beginnings of the names of elements that are being added, are dead jobs, and are being removed."""

AHEAD = 3_600 * 1_000_000
"""Microseconds by which a known name may lie in the future, so that new names still go behind it.

A name farther ahead comes from a wrong clock, and is not followed.
"""

TIDY_SECONDS, EMPTY_FOLDERS = 60.0, 100
"""Seconds between two searches for leftovers, and number of empty folders from which they are removed."""

ASIDE_SECONDS = 60.0
"""Seconds for which an element that cannot be read is set aside."""

WRITE_BATCH = 32
"""Number of new elements to keep open at a time."""

TRIES = 100


class Place(NamedTuple):
    """Place of a job.

    Attributes:
        name: path of the element, relative to the queue's folder.
        token: time of the element in nanoseconds, which tells this lock from other locks of it; 0 if it is not locked.
        is_claim: True if the lock is a claim of jqueue; False if another program holds it.
    """

    name: str
    token: int = 0
    is_claim: bool = True


Stamp = tuple[int, int]
"""A value that changes with an element: the token of its lock, and its time."""


class DirqStore(JobFolder):
    """A folder of dirq as a store of jobs.

    Args:
        path: path of the folder, which the first job creates. A relative path is resolved now.
        layout: kind of the queue, with the options of that kind.
        entrypoint: entrypoint of elements that programs of dirq have added; by default the name of the folder.
        umask: umask of new files and folders; None means that of the process.
        maxtemp: seconds after which an unfinished element is removed; 0 means never.
        maxlock: seconds after which the lock of another program is removed; 0 means never.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: Layout | None = None,
        *,
        entrypoint: str | None = None,
        umask: int | None = None,
        maxtemp: float = MAXTEMP,
        maxlock: float = MAXLOCK,
    ) -> None:
        self._layout = layout = Simple() if layout is None else layout
        super().__init__(path, entrypoint, layout=layout, umask=umask, maxtemp=maxtemp, maxlock=maxlock)
        self.capabilities: Capabilities = replace(OF_ALL, headers=layout.has_headers)
        self._umask, self._maxtemp, self._maxlock = umask, maxtemp, maxlock
        self._journal = Journal(self._path(f"{HIDDEN}/journal"), self.name, lambda: {name for name, _ in self._look()})
        self._folders: list[str] = []
        self._seen: dict[str, tuple[Stamp, State, StoredJob]] = {}
        self._aside: dict[str, float] = {}  # elements that cannot be read, and since when
        self._last_number = self._last_token = 0
        self._unsynced: list[int] = []
        self._changed_folders: set[str] = set()
        self._tidied: float | None = None

    def __repr__(self) -> str:
        return f"DirqStore({self.name!r}, {self._layout!r})"

    def watched(self) -> list[Path]:
        """Return the folders that change when a job is added: the queue's folder, and the last two folders in it."""
        return [self.path, *(self.path / name for name in self._folders[-2:])]

    # Reading

    def may_have_changed(self) -> bool:
        """Return True: no time of a folder tells of every lock, and a scan reads no element twice."""
        return True

    def scan(self, now: datetime) -> list[StoredJob]:
        """Return every element and every dead job. Payloads are not read.

        The state of a lock may be written after the lock was seen: until then, it looks like another program's.
        """
        seconds, before = now.timestamp(), self._seen
        self._aside = {name: since for name, since in self._aside.items() if 0 <= seconds - since < ASIDE_SECONDS}
        self._seen, last = {}, 0
        jobs: dict[str, StoredJob] = {}
        listing = list(self._look())
        self._journal.read()
        for name, stamp in listing:
            state = self._journal.known(name)
            entry = before.get(name)
            stored = entry[2] if entry and entry[:2] == (stamp, state) else self._stored_job(name, stamp[0], state)
            self._seen[name] = stamp, state, stored
            if name in self._aside or stored.job.id in jobs:  # its element was renamed between two listings
                continue
            if not name.startswith(DEAD):
                if stored.job.sequence <= last:  # a clock was put back
                    stored = StoredJob(stored.job.evolve(sequence=last + 1), stored.place)
                last = stored.job.sequence
                if self._last_number < (number := number_of(name)) < microseconds(now) + AHEAD:
                    self._last_number = number
            jobs[stored.job.id] = stored
        return list(jobs.values())

    def _look(self) -> Iterator[tuple[str, Stamp]]:
        """Yield the elements in order, then the dead jobs, each with its stamp."""
        names = self._names()
        if kind := self._layout.wrong_kind(names):
            raise StorageFatalError(f"{self.name!r} is a dirq queue of the kind {kind}: open it with kind={kind}")
        self._folders = sorted(filter(FOLDER.fullmatch, names))
        for folder in self._folders:
            with suppress(FileNotFoundError, NotADirectoryError):
                for element, is_locked, time in self._layout.elements(self._path(folder)):
                    yield f"{folder}/{element}", (time if is_locked else 0, time)
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._path(HIDDEN))):
                if f"{HIDDEN}/{name}".startswith(DEAD) and ELEMENT.fullmatch(name.rpartition("-")[2]):
                    yield f"{HIDDEN}/{name}", (0, 0)

    def _stored_job(self, name: str, token: int, state: State) -> StoredJob:
        number, is_ours = number_of(name), not token or state.is_claim(token)
        timeout = state.timeout if is_ours else self._maxlock or NEVER
        claim = (moment(token // 1000), timeout, is_ours) if token else None
        job = state.job(name, self.entrypoint, number, number, name.startswith(DEAD), claim)
        return StoredJob(job, Place(name, token, is_ours))

    def payloads(self, jobs: Sequence[StoredJob]) -> list[JobRecord]:
        """Return these jobs with their payloads and headers. Jobs that are gone or unreadable are left out."""
        read = []
        for job, place in jobs:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError, ValueError):
                read.append(job.evolve(**self._layout.read(self._path(place.name))))
        return read

    # Changes: one method for each step, named after it

    def carry_out(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Make each change by itself; new jobs that follow each other together."""
        if self._was_there:
            with suppress(FileExistsError, FileNotFoundError):
                self._mkdir(self._path(HIDDEN))  # for the journal: a file in the queue's own folder disturbs `count`
                flush_names(self.name)
        outcomes = super().carry_out(changes, now)
        if self._tidied is None or not 0 <= now.timestamp() - self._tidied < TIDY_SECONDS:
            self._tidied = now.timestamp()
            with suppress(OSError, StorageError):
                self._tidy(now)
        return outcomes

    def _add(self, changes: Sequence[Change], now: datetime) -> list[Outcome]:
        """Add new elements in order: write all, sync all to the disk, give each its name, then sync the names.

        If files are written and synced one by one, the file system writes its journal each time. If many are synced
        whose writing has already begun, it writes its journal about once.
        """
        outcomes: list[Outcome] = []
        for first in range(0, len(changes), WRITE_BATCH):
            batch = changes[first : first + WRITE_BATCH]
            names = [result_or_error(self._write, change, now) for change in batch]
            failure = result_or_error(self._sync) or result_or_error(self._note_new, names, batch, now)
            written = zip(names, batch, strict=True)
            outcomes += [result_or_error(self._publish, name, failure, change) for name, change in written]
        if (failure := result_or_error(self._flush)) is not None:
            for number, outcome in enumerate(outcomes):
                if isinstance(outcome, StoredJob):  # take it back, unless another program has taken it by now
                    removal = Change(outcome.job, None, outcome.place)
                    if not isinstance(result_or_error(self._remove, removal, now), Exception):
                        outcomes[number] = failure
        return outcomes

    def _write(self, change: Change, now: datetime) -> str:
        """Write a new element as a part. Returns the name reserved for it."""
        return self._reserve(partial(self._create, self._layout.contents(change.new)), now)

    def _note_new(self, names: Sequence[str | Exception], changes: Sequence[Change], now: datetime) -> None:
        """Write the states of new jobs: none if a program of dirq could have added the same job.

        A job from another queue keeps its id and its history.
        """
        states = {}
        for name, change in zip(names, changes, strict=True):
            job = change.new
            state = State(
                entrypoint=None if job.entrypoint == self.entrypoint else job.entrypoint,
                headers=job.headers or None if self._layout.headers_in_journal else None,
                max_attempts=job.max_attempts,
            )
            if change.is_transfer:
                state = _ended(replace(state, attempt=job.attempt), job)
            if isinstance(name, str):
                states[_place_of(name, job)] = state
        self._journal.write(states, now, durable=True)

    def _publish(self, name: str | Exception, failure: Exception | None, change: Change) -> StoredJob:
        """Give a part its name, which becomes the id of the job, unless the job comes from another queue.

        Args:
            name: the name; or the error that has kept the part from being written.
            failure: the error that has kept the parts from being synced.
            change: the addition of the job.
        """
        if isinstance(name, Exception):
            raise name
        job, number = change.new, number_of(name)
        place = Place(_place_of(name, job))
        try:
            if failure is not None:
                raise failure
            self._rename(rename_exclusively, Place(_part(name)), place.name)
        except Exception:
            _remove_tree(self._path(_part(name)))
            self._removed[place.name] = NO_STATE
            raise
        self._changed_folders.add(os.path.dirname(self._path(place.name)))
        if not change.is_transfer:
            job = job.evolve(id=name, created_at=moment(number))
        return StoredJob(job.evolve(sequence=number), place)

    def _claim(self, change: Change, now: datetime) -> StoredJob:
        old, job, name = change.old, change.new, change.place.name
        path = self._path(name)
        try:
            place = self._hold(Place(name), now)
        except PermissionError:
            raise self._set_aside(name, now) from None
        try:
            state = self._journal.state(name)
            state = replace(
                state,
                attempt=max(job.attempt, state.attempt + 1),
                failures=state.failures + job.failures - old.failures,
                token=place.token,
                next=None,
                timeout=job.claim_timeout,
            )
            self._journal.write({name: state}, now, partial(self._check, place))
            content = self._layout.read(path)
        except (OSError, ValueError, StorageError) as error:
            self._layout.unlock(path)
            if isinstance(error, FileNotFoundError | PermissionError | ValueError):
                raise self._set_aside(name, now) from None
            raise
        self._check(place)  # another program may have taken our lock for an old one, before it got its time
        return StoredJob(self._stored_job(name, place.token, state).job.evolve(**content), place)

    def _set_aside(self, name: str, now: datetime) -> JobChangedError:
        """Ignore an element that cannot be read, or not locked, for a while."""
        self._aside[name] = now.timestamp()
        return JobChangedError()

    def _prolong(self, change: Change, now: datetime) -> StoredJob:
        """Give the lock a new token. The journal has both tokens, so that the claim is known by either."""
        job, place = change.new, change.place
        state = self._journal.state(place.name)
        if not state.is_claim(place.token):
            raise JobChangedError
        token = self._new_token(now, after=place.token)
        state = replace(state, token=place.token, next=token, timeout=job.claim_timeout)
        self._journal.write({place.name: state}, now, partial(self._check, place))
        os.utime(self._path(place.name), ns=(token, token))
        return StoredJob(job.evolve(heartbeat_at=moment(token // 1000)), place._replace(token=token))

    def _release(self, change: Change, now: datetime) -> StoredJob:
        """End a claim, or revive a dead job. The job stays where it is, goes behind all others, or is dead."""
        old, job, place = change.old, change.new, change.place
        path, state = self._path(place.name), self._journal.state(place.name)
        if old.status is JobStatus.DEAD:
            self._layout.unlock(path)  # left by a program that died while it buried the job
        else:
            self._check(place)
        state = _ended(state, job)
        if job.sequence != old.sequence or job.status is JobStatus.DEAD:
            return self._move(place, job, state, now)
        self._journal.write({place.name: state}, now, partial(self._check, place))
        self._layout.unlock(path)
        return StoredJob(job, Place(place.name))

    def _remove(self, change: Change, now: datetime) -> StoredJob:
        job, place = change.old, change.place
        if not place.is_claim:
            raise JobChangedError
        path, gone = self._path(place.name), f"{GONE}{_key(place.name)}"
        if not place.token:
            with suppress(FileNotFoundError, ValueError):
                job = job.evolve(**self._layout.read(path))
        if not place.name.startswith(DEAD):
            place = self._hold(place, now)
        self._rename(rename_exclusively, place, gone)
        self._layout.unlock(path)
        _remove_tree(self._path(gone))
        acked = State(id=job.id, attempt=job.attempt, finished=True)
        self._removed[place.name] = acked if change.acked else NO_STATE
        return StoredJob(job, "")

    # Locks

    def _hold(self, place: Place, now: datetime) -> Place:
        """Lock a free element. Of a locked element, check that its lock has not changed since the last look."""
        if place.token:
            self._check(place)
            return place
        path, token = self._path(place.name), self._new_token(now)
        try:
            self._layout.lock(path)
        except FileExistsError:
            raise JobChangedError from None
        try:
            os.utime(path, ns=(token, token))
        except OSError:  # another program has removed the element in spite of the lock, or owns it
            self._layout.unlock(path)
            raise
        return Place(place.name, token)

    def _check(self, place: Place) -> None:
        """Raise JobChangedError if the element is no longer locked, or by another lock than was last seen."""
        path = self._path(place.name)
        if not os.path.lexists(self._layout.lock_path(path)) or os.lstat(path).st_mtime_ns != place.token:
            raise JobChangedError

    def _new_token(self, now: datetime, after: int = 0) -> int:
        """Return a time in nanoseconds to take or confirm a lock with, which no other lock has."""
        token = microseconds(now) * 1000 + os.getpid() % 1000
        last = max(self._last_token, after)
        self._last_token = last + 1000 if token <= last < token + AHEAD * 1000 else token
        return self._last_token

    # Names

    def _reserve(self, make: Callable[[str], None], now: datetime) -> str:
        """Make a part with a new name behind all others, which no other program of jqueue takes then. Returns it.

        The name is behind all known ones even if another clock is ahead by up to `AHEAD`.
        """
        for _ in range(TRIES):
            number = microseconds(now)
            if number <= self._last_number < number + AHEAD:
                number = self._last_number + 1
            seconds, rest = divmod(number, 1_000_000)
            element = f"{min(seconds, 0xFFFFFFFF):08x}{rest:05x}{os.getpid() & 15:x}"
            part = ""
            try:
                name = f"{self._layout.folder(self.name, element)}/{element}"
                part = self._path(_part(name))
                make(part)
            except FileNotFoundError:  # the folder does not exist yet
                self._make_folder(HIDDEN)
                continue
            except FileExistsError:
                self._last_number = number
                continue
            except OSError:
                _remove_tree(part)
                raise
            self._last_number = number
            if not os.path.lexists(self._path(name)):
                return name
            _remove_tree(part)
        raise OSError(f"no new name could be made in {self.name!r}: another program removes new files there at once")

    def _move(self, place: Place, job: JobRecord, state: State, now: datetime) -> StoredJob:
        """Give a locked or a dead element a new name, with a new state, and unlock it."""
        name = self._reserve(lambda part: os.close(os.open(part, os.O_CREAT | os.O_EXCL)), now)
        number, reserved = number_of(name), self._path(_part(name))
        name = _place_of(name, job)
        path, new = self._path(place.name), self._path(name)
        try:
            self._journal.write({name: state}, now, partial(os.lstat, path))
            self._rename(self._layout.rename, place, name)
        except (OSError, JobChangedError):
            self._removed[name] = NO_STATE
            raise
        finally:
            os.unlink(reserved)
        self._layout.unlock(new)
        self._layout.unlock(path)
        self._removed[place.name] = NO_STATE
        return StoredJob(job.evolve(sequence=number), Place(name))

    def _rename(self, rename: Callable[[str, str], None], place: Place, name: str) -> None:
        """Rename a part, or a locked or dead element. If its lock is another program's by then, rename it back.

        Raises:
            JobChangedError: the element has its old name again.
        """
        path, new = self._path(place.name), self._path(name)
        try:
            rename(path, new)
        except FileNotFoundError:
            os.lstat(path)
            self._make_folder(os.path.dirname(name))
            rename(path, new)
        if place.token and os.lstat(new).st_mtime_ns != place.token:
            rename_exclusively(new, path)
            self._layout.unlock(new)
            raise JobChangedError

    # Files

    def _make_folder(self, name: str) -> None:
        """Make a folder in the queue. Make the queue's own folder, too, if it was never there."""
        if not self.exists():
            self._check_new()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for path in (self.name, *map(self._path, (HIDDEN, *self._layout.folders, name))):
            with suppress(FileExistsError):
                self._mkdir(path)
        self._was_there = True
        self._changed_folders |= {self.name, str(self.path.parent)}

    def _mkdir(self, path: str) -> None:
        os.mkdir(path)
        if self._umask is not None:
            os.chmod(path, 0o777 & ~self._umask)

    def _create(self, contents: dict[str, bytes], path: str) -> None:
        """Make a new file, or a folder with files. `_sync` brings it to the disk.

        Args:
            contents: content of each file, by the end of its path.
            path: path of the file or the folder.
        """
        if "" not in contents:
            self._mkdir(path)
            self._unsynced.append(os.open(path, os.O_RDONLY))
        for end, content in contents.items():
            descriptor = os.open(path + end, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            self._unsynced.append(descriptor)
            if self._umask is not None:
                os.fchmod(descriptor, 0o666 & ~self._umask)
            write_all(descriptor, content)

    def _sync(self) -> None:
        """Bring everything made since the last `_sync` to the disk."""
        made, self._unsynced = self._unsynced, []
        try:
            for descriptor in made if len(made) > 1 and hasattr(os, "posix_fadvise") else ():
                with suppress(OSError):  # starts writing all of them; otherwise they go one by one
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            for descriptor in reversed(made):
                flush(descriptor)
        finally:
            for descriptor in made:
                os.close(descriptor)

    def _flush(self) -> None:
        """Sync the folders where elements were added, so that they survive a power failure."""
        changed, self._changed_folders = self._changed_folders, set()
        for folder in changed:
            flush_names(folder)

    def _tidy(self, now: datetime) -> None:
        """Remove leftovers of programs that died, and empty folders except the last two if there are many."""
        self._folders = sorted(filter(FOLDER.fullmatch, os.listdir(self.name)))  # a queue that only adds never scans
        unused = [name for name in self._folders[:-2] if not os.listdir(self._path(name))]
        for name in unused if len(unused) > EMPTY_FOLDERS else ():
            with suppress(OSError):
                os.rmdir(self._path(name))
        parts = [f"{HIDDEN}/{name}" for name in os.listdir(self._path(HIDDEN))]
        ours = [(self._path(name), False) for name in parts if name.startswith((NEW, GONE))]
        for path, is_lock in (*ours, *self._layout.leftovers(self.name, self._folders)):
            age = self._maxlock if is_lock else self._maxtemp
            with suppress(FileNotFoundError):
                status = os.lstat(path)
                if age and now.timestamp() - max(status.st_mtime, status.st_ctime) > age:
                    _remove_tree(path)


def number_of(name: str) -> int:
    """Return the microseconds since 1970 in the name of an element."""
    return int(name[-14:-6], 16) * 1_000_000 + int(name[-6:-1], 16)


def _key(name: str) -> str:
    """Return the name of an element as a part of the name of a file in jqueue's own folder."""
    return name.removeprefix(f"{HIDDEN}/").replace("/", "-")


def _part(name: str) -> str:
    """Return the name that an element has until it is published."""
    return f"{NEW}{_key(name)}"


def _place_of(name: str, job: JobRecord) -> str:
    """Return the name of an element, or that which it has as a dead job."""
    return f"{DEAD}{_key(name)}" if job.status is JobStatus.DEAD else name


def _ended(state: State, job: JobRecord) -> State:
    """Return the state of a job without a claim. It has the id and the time, which a name no longer tells."""
    return state_of(job, state, ("id", "failures", "error"), token=None, next=None, timeout=None)


def _remove_tree(path: str) -> None:
    """Remove a file, or a folder with all that is in it, if it is there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):  # Linux and macOS refuse to unlink a folder in different words
        shutil.rmtree(path, ignore_errors=True)
