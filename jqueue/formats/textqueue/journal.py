"""The journal beside a TextQueue: attempts, claims, errors and places, which the original programs do not read.

Each line is a JSON object with the whole new state of one message; the last line of a message counts. Lines are
appended under the lock, all lines of one batch in one write. A line that a crash has cut, or that cannot be read, is
ignored: the state before it counts. Now and then a new journal with only the current states replaces the old one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from jqueue.domain.durations import LONGEST
from jqueue.domain.fields import LARGEST
from jqueue.formats.textqueue.open_file import OpenFile
from jqueue.runtime.posix_files import create_file, flush, give_to_owner_of, write_all

KEPT_FINISHED = 1_000
"""Number of finished messages to remember, each with the attempt that finished it."""

_COMPACT_BYTES = 1 << 16
_quoted = json.encoder.encode_basestring_ascii
_HEAD = b'{"jq":1}\n'


class MessageState(NamedTuple):
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
        hidden: True if the message is marked as processed although it is only claimed.
    """

    attempt: int = 0
    failures: int = 0
    heartbeat: int | None = None
    timeout: float | None = None
    order: int | None = None
    error: str | None = None
    dead_at: int | None = None
    finished: bool = False
    hidden: bool = False


NO_STATE = MessageState()


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
            write_all(descriptor, _HEAD + b"".join(_line(job_id, state) for job_id, state in states.items()))
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
        try:
            fields = json.loads(line)
            self._set(fields["i"], _parse_state(fields))
        except (ValueError, TypeError, KeyError, RecursionError):
            return

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
    """Return the line of a state, as `json` would write it, in a fraction of the time."""
    attempt, failures, heartbeat, timeout, order, error, dead_at, finished, hidden = state
    line = f'{{"i":{_quoted(job_id)},"a":{attempt}'
    if failures:
        line += f',"f":{failures}'
    if heartbeat is not None:
        line += f',"c":[{heartbeat},{float(timeout or 0)!r}]'
    if order is not None:
        line += f',"o":{order}'
    if error is not None:
        line += f',"e":{_quoted(error)}'
    if dead_at is not None:
        line += f',"d":{dead_at}'
    if finished:
        line += ',"x":1'
    if hidden:
        line += ',"h":1'
    return f"{line}}}\n".encode("ascii")


def _parse_state(fields: dict[str, Any]) -> MessageState:
    """Return the state in a line.

    Raises:
        ValueError, TypeError, KeyError: jqueue did not write the line.
    """
    heartbeat, timeout = fields.get("c", (None, None))
    counts = (fields["a"], fields.get("f", 0), fields.get("o", 0), fields.get("d", 0), heartbeat or 0)
    if not all(type(count) is int and 0 <= count < LARGEST << 8 for count in counts) or not isinstance(
        fields["i"], str
    ):
        raise ValueError("not a line of a journal")
    if heartbeat is not None and not 0 <= timeout <= LONGEST:
        raise ValueError("not a claim")
    error = fields.get("e")
    return MessageState(
        attempt=fields["a"],
        failures=fields.get("f", 0),
        heartbeat=heartbeat,
        timeout=None if heartbeat is None else float(timeout),
        order=fields.get("o"),
        error=error if isinstance(error, str) else None,
        dead_at=fields.get("d"),
        finished="x" in fields,
        hidden="h" in fields,
    )
