"""The journal beside a queue: fields of jobs that its format cannot hold. The original programs do not read it.

Each line is a JSON array of a time and the whole new states of some jobs, by their keys. The last state of a job
counts. One write appends a line, under a lock that all processes of jqueue share. So a line that a crash or a full disk
has cut is ignored as a whole, and the next one begins on a line of its own. Readers take no lock, and read only the
lines that are new. Now and then a new journal with only the current states replaces the old one: under the lock, so
that no line is lost. Its first line has an id, by which readers know that it is another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from jqueue.domain.draft import LARGEST_SEQUENCE
from jqueue.domain.durations import LONGEST
from jqueue.domain.fields import Count, Name, Positive
from jqueue.domain.job import JobRecord, JobStatus
from jqueue.formats.files import flush_names, signature_of
from jqueue.formats.port import microseconds, moment
from jqueue.runtime.file_lock import FileLock, need_posix_files
from jqueue.runtime.posix_files import (
    closing,
    create_file,
    file_status,
    flush,
    open_file,
    read_range,
    share_alike,
    write_all,
)
from jqueue.runtime.system import SystemEntropy

LOCK_TIMEOUT = 10.0
"""Seconds that a change waits for the lock, while other processes hold it."""

KEPT_FINISHED = 1_000
"""Number of finished jobs to remember, each with the attempt that finished it."""

COMPACT_BYTES = 1 << 18
"""Size below which a journal is not replaced. A larger one is replaced when it has doubled."""

ABANDONED = timedelta(hours=1)
"""Age from which the state of a job that is not in the queue, or an unfinished file, is a leftover."""

LISTINGS = 3
"""Number of times that a job must be missing in a listing: a listing may miss a file that is renamed."""

STORED = ("id", "entrypoint", "attempt", "failures", "max_attempts", "headers", "error")
"""Fields of a job that its state stores unchanged."""

_HEADER_BYTES = 100


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of a job, as far as its format cannot hold it. Each format uses some of the fields.

    Attributes:
        id: id of the job; None if it follows from the key.
        entrypoint: its entrypoint; None if it is the default one.
        headers: its headers; None if it has none.
        max_attempts: its limit of failures.
        attempt: number of claims so far.
        failures: number of claims that were not handed back unharmed.
        error: last error.
        created: time when it was added. All times are in microseconds since 1970, but for `token` and `next`.
        due: time until which it was put off.
        dead_at: time when it died.
        heartbeat: time of the claim's last heartbeat; None if there is no claim.
        timeout: timeout of the claim, in seconds.
        token: value in the format by which the claim is known: the end in its name (vsqs), or the time of its lock in
            nanoseconds (dirq).
        next: token that a heartbeat is about to give the claim.
        order: place in the order; None if it is the place in the file.
        finished: True if the last attempt has finished the job.
    """

    id: Name | None = None
    entrypoint: Name | None = None
    headers: dict[Name, str] | None = None
    max_attempts: Positive | None = None
    attempt: Count = 0
    failures: Count = 0
    error: str | None = None
    created: Count | None = None
    due: Count | None = None
    dead_at: Count | None = None
    heartbeat: Count | None = None
    timeout: Annotated[float, msgspec.Meta(ge=0, le=LONGEST)] | None = None
    token: Count | None = None
    next: Count | None = None
    order: Count | None = None
    finished: bool = False

    def job(
        self,
        job_id: str,
        entrypoint: str,
        created: int,
        sequence: int,
        is_dead: bool,
        claim: tuple[datetime, float | None, bool] | None,
    ) -> JobRecord:
        """Return the job, without its payload.

        Args:
            job_id: its id, if the state has none.
            entrypoint: its entrypoint, if the state has none.
            created: time when it was added, in microseconds since 1970, if the state has none.
            sequence: its place in the order.
            is_dead: True if it is dead.
            claim: time of its last heartbeat, its timeout in seconds, and True if it is one of jqueue; None: no claim.
        """
        created = created if self.created is None else self.created
        fields: dict[str, Any] = {
            "id": job_id,
            "entrypoint": entrypoint,
            "payload": b"",
            "status": JobStatus.QUEUED,
            "created_at": moment(created),
            "sequence": min(sequence, LARGEST_SEQUENCE),
            "run_at": None if self.due is None else moment(self.due),
        }
        fields |= {name: value for name in STORED if (value := getattr(self, name))}
        if is_dead:
            dead_at = created if self.dead_at is None else self.dead_at
            fields |= {"status": JobStatus.DEAD, "dead_at": moment(dead_at)}
        elif claim is not None:
            heartbeat_at, timeout, is_ours = claim
            attempt = max(1, self.attempt) if is_ours else self.attempt + 1
            fields |= {"status": JobStatus.IN_PROGRESS, "attempt": attempt}
            fields |= {"heartbeat_at": heartbeat_at, "claim_timeout": timeout}
        return JobRecord(**fields)

    def is_claim(self, token: int) -> bool:
        """Return True if the claim with this token is one of jqueue."""
        return token in (self.token, self.next)


NO_STATE: State = State()
Check = Callable[[], object]
_decode = msgspec.json.Decoder(tuple[Count, dict[str, State]]).decode


def state_of(job: JobRecord, before: State, fields: Iterable[str] = STORED, **values: Any) -> State:
    """Return the state of a job: the state before, with these fields of the job, its times, and other values."""
    return replace(
        before,
        **{field: getattr(job, field) for field in fields},
        created=microseconds(job.created_at),
        due=None if job.run_at is None else microseconds(job.run_at),
        dead_at=None if job.dead_at is None else microseconds(job.dead_at),
        **values,
    )


class Journal:
    """The journal of one queue, as it was last read.

    Args:
        path: path of the journal.
        like: path of the file or folder of the queue. Its users are also those of the journal.
        present: lists the keys of all jobs in the queue.

    Attributes:
        states: states of the jobs, by key, in the order of their lines.
        last_order: largest place in the journal.

    Raises:
        StorageFatalError: this system has no POSIX file locks (Windows).
    """

    def __init__(self, path: str, like: str, present: Callable[[], Set[str]]) -> None:
        need_posix_files(f"the queue {like!r}")
        self.path: str = path
        self._like, self._present = like, present
        self._lock = FileLock(f"{path}.lock", LOCK_TIMEOUT, SystemEntropy())
        self._header = b""
        self._read_at: tuple[int, ...] | None = None  # the signature of the file as it was read; None if it is gone
        self._forget()

    def _forget(self) -> None:
        self.states: dict[str, State] = {}
        self.last_order: int = 0
        self._end = 0  # of the last line that was read
        self._times: dict[str, int] = {}

    # Reading

    def signature(self) -> tuple[int, ...] | None:
        """Return a value that changes with the file; None if there is no file."""
        status = file_status(self.path)
        return status and signature_of(status)

    def may_have_changed(self) -> bool:
        """Return True if the journal may have changed since it was last read."""
        return self.signature() != self._read_at

    def read(self) -> None:
        """Read the new lines. If the file is gone, the known states count: the next line is written with all of them.

        Raises:
            StorageFatalError: the path is not a regular file.
            OSError: the system refused. A change made without the states would lose fields of its job.
        """
        if not self.may_have_changed():
            return
        try:
            descriptor, status = open_file(self.path, os.O_RDONLY)
        except FileNotFoundError:
            self._read_at = None
            return
        with closing(descriptor):
            header = os.pread(descriptor, _HEADER_BYTES, 0).partition(b"\n")[0]
            is_other = header != self._header or status.st_size < self._end
            begin = 0 if is_other else self._end
            content = read_range(descriptor, begin, status.st_size - begin)
        if is_other:
            self._forget()
        end = content.rfind(b"\n") + 1
        for line in content[:end].splitlines():
            with suppress(ValueError, RecursionError):  # the header, or a line that was not written to its end
                time, states = _decode(line)
                self._set(states, time)
        self._header, self._end, self._read_at = header, begin + end, signature_of(status)

    def state(self, key: str) -> State:
        """Return the state of an unfinished job as it is now."""
        self.read()
        return self.known(key)

    def known(self, key: str) -> State:
        """Return the state of an unfinished job as it was last read."""
        state = self.states.get(key, NO_STATE)
        return NO_STATE if state.finished else state

    def finished(self) -> dict[str, int]:
        """Return the ids of the jobs that were finished recently, each with the attempt that finished it."""
        self.read()
        return {state.id or key: state.attempt for key, state in self.states.items() if state.finished}

    def _set(self, states: Mapping[str, State], time: int) -> None:
        for key, state in states.items():
            self.states.pop(key, None)
            self._times.pop(key, None)
            if state != NO_STATE:
                self.states[key], self._times[key] = state, time
                self.last_order = max(self.last_order, state.order or 0)

    # Changing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Take the lock. The end of the `with` block releases it.

        Raises:
            StorageError: another process or thread held it until the timeout.
            OSError: the system refused.
        """
        with self._lock.acquire() as lock:
            with suppress(FileNotFoundError):  # the store says that the queue is gone
                lock.share_alike(os.stat(self._like))
            yield

    def write(self, changes: Mapping[str, State], now: datetime, check: Check = bool, *, durable: bool = False) -> None:
        """Take the lock, and append new states.

        Args:
            changes: new states, by key.
            now: the time.
            check: raises an error if another program has changed the job, and may have written another state. It is
                called under the lock: until then, other programs may work on the job. By default, nothing is checked.
            durable: True if the states must be on the disk when this returns.

        Raises:
            StorageError: the lock was not free, or the path is not a regular file.
            OSError: the system refused.
        """
        if changes:
            with self.locked():
                check()
                self.append(changes, now, durable=durable)

    def append(self, changes: Mapping[str, State], now: datetime, *, durable: bool = False) -> None:
        """Append new states, as `write` does. Only under the lock."""
        self.read()
        changes = {key: state for key, state in changes.items() if state != self.states.get(key, NO_STATE)}
        if not changes:
            return
        size = self._header.rpartition(b" ")[2]  # of the states in a new journal
        if self._read_at is None or self._end > max(COMPACT_BYTES, 2 * int(size) if size.isdigit() else 0):
            return self._replace(changes, now)
        descriptor, status = open_file(self.path, os.O_WRONLY | os.O_APPEND)
        with closing(descriptor):
            line = _line(microseconds(now), changes)
            line = line if status.st_size == self._end else b"#\n" + line  # the last line was cut, and is no line now
            write_all(descriptor, line)
            if durable:
                flush(descriptor)
            status = os.fstat(descriptor)
        self._set(changes, microseconds(now))
        if status.st_size == self._end + len(line):  # else another line is still to be read: the lock was removed
            self._end, self._read_at = status.st_size, signature_of(status)

    def _replace(self, changes: Mapping[str, State], now: datetime) -> None:
        """Replace the journal by one with the current states: the new ones, those of all jobs, and the last finished.

        A job whose state is young may be one that is being added.
        """
        old = microseconds(now - ABANDONED)
        gone = {key for key, state in self.states.items() if self._times[key] < old and not state.finished}
        for _ in range(LISTINGS if gone else 0):
            gone -= self._present()
        gone |= set([key for key, state in self.states.items() if state.finished][:-KEPT_FINISHED])
        gone |= changes.keys()  # they go behind the others
        states = {key: state for key, state in self.states.items() if key not in gone} | dict(changes)
        times = self._times | dict.fromkeys(changes, microseconds(now))
        lines = [_line(times[key], {key: state}) for key, state in states.items() if state != NO_STATE]
        content = b"".join(lines)
        header = b"# %s %d" % (SystemEntropy().new_id().encode(), len(content))
        part = f"{self.path}.part"
        with suppress(FileNotFoundError):
            os.unlink(part)
        with closing(create_file(part)) as descriptor:
            share_alike(os.stat(self._like), descriptor)
            write_all(descriptor, header + b"\n" + content)
            flush(descriptor)
        os.rename(part, self.path)
        flush_names(os.path.dirname(self.path))
        self.read()


def _line(time: int, states: Mapping[str, State]) -> bytes:
    return msgspec.json.encode((time, states)) + b"\n"
