"""The journal beside a TextQueue: attempts, claims, errors and places, which the original programs do not read.

Each line is a JSON array of the id and the whole new state of one message; the last line of a message counts. Lines are
appended under the lock, all lines of one batch in one write. A line that a crash has cut, or that cannot be read, is
ignored: the state before it counts. Now and then a new journal with only the current states replaces the old one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated

import msgspec

from jqueue.domain.durations import LONGEST
from jqueue.domain.fields import LARGEST
from jqueue.runtime.posix_files import create_file, flush, give_to_owner_of, open_file, write_all

KEPT_FINISHED = 1_000
"""Number of finished messages to remember, each with the attempt that finished it."""

_COMPACT_BYTES = 1 << 16
_Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST << 8)]


class MessageState(msgspec.Struct, frozen=True, omit_defaults=True):
    """State of one message in the journal.

    Attributes:
        attempt: number of claims so far.
        failures: number of claims that were not handed back unharmed.
        heartbeat: time of the claim's last heartbeat, in microseconds since 1970; None if there is no claim.
        timeout: timeout of the claim, in seconds.
        order: place of the message in the order; None if it is the place in the file.
        error: last error.
        dead_at: time when the job died, in microseconds since 1970.
        finished: True if the last attempt has finished the job.
    """

    attempt: _Count = 0
    failures: _Count = 0
    heartbeat: _Count | None = None
    timeout: Annotated[float, msgspec.Meta(ge=0, le=LONGEST)] | None = None
    order: _Count | None = None
    error: str | None = None
    dead_at: _Count | None = None
    finished: bool = False


_decode = msgspec.json.Decoder(tuple[str, MessageState]).decode
NO_STATE = MessageState()


class OpenFile:
    """A file that is kept open, so that no other file can get its inode and be taken for it.

    It is closed when its last reference is gone.

    Args:
        path: path of a regular file.
        flags: flags of `os.open`.
        mode: mode of the file, if this call creates it.

    Attributes:
        number: file descriptor.
        status: result of `os.fstat` when the file was opened.

    Raises:
        StorageFatalError: the path is not a regular file.
        OSError: the system refused.
    """

    def __init__(self, path: str, flags: int, mode: int = 0o600) -> None:
        self.number, self.status = open_file(path, flags, mode)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self.number)

    def is_at(self, status: os.stat_result | None) -> bool:
        """Return True if this is the status of the open file, and not of another file or of none."""
        return status is not None and os.path.samestat(status, self.status)

    def read_from(self, begin: int) -> bytearray:
        """Return the content from an offset to the end."""
        content = bytearray(max(0, os.fstat(self.number).st_size - begin) + 1)  # one more, to see the end
        read = 0
        while count := os.preadv(self.number, [memoryview(content)[read:]], begin + read):
            read += count
            if read == len(content):
                content.extend(bytes(len(content)))
        del content[read:]
        return content


class JournalWriteError(OSError):
    """The system refused a write; the journal is unchanged."""


class Journal:
    """The journal of one file, as it was last read.

    Args:
        path: path of the journal.

    Attributes:
        states: states of the messages, by id.
        claimed: ids of the claimed messages.
        last_order: largest place in the journal.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._part = f"{path}.part"
        self.forget()

    def forget(self) -> None:
        """Forget everything, so that the journal is read from its beginning."""
        self.states: dict[str, MessageState] = {}
        self.claimed: set[str] = set()
        self.last_order = 0
        self._read = 0
        self._size = 0
        self._lines = 0
        self._descriptor: OpenFile | None = None

    def may_have_changed(self) -> bool:
        """Return True if the journal has lines that were not read."""
        status = self._status()
        if status is None or self._descriptor is None:
            return (status is None) != (self._descriptor is None)
        return not self._descriptor.is_at(status) or status.st_size != self._size

    def refresh(self, *, locked: bool = False) -> bool:
        """Read the new lines.

        Args:
            locked: True if the caller holds the lock: then a last line without a line break was cut by a crash.

        Returns:
            True if anything was read.

        Raises:
            OSError: the system refused.
        """
        status = self._status()
        if status is None:
            return False  # the known states still count, and the next write writes all of them
        if self._descriptor is None or not self._descriptor.is_at(status) or status.st_size < self._read:
            self.forget()
            self._descriptor = OpenFile(self.path, os.O_RDWR | os.O_APPEND)
        elif status.st_size == self._size == self._read:
            return False
        content = self._descriptor.read_from(self._read)
        self._size = self._read + len(content)
        if locked and content and not content.endswith(b"\n"):
            write_all(self._descriptor.number, b"\n")
            content += b"\n"
            self._size += 1
        whole = content.rfind(b"\n") + 1
        for line in content[:whole].splitlines():
            self._read_line(line)
        self._read += whole
        return True

    def write(self, changes: Mapping[str, MessageState], *, durable: bool, owner: os.stat_result | None = None) -> None:
        """Append new states in one write. Only under the lock, and after `refresh`.

        Args:
            changes: new states, by id.
            durable: True if the lines must be on the disk when this returns.
            owner: status of a file whose owner also gets a new journal, so that a file of a user stays usable for the
                user after root has worked on it.

        Raises:
            JournalWriteError: nothing was written.
            OSError: the system refused. The caller must `forget` the journal.
        """
        lines = b"".join(_line(job_id, state) for job_id, state in changes.items())
        if self._descriptor is None or self._status() is None:
            self.rewrite({**self.states, **changes}, owner)
            return
        try:
            write_all(self._descriptor.number, lines)
        except OSError as error:
            os.ftruncate(self._descriptor.number, self._read)
            raise JournalWriteError(error.errno, error.strerror, self.path) from error
        if durable:
            flush(self._descriptor.number)
        self._size = self._read = self._read + len(lines)
        for job_id, state in changes.items():
            self._set(job_id, state)
        self._lines += len(changes)

    def needs_compaction(self, live: int) -> bool:
        """Return True if most lines of the journal are out of date.

        Args:
            live: number of messages that may still need a line.
        """
        return self._size > _COMPACT_BYTES and self._lines > 4 * (live + KEPT_FINISHED)

    def rewrite(self, states: Mapping[str, MessageState], owner: os.stat_result | None = None) -> None:
        """Replace the journal by these states. Only under the lock.

        Raises:
            JournalWriteError: nothing was written.
            OSError: the system refused. The caller must `forget` the journal.
        """
        try:
            self._write_part(states, owner)
        except OSError as error:
            raise JournalWriteError(error.errno, error.strerror, self.path) from error
        os.rename(self._part, self.path)
        self.forget()
        self.refresh(locked=True)

    def _write_part(self, states: Mapping[str, MessageState], owner: os.stat_result | None) -> None:
        """Write the file that will replace the journal."""
        with suppress(FileNotFoundError):
            os.unlink(self._part)
        old = self._status() or owner
        descriptor = create_file(self._part)
        try:
            if old is not None:
                give_to_owner_of(old, descriptor)
            write_all(descriptor, b"".join(_line(job_id, state) for job_id, state in states.items()))
            flush(descriptor)
        finally:
            os.close(descriptor)

    def _status(self) -> os.stat_result | None:
        try:
            return os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _read_line(self, line: bytes | bytearray) -> None:
        self._lines += 1
        with suppress(ValueError):  # a line that jqueue has not written
            self._set(*_decode(line))

    def _set(self, job_id: str, state: MessageState) -> None:
        self.states.pop(job_id, None)  # keeps the table in the order of the lines
        self.states[job_id] = state
        if state.heartbeat is None:
            self.claimed.discard(job_id)
        else:
            self.claimed.add(job_id)
        if state.order is not None and state.order > self.last_order:
            self.last_order = state.order


def _line(job_id: str, state: MessageState) -> bytes:
    return msgspec.json.encode((job_id, state)) + b"\n"
