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
from jqueue.formats.notes import flush as flush_names
from jqueue.runtime.posix_files import closing, create_file, flush, give_to_owner_of, open_file, read_all, write_all

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


def read_file(path: str) -> tuple[bytearray, os.stat_result] | None:
    """Return the content of a file and its status before the read; None if the file is not there.

    Raises:
        StorageFatalError: the path is not a regular file.
        OSError: the system refused.
    """
    try:
        descriptor, status = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with closing(descriptor):
        return bytearray(read_all(descriptor, status.st_size)), status


class Journal:
    """The journal of one file, as it was last read.

    Args:
        path: path of the journal.

    Attributes:
        states: states of the messages, by id, in the order of their lines.
        last_order: largest place in the journal.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.states: dict[str, MessageState] = {}
        self.last_order: int = 0
        self._content: bytearray | None = bytearray()  # None: the file is gone
        self._lines = 0

    def read(self) -> None:
        """Read the new lines. If the file is gone, the known states count: the next write writes all of them."""
        file = read_file(self.path)
        if file is None:
            self._content = None
            return
        content, known = file[0], self._content or bytearray()
        if self._content is None or not content.startswith(known):
            self.states, self.last_order, self._lines, known = {}, 0, 0, bytearray()
        self._content = content
        lines = content[known.rfind(b"\n") + 1 : content.rfind(b"\n") + 1].splitlines()
        self._lines += len(lines)
        for line in lines:
            with suppress(ValueError):  # jqueue has not written it, or not to its end
                self._set(*_decode(line))

    def _set(self, job_id: str, state: MessageState) -> None:
        self.states.pop(job_id, None)
        self.states[job_id] = state
        self.last_order = max(self.last_order, state.order or 0)

    def is_outdated(self) -> bool:
        """Return True if the file is gone, or if most of its lines are out of date."""
        if self._content is None or len(self._content) < _COMPACT_BYTES:
            return self._content is None
        return self._lines > 4 * (KEPT_FINISHED + sum(not state.finished for state in self.states.values()))

    def append(self, changes: Mapping[str, MessageState], *, durable: bool) -> None:
        """Append new states in one write. Only under the lock, and after `read`.

        Args:
            changes: new states, by id.
            durable: True if the lines must be on the disk when this returns.

        Raises:
            OSError: the system refused.
        """
        content = self._content or b"\n"
        lines = b"" if content.endswith(b"\n") else b"\n"  # a crash has cut the last line
        lines += b"".join(_line(job_id, state) for job_id, state in changes.items())
        descriptor, status = open_file(self.path, os.O_RDWR | os.O_APPEND)
        with closing(descriptor):
            try:
                write_all(descriptor, lines)
            except OSError:
                os.ftruncate(descriptor, status.st_size)
                raise
            if durable:
                flush(descriptor)
        for job_id, state in changes.items():  # the next read will not see them if the file is removed before
            self._set(job_id, state)

    def replace(self, states: Mapping[str, MessageState], owner: os.stat_result) -> None:
        """Replace the journal by these states. Only under the lock.

        Args:
            states: states of all messages that need one.
            owner: status of a file whose owner also gets the journal, so that the queue stays usable for that user
                after root has worked on it.

        Raises:
            OSError: the system refused. The journal is unchanged.
        """
        part = f"{self.path}.part"
        with suppress(FileNotFoundError):
            os.unlink(part)
        with closing(create_file(part)) as descriptor:
            give_to_owner_of(owner, descriptor)
            write_all(descriptor, b"".join(_line(job_id, state) for job_id, state in states.items()))
            flush(descriptor)
        os.rename(part, self.path)
        flush_names(os.path.dirname(self.path))
        self.states = dict(states)


def _line(job_id: str, state: MessageState) -> bytes:
    return msgspec.json.encode((job_id, state)) + b"\n"
